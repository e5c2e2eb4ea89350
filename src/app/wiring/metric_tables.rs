//! Test that the tables in `docs/METRICS.md` match the metric families they are generated from.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use super::{control_plane_metrics, process_metrics, store_metrics};
use crate::telemetry::{MetricFamily, MetricKind, compat_families, families, otlp};

const TABLE_HEAD: &str = "| metric | kind | labels | meaning |\n|---|---|---|---|\n";
const END_MARKER: &str = "\n<!-- end generated -->";

/// Formats a Markdown table with one row per metric family.
fn format_table(prefix: &str, families: impl IntoIterator<Item = MetricFamily>) -> String {
    let mut table = TABLE_HEAD.to_owned();
    for family in families {
        let (kind, suffix) = match family.kind {
            MetricKind::Counter => ("counter", "_total"),
            MetricKind::UnsuffixedCounter => ("counter", ""),
            MetricKind::Gauge => ("gauge", ""),
            MetricKind::Histogram => ("histogram", ""),
        };
        let (name, labels, help) = (family.full_name(), family.labels.join(", "), family.help);
        writeln!(table, "| `{prefix}{name}{suffix}` | {kind} | {labels} | {help} |").unwrap();
    }
    table
}

#[test]
fn metrics_docs_match_metric_families() {
    let ours = families()
        .into_iter()
        .chain(store_metrics::families())
        .chain(control_plane_metrics::families())
        .chain([otlp::EXPORTS]);
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/METRICS.md");
    let page = fs::read_to_string(page).unwrap();
    for (begin, table) in [
        ("<!-- generated: metrics -->\n", format_table("tidegate_", ours)),
        (
            "<!-- generated: metrics of envoyproxy/ratelimit -->\n",
            format_table("", compat_families().into_iter().chain(process_metrics::families())),
        ),
    ] {
        let (_, rest) = page.split_once(begin).expect("the start of the generated section");
        let (shown, _) = rest.split_once(END_MARKER).expect("its end");
        assert!(shown == table, "docs/METRICS.md differs from the program; correct is:\n{table}");
    }
}
