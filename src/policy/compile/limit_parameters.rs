//! Compiles the numbers of a limit to the parameters of its algorithm, and checks that the
//! algorithm can represent them exactly.
//!
//! Not here: reading YAML (`rate_limit`), the arithmetic itself (`algorithm`).

use crate::domain::{
    Algorithm, Bucket, Calendar, Charge, Concurrency, FixedWindow, Hits, Limit, Micros,
    OnStoreFailure, Rate, Refill, Reserve, SlidingLog, SlidingWindow, Unit, Window,
};
use crate::policy::compiled_policy::WINDOW_MAX;
use crate::policy::diagnostic::DiagnosticKind;
use crate::policy::syntax::keywords::{self, Key};
use crate::policy::words::AlgorithmName;

/// Exclusive upper bound of a hybrid limit's capacity, in credits. One hit costs 100 credits per
/// tick of the window. Below this bound, the sum of two capacities and a refill is exact in a
/// double.
const HYBRID_CAPACITY_BOUND: u64 = 1 << 51;

/// Default lease of a slot, in seconds. It is longer than most requests take, but short enough
/// that a crashed client's slots are soon free again.
pub(crate) const DEFAULT_LEASE_SECS: u64 = 60;

/// Limit as read from the policy file, with defaults filled in and bounds not yet checked.
#[derive(Clone, Debug)]
pub(crate) struct RawLimit {
    pub(crate) rate: Rate,
    pub(crate) algorithm: AlgorithmName,
    pub(crate) burst: Option<u64>,
    pub(crate) cost: u64,
    pub(crate) charge: Charge,
    /// Whether the limit sets its own `charge` instead of using the default of its domain.
    pub(crate) has_own_charge: bool,
    pub(crate) calendar: Option<Calendar>,
    pub(crate) lease: Micros,
    pub(crate) on_store_failure: OnStoreFailure,
    pub(crate) reserve: Option<Reserve>,
}

/// Reason why the numbers of a limit are invalid: they conflict, or exceed the range of the
/// arithmetic.
#[derive(Debug)]
pub(crate) struct BoundsError {
    /// Key that must be corrected.
    pub(crate) key: Key,
    pub(crate) kind: DiagnosticKind,
    pub(crate) message: String,
}

impl BoundsError {
    fn conflict(key: Key, message: impl Into<String>) -> BoundsError {
        BoundsError { key, kind: DiagnosticKind::Conflict, message: message.into() }
    }

    fn out_of_range(key: Key, message: String) -> BoundsError {
        BoundsError { key, kind: DiagnosticKind::OutOfRange, message }
    }

    pub(crate) fn burst_too_large(burst: u64, burst_max: u64) -> BoundsError {
        let message = format!(
            "`burst` must be at most {burst_max} at this rate, not {burst}: larger numbers cannot \
             be counted exactly"
        );
        BoundsError::out_of_range(keywords::BURST, message)
    }
}

impl RawLimit {
    /// Compiles this limit to a [`Limit`] with the id `limit_id`.
    ///
    /// # Errors
    ///
    /// Returns an error if the limit's numbers conflict or are out of range.
    pub(crate) fn compile(&self, limit_id: u64) -> Result<Limit, BoundsError> {
        let limit = self.with_algorithm(self.compile_algorithm()?, self.rate, limit_id);
        self.check_cost(&limit)?;
        Ok(limit)
    }

    /// Returns a limit with the given algorithm, rate, and id, and with the charge mode and
    /// `on_store_failure` of this limit. Consumer classes also get their limits from this function.
    pub(crate) fn with_algorithm(&self, algorithm: Algorithm, rate: Rate, limit_id: u64) -> Limit {
        let (charge, on_store_failure) = (self.charge, self.on_store_failure);
        let (prepay, block_seconds, reserve) = (false, None, self.reserve);
        Limit {
            algorithm,
            rate,
            charge,
            on_store_failure,
            prepay,
            block_seconds,
            reserve,
            limit_id,
        }
    }

    /// Returns an error if the cost of one request exceeds the capacity of `limit`, unless the
    /// capacity is 0.
    pub(crate) fn check_cost(&self, limit: &Limit) -> Result<(), BoundsError> {
        let capacity = limit.capacity().0;
        if capacity > 0 && self.cost > capacity {
            let message = format!(
                "`cost` must be at most {capacity}, the capacity of the limit; otherwise, no \
                 request could pass"
            );
            return Err(BoundsError::out_of_range(keywords::COST, message));
        }
        Ok(())
    }

