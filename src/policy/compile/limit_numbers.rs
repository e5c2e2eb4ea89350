//! The numbers of a limit: from what was written to what an algorithm counts with, every bound of
//! the arithmetic checked.
//!
//! Not here: YAML (`rule`), the arithmetic itself (`algorithm`).

use std::fmt;

use crate::domain::{
    Algorithm, Bucket, Calendar, Charge, Concurrency, FixedWindow, Hits, Limit, Micros,
    OnStoreFailure, Override, Rate, Refill, SlidingLog, SlidingWindow, Unit, Window,
};

/// The longest window, ten years of 365 days: nobody limits anything by more, and every product of
/// a window with a 32-bit count of units stays inside 64 bits.
pub const WINDOW_MAX: Micros = Micros::from_secs(10 * 365 * 86_400);

/// A bucket as arrival time: `burst * emission` stays below this, so that the sum of it and a time
/// of this century stays an exact integer in Lua, whose numbers are doubles.
const ARRIVAL_BOUND: u64 = 1 << 52;

/// A bucket as credits: `burst * window` stays below this, the first integer that a double cannot
/// tell from its successor.
const CREDITS_BOUND: u64 = 1 << 53;

/// A bucket is kept as arrival time where rounding the emission interval up makes the rate at most
/// one part in this many slower (0.1 %); else as credits, which are exact but twice the state.
const ROUNDING_PARTS: u128 = 1_000;

/// A hybrid's products of credits, each a hundredth of a bucket's: two of them and a refill must stay
/// exact together.
const HYBRID_BOUND: u64 = 1 << 51;

/// The most entries of a log or a slot table: each of them is kept, and looked at by every check.
pub(crate) const ENTRIES_MAX: u64 = 10_000;

/// The lease of a slot where none is written: longer than requests take, short enough that a lost
/// client is not missed for long.
pub(crate) const LEASE_DEFAULT_SECS: u64 = 60;

/// The algorithms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum AlgorithmName {
    #[default]
    FixedWindow,
    SlidingWindow,
    SlidingLog,
    TokenBucket,
    LeakyBucket,
    Concurrency,
}

impl AlgorithmName {
    const ALL: [AlgorithmName; 6] = [
        AlgorithmName::FixedWindow,
        AlgorithmName::SlidingWindow,
        AlgorithmName::SlidingLog,
        AlgorithmName::TokenBucket,
        AlgorithmName::LeakyBucket,
        AlgorithmName::Concurrency,
    ];

    pub(crate) fn of_word(word: &str) -> Option<AlgorithmName> {
        AlgorithmName::ALL.into_iter().find(|algorithm| algorithm.as_str() == word)
    }

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            AlgorithmName::FixedWindow => "fixed_window",
            AlgorithmName::SlidingWindow => "sliding_window",
            AlgorithmName::SlidingLog => "sliding_log",
            AlgorithmName::TokenBucket => "token_bucket",
            AlgorithmName::LeakyBucket => "leaky_bucket",
            AlgorithmName::Concurrency => "concurrency",
        }
    }
}

/// A limit as it was written.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    pub(crate) rate: Rate,
    pub(crate) algorithm: AlgorithmName,
    pub(crate) burst: Option<u64>,
    pub(crate) cost: u64,
    pub(crate) charge: Charge,
    pub(crate) calendar: Option<Calendar>,
    pub(crate) lease: Micros,
    pub(crate) on_store_failure: OnStoreFailure,
}

/// Numbers that do not fit together, or not into the arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BoundsError {
    /// The window is longer than [`WINDOW_MAX`].
    WindowTooLong { unit: Unit, multiplier_max: u64 },
    /// `burst` on an algorithm without a bucket.
    BurstOnWindow,
    /// `burst` beside a rate of zero.
    BurstBesideZero,
    /// The burst does not fit beside this rate and window.
    BurstTooLarge { burst: u64, burst_max: u64 },
    /// No burst was written, and the rate itself does not fit as one.
    RateTooLargeForBurst { burst_max: u64 },
    /// More hits than the algorithm can count, or keep.
    HitsTooMany { algorithm: AlgorithmName, hits_max: u64 },
    /// `charge: always` on slots: one is taken or it is not.
    AlwaysOnSlots,
    /// One request costs more than can ever be there.
    CostAboveCapacity { capacity: u64 },
}

