//! The page of metrics is what the program shows: every metric, with its kind and its meaning.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use crate::http;
use crate::process::{FIVE_A_DAY, Serving, directory, tidegate};
use crate::redis::Server;

/// What a metric is labelled with, by the start of its name; the first that fits.
const LABELS: [(&str, &str); 14] = [
    ("tidegate_rule_decisions", "domain, rule, code, source"),
    ("tidegate_rule_", "domain, rule"),
    ("tidegate_decisions", "code, source"),
    ("tidegate_calls", "status"),
    ("tidegate_policy_info", "fingerprint"),
    ("tidegate_build_info", "version"),
    ("tidegate_redis_breaker_state", "node, state"),
    ("tidegate_redis_eviction_info", "node, policy"),
    ("tidegate_redis_overruns", ""),
    ("tidegate_redis_remembered", ""),
    ("tidegate_redis_spared", ""),
    ("tidegate_redis_clamped", ""),
    ("tidegate_otlp_exports", "signal, result"),
    ("tidegate_redis_unreadable", ""),
];
/// Of Redis, and not of a node.
const OF_ALL_NODES: [&str; 3] =
    ["tidegate_redis_split_calls", "tidegate_redis_two_rounds", "tidegate_redis_refunded"];

const BEGIN: &str = "| metric | kind | labels | meaning |\n|---|---|---|---|\n";

fn labels(name: &str) -> &'static str {
    if let Some((_, labels)) = LABELS.iter().find(|(start, _)| name.starts_with(start)) {
        return labels;
    }
    let of_node = name.starts_with("tidegate_redis_")
        && !OF_ALL_NODES.iter().any(|start| name.starts_with(start));
    if of_node { "node" } else { "" }
}

/// The table as the program has it.
fn table(metrics: &str) -> String {
    let mut table = BEGIN.to_owned();
    let mut help = "";
    for line in metrics.lines() {
        if let Some(told) = line.strip_prefix("# HELP ") {
            help = told.split_once(' ').expect("a help").1;
        } else if let Some(told) = line.strip_prefix("# TYPE ") {
            let (name, kind) = told.split_once(' ').expect("a kind");
            let labels = labels(name);
            writeln!(table, "| `{name}` | {kind} | {labels} | {help} |").expect("a string");
        }
    }
    table
}

/// The labels that series of a metric really have.
fn check_labels(metrics: &str) {
    for line in metrics.lines().filter(|line| !line.starts_with('#')) {
        let (series, _) = line.rsplit_once(' ').expect("a value");
        let (name, pairs) = series.split_once('{').unwrap_or((series, ""));
        let pairs = pairs.trim_end_matches('}').split(',').filter(|pair| !pair.is_empty());
        let names = pairs.map(|pair| pair.split_once('=').map_or("", |(name, _)| name));
        let found: Vec<&str> = names.filter(|name| *name != "le").collect();
        assert_eq!(found.join(", "), labels(name), "{line}");
    }
}

#[test]
fn the_page_of_metrics_lists_every_metric_as_it_is() {
    let redis = Server::start(&[]);
    let files = directory(&[("policy.yaml", FIVE_A_DAY)]);
    let mut command = tidegate();
    command.args(["serve", "--policy"]).arg(files.path().join("policy.yaml"));
    command.env("REDIS_URL", format!("127.0.0.1:{}", redis.port));
    let serving = Serving::start(&mut command, files);
    serving.ask("ann");
    let metrics = http::get(serving.port("http"), "/metrics").body;
    check_labels(&metrics);
    let table = table(&metrics);
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/METRICS.md");
    let held = fs::read_to_string(page).unwrap_or_default();
    if !held.contains(&table) {
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("METRICS.md");
        fs::write(&file, table).expect("a writable directory");
        panic!("config/METRICS.md has not the table of metrics; {} is it", file.display());
    }
}
