//! History of the last hour for the live page: rates by outcome, latency, the share of calls that
//! Redis did not decide, and the rates of the rules with the most rejections.
//!
//! A point covers [`INTERVAL`]. Points are kept at multiples of it on the wall clock, so that the
//! points of several replicas have the same times and can be added.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use serde::Serialize;

use super::counters::ProcessTotals;
use super::recent_latency::percentile_ms;
use super::rule_counters::RuleName;
use crate::domain::{Micros, Source};

/// Time between two points, 10 s.
pub(super) const INTERVAL: Micros = Micros::from_secs(10);

/// Maximum number of points: an hour. With [`SERIES`] and [`HISTORY_RULES_MAX`] rules, the history
/// takes at most 0.5 MB, apart from the names of the rules.
const POINTS_MAX: usize = 360;

/// Maximum number of rules with a history. A policy may have 100,000 rules.
pub const HISTORY_RULES_MAX: usize = 100;

/// Series of the process. A value is NaN, in JSON null, if there is none.
const SERIES: [&str; 8] = [
    "admitted_per_second",
    "rejected_per_second",
    "would_be_rejected_per_second",
    "errors_per_second",
    "without_limit_per_second",
    "p50_ms",
    "p99_ms",
    "without_redis_share",
];

const RULE_SERIES: [&str; 3] =
    ["calls_per_second", "rejected_per_second", "would_be_rejected_per_second"];

/// Points of the last hour, oldest first.
#[derive(Debug, Default)]
pub(super) struct History {
    pub(super) baseline: Option<Baseline>,
    /// Number of the interval at the end of each point.
    intervals: VecDeque<u64>,
    points: VecDeque<[f32; SERIES.len()]>,
    /// Rules with the most rejections in the hour, then the busiest. Each has as many points as the
    /// process.
    rules: Vec<RuleHistory>,
}

/// Counters with which those at the next point are compared.
#[derive(Debug)]
pub(super) struct Baseline {
    pub(super) interval: u64,
    pub(super) at: Instant,
    pub(super) totals: ProcessTotals,
}

#[derive(Debug)]
struct RuleHistory {
    name: RuleName,
    points: VecDeque<[f32; RULE_SERIES.len()]>,
}

/// Values by name of the series, one for each point.
type Columns = BTreeMap<&'static str, Vec<f32>>;

/// Response of `/history`.
#[derive(Debug, Serialize)]
pub struct HistoryReport {
    interval_seconds: u64,
    /// End of each point, in milliseconds since the Unix epoch, oldest first.
    at_ms: Vec<u64>,
    #[serde(flatten)]
    series: Columns,
    rules: Vec<RuleReport>,
}

#[derive(Debug, Serialize)]
struct RuleReport {
    domain: String,
    rule: String,
    #[serde(flatten)]
    series: Columns,
}

impl History {
    /// Adds the point that ends now, with the checks of rules since the last one: all, those refused,
    /// and those that shadow mode let pass. The first call only stores the baseline.
    pub(super) fn add(&mut self, next: Baseline, checks: Vec<(RuleName, [u64; 3])>) {
        let Some(before) = self.baseline.replace(next) else { return };
        let Some(next) = &self.baseline else { return };
        let seconds = next.at.saturating_duration_since(before.at).as_secs_f64().max(1e-3);
        // Two decimals keep the JSON short.
        let rate = |count: u64| ((count as f64 / seconds * 100.0).round() / 100.0) as f32;
        if self.points.len() == POINTS_MAX {
            self.intervals.pop_front();
            self.points.pop_front();
            self.rules.iter_mut().for_each(|rule| _ = rule.points.pop_front());
        }
        self.intervals.push_back(next.interval);
        self.points.push_back(point_values(&before.totals, &next.totals, rate));
        self.rules.iter_mut().for_each(|rule| rule.points.push_back([0.0; RULE_SERIES.len()]));
        for (name, checks) in checks {
            let found = self.rules.iter().position(|rule| rule.name == name);
            let at = found.unwrap_or_else(|| {
                let mut points = VecDeque::with_capacity(POINTS_MAX);
                points.resize(self.points.len(), [0.0; RULE_SERIES.len()]);
                self.rules.push(RuleHistory { name, points });
                self.rules.len() - 1
            });
            let point = self.rules[at].points.back_mut();
            point.into_iter().for_each(|point| *point = checks.map(rate));
        }
        self.rules.sort_by_cached_key(|rule| Reverse(rule.weight()));
        self.rules.truncate(HISTORY_RULES_MAX);
        self.rules.retain(|rule| rule.weight().1 > 0);
    }

