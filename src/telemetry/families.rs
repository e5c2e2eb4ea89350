//! What is shown of the counters: names, helps, labels.
//!
//! Not here: counting (`cells`), writing it down (`scrape`, `otlp`), other rooms' figures (`app`).

use std::fmt;

use super::compat_stats::Tally;
use super::counters::{Telemetry, Totals};
use super::metric::{Family, Kind, Sink, Unit, Value, single};
use super::rule_counters::{ALL_SOURCES, ByCode, CODES, RuleName};
use crate::domain::RpcOutcome;

/// A column of the rules' cells: its metric's name, its help, its value.
type Column = (&'static str, &'static str, fn(&Tally) -> u64);

const COLUMNS: [Column; 7] = [
    ("rule_hits", "Hits asked for, by rule", |tally| tally.total),
    ("rule_within_limit_hits", "Hits that passed", |tally| tally.within),
    ("rule_over_limit_hits", "Hits that were refused", |tally| tally.over),
    ("rule_near_limit_hits", "Hits above the near-limit share of the limit", |tally| tally.near),
    ("rule_shadow_mode_hits", "Hits over a limit in shadow mode", |tally| tally.shadow),
    (
        "rule_uncharged_hits",
        "Hits that fitted, of calls that another limit refused: they were not charged",
        |tally| tally.uncharged,
    ),
    ("rule_refunded_hits", "Hits that callers returned", |tally| tally.refunded),
];

const RULE_DECISIONS: Family = Family::new(
    "rule_decisions",
    "Checks decided, by rule, by code and by who decided; what never happened has no series",
    Kind::Counter,
);
const DECISIONS: Family =
    Family::new("decisions", "Calls decided, by code and by who decided", Kind::Counter);
const CALLS: Family =
    Family::new("calls", "Calls answered, by the gRPC status that the caller got", Kind::Counter);
const DECISION_SECONDS: Family =
    Family::new("decision", "Time from a call's message to its answer", Kind::Histogram)
        .in_unit(Unit::Seconds);
const LAST_RELOAD: Family = Family::new(
    "config_last_reload_successful",
    "1 after a load that was taken, at the start or later; 0 after one that was refused",
    Kind::Gauge,
);
const LAST_RELOAD_TIME: Family = Family::new(
    "config_last_reload_success_timestamp",
    "When the last load that was taken was, since the Unix epoch",
    Kind::Gauge,
)
.in_unit(Unit::Seconds);
const POLICY: Family =
    Family::new("policy_info", "The policy in force; its fingerprint as a label", Kind::Gauge);
const BUILD: Family = Family::new("build_info", "What is running, as labels", Kind::Gauge);

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
        for (name, help, column) in COLUMNS {
            sink.family(&Family::new(name, help, Kind::Counter), &mut |put| {
                rows.iter().try_for_each(|(rule, tally, _)| {
                    let labels = [("domain", &*rule.domain), ("rule", &*rule.path)];
                    put(&labels, Value::Whole(column(tally)))
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
    let singles = [
        ("domain_not_found", "Calls for a domain that no policy has", totals.domain_not_found),
        (
            "global_shadow_mode",
            "Calls over a limit that global shadow mode let pass",
            totals.shadowed,
        ),
        (
            "returns_without_holder",
            "Returns of concurrency slots that named no holder and freed nothing",
            totals.release_without_holder,
        ),
        ("config_load_success", "Policies that were loaded", totals.loads),
        ("config_load_error", "Policies that were refused at a reload", totals.load_errors),
    ];
    for (name, help, sum) in singles {
        single(sink, &Family::new(name, help, Kind::Counter), sum)?;
    }
    single(sink, &LAST_RELOAD, u64::from(totals.last_load_taken))?;
    single(sink, &LAST_RELOAD_TIME, totals.last_taken_us)
}
