//! Metric families of decisions, calls and policy loads.
//!
//! `counters` maintains the values; `prometheus` and `otlp_metrics` export them. `app::wiring`
//! defines the metrics of stores and connections.

use std::fmt;
use std::iter;
use std::sync::atomic::Ordering::Relaxed;

use super::counters::{ProcessTotals, Telemetry};
use super::hit_counts::HitCounts;
use super::metric::{
    MetricFamily, MetricSink, MetricValue, counter, emit_rows, emit_series, emit_table, gauge,
    gauge_seconds, histogram_seconds, metrics,
};
use super::rule_counters::{CODES, CountsByCode};
use crate::domain::{InvalidReason, LossCause, NoLimitReason, RpcOutcome, Source};

metrics! { RULE_METRICS ["domain", "rule"]: HitCounts,
    counter "rule_hits" "Requested hits per rule", |hits| hits.total;
    counter "rule_within_limit_hits" "Hits that passed", |hits| hits.within;
    counter "rule_over_limit_hits" "Hits over the limit: rejected, unless shadow mode let them pass", |hits| hits.over;
    counter "rule_near_limit_hits" "Hits above the share --near-limit-ratio of the limit", |hits| hits.near;
    counter "rule_shadow_mode_hits" "Hits over a limit in shadow mode, which would be rejected", |hits| hits.shadow;
    counter "rule_uncharged_hits" "Hits that passed this limit but were not charged, because another one rejected the call", |hits| hits.uncharged;
    counter "rule_refunded_hits" "Hits that clients refunded", |hits| hits.refunded;
}