impl fmt::Display for BoundsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            BoundsError::WindowTooLong { unit, multiplier_max } => write!(
                f,
                "the window is longer than ten years; with `unit: {}` the largest \
                 `unit_multiplier` is {multiplier_max}",
                unit.as_str()
            ),
            BoundsError::BurstOnWindow => f.write_str(
                "`burst` is the capacity of a bucket, and this is none; write `algorithm: \
                 token_bucket` or remove `burst`",
            ),
            BoundsError::BurstBesideZero => f.write_str(
                "`requests_per_unit: 0` refuses everything, so `burst` has no meaning beside it; \
                 remove one of the two",
            ),
            BoundsError::BurstTooLarge { burst, burst_max } => write!(
                f,
                "`burst: {burst}` is beyond the arithmetic; at this rate the largest is {burst_max}"
            ),
            BoundsError::RateTooLargeForBurst { burst_max } => write!(
                f,
                "as a burst this rate is beyond the arithmetic; write `burst: {burst_max}`, the \
                 largest, or less beside it"
            ),
            BoundsError::HitsTooMany { algorithm, hits_max } => write!(
                f,
                "`requests_per_unit` is beyond what `{}` can count; here the largest is {hits_max}",
                algorithm.as_str()
            ),
            BoundsError::AlwaysOnSlots => f.write_str(
                "a slot is taken or it is not, so `charge: always` has no meaning for \
                 concurrency; remove it",
            ),
            BoundsError::CostAboveCapacity { capacity } => write!(
                f,
                "one request would cost more than the capacity, so that none ever passes; the \
                 largest `cost` is {capacity}"
            ),
        }
    }
}

impl Terms {
    /// The limit that these terms mean.
    pub(crate) fn limit(&self, limit_id: u64) -> Result<Limit, BoundsError> {
        let limit = self.counted(self.algorithm()?, self.rate, limit_id);
        self.affordable(&limit)?;
        Ok(limit)
    }

    /// A limit that counts otherwise under these terms: a class's.
    pub(crate) fn counted(&self, algorithm: Algorithm, rate: Rate, limit_id: u64) -> Limit {
        let (charge, on_store_failure) = (self.charge, self.on_store_failure);
        Limit { algorithm, rate, charge, on_store_failure, limit_id }
    }

    /// One request must fit.
    pub(crate) fn affordable(&self, limit: &Limit) -> Result<(), BoundsError> {
        let capacity = limit.capacity().0;
        if capacity > 0 && self.cost > capacity {
            return Err(BoundsError::CostAboveCapacity { capacity });
        }
        Ok(())
    }

    fn algorithm(&self) -> Result<Algorithm, BoundsError> {
        let Rate { requests_per_unit, unit, .. } = self.rate;
        let unit = unit.unwrap_or(Unit::Second);
        let (hits, length) = (Hits(requests_per_unit.into()), self.rate.window());
        if length > WINDOW_MAX {
            let multiplier_max = WINDOW_MAX.0 / Micros::from_secs(unit.seconds()).0;
            return Err(BoundsError::WindowTooLong { unit, multiplier_max });
        }
        let is_bucket =
            matches!(self.algorithm, AlgorithmName::TokenBucket | AlgorithmName::LeakyBucket);
        if self.burst.is_some() && !is_bucket {
            return Err(BoundsError::BurstOnWindow);
        }
        let at_most = |hits_max: u64| {
            let algorithm = self.algorithm;
            if hits.0 > hits_max {
                Err(BoundsError::HitsTooMany { algorithm, hits_max })
            } else {
                Ok(())
            }
        };
        Ok(match self.algorithm {
            AlgorithmName::FixedWindow => {
                let calendar = self.calendar.clone().map(Window::Calendar);
                let window = calendar.unwrap_or(Window::Epoch { length });
                Algorithm::FixedWindow(FixedWindow { hits, window })
            }
            AlgorithmName::SlidingWindow => {
                let window = SlidingWindow { hits, length };
                at_most((CREDITS_BOUND - 1) / window.window_ticks())?;
                Algorithm::SlidingWindow(window)
            }
            AlgorithmName::SlidingLog => {
                at_most(ENTRIES_MAX)?;
                Algorithm::SlidingLog(SlidingLog { hits, length })
            }
            AlgorithmName::Concurrency => {
                if self.charge == Charge::Always {
                    return Err(BoundsError::AlwaysOnSlots);
                }
                at_most(ENTRIES_MAX)?;
                Algorithm::Concurrency(Concurrency { slots: hits, lease: self.lease })
            }
            AlgorithmName::TokenBucket => {
                Algorithm::Bucket(bucket(hits.0, length, self.burst, self.charge)?)
            }
            AlgorithmName::LeakyBucket => {
                // A meter that paces: one at a time unless more is said.
                let burst = self.burst.or((hits.0 > 0).then_some(1));
                let bucket = bucket(hits.0, length, burst, self.charge)?;
                Algorithm::Bucket(Bucket { leaky: true, ..bucket })
            }
        })
    }
}

