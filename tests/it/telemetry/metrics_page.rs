//! `docs/METRICS.md` names exactly the metrics and labels that a scrape of the real binary has.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::support::http;
use crate::support::redis_server::Server;
use crate::support::tidegate_process::{FIVE_A_DAY, Tidegate, directory, tidegate};

/// The kind and the labels of every metric in the page's tables, by name.
fn documented() -> BTreeMap<String, (String, String)> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/METRICS.md");
    let page = fs::read_to_string(page).unwrap();
    let row = |line: &str| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, name, kind, labels, ..] = cells[..] else { return None };
        let name = name.strip_prefix('`')?.strip_suffix('`')?;
        Some((name.to_owned(), (kind.to_owned(), labels.to_owned())))
    };
    page.lines().filter_map(row).collect()
}

#[test]
fn a_scrape_has_the_documented_metrics_with_the_documented_labels() {
    let redis = Server::start(&[]);
    let files = directory(&[("policy.yaml", FIVE_A_DAY)]);
    let mut command = tidegate();
    command.args(["serve", "--policy"]).arg(files.path().join("policy.yaml"));
    command.env("REDIS_URL", format!("127.0.0.1:{}", redis.port));
    command.args(["--ratelimit-metric-names", "true"]);
    let serving = Tidegate::start(&mut command, files);
    serving.ask("ann");
    let page = http::get(serving.port("http"), "/metrics").body;
    let documented = documented();
    let mut scraped = 0;
    for line in page.lines() {
        if let Some(family) = line.strip_prefix("# TYPE ") {
            let (name, kind) = family.split_once(' ').unwrap();
            // The older text format has no word for counters without a suffix.
            let kind = if kind == "untyped" { "counter" } else { kind };
            let row = documented.get(name).map(|(kind, _)| kind.as_str());
            assert_eq!(row, Some(kind), "{name}");
            scraped += 1;
        } else if !line.starts_with('#') {
            let (series, _) = line.rsplit_once(' ').unwrap();
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            let labels = labels.trim_end_matches('}').split(',').filter(|label| !label.is_empty());
            let names = labels.map(|label| label.split_once('=').unwrap().0);
            let names: Vec<&str> = names.filter(|name| *name != "le").collect();
            let family = ["_bucket", "_sum", "_count"]
                .iter()
                .filter_map(|suffix| name.strip_suffix(suffix))
                .find(|family| documented.contains_key(*family));
            let (_, labels) = &documented[family.unwrap_or(name)];
            // A rule with one level has no `key2`.
            let labels = labels.strip_suffix(", key2").filter(|_| !names.contains(&"key2"));
            let labels = labels.unwrap_or(&documented[family.unwrap_or(name)].1);
            assert_eq!(names.join(", "), labels, "{line}");
        }
    }
    assert!(scraped > 80, "{scraped}");
}
