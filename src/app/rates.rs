//! Rates, made of the difference between two readings of the sums. Whoever looks makes a reading if
//! the last one is old enough; while nobody looks nothing is read.
//!
//! Not here: the sums (`telemetry`), how they are shown (`live`).

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Serialize;

use crate::domain::Micros;
use crate::telemetry::{RuleName, RuleSnapshot, Snapshot};

/// A reading holds so long for everybody who looks: a page looks once a second.
const FRESH: Micros = Micros(900_000);

/// Two readings further apart make no rate of now: the first look after a while has none.
const STALE: Micros = Micros::from_secs(15);

/// Rules whose rates are told, those that are asked most first; nobody reads more, and a policy may
/// have 100,000.
const RULES_MAX: usize = 50;

/// The readings.
#[derive(Debug, Default)]
pub(super) struct Rates(Mutex<Readings>);

#[derive(Debug, Default)]
struct Readings {
    latest: Option<(Micros, Snapshot)>,
    sample: Sample,
}

/// Rates of now.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Sample {
    /// The seconds that the rates are an average over; none: nobody has looked for a while, look
    /// again in a second.
    pub(super) over_seconds: Option<f64>,
    /// Calls admitted each second.
    pub(super) admitted_per_second: Option<f64>,
    /// Calls refused each second.
    pub(super) refused_per_second: Option<f64>,
    /// Rules that were asked meanwhile.
    pub(super) rules: Vec<RuleRate>,
}

/// A rule's rates, in hits each second.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct RuleRate {
    pub(super) domain: String,
    pub(super) rule: String,
    pub(super) hits_per_second: f64,
    pub(super) refused_hits_per_second: f64,
}

impl Rates {
    /// The rates of now; `read` is called if the last reading is not of now.
    pub(super) fn sample(&self, now: Micros, read: impl FnOnce() -> Snapshot) -> Sample {
        let mut readings = self.readings();
        let age = readings.latest.as_ref().map(|(at, _)| Micros(now.0.abs_diff(at.0)));
        if age.is_some_and(|age| age < FRESH) {
            return readings.sample.clone();
        }
        let sums = read();
        readings.sample = match (&readings.latest, age) {
            (Some((_, before)), Some(age)) if age < STALE => between(before, &sums, age),
            _ => Sample::default(),
        };
        readings.latest = Some((now, sums));
        readings.sample.clone()
    }

    fn readings(&self) -> MutexGuard<'_, Readings> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Snapshot that a reload has set back count from zero.
fn between(before: &Snapshot, after: &Snapshot, apart: Micros) -> Sample {
    // Fractions of a second; sums of a second are far below 2^52.
    let seconds = apart.0 as f64 / 1e6;
    let rate = |before: u64, after: u64| after.saturating_sub(before) as f64 / seconds;
    let former: BTreeMap<&RuleName, &RuleSnapshot> =
        before.rules.iter().map(|(name, sums)| (name, sums)).collect();
    let rules = after.rules.iter().filter_map(|(name, sums)| {
        let former = former.get(name).copied().copied().unwrap_or_default();
        let asked = sums.asked.saturating_sub(former.asked);
        (asked > 0).then(|| {
            let rate = RuleRate {
                domain: name.domain.to_string(),
                rule: name.path.to_string(),
                hits_per_second: rate(former.asked, sums.asked),
                refused_hits_per_second: rate(former.refused, sums.refused),
            };
            (asked, rate)
        })
    });
    let mut rules: Vec<(u64, RuleRate)> = rules.collect();
    rules.sort_by_key(|(asked, _)| Reverse(*asked));
    rules.truncate(RULES_MAX);
    Sample {
        over_seconds: Some(seconds),
        admitted_per_second: Some(rate(before.admitted, after.admitted)),
        refused_per_second: Some(rate(before.refused, after.refused)),
        rules: rules.into_iter().map(|(_, rate)| rate).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sums(admitted: u64, asked: u64) -> Snapshot {
        let name = RuleName { domain: "d".into(), path: "d.a".into() };
        Snapshot {
            admitted,
            refused: 0,
            rules: vec![(name, RuleSnapshot { asked, refused: asked / 2 })],
        }
    }

    #[test]
    fn a_rate_is_the_difference_of_two_readings() {
        let rates = Rates::default();
        let at = |ms: u64| Micros(1_000_000_000 + ms * 1_000);
        assert_eq!(rates.sample(at(0), || sums(10, 10)).over_seconds, None);
        let sample = rates.sample(at(2_000), || sums(30, 50));
        assert_eq!((sample.over_seconds, sample.admitted_per_second), (Some(2.0), Some(10.0)));
        assert_eq!(sample.rules[0].hits_per_second, 20.0);
        assert_eq!(sample.rules[0].refused_hits_per_second, 10.0);
        let again = rates.sample(at(2_500), || panic!("read again too soon"));
        assert_eq!(again, sample, "everybody who looks sees the same");
        let idle = rates.sample(at(4_000), || sums(30, 50));
        assert_eq!((idle.admitted_per_second, idle.rules.len()), (Some(0.0), 0));
    }

    #[test]
    fn readings_far_apart_make_no_rate() {
        let rates = Rates::default();
        rates.sample(Micros::from_secs(1), || sums(0, 0));
        let sample = rates.sample(Micros::from_secs(600), || sums(1_000_000, 1));
        assert_eq!(sample, Sample::default());
    }
}
