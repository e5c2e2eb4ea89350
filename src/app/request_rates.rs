//! Current rates for the live page, computed from the difference between two counter snapshots.
//!
//! Snapshots are taken only when a client requests the rates.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::Serialize;

use crate::domain::{Lock, Micros};
use crate::telemetry::{RuleName, RuleSnapshot, Snapshot};

/// Maximum age at which a snapshot is reused, 0.9 s. Pages poll once a second, so all viewers share
/// one snapshot per second.
const SNAPSHOT_AGE_MAX: Micros = Micros(900_000);

/// Maximum time between the two snapshots from which rates are computed, 15 s. After a longer
/// pause, the first request gets no rates.
const SNAPSHOT_INTERVAL_MAX: Micros = Micros::from_secs(15);

/// Maximum number of rules whose rates are listed, busiest first. A policy may have 100,000 rules.
const LISTED_RULES_MAX: usize = 50;

/// Sampler that computes current rates from the difference between the last snapshot and a new one.
#[derive(Debug, Default)]
pub(super) struct RateSampler(Lock<LastSample>);

#[derive(Debug, Default)]
struct LastSample {
    snapshot: Option<(Micros, Snapshot)>,
    rates: CurrentRates,
}

/// Current call rates and busiest rules, computed from the last two snapshots.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct CurrentRates {
    /// Time between the two snapshots that the rates are computed from, in seconds. `None` if there
    /// is no recent earlier snapshot.
    pub(super) over_seconds: Option<f64>,
    /// Calls admitted per second, or `None` if there is no recent earlier snapshot to compare with.
    pub(super) admitted_per_second: Option<f64>,
    /// Calls rejected per second, or `None` if there is no recent earlier snapshot to compare with.
    pub(super) rejected_per_second: Option<f64>,
    /// Calls per second that passed, but would have been rejected without shadow mode; `None` if
    /// there is no recent earlier snapshot to compare with.
    pub(super) would_be_rejected_per_second: Option<f64>,
    /// Rules with traffic, busiest first, at most 50.
    #[serde(skip)]
    pub(super) rules: Vec<RuleRate>,
}

/// Rates of one rule, in calls per second.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct RuleRate {
    pub(super) domain: String,
    pub(super) rule: String,
    pub(super) calls_per_second: f64,
    pub(super) rejected_calls_per_second: f64,
    pub(super) would_be_rejected_calls_per_second: f64,
}

impl RateSampler {
    /// Returns the current rates. Calls `read` to take a new snapshot unless the last one is
    /// younger than 0.9 s.
    pub(super) fn sample(&self, now: Micros, read: impl FnOnce() -> Snapshot) -> CurrentRates {
        let mut last = self.0.lock();
        let age = last.snapshot.as_ref().map(|(at, _)| Micros(now.0.abs_diff(at.0)));
        if age.is_some_and(|age| age < SNAPSHOT_AGE_MAX) {
            return last.rates.clone();
        }
        let snapshot = read();
        last.rates = match (&last.snapshot, age) {
            (Some((_, before)), Some(age)) if age < SNAPSHOT_INTERVAL_MAX => {
                compute_rates(before, &snapshot, age)
            }
            _ => CurrentRates::default(),
        };
        last.snapshot = Some((now, snapshot));
        last.rates.clone()
    }
}

