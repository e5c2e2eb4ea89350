//! Metric families of decisions, calls and policy loads.
//!
//! `counters` maintains the values; `prometheus` and `otlp` export them. `app::wiring` defines the
//! metrics of stores and connections.

use std::fmt;

use super::counters::{ProcessTotals, Telemetry};
use super::hit_counts::HitCounts;
use super::metric::{
    MetricFamily, MetricSink, MetricUnit, MetricValue, counter, emit_single, gauge, histogram,
};
use super::rule_counters::{CODES, SOURCES};
use crate::domain::{InvalidReason, RpcOutcome};

/// Metric family with one series per rule, and the function that reads a series' value.
type RuleMetric = (MetricFamily, fn(&HitCounts) -> u64);

const fn rule_counter(name: &'static str, help: &'static str) -> MetricFamily {
    counter(name, help).with_labels(&["domain", "rule"])
}

const RULE_METRICS: [RuleMetric; 7] = [
    (rule_counter("rule_hits", "Requested hits per rule"), |hits| hits.total),
    (rule_counter("rule_within_limit_hits", "Hits that passed"), |hits| hits.within),
    (rule_counter("rule_over_limit_hits", "Hits that were rejected"), |hits| hits.over),
    (rule_counter("rule_near_limit_hits", "Hits above near-limit-ratio of the limit"), |hits| {
        hits.near
    }),
    (rule_counter("rule_shadow_mode_hits", "Hits over a limit in shadow mode"), |hits| hits.shadow),
    (
        rule_counter(
            "rule_uncharged_hits",
            "Hits that passed this limit but were not charged, because another one rejected the call",
        ),
        |hits| hits.uncharged,
    ),
    (rule_counter("rule_refunded_hits", "Hits that clients refunded"), |hits| hits.refunded),
];

const LOST_BILLS: MetricFamily = counter(
    "lost_bills",
    "Bills (hits above 0 that a descriptor names) that were not charged in full: rejected after questions with 0 hits on the rule, or beyond the bound on a counter's debt",
)
.with_labels(&["cause"]);
const LOST_BILL_HITS: MetricFamily =
    counter("lost_bill_hits", "Hits of lost bills that were not charged").with_labels(&["cause"]);

const RULE_DECISIONS: MetricFamily = counter(
    "rule_decisions",
    "Decided checks per rule, code and source; only observed combinations have a series",
)
.with_labels(&["domain", "rule", "code", "source"]);
const DECISIONS: MetricFamily =
    counter("decisions", "Decided calls per code and source").with_labels(&["code", "source"]);
const CALLS: MetricFamily =
    counter("calls", "Answered calls per gRPC status").with_labels(&["status"]);
const INVALID_CALLS: MetricFamily = counter(
    "invalid_calls",
    "Calls answered with INVALID_ARGUMENT, by the first reason; by default Envoy lets their requests pass",
)
.with_labels(&["reason"]);
const DECISION_SECONDS: MetricFamily =
    histogram("decision", "Time from receiving a call to its response")
        .in_unit(MetricUnit::Seconds);

/// Process-wide metric family without labels, and the function that reads its value.
type ProcessMetric = (MetricFamily, fn(&ProcessTotals) -> u64);

const PROCESS_METRICS: [ProcessMetric; 8] = [
    (counter("domain_not_found", "Calls for a domain without a policy"), |totals| {
        totals.domain_not_found
    }),
    (
        counter(
            "global_shadow_mode",
            "Calls over a limit that passed because of global shadow mode",
        ),
        |totals| totals.shadowed,
    ),
    (
        counter(
            "returns_without_holder",
            "Releases of concurrency slots that named no holder and freed nothing",
        ),
        |totals| totals.releases_without_holder,
    ),
    (
        counter(
            "detailed_metric_overflows",
            "Checks counted without the request's values, because there are too many of them",
        ),
        |totals| totals.detailed_overflows,
    ),
    (counter("config_load_success", "Successful policy loads"), |totals| totals.loads),
    (counter("config_load_error", "Failed policy reloads"), |totals| totals.load_errors),
    (
        gauge("config_last_reload_successful", "1 if the last policy load succeeded, else 0"),
        |totals| u64::from(totals.last_load_succeeded),
    ),
    (
        gauge(
            "config_last_reload_success_timestamp",
            "Time of the last successful policy load, since the Unix epoch",
        )
        .in_unit(MetricUnit::Seconds),
        |totals| totals.last_policy_load_at_us,
    ),
];

const POLICY_INFO: MetricFamily =
    gauge("policy_info", "1, with the fingerprint of the policy in force")
        .with_labels(&["fingerprint"]);