const LOST_BILLS: MetricFamily = counter(
    "lost_bills",
    "Bills (hits above 0 that a descriptor names) that were not charged in full: rejected after peeks (calls with 0 hits) on the rule, or beyond the bound on a counter's debt",
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
    histogram_seconds("decision", "Time from receiving a call to its response");

metrics! { PROCESS_METRICS []: ProcessTotals,
    counter "global_shadow_mode" "Calls over a limit that passed because of global shadow mode", |totals| totals.shadowed;
    counter "would_be_rejected_calls" "Calls that passed only because of shadow mode, global or of a rule", |totals| totals.would_be_rejected;
    counter "returns_without_holder" "Releases of concurrency slots that named no holder and freed nothing", |totals| totals.releases_without_holder;
}

metrics! { POLICY_LOADS []: Telemetry,
    counter "domain_not_found" "Calls for a domain without a policy", |telemetry| telemetry.count_unknown_domain_calls();
    counter "detailed_metric_overflows" "Checks counted without the request's values, because there are too many of them", |telemetry| telemetry.detailed_counters.overflows();
    counter "blocked_checks" "Checks rejected because their key is blocked, or that began a block", |telemetry| telemetry.blocked_checks.load(Relaxed);
    gauge "global_shadow_mode_enabled" "1 if --shadow-mode lets every call pass, else 0", |telemetry| u64::from(telemetry.global_shadow);
    counter "config_load_success" "Successful policy loads", |telemetry| telemetry.loads.load(Relaxed);
    counter "config_load_error" "Failed policy reloads", |telemetry| telemetry.load_errors.load(Relaxed);
    gauge "config_last_reload_successful" "1 if the last policy load succeeded, else 0", |telemetry| u64::from(telemetry.last_load_succeeded.load(Relaxed));
    gauge_seconds "config_last_reload_success_timestamp" "Time of the last successful policy load, since the Unix epoch", |telemetry| telemetry.last_policy_load_at_us.load(Relaxed);
}

const CALLS_WITHOUT_LIMIT: MetricFamily = counter(
    "calls_without_limit",
    "Calls to which no limit applies, by domain and reason: unknown_domain, unknown_keys, or unlisted_value, which is normal",
)
.with_labels(&["domain", "reason"]);
const POLICY_INFO: MetricFamily =
    gauge("policy_info", "1, with the fingerprint of the policy in force")
        .with_labels(&["fingerprint"]);
const BUILD_INFO: MetricFamily =
    gauge("build_info", "1, with the running version").with_labels(&["version"]);

impl Telemetry {
    /// Writes the metrics of decisions, calls and policy loads to a sink.
    ///
    /// # Errors
    ///
    /// Returns the first error of the sink.
    pub fn emit(&self, sink: &mut dyn MetricSink) -> fmt::Result {
        self.emit_rules(sink)?;
        self.emit_lost_bills(sink)?;
        emit_totals(&self.sum_workers(), sink)?;
        emit_table(sink, POLICY_LOADS, self)?;
        let without_limit = self.calls_without_limit();
        let counts = without_limit
            .iter()
            .map(|count| ([("domain", &*count.domain), ("reason", count.reason)], count.calls));
        emit_series(sink, &CALLS_WITHOUT_LIMIT, counts)?;
        let tables = self.rule_tables();
        let fingerprint = [("fingerprint", tables.current.fingerprint.as_str())];
        emit_series(sink, &POLICY_INFO, iter::once((fingerprint, 1)))?;
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        emit_series(sink, &BUILD_INFO, iter::once((version, 1)))
    }

    fn count_unknown_domain_calls(&self) -> u64 {
        let reason = NoLimitReason::UnknownDomain.as_str();
        let counts = self.calls_without_limit().into_iter();
        counts.filter(|count| count.reason == reason).map(|count| count.calls).sum()
    }

    fn emit_rules(&self, sink: &mut dyn MetricSink) -> fmt::Result {
        let (tables, detailed) = (self.rule_tables(), self.detailed_counters.rows());
        let rows = self.rows(&tables, &detailed);
        let hits = rows
            .iter()
            .map(|((domain, rule), counts)| ([("domain", *domain), ("rule", *rule)], &counts.hits));
        emit_rows(sink, RULE_METRICS, hits)?;
        let decisions = rows.iter().flat_map(|((domain, rule), counts)| {
            let observed = with_code_and_source(&counts.checks).filter(|(_, count)| *count > 0);
            observed.map(|([code, source], count)| {
                ([("domain", *domain), ("rule", *rule), code, source], count)
            })
        });
        emit_series(sink, &RULE_DECISIONS, decisions)
    }

    fn emit_lost_bills(&self, sink: &mut dyn MetricSink) -> fmt::Result {
        let [bills, hits] = self.lost_bills.totals();
        emit_series(sink, &LOST_BILLS, with_names("cause", &LossCause::NAMES, &bills))?;
        emit_series(sink, &LOST_BILL_HITS, with_names("cause", &LossCause::NAMES, &hits))
    }
}

/// Label whose value is a constant.
type FixedLabel = (&'static str, &'static str);

fn with_code_and_source(counts: &CountsByCode) -> impl Iterator<Item = ([FixedLabel; 2], u64)> {
    CODES.into_iter().zip(counts).flat_map(|(code, by_source)| {
        let by_source = with_names("source", &Source::NAMES, by_source);
        by_source.map(move |([source], count)| ([("code", code), source], count))
    })
}

/// Returns each count with a label, whose value is the name at the same position.
fn with_names(
    label: &'static str,
    names: &'static [&'static str],
    counts: &[u64],
) -> impl Iterator<Item = ([FixedLabel; 1], u64)> {
    names.iter().zip(counts).map(move |(name, count)| ([(label, *name)], *count))
}