/// A bucket that holds `burst` and gets `hits` back in each `window`.
pub(crate) fn bucket(
    hits: u64,
    window: Micros,
    burst: Option<u64>,
    charge: Charge,
) -> Result<Bucket, BoundsError> {
    let plain = |burst, refill| Bucket { burst, refill, floor: Hits::ZERO, leaky: false };
    if hits == 0 {
        if burst.is_some() {
            return Err(BoundsError::BurstBesideZero);
        }
        // Nothing ever refills an empty bucket of no size; the interval only has to be a valid one.
        return Ok(plain(Hits::ZERO, Refill::Arrival { emission: window }));
    }
    // Charged always the debt may be twice as long.
    let debts = match charge {
        Charge::Admitted => 1,
        Charge::Always => 2,
    };
    let emission = window.0.div_ceil(hits);
    let lost = u128::from(emission) * u128::from(hits) - u128::from(window.0);
    let (refill, burst_max) = if lost * ROUNDING_PARTS < u128::from(window.0) {
        let emission_of = Refill::Arrival { emission: Micros(emission) };
        (emission_of, (ARRIVAL_BOUND / debts - 1) / emission)
    } else {
        (Refill::Credits { hits: Hits(hits), window }, (CREDITS_BOUND / debts - 1) / window.0)
    };
    match burst {
        Some(burst) if burst > burst_max => Err(BoundsError::BurstTooLarge { burst, burst_max }),
        None if hits > burst_max => Err(BoundsError::RateTooLargeForBurst { burst_max }),
        burst => Ok(plain(Hits(burst.unwrap_or(hits)), refill)),
    }
}

/// The largest capacity that a hybrid of this window may have.
pub(crate) fn hybrid_burst_max(window: Micros) -> u64 {
    let ticks = SlidingWindow { hits: Hits::ZERO, length: window }.window_ticks();
    (HYBRID_BOUND - 1) / (100 * ticks)
}

/// A limit that a request brings along: a fixed window, charged when admitted; 0 refuses
/// everything. A window beyond [`WINDOW_MAX`] counts as that long, a multiplier of 0 as 1; the rate
/// that answers show stays as it was sent.
///
/// ```
/// use tidegate::domain::{Hits, Override, Unit};
/// let asked = Override { requests_per_unit: 5, unit: Unit::Minute, unit_multiplier: 1 };
/// let limit = tidegate::policy::compile_override("edge", &asked);
/// assert_eq!(limit.capacity(), Hits(5));
/// ```
pub fn compile_override(domain: &str, asked: &Override) -> Limit {
    let rate = Rate {
        requests_per_unit: asked.requests_per_unit,
        unit: Some(asked.unit),
        unit_multiplier: asked.unit_multiplier.max(1),
    };
    let length = rate.window().min(WINDOW_MAX);
    let hits = Hits(asked.requests_per_unit.into());
    Limit {
        algorithm: Algorithm::FixedWindow(FixedWindow { hits, window: Window::Epoch { length } }),
        rate,
        charge: Charge::Admitted,
        on_store_failure: OnStoreFailure::default(),
        limit_id: stable_hash(&[
            domain.as_bytes(),
            b"override".as_slice(),
            length.0.to_be_bytes().as_slice(),
        ]),
    }
}

/// 64 bits that are the same for the same parts, on every machine and in every version.
pub(crate) fn stable_hash(parts: &[&[u8]]) -> u64 {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(&(part.len() as u64).to_be_bytes());
        hasher.update(part);
    }
    let mut first = [0_u8; 8];
    first.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
    u64::from_be_bytes(first)
}
