//! Fractions of a limit: one replica's share, or the percentage to which an operator scales down a
//! rule.
//!
//! Not here: when a fraction applies (`resilience`, `policy`).

use super::{
    Algorithm, Bucket, Concurrency, FixedWindow, Hits, Hybrid, Limit, Micros, Refill, SlidingLog,
    SlidingWindow,
};

/// Cap on the product of `burst` and `emission` (or `window`) when a bucket is scaled: 2^51, with
/// times in microseconds. This is half of the smaller bound in [`Refill`], because the debt of a
/// bucket with `charge: billed` or `always` may reach twice its capacity.
const SCALED_PRODUCT_MAX: u64 = 1 << 51;

/// Fraction of a limit, greater than 0 and at most 1.
///
/// ```
/// use tidegate::domain::{Hits, Fraction};
/// assert_eq!(Fraction::one_of(3).of_hits(Hits(100)), Hits(33));
/// assert_eq!(Fraction::one_of(3).of_hits(Hits(2)), Hits(1));
/// assert_eq!(Fraction::from_percent(20).of_hits(Hits(501)), Hits(101));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fraction {
    numerator: u32,
    denominator: u32,
    /// Whether [`of_hits`](Self::of_hits) rounds up rather than down.
    rounds_up: bool,
}

impl Fraction {
    /// Fraction that equals 1 and leaves a limit unchanged.
    pub const WHOLE: Fraction = Fraction { numerator: 1, denominator: 1, rounds_up: false };

    /// Returns the fraction `1 / parts`, or 1 if `parts` is 0.
    pub const fn one_of(parts: u32) -> Fraction {
        Fraction { denominator: if parts == 0 { 1 } else { parts }, ..Fraction::WHOLE }
    }

    /// Converts a percentage to a fraction that rounds hits up. A percentage outside 1 to 100 is
    /// clamped to that range.
    pub const fn from_percent(percent: u32) -> Fraction {
        let numerator = match percent {
            0 => 1,
            1..=100 => percent,
            101.. => 100,
        };
        Fraction { numerator, denominator: 100, rounds_up: true }
    }

    /// Returns whether the fraction is 1.
    pub const fn is_whole(self) -> bool {
        self.numerator == self.denominator
    }

    /// Returns this fraction of `whole`, but at least 1 unless `whole` is 0. A percentage is rounded
    /// up, and a share of a replica down, so that the shares of all replicas do not exceed the limit.
    pub fn of_hits(self, whole: Hits) -> Hits {
        let scaled = u128::from(whole.0) * u128::from(self.numerator);
        let denominator = u128::from(self.denominator);
        let part = if self.rounds_up { scaled.div_ceil(denominator) } else { scaled / denominator };
        // The conversion cannot fail: the result is at most `whole`, a u64.
        let part = u64::try_from(part).unwrap_or(u64::MAX);
        Hits(part.max(1).min(whole.0))
    }

    /// Divides the duration `whole` by the fraction and rounds up. The result is capped at
    /// `at_most` microseconds, but is never shorter than `whole`.
    fn divide_duration(self, whole: Micros, at_most: u64) -> Micros {
        let longer = (u128::from(whole.0) * u128::from(self.denominator))
            .div_ceil(u128::from(self.numerator));
        Micros(u64::try_from(longer).unwrap_or(u64::MAX).min(at_most).max(whole.0))
    }
}

impl Limit {
    /// Returns the limit scaled by a fraction. The capacity is rounded as by [`Fraction::of_hits`].
    /// The refill rate of a bucket is rounded down. The counter key,
    /// the windows and the rate reported in statuses do not change.
    ///
    /// If each of `n` replicas enforces `1/n` of a limit, together they admit at most the limit or
    /// `n` hits, whichever is larger.
    #[must_use]
    pub fn scaled_by(&self, fraction: Fraction) -> Limit {
        if fraction.is_whole() {
            return self.clone();
        }
        let mut algorithm = self.algorithm.clone();
        match &mut algorithm {
            Algorithm::FixedWindow(FixedWindow { hits, .. })
            | Algorithm::SlidingWindow(SlidingWindow { hits, .. })
            | Algorithm::SlidingLog(SlidingLog { hits, .. })
            | Algorithm::Concurrency(Concurrency { slots: hits, .. }) => {
                *hits = fraction.of_hits(*hits);
            }
            Algorithm::Bucket(bucket) => {
                let burst = fraction.of_hits(bucket.burst);
                let at_most = SCALED_PRODUCT_MAX / burst.0.max(1);
                let refill = match bucket.refill {
                    Refill::Arrival { emission } => {
                        Refill::Arrival { emission: fraction.divide_duration(emission, at_most) }
                    }
                    Refill::Credits { hits, window } => {
                        Refill::Credits { hits, window: fraction.divide_duration(window, at_most) }
                    }
                };
                let floor = fraction.of_hits(bucket.floor).min(burst);
                let debt_burst = bucket.debt_at(refill).max(burst);
                *bucket = Bucket { burst, debt_burst, refill, floor, leaky: bucket.leaky };
            }
            Algorithm::Hybrid(classes) => {
                let burst = fraction.of_hits(classes.burst);
                let hits = fraction.of_hits(classes.hits);
                let refill = u128::from(classes.expiry_burst.0) * u128::from(hits.0);
                let same_refill = refill.div_ceil(u128::from(classes.hits.0.max(1)));
                let expiry_burst = Hits(u64::try_from(same_refill).unwrap_or(u64::MAX)).max(burst);
                *classes = Hybrid { burst, expiry_burst, hits, ..classes.clone() };
            }
        }
        Limit { algorithm, ..self.clone() }
    }
}

