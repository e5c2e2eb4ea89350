//! What is shown of the counters: names, helps, labels.
//!
//! Not here: counting (`cells`), writing it down (`scrape`, `otlp`), other rooms' figures (`app`).

use std::fmt;

use super::compat_stats::Tally;
use super::counters::{Telemetry, Totals};
use super::metric::{Family, Kind, Sink, Unit, Value, single};
use super::rule_counters::{ALL_SOURCES, ByCode, CODES, RuleName};
use crate::domain::RpcOutcome;

/// A counter of every rule: its family, and its value.
type RuleFamily = (Family, fn(&Tally) -> u64);

const fn of_rule(name: &'static str, help: &'static str) -> Family {
    Family::new(name, help, Kind::Counter).with_labels(&["domain", "rule"])
}

const RULES: [RuleFamily; 7] = [
    (of_rule("rule_hits", "Requested hits per rule"), |tally| tally.total),
    (of_rule("rule_within_limit_hits", "Hits that passed"), |tally| tally.within),
    (of_rule("rule_over_limit_hits", "Hits that were rejected"), |tally| tally.over),
    (of_rule("rule_near_limit_hits", "Hits above near-limit-ratio of the limit"), |tally| {
        tally.near
    }),
    (of_rule("rule_shadow_mode_hits", "Hits over a limit in shadow mode"), |tally| tally.shadow),
    (
        of_rule(
            "rule_uncharged_hits",
            "Hits that passed this limit but were not charged, because another one rejected the call",
        ),
        |tally| tally.uncharged,
    ),
    (of_rule("rule_refunded_hits", "Hits that clients refunded"), |tally| tally.refunded),
];

const RULE_DECISIONS: Family = Family::new(
    "rule_decisions",
    "Decided checks per rule, code and source; only observed combinations have a series",
    Kind::Counter,
)
.with_labels(&["domain", "rule", "code", "source"]);
const DECISIONS: Family =
    Family::new("decisions", "Decided calls per code and source", Kind::Counter)
        .with_labels(&["code", "source"]);
const CALLS: Family =
    Family::new("calls", "Answered calls per gRPC status", Kind::Counter).with_labels(&["status"]);
const DECISION_SECONDS: Family =
    Family::new("decision", "Time from receiving a call to its response", Kind::Histogram)
        .in_unit(Unit::Seconds);

/// A counter of the whole process.
type TotalFamily = (Family, fn(&Totals) -> u64);

const TOTALS: [TotalFamily; 7] = [
    (
        Family::new("domain_not_found", "Calls for a domain without a policy", Kind::Counter),
        |totals| totals.domain_not_found,
    ),
    (
        Family::new(
            "global_shadow_mode",
            "Calls over a limit that passed because of global shadow mode",
            Kind::Counter,
        ),
        |totals| totals.shadowed,
    ),
    (
        Family::new(
            "returns_without_holder",
            "Releases of concurrency slots that named no holder and freed nothing",
            Kind::Counter,
        ),
        |totals| totals.release_without_holder,
    ),
    (Family::new("config_load_success", "Successful policy loads", Kind::Counter), |totals| {
        totals.loads
    }),
    (Family::new("config_load_error", "Failed policy reloads", Kind::Counter), |totals| {
        totals.load_errors
    }),
    (
        Family::new(
            "config_last_reload_successful",
            "1 if the last policy load succeeded, else 0",
            Kind::Gauge,
        ),
        |totals| u64::from(totals.last_load_taken),
    ),
    (
        Family::new(
            "config_last_reload_success_timestamp",
            "Time of the last successful policy load, since the Unix epoch",
            Kind::Gauge,
        )
        .in_unit(Unit::Seconds),
        |totals| totals.last_taken_us,
    ),
];

const POLICY: Family =
    Family::new("policy_info", "1, with the fingerprint of the policy in force", Kind::Gauge)
        .with_labels(&["fingerprint"]);
const BUILD: Family =
    Family::new("build_info", "1, with the running version", Kind::Gauge).with_labels(&["version"]);

/// Every family of this module, in the order of a scrape.
#[cfg(test)]
pub(crate) fn families() -> Vec<Family> {
    let rules = RULES.iter().map(|(family, _)| *family);
    let totals = TOTALS.iter().map(|(family, _)| *family);
    let calls = [RULE_DECISIONS, DECISIONS, CALLS, DECISION_SECONDS];
    rules.chain(calls).chain(totals).chain([POLICY, BUILD]).collect()
}

/// The label of limits that callers brought along.
const OVERRIDES: &str = "(override)";

impl Telemetry {
    /// Hands over all that is counted here.
    ///
    /// # Errors
    ///
    /// What the sink says.
    pub(super) fn show(&self, sink: &mut dyn Sink) -> fmt::Result {
        self.show_rules(sink)?;
        show_totals(&self.totals(), sink)?;
        let tables = self.tables();
        let fingerprint = tables.present.fingerprint.as_str();
        sink.family(&POLICY, &mut |put| put(&[("fingerprint", fingerprint)], Value::Whole(1)))?;
        let version = env!("CARGO_PKG_VERSION");
        sink.family(&BUILD, &mut |put| put(&[("version", version)], Value::Whole(1)))
    }

    fn show_rules(&self, sink: &mut dyn Sink) -> fmt::Result {
        let tables = self.tables();
        let brought = RuleName { domain: "".into(), path: OVERRIDES.into() };
        let cells = || {
            let named = tables.present.by_name.iter().map(|(name, cell)| (name, &**cell));
            named.chain([(&brought, &self.overrides)])
        };
        let rows: Vec<(&RuleName, Tally, ByCode)> =
            cells().map(|(name, cell)| (name, cell.read(), cell.checks())).collect();
        for (family, value) in &RULES {
            sink.family(family, &mut |put| {
                rows.iter().try_for_each(|(rule, tally, _)| {
                    let labels = [("domain", &*rule.domain), ("rule", &*rule.path)];
                    put(&labels, Value::Whole(value(tally)))
                })
            })?;
        }
        sink.family(&RULE_DECISIONS, &mut |put| {
            for (rule, _, checks) in &rows {
                for (code, by_source) in CODES.into_iter().zip(checks) {
                    let known = ALL_SOURCES.iter().zip(by_source).filter(|(_, count)| **count > 0);
                    for (source, count) in known {
                        let labels = [
                            ("domain", &*rule.domain),
                            ("rule", &*rule.path),
                            ("code", code),
                            ("source", source.word()),
                        ];
                        put(&labels, Value::Whole(*count))?;
                    }
                }
            }
            Ok(())
        })
    }
}

fn show_totals(totals: &Totals, sink: &mut dyn Sink) -> fmt::Result {
    sink.family(&DECISIONS, &mut |put| {
        for (code, by_source) in CODES.into_iter().zip(&totals.decided) {
            for (source, count) in ALL_SOURCES.iter().zip(by_source) {
                put(&[("code", code), ("source", source.word())], Value::Whole(*count))?;
            }
        }
        Ok(())
    })?;
    sink.family(&CALLS, &mut |put| {
        RpcOutcome::ALL
            .iter()
            .zip(&totals.ended)
            .try_for_each(|(ending, count)| put(&[("status", ending.word())], Value::Whole(*count)))
    })?;
    sink.family(&DECISION_SECONDS, &mut |put| put(&[], Value::Buckets(totals.took.clone())))?;
    TOTALS.iter().try_for_each(|(family, value)| single(sink, family, value(totals)))
}
