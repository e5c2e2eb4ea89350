//! Deterministic generator of call times for `simulate`: the same seed gives the same times.
//!
//! An arrival process integrates the call rate over time. It emits a call whenever the integral has
//! grown by 1 (evenly spaced calls) or by an exponentially distributed amount (Poisson process).

use crate::scenario::{Arrivals, Group, Phase};

/// SplitMix64 random number generator by Steele, Lea and Flood. Its quality suffices for generating
/// traffic. Not suitable for cryptography.
#[derive(Debug, Clone)]
pub(super) struct Random(u64);

impl Random {
    /// Creates a generator. `stream` selects one of many sequences for the same seed, so that
    /// each caller gets different times.
    pub(super) fn new(seed: u64, stream: u64) -> Random {
        Random(seed ^ stream.wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Returns a random number, uniformly distributed in [0, 1).
    pub(super) fn next_fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns an exponentially distributed random number with mean 1.
    fn next_exponential(&mut self) -> f64 {
        -(1.0 - self.next_fraction()).ln()
    }
}

/// Iterator over one caller's call times, ascending, in seconds after the start of the scenario.
#[derive(Debug, Clone)]
pub(super) struct CallTimes {
    arrivals: Arrivals,
    /// Times at which the call rate changes, ascending, in seconds after the start of the
    /// scenario. The last time is the end of the scenario.
    rate_changes: Vec<f64>,
    phases: Vec<Phase>,
    random: Random,
    now_s: f64,
    /// Amount, in calls, by which the integral of the call rate must still grow before the next
    /// call.
    remaining_integral: f64,
    burst_left: u64,
}

impl CallTimes {
    /// Creates an iterator over the call times of the caller with index `client` in `group`. It
    /// ends `lasts_s` seconds after the start of the scenario, except for a burst, which yields
    /// all of its calls.
    pub(super) fn new(group: &Group, client: u32, lasts_s: f64, mut random: Random) -> CallTimes {
        let mut rate_changes: Vec<f64> = vec![lasts_s];
        for phase in &group.phases {
            rate_changes.extend([phase.from_s, phase.until_s].into_iter().filter(|&s| s < lasts_s));
        }
        if let Arrivals::OnOff { on_s, off_s, .. } = group.arrivals {
            let mut start = 0.0;
            while start < lasts_s {
                rate_changes.extend(
                    [start + on_s, start + on_s + off_s].into_iter().filter(|&s| s < lasts_s),
                );
                start += on_s + off_s;
            }
        }
        rate_changes.sort_by(f64::total_cmp);
        // Shift the callers of a group evenly across one interval, so that they do not call in
        // lockstep.
        let offset = f64::from(client) / f64::from(group.clients);
        let remaining_integral = match group.arrivals {
            Arrivals::Poisson { .. } => random.next_exponential(),
            Arrivals::Constant { .. } | Arrivals::OnOff { .. } | Arrivals::Burst { .. } => offset,
        };
        let burst_left = match group.arrivals {
            Arrivals::Burst { count, .. } => count,
            Arrivals::Constant { .. } | Arrivals::Poisson { .. } | Arrivals::OnOff { .. } => 0,
        };
        let phases = group.phases.clone();
        let arrivals = group.arrivals;
        CallTimes {
            arrivals,
            rate_changes,
            phases,
            random,
            now_s: 0.0,
            remaining_integral,
            burst_left,
        }
    }

    fn rate_at(&self, at_s: f64) -> f64 {
        let base = match self.arrivals {
            Arrivals::Constant { rate } | Arrivals::Poisson { rate } => rate,
            Arrivals::OnOff { rate, on_s, off_s } => {
                if at_s.rem_euclid(on_s + off_s) < on_s {
                    rate
                } else {
                    0.0
                }
            }
            Arrivals::Burst { .. } => 0.0,
        };
        let is_active = |phase: &&Phase| at_s >= phase.from_s && at_s < phase.until_s;
        self.phases
            .iter()
            .filter(is_active)
            .fold(base, |rate, phase| rate * phase.times + phase.plus)
    }

    fn next_burst_call(&mut self, at_s: f64, count: u64, over_s: f64) -> Option<f64> {
        let left = self.burst_left.checked_sub(1)?;
        self.burst_left = left;
        Some(at_s + over_s * (count - left - 1) as f64 / count as f64)
    }
}

impl Iterator for CallTimes {
    type Item = f64;

    fn next(&mut self) -> Option<f64> {
        if let Arrivals::Burst { at_s, count, over_s } = self.arrivals {
            return self.next_burst_call(at_s, count, over_s);
        }
        loop {
            let change =
                self.rate_changes.iter().copied().find(|&change| change > self.now_s + 1e-9)?;
            let rate = self.rate_at(self.now_s + 1e-9);
            let until_change = (change - self.now_s) * rate;
            // A call at the exact time of a rate change belongs to the new rate.
            if self.remaining_integral < until_change - 1e-9 {
                self.now_s += self.remaining_integral / rate;
                let at_s = self.now_s;
                self.remaining_integral = match self.arrivals {
                    Arrivals::Poisson { .. } => self.random.next_exponential(),
                    Arrivals::Constant { .. } | Arrivals::OnOff { .. } | Arrivals::Burst { .. } => {
                        1.0
                    }
                };
                return Some(at_s);
            }
            self.remaining_integral = (self.remaining_integral - until_change).max(0.0);
            self.now_s = change;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::WhenRejected;

    fn group(arrivals: Arrivals, phases: Vec<Phase>) -> Group {
        Group {
            name: "g".to_owned(),
            descriptor: "k=v".to_owned(),
            clients: 1,
            hits: 1,
            arrivals,
            phases,
            when_rejected: WhenRejected::GiveUp,
        }
    }

    fn count(group: &Group, lasts_s: f64) -> usize {
        CallTimes::new(group, 0, lasts_s, Random::new(1, 0)).count()
    }

    #[test]
    fn even_traffic_has_exactly_its_rate() {
        assert_eq!(count(&group(Arrivals::Constant { rate: 14.0 }, vec![]), 60.0), 840);
    }

    #[test]
    fn a_phase_multiplies_the_rate_exactly() {
        let surge = Phase { from_s: 15.0, until_s: 35.0, times: 3.0, plus: 0.0 };
        assert_eq!(count(&group(Arrivals::Constant { rate: 14.0 }, vec![surge]), 60.0), 1_400);
    }

    #[test]
    fn poisson_traffic_has_about_its_rate_and_repeats_for_its_seed() {
        let poisson = group(Arrivals::Poisson { rate: 100.0 }, vec![]);
        let calls = count(&poisson, 100.0);
        assert!((9_500..=10_500).contains(&calls), "{calls}");
        assert_eq!(calls, count(&poisson, 100.0));
    }

    #[test]
    fn on_off_traffic_is_silent_while_off() {
        let on_off = group(Arrivals::OnOff { rate: 10.0, on_s: 1.0, off_s: 3.0 }, vec![]);
        let calls: Vec<f64> = CallTimes::new(&on_off, 0, 12.0, Random::new(1, 0)).collect();
        assert_eq!(calls.len(), 30);
        assert!(calls.iter().all(|at| at.rem_euclid(4.0) < 1.0 + 1e-6), "{calls:?}");
    }

    #[test]
    fn a_burst_can_be_spread_evenly() {
        let burst = group(Arrivals::Burst { at_s: 5.0, count: 4, over_s: 2.0 }, vec![]);
        let calls: Vec<f64> = CallTimes::new(&burst, 0, 60.0, Random::new(1, 0)).collect();
        assert_eq!(calls, [5.0, 5.5, 6.0, 6.5]);
    }
}
