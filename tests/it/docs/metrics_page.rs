//! `docs/METRICS.md` describes what a scrape shows: every metric, with its kind, its meaning and its labels.
//!
//! Not here: that the table is generated from the metric families (`src/app/wiring/tests.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::support::http;
use crate::support::redis_server::Server;
use crate::support::tidegate_process::{FIVE_A_DAY, Tidegate};

/// A row of the table.
struct Row {
    kind: String,
    labels: String,
    help: String,
}

fn table() -> BTreeMap<String, Row> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/METRICS.md");
    let page = fs::read_to_string(page).unwrap();
    let is_metric =
        |line: &&str| ["| `tidegate_", "| `process_"].iter().any(|start| line.starts_with(start));
    let rows = page.lines().filter(is_metric);
    rows.map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [name, kind, labels, help] = cells[..] else { panic!("{row}") };
        let [kind, labels, help] = [kind, labels, help].map(str::to_owned);
        (name.trim_matches('`').to_owned(), Row { kind, labels, help })
    })
    .collect()
}

/// The labels that series of a metric really have.
fn check_labels(metrics: &str, table: &BTreeMap<String, Row>) {
    for line in metrics.lines().filter(|line| !line.starts_with('#')) {
        let (series, _) = line.rsplit_once(' ').expect("a value");
        let (name, pairs) = series.split_once('{').unwrap_or((series, ""));
        let pairs = pairs.trim_end_matches('}').split(',').filter(|pair| !pair.is_empty());
        let names = pairs.map(|pair| pair.split_once('=').map_or("", |(name, _)| name));
        let found: Vec<&str> = names.filter(|name| *name != "le").collect();
        // The series of a histogram have suffixes.
        let parts = ["_bucket", "_sum", "_count"];
        let family = parts.iter().find_map(|part| table.get(name.strip_suffix(part)?));
        let row = table.get(name).or(family).unwrap_or_else(|| panic!("{line}"));
        assert_eq!(found.join(", "), row.labels, "{line}");
    }
}

#[test]
fn every_metric_of_a_scrape_is_on_the_page_as_it_is() {
    let redis = Server::start(&[]);
    let url = format!("127.0.0.1:{}", redis.port);
    let serving = Tidegate::policy(FIVE_A_DAY, &["--redis-url", &url]);
    serving.ask("ann");
    let metrics = http::get(serving.port("http"), "/metrics").body;
    let table = table();
    check_labels(&metrics, &table);
    let (mut help, mut found) = ("", 0);
    for line in metrics.lines() {
        if let Some(told) = line.strip_prefix("# HELP ") {
            help = told.split_once(' ').expect("a help").1;
        } else if let Some(told) = line.strip_prefix("# TYPE ") {
            let (name, kind) = told.split_once(' ').expect("a kind");
            let row = table.get(name).unwrap_or_else(|| panic!("{name} is not on the page"));
            assert_eq!((kind, help), (row.kind.as_str(), row.help.as_str()), "{name}");
            found += 1;
        }
    }
    assert!(found > 80, "{found}");
}

/// Names in a text that begin with `tidegate_`, without the suffixes of the series of a histogram.
fn metric_names(text: &str) -> BTreeSet<&str> {
    let of = |rest: &'_ str| rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    // Those after a colon are names of recording rules.
    let starts =
        text.match_indices("tidegate_").filter(|(start, _)| !text[..*start].ends_with(':'));
    let starts = starts.map(|(start, _)| &text[start..]);
    let names = starts.map(|rest| &rest[..of(rest).unwrap_or(rest.len())]);
    let parts = ["_bucket", "_sum", "_count"];
    names
        .map(|name| parts.iter().find_map(|part| name.strip_suffix(part)).unwrap_or(name))
        .collect()
}

#[test]
fn the_dashboard_and_the_alerts_of_the_chart_use_stable_metrics_only() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |file: &str| fs::read_to_string(root.join(file)).unwrap();
    let page = read("docs/METRICS.md");
    let (stable, _) = page.split_once("### Internal metrics").unwrap();
    let stable = metric_names(stable);
    let mut used = 0;
    for file in ["dashboards/tidegate.json", "templates/prometheusrule.yaml"] {
        for name in metric_names(&read(&format!("charts/tidegate/{file}"))) {
            assert!(stable.contains(name), "{file}: {name} is not stable");
            used += 1;
        }
    }
    assert!(used > 40, "{used}");
}