/// Computes the rates between two snapshots taken `interval` apart. Treats the counts of a rule
/// that is missing from `earlier` as 0.
fn compute_rates(earlier: &Snapshot, later: &Snapshot, interval: Micros) -> CurrentRates {
    // The casts are exact: counts within 15 seconds are far below 2^52.
    let seconds = interval.0 as f64 / 1e6;
    let rate = |old: u64, new: u64| new.saturating_sub(old) as f64 / seconds;
    let earlier_rules: BTreeMap<&RuleName, &RuleSnapshot> =
        earlier.rules.iter().map(|(name, counts)| (name, counts)).collect();
    let rules = later.rules.iter().filter_map(|(name, new)| {
        let old = earlier_rules.get(name).copied().copied().unwrap_or_default();
        let calls = new.checks.saturating_sub(old.checks);
        (calls > 0).then(|| {
            let rate = RuleRate {
                domain: name.domain.to_string(),
                rule: name.path.to_string(),
                calls_per_second: rate(old.checks, new.checks),
                rejected_calls_per_second: rate(old.refused, new.refused),
                would_be_rejected_calls_per_second: rate(old.would_refuse, new.would_refuse),
            };
            (calls, rate)
        })
    });
    let mut rules: Vec<(u64, RuleRate)> = rules.collect();
    rules.sort_by_key(|(calls, _)| Reverse(*calls));
    rules.truncate(LISTED_RULES_MAX);
    let total = |read: fn(&Snapshot) -> u64| Some(rate(read(earlier), read(later)));
    CurrentRates {
        over_seconds: Some(seconds),
        admitted_per_second: total(|calls| calls.admitted),
        rejected_per_second: total(|calls| calls.refused),
        would_be_rejected_per_second: total(|calls| calls.would_be_rejected),
        rules: rules.into_iter().map(|(_, rate)| rate).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(admitted: u64, asked: u64) -> Snapshot {
        let name = RuleName { domain: "d".into(), path: "d.a".into() };
        Snapshot {
            admitted,
            refused: 0,
            would_be_rejected: asked / 5,
            rules: vec![(
                name,
                RuleSnapshot { checks: asked, refused: asked / 2, would_refuse: asked / 5 },
            )],
        }
    }

    #[test]
    fn a_rate_is_the_difference_of_two_snapshots() {
        let rates = RateSampler::default();
        let at = |ms: u64| Micros(1_000_000_000 + ms * 1_000);
        assert_eq!(rates.sample(at(0), || snapshot(10, 10)).over_seconds, None);
        let sample = rates.sample(at(2_000), || snapshot(30, 50));
        assert_eq!((sample.over_seconds, sample.admitted_per_second), (Some(2.0), Some(10.0)));
        assert_eq!(sample.rules[0].calls_per_second, 20.0);
        assert_eq!(sample.rules[0].rejected_calls_per_second, 10.0);
        assert_eq!(sample.rules[0].would_be_rejected_calls_per_second, 4.0);
        assert_eq!(sample.would_be_rejected_per_second, Some(4.0));
        let again = rates.sample(at(2_500), || panic!("read again too soon"));
        assert_eq!(again, sample, "every viewer gets the same");
        let idle = rates.sample(at(4_000), || snapshot(30, 50));
        assert_eq!((idle.admitted_per_second, idle.rules.len()), (Some(0.0), 0));
    }

    #[test]
    fn snapshots_far_apart_give_no_rates() {
        let rates = RateSampler::default();
        rates.sample(Micros::from_secs(1), || snapshot(0, 0));
        let sample = rates.sample(Micros::from_secs(600), || snapshot(1_000_000, 1));
        assert_eq!(sample, CurrentRates::default());
    }

    #[test]
    fn the_fifty_busiest_rules_are_listed_busiest_first() {
        let with = |checks: fn(u64) -> u64, refused| {
            let rule = |n: u64| {
                let name = RuleName { domain: "d".into(), path: format!("d.{n}").into() };
                (name, RuleSnapshot { checks: checks(n), ..RuleSnapshot::default() })
            };
            Snapshot { refused, rules: (0..60).map(rule).collect(), ..Snapshot::default() }
        };
        let (earlier, later) = (with(|_| 1, 3), with(|n| 1 + n, 9));
        let rates = compute_rates(&earlier, &later, Micros::from_secs(2));
        assert_eq!((rates.admitted_per_second, rates.rejected_per_second), (Some(0.0), Some(3.0)));
        let rules: Vec<&str> = rates.rules.iter().map(|rate| &*rate.rule).collect();
        assert_eq!((rules.len(), rules[0], rules[49]), (50, "d.59", "d.10"));
    }

    #[test]
    fn a_snapshot_is_reused_for_900_ms_and_compared_with_for_15_s() {
        let rates = RateSampler::default();
        let at = |us: u64| Micros(1_000_000_000 + us);
        rates.sample(at(0), || snapshot(0, 0));
        rates.sample(at(899_999), || panic!("read again too soon"));
        let sample = rates.sample(at(900_000), || snapshot(9, 0));
        assert_eq!(sample.admitted_per_second, Some(10.0));
        let sample = rates.sample(at(15_899_999), || snapshot(9, 0));
        assert_eq!(sample.admitted_per_second, Some(0.0));
        let sample = rates.sample(at(30_899_999), || snapshot(9, 0));
        assert_eq!(sample.admitted_per_second, None);
    }
}
