//! Test that the tables in `docs/METRICS.md` match the metrics that the program emits.

use std::fmt::{self, Write as _};
use std::fs;
use std::path::Path;
use std::sync::Arc;

use super::otlp_exporters::new_stats;
use super::process_metrics;
use super::server_config::response_config;
use crate::app::Configuration;
use crate::app::admin_wiring::AdminWiring;
use crate::app::log_level::LogLevelControl;
use crate::app::operator_overrides::OperatorOverrides;
use crate::app::peers::Peers;
use crate::app::request_rates::RateSampler;
use crate::clock::Clock;
use crate::decide::{Decider, GlobalModes};
use crate::domain::{HeldMemory, LineFormat, LogLimiter, UnreadableCallers, Verbosity};
use crate::limiter::any_store::AnyStore;
use crate::policy::{Policy, Secret};
use crate::server::{Health, RlsService};
use crate::settings::{Settings, Sources};
use crate::telemetry::{
    MetricFamily, MetricKind, MetricSink, SeriesEmitter, Telemetry, init_logging,
};

const TABLE_HEAD: &str = "| metric | kind | labels | meaning |\n|---|---|---|---|\n";
const END_MARKER: &str = "\n<!-- end generated -->";

/// Sink that keeps the families and ignores their series.
#[derive(Default)]
struct FamilyList(Vec<MetricFamily>);

impl MetricSink for FamilyList {
    fn write_family(
        &mut self,
        family: &MetricFamily,
        _: &mut dyn FnMut(SeriesEmitter<'_>) -> fmt::Result,
    ) -> fmt::Result {
        self.0.push(*family);
        Ok(())
    }
}

/// Returns the families of all metrics in scrape order: ours, those of the process, and those of
/// envoyproxy/ratelimit.
fn all_families() -> [Vec<MetricFamily>; 3] {
    // Nothing connects to Redis: the runtime of the test does not run.
    let sources = Sources::from_flags(&[("redis-url", "127.0.0.1:1")]);
    let (settings, _) = Settings::read(&sources).unwrap();
    let telemetry = Arc::new(Telemetry::new(0.8));
    let store = AnyStore::open(&settings, &Secret::default(), Vec::new()).unwrap();
    let policy = Arc::new(Policy::build(Vec::new(), Secret::default()));
    let decider = Decider::new(policy, store, Arc::clone(&telemetry), GlobalModes::default());
    let decider = Arc::new(decider);
    let responses = response_config(&settings).unwrap();
    let rate_limit = Arc::new(RlsService::new(Arc::clone(&decider), Clock::System, responses));
    let (overrides, _) = OperatorOverrides::new(&decider);
    let logs = init_logging(Verbosity::Off, LineFormat::Text);
    let wiring = AdminWiring {
        configuration: Configuration::read(sources).unwrap(),
        decider,
        rate_limit,
        health: Health::default(),
        telemetry: Arc::clone(&telemetry),
        connection_stats: Arc::default(),
        unreadable: Arc::new(UnreadableCallers::new(LogLimiter::unlimited())),
        http_memory: HeldMemory::new(0, 0).add_caller(),
        tls_counters: Some(Arc::default()),
        control_plane: Some(Arc::default()),
        overrides,
        log_level: LogLevelControl::new(logs, Verbosity::Off),
        token: None,
        peers: Peers::start(&[]),
        rates: RateSampler::default(),
    };
    let [mut ours, mut process, mut theirs] = <[FamilyList; 3]>::default();
    wiring.emit_metrics(&new_stats(), &mut ours).unwrap();
    telemetry.emit_ratelimit_names(&mut theirs).unwrap();
    process_metrics::source()(&mut process).unwrap();
    [ours.0, process.0, theirs.0]
}

fn format_row(prefix: &str, family: &MetricFamily) -> String {
    let (kind, suffix) = match family.kind {
        MetricKind::Counter => ("counter", "_total"),
        MetricKind::UnsuffixedCounter => ("counter", ""),
        MetricKind::Gauge => ("gauge", ""),
        MetricKind::Histogram => ("histogram", ""),
    };
    let (name, labels, help) = (family.full_name(), family.labels.join(", "), family.help);
    format!("| `{prefix}{name}{suffix}` | {kind} | {labels} | {help} |\n")
}

/// A family is stable if the first table has its name, and internal if the second has it.
#[tokio::test]
async fn metrics_docs_match_metric_families() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/METRICS.md");
    let page = fs::read_to_string(page).unwrap();
    let shown = |section: &str| {
        let (_, rest) = page.split_once(&format!("<!-- generated: {section} -->\n")).unwrap();
        rest.split_once(END_MARKER).unwrap().0.to_owned()
    };
    let [ours, process, theirs] = all_families();
    let stable = shown("stable metrics");
    for (section, prefix, families) in [
        ("stable metrics", "tidegate_", &ours),
        ("internal metrics", "tidegate_", &ours),
        ("metrics of the process", "", &process),
        ("metrics of envoyproxy/ratelimit", "", &theirs),
    ] {
        let mut table = TABLE_HEAD.to_owned();
        for row in families.iter().map(|family| format_row(prefix, family)) {
            let (name, _) = row.split_once("` |").unwrap();
            if stable.contains(&format!("{name}` |")) == (section == "stable metrics") {
                table.write_str(&row).unwrap();
            }
        }
        let is_same = shown(section) == table;
        assert!(is_same, "docs/METRICS.md differs from the program; correct is:\n{table}");
    }
}
