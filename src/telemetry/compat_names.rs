//! Exports Tidegate's counters under the Prometheus names of envoyproxy/ratelimit, for existing
//! dashboards and alerts.
//!
//! As in envoyproxy/ratelimit, counter names do not end in `_total`. The labels `domain`, `key1`
//! and `key2` are the first three dot-separated parts of the rule's path. Rules that differ only in
//! later parts share a series. Tidegate's own names are in `decision_metrics`.

use std::collections::BTreeMap;
use std::fmt;
use std::iter;
use std::sync::atomic::Ordering::Relaxed;

use super::counters::Telemetry;
use super::hit_counts::HitCounts;
use super::metric::{
    MetricFamily, MetricSink, MetricValue, emit_rows, emit_series, emit_single, emit_table, gauge,
    histogram_seconds, metrics, unsuffixed_counter as counter,
};
use super::rule_metric_rows::OVERRIDES_PATH;
use crate::domain::RpcOutcome;

/// Name prefix of the metric families with one series per rule.
const RULE_PREFIX: &str = "ratelimit_service_rate_limit_";

metrics! { RULE_METRICS ["domain", "key1", "key2"]: HitCounts,
    counter "ratelimit_service_rate_limit_total_hits" "Requested hits", |hits| hits.total;
    counter "ratelimit_service_rate_limit_within_limit" "Hits that passed", |hits| hits.within;
    counter "ratelimit_service_rate_limit_over_limit" "Hits that were rejected", |hits| hits.over;
    counter "ratelimit_service_rate_limit_near_limit" "Hits near the limit", |hits| hits.near;
    counter "ratelimit_service_rate_limit_shadow_mode" "Hits over a limit in shadow mode", |hits| hits.shadow;
}

const METHOD_LABELS: [(&str, &str); 1] = [("grpc_method", "ShouldRateLimit")];
const REQUESTS: MetricFamily =
    counter("ratelimit_service_total_requests", "Answered calls").with_labels(&["grpc_method"]);
const RESPONSE_TIME: MetricFamily = histogram_seconds(
    "ratelimit_service_response_time",
    "Time from receiving a call to its response",
)
.with_labels(&["grpc_method"]);
const ERRORS: MetricFamily = counter(
    "ratelimit_service_should_rate_limit_error",
    "Calls without a decision: `redis_error` without an answer from Redis, else `service_error`",
)
.with_labels(&["err_type"]);

metrics! { PROCESS_METRICS []: Telemetry,
    counter "ratelimit_service_global_shadow_mode" "Calls over a limit that passed because of global shadow mode", |telemetry| telemetry.sum_workers().shadowed;
    counter "ratelimit_service_config_load_success" "Successful policy loads", |telemetry| telemetry.loads.load(Relaxed);
    counter "ratelimit_service_config_load_error" "Failed policy reloads", |telemetry| telemetry.load_errors.load(Relaxed);
}

/// Fraction of CPU time that a Go process spends on garbage collection. Reported because Envoy
/// Gateway's dashboard has a panel for this metric.
const GC_CPU: MetricFamily =
    gauge("go_memstats_gc_cpu_fraction", "Always 0, because there is no garbage collector");

impl Telemetry {
    /// Returns the statistics that envoyproxy/ratelimit sends to statsd, one `name: value` per
    /// line, under the same names.
    pub fn statsd_lines(&self) -> String {
        let (tables, detailed) = (self.rule_tables(), self.detailed_counters.rows());
        let rows =
            self.rows(&tables, &detailed).into_iter().flat_map(|((domain, path), counts)| {
                let path = row_statsd_name(domain, path);
                RULE_METRICS.iter().map(move |(family, value)| {
                    let name = family.name.trim_start_matches(RULE_PREFIX);
                    (format!("ratelimit.service.rate_limit.{path}.{name}"), value(&counts.hits))
                })
            });
        let process = PROCESS_METRICS.iter().map(|(family, value)| {
            let name = family.name.trim_start_matches("ratelimit_service_");
            (format!("ratelimit.service.{name}"), value(self))
        });
        let mut lines: Vec<String> =
            rows.chain(process).map(|(name, value)| format!("{name}: {value}\n")).collect();
        lines.sort_unstable();
        lines.concat()
    }

    /// Writes the metrics that envoyproxy/ratelimit has, under its names.
    ///
    /// # Errors
    ///
    /// Returns the first error of the sink.
    pub(crate) fn emit_ratelimit_names(&self, sink: &mut dyn MetricSink) -> fmt::Result {
        let (tables, detailed) = (self.rule_tables(), self.detailed_counters.rows());
        let mut rows: BTreeMap<[String; 3], HitCounts> = BTreeMap::new();
        for ((domain, path), counts) in self.rows(&tables, &detailed) {
            rows.entry(statsd_labels(&row_statsd_name(domain, path)))
                .or_default()
                .add(&counts.hits);
        }
        let hits = rows.iter().map(|([domain, key1, key2], hits)| {
            let labels = [("domain", domain.as_str()), ("key1", key1), ("key2", key2)];
            let count = if key2.is_empty() { 2 } else { 3 };
            (labels[..count].to_vec(), hits)
        });
        emit_rows(sink, RULE_METRICS, hits)?;
        let totals = self.sum_workers();
        let calls = totals.outcomes.iter().sum();
        emit_series(sink, &REQUESTS, iter::once((METHOD_LABELS, calls)))?;
        let durations = || MetricValue::Histogram(totals.durations.clone());
        sink.write_family(&RESPONSE_TIME, &mut |emit| emit(&METHOD_LABELS, durations()))?;
        let calls_with = |outcome: RpcOutcome| totals.outcomes[outcome as usize];
        let store = calls_with(RpcOutcome::Unavailable);
        let service = calls_with(RpcOutcome::Invalid) + calls_with(RpcOutcome::Late);
        let errors = [("redis_error", store), ("service_error", service)];
        emit_series(
            sink,
            &ERRORS,
            errors.map(|(kind, calls)| ([("err_type", kind)], calls)).into_iter(),
        )?;
        emit_table(sink, PROCESS_METRICS, self)?;
        emit_single(sink, &GC_CPU, 0)
    }
}

