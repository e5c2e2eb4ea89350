//! When the callers of a group call: a point process on simulated time, the same for a seed.
//!
//! Every process is the same walk: the expected number of calls grows with the rate, and a call
//! falls wherever it passes the next mark. Marks are 1 apart for even traffic and exponentially
//! distributed for Poisson traffic; a rate that changes only bends the curve.
//!
//! Not here: what becomes of the calls (`run`).

use super::scenario::{Arrivals, Group, Phase};

/// Small and good enough for traffic: Steele, Lea and Flood's SplitMix64.
#[derive(Debug, Clone)]
pub(super) struct Random(u64);

impl Random {
    /// A sequence of its own for each seed and stream.
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

    /// Evenly in [0, 1).
    pub(super) fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Exponentially with mean 1.
    fn exponential(&mut self) -> f64 {
        -(1.0 - self.fraction()).ln()
    }
}

/// The calls of one caller, in seconds after the beginning, in order.
#[derive(Debug, Clone)]
pub(super) struct Calls {
    arrivals: Arrivals,
    /// Times at which the rate changes, in order, the end of the scenario last.
    edges: Vec<f64>,
    phases: Vec<Phase>,
    random: Random,
    now_s: f64,
    /// Expected calls still to go until the next one.
    to_go: f64,
    left_of_burst: u64,
}

impl Calls {
    /// The calls of caller number `client` of `group` until `lasts_s`.
    pub(super) fn of(group: &Group, client: u32, lasts_s: f64, mut random: Random) -> Calls {
        let mut edges: Vec<f64> = vec![lasts_s];
        for phase in &group.phases {
            edges.extend([phase.from_s, phase.until_s].into_iter().filter(|&s| s < lasts_s));
        }
        if let Arrivals::OnOff { on_s, off_s, .. } = group.arrivals {
            let mut edge = 0.0;
            while edge < lasts_s {
                edges.extend(
                    [edge + on_s, edge + on_s + off_s].into_iter().filter(|&s| s < lasts_s),
                );
                edge += on_s + off_s;
            }
        }
        edges.sort_by(f64::total_cmp);
        // Callers of one group do not march in step: each begins at its own part of a gap.
        let offset = f64::from(client) / f64::from(group.clients);
        let to_go = match group.arrivals {
            Arrivals::Poisson { .. } => random.exponential(),
            Arrivals::Constant { .. } | Arrivals::OnOff { .. } | Arrivals::Burst { .. } => offset,
        };
        let left_of_burst = match group.arrivals {
            Arrivals::Burst { count, .. } => count,
            Arrivals::Constant { .. } | Arrivals::Poisson { .. } | Arrivals::OnOff { .. } => 0,
        };
        let phases = group.phases.clone();
        Calls { arrivals: group.arrivals, edges, phases, random, now_s: 0.0, to_go, left_of_burst }
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
        let holds = |phase: &&Phase| at_s >= phase.from_s && at_s < phase.until_s;
        self.phases.iter().filter(holds).fold(base, |rate, phase| rate * phase.times + phase.plus)
    }

    fn next_of_burst(&mut self, at_s: f64, count: u64, over_s: f64) -> Option<f64> {
        let left = self.left_of_burst.checked_sub(1)?;
        self.left_of_burst = left;
        Some(at_s + over_s * (count - left - 1) as f64 / count as f64)
    }
}

impl Iterator for Calls {
    type Item = f64;

    fn next(&mut self) -> Option<f64> {
        if let Arrivals::Burst { at_s, count, over_s } = self.arrivals {
            return self.next_of_burst(at_s, count, over_s);
        }
        loop {
            let edge = self.edges.iter().copied().find(|&edge| edge > self.now_s + 1e-9)?;
            let rate = self.rate_at(self.now_s + 1e-9);
            let until_edge = (edge - self.now_s) * rate;
            // A call that falls on the edge itself belongs to what comes after it.
            if self.to_go < until_edge - 1e-9 {
                self.now_s += self.to_go / rate;
                let at_s = self.now_s;
                self.to_go = match self.arrivals {
                    Arrivals::Poisson { .. } => self.random.exponential(),
                    Arrivals::Constant { .. } | Arrivals::OnOff { .. } | Arrivals::Burst { .. } => {
                        1.0
                    }
                };
                return Some(at_s);
            }
            self.to_go = (self.to_go - until_edge).max(0.0);
            self.now_s = edge;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::scenario::WhenRefused;
    use super::*;

    fn group(arrivals: Arrivals, phases: Vec<Phase>) -> Group {
        Group {
            name: "g".to_owned(),
            descriptor: "k=v".to_owned(),
            clients: 1,
            hits: 1,
            arrivals,
            phases,
            when_refused: WhenRefused::GiveUp,
        }
    }

    fn count(group: &Group, lasts_s: f64) -> usize {
        Calls::of(group, 0, lasts_s, Random::new(1, 0)).count()
    }

    #[test]
    fn even_traffic_has_exactly_its_rate() {
        assert_eq!(count(&group(Arrivals::Constant { rate: 14.0 }, vec![]), 60.0), 840);
    }

    #[test]
    fn a_surge_adds_exactly_what_it_says() {
        let surge = Phase { from_s: 15.0, until_s: 35.0, times: 3.0, plus: 0.0 };
        assert_eq!(count(&group(Arrivals::Constant { rate: 14.0 }, vec![surge]), 60.0), 1_400);
    }

    #[test]
    fn poisson_traffic_has_about_its_rate_and_repeats_with_its_seed() {
        let poisson = group(Arrivals::Poisson { rate: 100.0 }, vec![]);
        let calls = count(&poisson, 100.0);
        assert!((9_500..=10_500).contains(&calls), "{calls}");
        assert_eq!(calls, count(&poisson, 100.0));
    }

    #[test]
    fn on_off_traffic_is_silent_while_off() {
        let on_off = group(Arrivals::OnOff { rate: 10.0, on_s: 1.0, off_s: 3.0 }, vec![]);
        let calls: Vec<f64> = Calls::of(&on_off, 0, 12.0, Random::new(1, 0)).collect();
        assert_eq!(calls.len(), 30);
        assert!(calls.iter().all(|at| at.rem_euclid(4.0) < 1.0 + 1e-6), "{calls:?}");
    }

    #[test]
    fn a_burst_comes_at_one_instant_or_evenly() {
        let burst = group(Arrivals::Burst { at_s: 5.0, count: 4, over_s: 2.0 }, vec![]);
        let calls: Vec<f64> = Calls::of(&burst, 0, 60.0, Random::new(1, 0)).collect();
        assert_eq!(calls, [5.0, 5.5, 6.0, 6.5]);
    }
}