    fn compile_algorithm(&self) -> Result<Algorithm, BoundsError> {
        let Rate { requests_per_unit, unit, .. } = self.rate;
        let unit = unit.unwrap_or(Unit::Second);
        let (hits, length) = (Hits(requests_per_unit.into()), self.rate.window());
        if length > WINDOW_MAX {
            let multiplier_max = WINDOW_MAX.0 / Micros::from_secs(unit.seconds()).0;
            let message = format!(
                "the window must be at most ten years; with `unit: {}`, `unit_multiplier` can be at \
                 most {multiplier_max}",
                unit.as_str()
            );
            return Err(BoundsError::out_of_range(keywords::UNIT_MULTIPLIER, message));
        }
        let is_bucket =
            matches!(self.algorithm, AlgorithmName::TokenBucket | AlgorithmName::LeakyBucket);
        if self.burst.is_some() && !is_bucket {
            let message = "`burst` is the capacity of a bucket, and this algorithm has no bucket; \
                           write `algorithm: token_bucket`, or remove `burst`";
            return Err(BoundsError::conflict(keywords::BURST, message));
        }
        let algorithm = match self.algorithm {
            AlgorithmName::FixedWindow => {
                let calendar = self.calendar.clone().map(Window::Calendar);
                let window = calendar.unwrap_or(Window::Epoch { length });
                Algorithm::FixedWindow(FixedWindow { hits, window })
            }
            AlgorithmName::SlidingWindow => {
                Algorithm::SlidingWindow(SlidingWindow { hits, length })
            }
            AlgorithmName::SlidingLog => Algorithm::SlidingLog(SlidingLog { hits, length }),
            AlgorithmName::Concurrency => {
                if self.charge.keeps_debt() {
                    let message = format!(
                        "`charge: {}` cannot be used with `algorithm: concurrency`, whose slots are \
                         either in use or free; remove it",
                        self.charge.as_str()
                    );
                    return Err(BoundsError::conflict(keywords::CHARGE, message));
                }
                Algorithm::Concurrency(Concurrency { slots: hits, lease: self.lease })
            }
            AlgorithmName::TokenBucket => {
                // A settle is charged as a bill is.
                let charge = if self.reserve.is_some() { Charge::Billed } else { self.charge };
                Algorithm::Bucket(compile_bucket(hits.0, length, self.burst, charge)?)
            }
            AlgorithmName::LeakyBucket => {
                // A leaky bucket paces requests, so its default burst is 1.
                let burst = self.burst.or((hits.0 > 0).then_some(1));
                let bucket = compile_bucket(hits.0, length, burst, self.charge)?;
                Algorithm::Bucket(Bucket { leaky: true, ..bucket })
            }
        };
        let hits_max = algorithm.hits_max();
        if hits.0 > hits_max {
            let message = format!(
                "`requests_per_unit` is more than `algorithm: {}` can count exactly; write at most \
                 {hits_max}",
                self.algorithm.as_str()
            );
            return Err(BoundsError::out_of_range(keywords::REQUESTS_PER_UNIT, message));
        }
        Ok(algorithm)
    }
}

/// Compiles a bucket with capacity `burst` (default: `hits`) that refills `hits` per `window`.
/// Returns an error if the capacity is too large, or if `burst` is set although `hits` is 0.
pub(crate) fn compile_bucket(
    hits: u64,
    window: Micros,
    burst: Option<u64>,
    charge: Charge,
) -> Result<Bucket, BoundsError> {
    let bucket = |burst, refill| Bucket {
        burst,
        debt_burst: burst,
        refill,
        floor: Hits::ZERO,
        leaky: false,
    };
    if hits == 0 {
        if burst.is_some() {
            let message = "`burst` has no effect with `requests_per_unit: 0`, which rejects every \
                           call; remove one of the two";
            return Err(BoundsError::conflict(keywords::BURST, message));
        }
        // A bucket without capacity never refills; the interval only has to be valid.
        return Ok(bucket(Hits::ZERO, Refill::Arrival { emission: window }));
    }
    let refill = Refill::per_window(Hits(hits), window);
    let burst_max = refill.burst_max(charge);
    match burst {
        Some(burst) if burst > burst_max => Err(BoundsError::burst_too_large(burst, burst_max)),
        None if hits > burst_max => {
            let message = format!(
                "a burst of this rate cannot be counted exactly; add `burst` with at most \
                 {burst_max}"
            );
            Err(BoundsError::out_of_range(keywords::REQUESTS_PER_UNIT, message))
        }
        burst => Ok(bucket(Hits(burst.unwrap_or(hits)), refill)),
    }
}

/// Returns the maximum capacity, in hits, of a hybrid limit with this window.
pub(crate) fn hybrid_burst_max(window: Micros) -> u64 {
    let ticks = SlidingWindow { hits: Hits::ZERO, length: window }.window_ticks();
    (HYBRID_CAPACITY_BOUND - 1) / (100 * ticks)
}