const BUILD_INFO: MetricFamily =
    gauge("build_info", "1, with the running version").with_labels(&["version"]);

/// Lists the families of decisions, calls and policy loads in scrape order, for docs/METRICS.md.
#[cfg(test)]
pub(crate) fn families() -> Vec<MetricFamily> {
    let rules = RULE_METRICS.iter().map(|(family, _)| *family);
    let totals = PROCESS_METRICS.iter().map(|(family, _)| *family);
    let calls = [
        RULE_DECISIONS,
        LOST_BILLS,
        LOST_BILL_HITS,
        DECISIONS,
        CALLS,
        INVALID_CALLS,
        DECISION_SECONDS,
    ];
    rules.chain(calls).chain(totals).chain([POLICY_INFO, BUILD_INFO]).collect()
}

impl Telemetry {
    /// Writes the metrics of decisions, calls and policy loads to a sink.
    ///
    /// # Errors
    ///
    /// Returns the first error of the sink.
    pub(super) fn emit(&self, sink: &mut dyn MetricSink) -> fmt::Result {
        self.emit_rules(sink)?;
        self.emit_lost_bills(sink)?;
        emit_totals(&self.sum_workers(), sink)?;
        let tables = self.rule_tables();
        let fingerprint = tables.current.fingerprint.as_str();
        sink.write_family(&POLICY_INFO, &mut |emit| {
            emit(&[("fingerprint", fingerprint)], MetricValue::Number(1))
        })?;
        let version = env!("CARGO_PKG_VERSION");
        sink.write_family(&BUILD_INFO, &mut |emit| {
            emit(&[("version", version)], MetricValue::Number(1))
        })
    }

    fn emit_rules(&self, sink: &mut dyn MetricSink) -> fmt::Result {
        let sources = self.row_sources();
        let rows = sources.rows();
        for (family, value) in &RULE_METRICS {
            sink.write_family(family, &mut |emit| {
                rows.iter().try_for_each(|((domain, rule), counts)| {
                    let labels = [("domain", *domain), ("rule", *rule)];
                    emit(&labels, MetricValue::Number(value(&counts.hits)))
                })
            })?;
        }
        sink.write_family(&RULE_DECISIONS, &mut |emit| {
            for ((domain, rule), counts) in &rows {
                for (code, by_source) in CODES.into_iter().zip(&counts.checks) {
                    let observed = SOURCES.iter().zip(by_source).filter(|(_, count)| **count > 0);
                    for (source, count) in observed {
                        let labels = [
                            ("domain", *domain),
                            ("rule", *rule),
                            ("code", code),
                            ("source", source.as_str()),
                        ];
                        emit(&labels, MetricValue::Number(*count))?;
                    }
                }
            }
            Ok(())
        })
    }
}

impl Telemetry {
    fn emit_lost_bills(&self, sink: &mut dyn MetricSink) -> fmt::Result {
        let totals = self.lost_bills.totals();
        sink.write_family(&LOST_BILLS, &mut |emit| {
            totals.iter().try_for_each(|(cause, bills, _)| {
                emit(&[("cause", cause.as_str())], MetricValue::Number(*bills))
            })
        })?;
        sink.write_family(&LOST_BILL_HITS, &mut |emit| {
            totals.iter().try_for_each(|(cause, _, hits)| {
                emit(&[("cause", cause.as_str())], MetricValue::Number(*hits))
            })
        })
    }
}

fn emit_totals(totals: &ProcessTotals, sink: &mut dyn MetricSink) -> fmt::Result {
    sink.write_family(&DECISIONS, &mut |emit| {
        for (code, by_source) in CODES.into_iter().zip(&totals.decided) {
            for (source, count) in SOURCES.iter().zip(by_source) {
                emit(&[("code", code), ("source", source.as_str())], MetricValue::Number(*count))?;
            }
        }
        Ok(())
    })?;
    sink.write_family(&CALLS, &mut |emit| {
        RpcOutcome::ALL.iter().zip(&totals.outcomes).try_for_each(|(outcome, count)| {
            emit(&[("status", outcome.as_str())], MetricValue::Number(*count))
        })
    })?;
    sink.write_family(&INVALID_CALLS, &mut |emit| {
        InvalidReason::ALL.iter().zip(&totals.invalid).try_for_each(|(reason, count)| {
            emit(&[("reason", reason.as_str())], MetricValue::Number(*count))
        })
    })?;
    sink.write_family(&DECISION_SECONDS, &mut |emit| {
        emit(&[], MetricValue::Histogram(totals.durations.clone()))
    })?;
    PROCESS_METRICS.iter().try_for_each(|(family, value)| emit_single(sink, family, value(totals)))
}
