//! Exports Tidegate's counters under the Prometheus names of envoyproxy/ratelimit, for existing
//! dashboards and alerts.
//!
//! As in envoyproxy/ratelimit, counter names do not end in `_total`, the labels `key1` and `key2`
//! are the first two levels of the rule's path, and deeper levels are summed up. `families` has
//! Tidegate's own names.

use std::collections::BTreeMap;
use std::fmt;
use std::net::Ipv4Addr;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

use super::counters::{ProcessTotals, Telemetry};
use super::hit_counts::HitCounts;
use super::metric::{
    MetricFamily, MetricSink, MetricUnit, MetricValue, emit_single, histogram,
    unsuffixed_counter as counter,
};
use super::prometheus_writer::PrometheusWriter;
use crate::domain::RpcOutcome;

const fn of_rule(name: &'static str, help: &'static str) -> MetricFamily {
    counter(name, help).with_labels(&["domain", "key1", "key2"])
}

/// Metric family with one series per rule, and the function that reads a series' value.
type RuleMetric = (MetricFamily, fn(&HitCounts) -> u64);

const RULES: [RuleMetric; 5] = [
    (of_rule("ratelimit_service_rate_limit_total_hits", "Requested hits"), |hits| hits.total),
    (of_rule("ratelimit_service_rate_limit_within_limit", "Hits that passed"), |hits| hits.within),
    (of_rule("ratelimit_service_rate_limit_over_limit", "Hits that were rejected"), |hits| {
        hits.over
    }),
    (of_rule("ratelimit_service_rate_limit_near_limit", "Hits near the limit"), |hits| hits.near),
    (
        of_rule("ratelimit_service_rate_limit_shadow_mode", "Hits over a limit in shadow mode"),
        |hits| hits.shadow,
    ),
];

const METHOD: [(&str, &str); 1] = [("grpc_method", "ShouldRateLimit")];
const REQUESTS: MetricFamily =
    counter("ratelimit_service_total_requests", "Answered calls").with_labels(&["grpc_method"]);
const RESPONSE_TIME: MetricFamily =
    histogram("ratelimit_service_response_time", "Time from receiving a call to its response")
        .in_unit(MetricUnit::Seconds)
        .with_labels(&["grpc_method"]);
const ERRORS: MetricFamily = counter(
    "ratelimit_service_should_rate_limit_error",
    "Calls without a decision: `redis_error` without an answer of the store, else `service_error`",
)
.with_labels(&["err_type"]);

/// Metric family without labels for the whole process, and the function that reads its value.
type ProcessMetric = (MetricFamily, fn(&ProcessTotals) -> u64);

const LOADS: [ProcessMetric; 2] = [
    (counter("ratelimit_service_config_load_success", "Successful policy loads"), |totals| {
        totals.loads
    }),
    (counter("ratelimit_service_config_load_error", "Failed policy reloads"), |totals| {
        totals.load_errors
    }),
];

/// Lists the families with envoyproxy/ratelimit names in scrape order, for docs/METRICS.md.
#[cfg(test)]
pub(crate) fn compat_families() -> Vec<MetricFamily> {
    let rules = RULES.iter().map(|(family, _)| *family);
    let loads = LOADS.iter().map(|(family, _)| *family);
    rules.chain([REQUESTS, RESPONSE_TIME, ERRORS]).chain(loads).collect()
}

/// Prometheus collector that encodes Tidegate's counters under envoyproxy/ratelimit's names.
#[derive(Debug)]
pub(super) struct CompatMetrics(pub(super) Arc<Telemetry>);

impl Collector for CompatMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        emit_all(&self.0, &mut PrometheusWriter(&mut encoder))
    }
}

fn emit_all(telemetry: &Telemetry, sink: &mut dyn MetricSink) -> fmt::Result {
    let tables = telemetry.rule_tables();
    let mut rows: BTreeMap<[String; 3], HitCounts> = BTreeMap::new();
    for (rule, counters) in &tables.present.by_name {
        let [key1, key2] = key_labels(&rule.domain, &rule.path);
        rows.entry([rule.domain.to_string(), key1, key2]).or_default().add(&counters.hits());
    }
    for (family, value) in &RULES {
        sink.family(family, &mut |emit| {
            rows.iter().try_for_each(|([domain, key1, key2], hits)| {
                let labels = [("domain", domain.as_str()), ("key1", key1), ("key2", key2)];
                let labels = if key2.is_empty() { &labels[..2] } else { &labels };
                emit(labels, MetricValue::Number(value(hits)))
            })
        })?;
    }
    let totals = telemetry.sum_workers();
    let calls = totals.outcomes.iter().sum();
    sink.family(&REQUESTS, &mut |emit| emit(&METHOD, MetricValue::Number(calls)))?;
    let durations = || MetricValue::Histogram(totals.durations.clone());
    sink.family(&RESPONSE_TIME, &mut |emit| emit(&METHOD, durations()))?;
    let calls_with = |outcome: RpcOutcome| totals.outcomes[outcome as usize];
    sink.family(&ERRORS, &mut |emit| {
        let store = calls_with(RpcOutcome::Unavailable);
        let service = calls_with(RpcOutcome::Invalid) + calls_with(RpcOutcome::Late);
        emit(&[("err_type", "redis_error")], MetricValue::Number(store))?;
        emit(&[("err_type", "service_error")], MetricValue::Number(service))
    })?;
    LOADS.iter().try_for_each(|(family, value)| emit_single(sink, family, value(&totals)))
}

/// Returns the first two levels of a rule's path in the format of envoyproxy/ratelimit, which
/// splits paths at dots and replaces the dots of IPv4 addresses, `:` and `|` with underscores.
fn key_labels(domain: &str, path: &str) -> [String; 2] {
    let path = path.strip_prefix(domain).and_then(|rest| rest.strip_prefix('.')).unwrap_or(path);
    let clean = path.replace([':', '|'], "_");
    let clean = without_addresses(&clean);
    let mut levels = clean.split('.').map(str::to_owned);
    [levels.next().unwrap_or_default(), levels.next().unwrap_or_default()]
}

/// Replaces the dots in IPv4 addresses with underscores.
fn without_addresses(path: &str) -> String {
    // An address is four numbers separated by dots. The first may be preceded by a key and `_`, and
    // a fifth number may follow the last.
    let parts: Vec<&str> = path.split('.').collect();
    let mut out = String::with_capacity(path.len());
    let mut at = 0;
    while at < parts.len() {
        if at > 0 {
            out.push('.');
        }
        let four = parts.get(at..at + 4).filter(|four| {
            let first = four[0].rsplit('_').next().unwrap_or_default();
            let last = four[3].split('_').next().unwrap_or_default();
            format!("{first}.{}.{}.{last}", four[1], four[2]).parse::<Ipv4Addr>().is_ok()
        });
        match four {
            Some(four) => {
                out += &four.join("_");
                at += 4;
            }
            None => {
                out += parts[at];
                at += 1;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_split_into_key1_and_key2() {
        let split = |path| key_labels("edge", path);
        assert_eq!(split("edge.client"), ["client", ""]);
        assert_eq!(split("edge.path_a.client.deeper"), ["path_a", "client"]);
        assert_eq!(
            split("edge.remote_address_10.0.0.1.client"),
            ["remote_address_10_0_0_1", "client"]
        );
        assert_eq!(split("edge.time_10:30|x"), ["time_10_30_x", ""]);
        assert_eq!(
            split("edge.host_a.example.org"),
            ["host_a", "example"],
            "as envoyproxy/ratelimit does"
        );
    }
}