impl Bucket {
    /// Returns the hits whose refill at the rate `refill` takes as long as that of the bucket's
    /// largest debt at its own rate, rounded up.
    pub fn debt_at(&self, refill: Refill) -> Hits {
        // The time of a hit is `unit / flow`. Products stay below 2^53 · 2^32.
        let unit_and_flow = |refill| match refill {
            Refill::Arrival { emission } => (emission.0.max(1), 1),
            Refill::Credits { hits, window } => (window.0.max(1), hits.0.max(1)),
        };
        let ((unit, flow), (new_unit, new_flow)) =
            (unit_and_flow(self.refill), unit_and_flow(refill));
        let credits = u128::from(self.debt_burst.0) * u128::from(unit) * u128::from(new_flow);
        let hits = credits.div_ceil(u128::from(new_unit) * u128::from(flow));
        Hits(u64::try_from(hits).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Window;
    use super::super::fixtures::limit;
    use super::*;

    #[test]
    fn the_shares_of_all_replicas_sum_to_the_limit_or_one_hit_each() {
        for whole in [0, 1, 2, 7, 99, 100, u64::from(u32::MAX), u64::MAX] {
            for replicas in [1, 2, 3, 7, 1_000] {
                let part = Fraction::one_of(replicas).of_hits(Hits(whole)).0;
                let sum = u128::from(part) * u128::from(replicas);
                let most = u128::from(whole).max(u128::from(replicas));
                assert!(sum <= most, "{replicas} × {part} of {whole}");
                assert_eq!(part == 0, whole == 0);
            }
        }
    }

    #[test]
    fn a_window_keeps_its_length_and_a_bucket_slows_down() {
        let window = Window::Epoch { length: Micros::SECOND };
        let whole = limit(Algorithm::FixedWindow(FixedWindow { hits: Hits(7), window }));
        let part = whole.scaled_by(Fraction::one_of(2));
        assert_eq!(part.capacity(), Hits(3));
        assert_eq!((part.rate, part.limit_id), (whole.rate, whole.limit_id));

        let part = |refill| {
            let (burst, floor) = (Hits(10), Hits(4));
            let whole = limit(Algorithm::Bucket(Bucket {
                burst,
                debt_burst: burst,
                refill,
                floor,
                leaky: false,
            }));
            let part = whole.scaled_by(Fraction::from_percent(30)).algorithm;
            let Algorithm::Bucket(part) = part else { panic!() };
            assert_eq!((part.burst, part.floor), (Hits(3), Hits(2)));
            part.refill
        };
        let slower = Refill::Arrival { emission: Micros(334) };
        assert_eq!(part(Refill::Arrival { emission: Micros(100) }), slower);
        let (hits, window) = (Hits(7), Micros::SECOND);
        let slower = Refill::Credits { hits, window: Micros(3_333_334) };
        assert_eq!(part(Refill::Credits { hits, window }), slower);
    }

    #[test]
    fn only_the_hits_of_the_other_algorithms_are_scaled() {
        let halved = |algorithm| limit(algorithm).scaled_by(Fraction::one_of(2)).algorithm;
        let length = Micros::SECOND;
        let window = |hits| Algorithm::SlidingWindow(SlidingWindow { hits: Hits(hits), length });
        assert_eq!(halved(window(7)), window(3));
        let log = |hits| Algorithm::SlidingLog(SlidingLog { hits: Hits(hits), length });
        assert_eq!(halved(log(7)), log(3));
        let slots =
            |slots| Algorithm::Concurrency(Concurrency { slots: Hits(slots), lease: length });
        assert_eq!(halved(slots(7)), slots(3));
        let hybrid = |burst, hits| {
            let (burst, hits, shares) = (Hits(burst), Hits(hits), [30, 20].into());
            Algorithm::Hybrid(Hybrid {
                burst,
                expiry_burst: burst,
                hits,
                window: length,
                shares,
                class: 1,
                floor_percent: 60,
            })
        };
        assert_eq!(halved(hybrid(101, 11)), hybrid(50, 5));
    }

    #[test]
    fn a_scaled_refill_stays_within_the_arithmetic() {
        let window = Micros::from_secs(10 * 365 * 86_400);
        let refill = Refill::Credits { hits: Hits(1), window };
        let whole = limit(Algorithm::Bucket(Bucket {
            burst: Hits(2),
            debt_burst: Hits(2),
            refill,
            floor: Hits::ZERO,
            leaky: false,
        }));
        let Algorithm::Bucket(part) = whole.scaled_by(Fraction::one_of(10_000)).algorithm else {
            panic!()
        };
        let Refill::Credits { window, .. } = part.refill else { panic!() };
        assert!(part.burst.0 * window.0 <= SCALED_PRODUCT_MAX);
    }
}