/// Returns the statsd name of a row of the per-rule metrics. `path` is [`OVERRIDES_PATH`], a rule's
/// path, or a detailed path. The latter two begin with the domain.
fn row_statsd_name(domain: &str, path: &str) -> String {
    let path = match path {
        OVERRIDES_PATH => format!("{domain}.{OVERRIDES_PATH}"),
        path => path.to_owned(),
    };
    to_statsd_name(&path)
}

/// Returns the labels `domain`, `key1` and `key2` that the default statsd mapping of
/// envoyproxy/ratelimit derives from a statsd name: the first three dot-separated parts. Missing
/// parts are empty. A dot in the domain's name also separates parts.
fn statsd_labels(statsd_name: &str) -> [String; 3] {
    let mut parts = statsd_name.split('.').map(str::to_owned);
    std::array::from_fn(|_| parts.next().unwrap_or_default())
}

/// Converts a path to a statsd name: `:`, `|`, and the dots of IPv4 addresses become `_`. Other
/// dots separate levels and are kept.
fn to_statsd_name(path: &str) -> String {
    let mut name = String::with_capacity(path.len());
    let mut rest = path;
    let mut after_digit = false;
    while let Some(first) = rest.chars().next() {
        let taken = if after_digit { None } else { ipv4_length(rest) };
        let length = taken.unwrap_or(first.len_utf8());
        let (piece, tail) = rest.split_at(length);
        let is_dot = |c| c == '.' && taken.is_some();
        name.extend(
            piece.chars().map(|c| if matches!(c, ':' | '|') || is_dot(c) { '_' } else { c }),
        );
        after_digit = piece.ends_with(|c: char| c.is_ascii_digit());
        rest = tail;
    }
    name
}

/// Returns the length in bytes of the IPv4 address at the start of a text, or `None` if the text
/// does not start with one.
fn ipv4_length(text: &str) -> Option<usize> {
    let mut length = 0;
    for part in 0..4 {
        let rest = &text[length..];
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        rest[..digits].parse::<u8>().ok()?;
        length += digits;
        if part < 3 {
            length += text[length..].starts_with('.').then_some(1)?;
        }
    }
    Some(length)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::domain::Observer;
    use crate::telemetry::prometheus::MetricsPage;

    #[test]
    fn a_path_is_split_into_domain_key1_and_key2() {
        let split = |domain, path| statsd_labels(&row_statsd_name(domain, path));
        assert_eq!(split("edge", "edge.client"), ["edge", "client", ""]);
        assert_eq!(split("edge", "edge.path_a.client.deeper"), ["edge", "path_a", "client"]);
        assert_eq!(
            split("edge", "edge.remote_address_10.0.0.1.client"),
            ["edge", "remote_address_10_0_0_1", "client"]
        );
        // The label that a test of Envoy Gateway asks for.
        assert_eq!(
            split("default/eg/http", "default/eg/http.route.masked_remote_address_0.0.0.0/0"),
            ["default/eg/http", "route", "masked_remote_address_0_0_0_0/0"]
        );
        assert_eq!(split("edge", "edge.time_10:30|x"), ["edge", "time_10_30_x", ""]);
        assert_eq!(
            split("edge", "edge.host_a.example.org"),
            ["edge", "host_a", "example"],
            "as envoyproxy/ratelimit does"
        );
        assert_eq!(split("a.test", "a.test.client"), ["a", "test", "client"], "the same");
        assert_eq!(split("edge", OVERRIDES_PATH), ["edge", "(override)", ""]);
        assert_eq!(to_statsd_name("d.ip_192.168.0.1.x"), "d.ip_192_168_0_1.x");
        assert_eq!(to_statsd_name("d.ip_999.168.0.1"), "d.ip_999.168.0.1");
        assert_eq!(to_statsd_name("d.v_1.2.3"), "d.v_1.2.3");
        assert_eq!(to_statsd_name("d.\u{fc}.10.0.0.1"), "d.\u{fc}.10_0_0_1");
    }

    #[test]
    fn calls_without_a_decision_are_errors_of_redis_or_of_the_service() {
        let telemetry = Arc::new(Telemetry::new(0.8));
        for (calls, outcome) in [
            (1, RpcOutcome::Decided),
            (2, RpcOutcome::Invalid),
            (4, RpcOutcome::Late),
            (8, RpcOutcome::Unavailable),
        ] {
            for _ in 0..calls {
                telemetry.on_response(outcome, Duration::from_micros(1));
            }
        }
        let own = Arc::clone(&telemetry);
        let page = MetricsPage::new(Arc::new(move |sink| own.emit(sink)));
        let page = page.with_ratelimit_names(telemetry);
        let page = page.plain_text().unwrap();
        for line in [
            r#"ratelimit_service_should_rate_limit_error{err_type="redis_error"} 8"#,
            r#"ratelimit_service_should_rate_limit_error{err_type="service_error"} 6"#,
            r#"ratelimit_service_total_requests{grpc_method="ShouldRateLimit"} 15"#,
        ] {
            assert!(page.lines().any(|each| each == line), "{line} in\n{page}");
        }
    }
}