fn emit_totals(totals: &ProcessTotals, sink: &mut dyn MetricSink) -> fmt::Result {
    emit_series(sink, &DECISIONS, with_code_and_source(&totals.decided))?;
    emit_series(sink, &CALLS, with_names("status", &RpcOutcome::NAMES, &totals.outcomes))?;
    let invalid = with_names("reason", &InvalidReason::NAMES, &totals.invalid);
    emit_series(sink, &INVALID_CALLS, invalid)?;
    sink.write_family(&DECISION_SECONDS, &mut |emit| {
        emit(&[], MetricValue::Histogram(totals.durations.clone()))
    })?;
    emit_table(sink, PROCESS_METRICS, totals)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::domain::fixtures::check_event;
    use crate::domain::{
        CheckEvent, Code, Decision, Hits, LossCause, LostBill, Micros, Observer, Outcome, Request,
        RuleId, Source,
    };
    use crate::telemetry::RuleName;
    use crate::telemetry::prometheus::MetricsPage;

    /// Returns telemetry of a policy with the rule `d.a`.
    fn telemetry() -> Telemetry {
        let telemetry = Telemetry::new(0.8);
        let name = RuleName { domain: "d".into(), path: "d.a".into() };
        telemetry.record_policy_load(RuleId(0), [name], "1", Micros(1));
        telemetry
    }

    fn check(outcome: Outcome, hits: u64) -> CheckEvent {
        check_event(0, hits, outcome)
    }

    fn assert_lines<'a>(telemetry: Telemetry, lines: impl IntoIterator<Item = &'a str>) {
        let page = MetricsPage::new(Arc::new(move |sink| telemetry.emit(sink))).text().unwrap();
        for line in lines {
            assert!(page.lines().any(|each| each == line), "{line} in\n{page}");
        }
    }

    #[test]
    fn each_metric_of_a_rule_counts_its_own_hits() {
        let telemetry = telemetry();
        let passed = Outcome { charged: Hits(5), ..Outcome::pass(Hits(0)) };
        let refused = Outcome::refuse_for(Micros::SECOND);
        for event in [
            check(passed, 5),
            check(refused, 1),
            CheckEvent { shadow: true, ..check(refused, 7) },
            CheckEvent { admitted: false, ..check(Outcome::pass(Hits(10)), 11) },
            CheckEvent { is_refund: true, ..check(Outcome::pass(Hits(10)), 13) },
        ] {
            telemetry.on_check(&event);
        }
        let expected = [
            r#"tidegate_rule_hits_total{domain="d",rule="d.a"} 24"#,
            r#"tidegate_rule_within_limit_hits_total{domain="d",rule="d.a"} 5"#,
            r#"tidegate_rule_over_limit_hits_total{domain="d",rule="d.a"} 8"#,
            r#"tidegate_rule_near_limit_hits_total{domain="d",rule="d.a"} 2"#,
            r#"tidegate_rule_shadow_mode_hits_total{domain="d",rule="d.a"} 7"#,
            r#"tidegate_rule_uncharged_hits_total{domain="d",rule="d.a"} 11"#,
            r#"tidegate_rule_refunded_hits_total{domain="d",rule="d.a"} 13"#,
        ];
        assert_lines(telemetry, expected);
    }

    #[test]
    fn lost_bills_and_their_hits_are_counted_by_cause() {
        let telemetry = telemetry();
        let lost = |hits, cause| {
            let lost_bill = Some(LostBill { hits: Hits(hits), cause });
            CheckEvent { lost_bill, ..check(Outcome::refuse_for(Micros::SECOND), hits) }
        };
        telemetry.on_check(&CheckEvent { is_peek: true, ..check(Outcome::pass(Hits(10)), 0) });
        telemetry.on_check(&lost(7, LossCause::Rejected));
        telemetry.on_check(&lost(2, LossCause::DebtBound));
        telemetry.on_check(&lost(3, LossCause::DebtBound));
        let expected = [
            r#"tidegate_lost_bills_total{cause="rejected"} 1"#,
            r#"tidegate_lost_bills_total{cause="debt_bound"} 2"#,
            r#"tidegate_lost_bill_hits_total{cause="rejected"} 7"#,
            r#"tidegate_lost_bill_hits_total{cause="debt_bound"} 5"#,
        ];
        assert_lines(telemetry, expected);
    }

    #[test]
    fn each_event_of_the_process_has_its_own_counter() {
        let telemetry = telemetry();
        telemetry.on_decision(&Decision {
            code: Code::OverLimit,
            statuses: Vec::new(),
            limited_by: None,
            source: Source::Cached,
            shadowed: false,
            domain_known: false,
            slot: None,
            marks: Vec::new(),
            hold: None,
        });
        let request = Request { domain: "unknown", descriptors: &[] };
        let reasons = [(NoLimitReason::UnknownDomain, 5), (NoLimitReason::UnlistedValue, 6)];
        for (reason, calls) in reasons {
            (0..calls).for_each(|_| telemetry.on_unmatched(&request, reason, &String::new));
        }
        (0..2).for_each(|_| telemetry.release_without_holder());
        (0..3).for_each(|_| telemetry.on_invalid(InvalidReason::Entries));
        (0..4).for_each(|_| telemetry.record_policy_load_failure());
        let expected = [
            r#"tidegate_decisions_total{code="over_limit",source="cached"} 1"#,
            "tidegate_domain_not_found_total 5",
            r#"tidegate_calls_without_limit_total{domain="unknown",reason="unlisted_value"} 6"#,
            "tidegate_global_shadow_mode_total 0",
            "tidegate_returns_without_holder_total 2",
            r#"tidegate_invalid_calls_total{reason="entries"} 3"#,
            "tidegate_config_load_error_total 4",
        ];
        assert_lines(telemetry, expected);
    }
}
