//! The table of metrics in `docs/METRICS.md` is generated from the metric families.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use super::store_metrics;
use crate::telemetry::{Family, Kind, families, otlp};

const BEGIN: &str = "<!-- generated: metrics -->\n";
const END: &str = "\n<!-- end generated -->";

fn table() -> String {
    let all = families().into_iter().chain(store_metrics::families()).chain([otlp::EXPORTS]);
    let mut table = "| metric | kind | labels | meaning |\n|---|---|---|---|\n".to_owned();
    for family in all {
        let (kind, suffix) = kind(&family);
        let (name, labels, help) = (family.full_name(), family.labels.join(", "), family.help);
        writeln!(table, "| `tidegate_{name}{suffix}` | {kind} | {labels} | {help} |").unwrap();
    }
    table
}

/// The kind as Prometheus calls it, and the suffix that the name of a counter gets.
fn kind(family: &Family) -> (&'static str, &'static str) {
    match family.kind {
        Kind::Counter => ("counter", "_total"),
        Kind::Gauge => ("gauge", ""),
        Kind::Histogram => ("histogram", ""),
        Kind::Bare => panic!("{} has no kind of ours", family.name),
    }
}

#[test]
fn the_page_lists_every_metric_as_it_is() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/METRICS.md");
    let page = fs::read_to_string(page).unwrap();
    let (_, rest) = page.split_once(BEGIN).expect("the start of the generated section");
    let (shown, _) = rest.split_once(END).expect("its end");
    let table = table();
    assert!(
        shown == table,
        "docs/METRICS.md has other metrics than the program; correct is:\n{table}"
    );
}