    pub(super) fn report(&self, rules_max: usize) -> HistoryReport {
        let rule = |rule: &RuleHistory| RuleReport {
            domain: rule.name.domain.to_string(),
            rule: rule.name.path.to_string(),
            series: columns(RULE_SERIES, &rule.points),
        };
        HistoryReport {
            interval_seconds: INTERVAL.ceil_secs(),
            at_ms: self.intervals.iter().map(|at| at * INTERVAL.ceil_millis()).collect(),
            series: columns(SERIES, &self.points),
            rules: self.rules.iter().take(rules_max).map(rule).collect(),
        }
    }
}

impl RuleHistory {
    /// Returns the rejections and the calls of the last hour, in proportion to those of other rules.
    fn weight(&self) -> (u64, u64) {
        let sum = |at: usize| self.points.iter().map(|point| f64::from(point[at])).sum::<f64>();
        ((100.0 * (sum(1) + sum(2))).round() as u64, (100.0 * sum(0)).round() as u64)
    }
}

fn columns<const N: usize>(names: [&'static str; N], points: &VecDeque<[f32; N]>) -> Columns {
    let column = |(at, name)| (name, points.iter().map(|point| point[at]).collect());
    names.into_iter().enumerate().map(column).collect()
}

fn point_values(
    before: &ProcessTotals,
    totals: &ProcessTotals,
    rate: impl Fn(u64) -> f32,
) -> [f32; SERIES.len()] {
    let decided = |code: usize, sources: &[Source]| -> u64 {
        let count =
            |counts: &ProcessTotals, source: &Source| counts.decided[code][*source as usize];
        sources.iter().map(|it| count(totals, it).saturating_sub(count(before, it))).sum()
    };
    let all = |sources: &[Source]| decided(0, sources) + decided(1, sources);
    // All outcomes but `RpcOutcome::Decided`, the first.
    let errors = |counts: &ProcessTotals| counts.outcomes[1..].iter().sum::<u64>();
    let without_redis = all(&[Source::Local, Source::Shed]) as f32;
    let durations = totals.durations.clone().since(&before.durations);
    let percentile = |fraction| match durations.count() {
        0 => f32::NAN,
        _ => percentile_ms(&durations, fraction) as f32,
    };
    [
        rate(decided(0, &Source::ALL)),
        rate(decided(1, &Source::ALL)),
        rate(totals.would_be_rejected.saturating_sub(before.would_be_rejected)),
        rate(errors(totals).saturating_sub(errors(before))),
        rate(all(&[Source::Policy])),
        percentile(0.5),
        percentile(0.99),
        // NaN without Redis.
        without_redis / (without_redis + all(&[Source::Redis, Source::Cached]) as f32),
    ]
}

#[cfg(test)]
mod tests {
    use std::mem::size_of;
    use std::time::Duration;

    use super::*;
    use crate::domain::fixtures::check_event;
    use crate::domain::{Code, Decision, Hits, Observer as _, Outcome, RpcOutcome, RuleId};
    use crate::telemetry::Telemetry;

    #[allow(clippy::disallowed_methods, reason = "any instant serves as the start")]
    fn any_instant() -> Instant {
        Instant::now()
    }

    /// Telemetry of a policy with the rules `d.0`, `d.1`, and so on, at a time of the test's own.
    struct Hour {
        telemetry: Telemetry,
        start: Instant,
        seconds: u64,
    }

    impl Hour {
        fn new(rules: u32) -> Hour {
            let telemetry = Telemetry::new(0.8);
            let name = |n| RuleName { domain: "d".into(), path: format!("d.{n}").into() };
            telemetry.record_policy_load(RuleId(0), (0..rules).map(name), "1", Micros(1));
            let mut hour = Hour { telemetry, start: any_instant(), seconds: 1_000_000 };
            hour.pass(0);
            hour
        }

        /// Lets so many seconds pass, with a look once a second.
        fn pass(&mut self, seconds: u64) {
            for second in 0..=seconds {
                let now = self.seconds + second;
                let at = self.start + Duration::from_secs(now - 1_000_000);
                self.telemetry.keep_history(Micros::from_secs(now), at);
            }
            self.seconds += seconds;
        }

        fn decide(&self, code: Code, source: Source, calls: usize) {
            for _ in 0..calls {
                self.telemetry.on_decision(&Decision {
                    code,
                    statuses: Vec::new(),
                    limited_by: None,
                    source,
                    shadowed: false,
                    domain_known: true,
                    slot: None,
                    marks: Vec::new(),
                    hold: None,
                });
                self.telemetry.on_response(RpcOutcome::Decided, Duration::from_micros(100));
            }
        }

        fn check(&self, rule: u32, passed: u64, refused: u64) {
            for n in 0..passed + refused {
                let outcome = match n < passed {
                    true => Outcome::pass(Hits(1)),
                    false => Outcome::refuse_for(Micros::SECOND),
                };
                let check = check_event(rule, 1, outcome);
                self.telemetry
                    .on_check(&crate::domain::CheckEvent { admitted: n < passed, ..check });
            }
        }

        fn json(&self, rules_max: usize) -> serde_json::Value {
            serde_json::from_str(
                &serde_json::to_string(&self.telemetry.history(rules_max)).unwrap(),
            )
            .unwrap()
        }
    }

    #[test]
    fn a_fresh_visitor_sees_the_flood_that_began_ten_minutes_ago() {
        let mut hour = Hour::new(2);
        for tens in 0..120 {
            hour.decide(Code::Ok, Source::Redis, 20);
            hour.check(0, 20, 0);
            if tens >= 60 {
                hour.decide(Code::OverLimit, Source::Cached, 500);
                hour.check(1, 0, 500);
            }
            hour.pass(10);
        }
        let json = hour.json(20);
        let began = (1_000_000 + 61 * 10) * 1_000;
        assert_eq!(json["at_ms"][60], began, "a point has the time of its end");
        assert_eq!(json["at_ms"].as_array().unwrap().len(), 120);
        let rejected = &json["rejected_per_second"];
        assert_eq!((rejected[59].as_f64(), rejected[60].as_f64()), (Some(0.0), Some(50.0)));
        assert_eq!(json["admitted_per_second"][119], 2.0);
        assert_eq!(json["without_redis_share"][119], 0.0);
        let rule = &json["rules"][0];
        assert_eq!((rule["domain"].as_str(), rule["rule"].as_str()), (Some("d"), Some("d.1")));
        let rejected = &rule["rejected_per_second"];
        assert_eq!((rejected[59].as_f64(), rejected[60].as_f64()), (Some(0.0), Some(50.0)));
        assert_eq!(json["rules"][1]["calls_per_second"][0], 2.0);
    }

    #[test]
    fn outcomes_latency_and_the_share_without_redis_are_those_of_the_ten_seconds() {
        let mut hour = Hour::new(1);
        hour.decide(Code::Ok, Source::Redis, 60);
        hour.decide(Code::Ok, Source::Local, 30);
        hour.decide(Code::OverLimit, Source::Shed, 10);
        hour.decide(Code::Ok, Source::Policy, 40);
        hour.telemetry.on_shadow_pass(None, Source::Redis);
        hour.telemetry.on_response(RpcOutcome::Unavailable, Duration::from_millis(900));
        hour.telemetry.on_response(RpcOutcome::Late, Duration::from_millis(900));
        hour.pass(10);
        hour.pass(10);
        let json = hour.json(0);
        let expected = [13.0, 1.0, 0.1, 0.2, 4.0, 0.1];
        for (name, expected) in SERIES.iter().zip(expected) {
            let value = json[name][0].as_f64().unwrap();
            assert!((value - expected).abs() < 1e-6, "{name}: {value}");
        }
        assert_eq!(json["p99_ms"][0], 1_000.0);
        assert!((json["without_redis_share"][0].as_f64().unwrap() - 0.4).abs() < 1e-6);
        let none = ["p50_ms", "p99_ms", "without_redis_share"].map(|name| json[name][1].is_null());
        assert_eq!(none, [true; 3], "without calls there is none");
        assert_eq!(json["admitted_per_second"][1], 0.0);
    }

    #[test]
    fn an_hour_of_a_hundred_rules_is_kept_and_no_more() {
        let mut hour = Hour::new(150);
        for tens in 0..365_u32 {
            // Other rules every time, and the last one always.
            (0..149).for_each(|rule| hour.check(rule, u64::from((rule + tens) % 7 == 0), 0));
            hour.check(149, 1, u64::from(tens == 200));
            hour.pass(10);
        }
        let history = hour.telemetry.history.lock();
        assert_eq!((history.points.len(), history.rules.len()), (360, 100));
        assert!(history.rules.iter().all(|rule| rule.points.len() == 360));
        let rules = history.rules.iter().map(|rule| rule.points.capacity() * size_of::<[f32; 3]>());
        let bytes = rules.sum::<usize>()
            + history.points.capacity() * (size_of::<[f32; 8]>() + size_of::<u64>());
        assert!(bytes <= 500_000, "{bytes}");
        drop(history);
        let json = hour.json(1);
        assert_eq!(json["rules"].as_array().unwrap().len(), 1);
        assert_eq!(json["rules"][0]["rule"], "d.149", "the most rejections come first");
        hour.pass(3_600);
        assert_eq!(
            hour.json(9)["rules"].as_array().unwrap().len(),
            0,
            "after an hour without calls"
        );
    }

    #[test]
    fn the_rules_with_the_most_rejections_are_kept_before_the_busiest() {
        let mut hour = Hour::new(300);
        (0..300).for_each(|rule| hour.check(rule, 1 + u64::from(rule), u64::from(rule < 3)));
        hour.pass(10);
        let json = hour.json(100);
        let rules: Vec<&str> = json["rules"]
            .as_array()
            .unwrap()
            .iter()
            .map(|rule| rule["rule"].as_str().unwrap())
            .collect();
        assert_eq!(rules.len(), 100);
        assert_eq!(rules[..4], ["d.2", "d.1", "d.0", "d.299"]);
    }

    #[test]
    fn a_frozen_process_leaves_a_gap_and_a_clock_set_back_an_empty_history() {
        let mut hour = Hour::new(1);
        hour.pass(10);
        hour.seconds += 300;
        hour.decide(Code::Ok, Source::Redis, 310);
        hour.pass(10);
        let json = hour.json(0);
        let at = json["at_ms"].as_array().unwrap();
        assert_eq!(at[1].as_u64().unwrap() - at[0].as_u64().unwrap(), 300_000);
        assert_eq!(json["admitted_per_second"][1], 1.03, "over the whole time");
        let later = hour.start + Duration::from_secs(400);
        hour.telemetry.keep_history(Micros::from_secs(hour.seconds - 1), later);
        assert_eq!(hour.json(0)["at_ms"].as_array().unwrap().len(), 3, "a second is no reason");
        hour.telemetry.keep_history(Micros::from_secs(1_000), later);
        assert_eq!(hour.json(0)["at_ms"].as_array().unwrap().len(), 0);
    }
}
