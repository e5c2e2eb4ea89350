//! A histogram of times with a bounded relative error: 64 steps to each doubling, so at most 1.6 %,
//! from a microsecond to over an hour, in 16 kB.

use std::time::Duration;

/// Steps to each doubling.
const STEPS: u64 = 64;
/// Below this every microsecond has a step of its own.
const FINE: u64 = 2 * STEPS;
/// Doublings above that: 2^32 µs is 71 minutes; what is longer counts as that.
const DOUBLINGS: u64 = 32 - FINE.trailing_zeros() as u64;

#[derive(Debug, Clone)]
pub(crate) struct Histogram {
    counts: Vec<u64>,
    total: u64,
    max: Duration,
}

impl Histogram {
    pub(crate) fn new() -> Self {
        Histogram {
            counts: vec![0; (FINE + DOUBLINGS * STEPS) as usize],
            total: 0,
            max: Duration::ZERO,
        }
    }

    pub(crate) fn note(&mut self, time: Duration) {
        let last = self.counts.len() - 1;
        self.counts[step(time.as_micros() as u64).min(last)] += 1;
        self.total += 1;
        self.max = self.max.max(time);
    }

    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    pub(crate) fn max(&self) -> Duration {
        self.max
    }

    /// The time that this share of the calls did not exceed, rounded up to its step's end.
    pub(crate) fn percentile(&self, share: f64) -> Duration {
        let rank = (share * self.total as f64).ceil() as u64;
        let mut seen = 0;
        for (step, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank && rank > 0 {
                return Duration::from_micros(step_end(step)).min(self.max);
            }
        }
        self.max
    }
}

/// The step of a number of microseconds: which doubling it is in, and where in it.
fn step(micros: u64) -> usize {
    if micros < FINE {
        return micros as usize;
    }
    let doubling = u64::from(micros.ilog2() - FINE.ilog2() + 1);
    (FINE + (doubling - 1) * STEPS + (micros >> doubling) - STEPS) as usize
}

/// The largest number of microseconds in a step.
fn step_end(step: usize) -> u64 {
    let step = step as u64;
    if step < FINE {
        return step;
    }
    let doubling = (step - FINE) / STEPS + 1;
    (((step - FINE) % STEPS + STEPS + 1) << doubling) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_follow_each_other_and_are_narrow() {
        let mut last = 0;
        for micros in 1..300_000_u64 {
            let at = step(micros);
            assert!(at == last || at == last + 1, "{micros} µs");
            let end = step_end(at);
            assert!(
                micros <= end && end as f64 <= micros as f64 * 1.016 + 1.0,
                "{micros} µs: {end}"
            );
            last = at;
        }
    }

    #[test]
    fn percentiles_are_those_of_what_was_noted() {
        let mut histogram = Histogram::new();
        for micros in 1..=10_000 {
            histogram.note(Duration::from_micros(micros));
        }
        let near = |share, micros: f64| {
            let found = histogram.percentile(share).as_micros() as f64;
            assert!((found - micros).abs() <= micros * 0.016, "{share}: {found}");
        };
        near(0.5, 5_000.0);
        near(0.99, 9_900.0);
        near(0.999, 9_990.0);
        assert_eq!(histogram.percentile(1.0), histogram.max());
        assert_eq!(Histogram::new().percentile(0.5), Duration::ZERO);
    }
}
