//! The numbers of a limit: from what was written to what an algorithm counts with, every bound of
//! the arithmetic checked.
//!
//! Not here: YAML (`rule`), the arithmetic itself (`algorithm`).

use std::fmt;

use crate::domain::{
    Bucket, Charge, Counting, FixedWindow, Hits, Limit, Micros, OnStoreFailure, Override, Rate,
    Refill, Unit, Window,
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

/// The algorithms of this version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Algorithm {
    #[default]
    FixedWindow,
    TokenBucket,
}

/// A limit as it was written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    pub(super) rate: Rate,
    pub(super) algorithm: Algorithm,
    pub(super) burst: Option<u64>,
    pub(super) cost: u64,
    pub(super) charge: Charge,
    pub(super) on_store_failure: OnStoreFailure,
}

/// Numbers that do not fit together, or not into the arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Misfit {
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
    /// One request costs more than can ever be there.
    CostAboveCapacity { capacity: u64 },
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Misfit::WindowTooLong { unit, multiplier_max } => write!(
                f,
                "the window is longer than ten years; with `unit: {}` the largest \
                 `unit_multiplier` is {multiplier_max}",
                unit.word()
            ),
            Misfit::BurstOnWindow => f.write_str(
                "`burst` is the capacity of a bucket, and this is a window; write `algorithm: \
                 token_bucket` or remove `burst`",
            ),
            Misfit::BurstBesideZero => f.write_str(
                "`requests_per_unit: 0` refuses everything, so `burst` has no meaning beside it; \
                 remove one of the two",
            ),
            Misfit::BurstTooLarge { burst, burst_max } => write!(
                f,
                "`burst: {burst}` is beyond the arithmetic; at this rate the largest is {burst_max}"
            ),
            Misfit::RateTooLargeForBurst { burst_max } => write!(
                f,
                "as a burst this rate is beyond the arithmetic; write `burst: {burst_max}`, the \
                 largest, or less beside it"
            ),
            Misfit::CostAboveCapacity { capacity } => write!(
                f,
                "one request would cost more than the capacity, so that none ever passes; the \
                 largest `cost` is {capacity}"
            ),
        }
    }
}

impl Terms {
    /// The limit that these terms mean.
    pub(super) fn limit(&self, family: u64) -> Result<Limit, Misfit> {
        let rate = self.rate;
        let unit = rate.unit.unwrap_or(Unit::Second);
        let window = rate.window();
        if window > WINDOW_MAX {
            let multiplier_max = WINDOW_MAX.0 / Micros::from_secs(unit.seconds()).0;
            return Err(Misfit::WindowTooLong { unit, multiplier_max });
        }
        let counting = match self.algorithm {
            Algorithm::FixedWindow if self.burst.is_some() => return Err(Misfit::BurstOnWindow),
            Algorithm::FixedWindow => Counting::FixedWindow(FixedWindow {
                hits: Hits(rate.requests_per_unit.into()),
                window: Window::Epoch { length: window },
            }),
            Algorithm::TokenBucket => {
                Counting::Bucket(bucket(rate.requests_per_unit.into(), window, self.burst)?)
            }
        };
        let (charge, on_store_failure) = (self.charge, self.on_store_failure);
        let limit = Limit { counting, rate, charge, on_store_failure, family };
        let capacity = limit.capacity().0;
        if capacity > 0 && self.cost > capacity {
            return Err(Misfit::CostAboveCapacity { capacity });
        }
        Ok(limit)
    }
}

fn bucket(hits: u64, window: Micros, burst: Option<u64>) -> Result<Bucket, Misfit> {
    if hits == 0 {
        if burst.is_some() {
            return Err(Misfit::BurstBesideZero);
        }
        // Nothing ever refills an empty bucket of no size; the interval only has to be a valid one.
        return Ok(Bucket {
            burst: Hits::ZERO,
            refill: Refill::Arrival { emission: window },
            floor: Hits::ZERO,
            leaky: false,
        });
    }
    let emission = window.0.div_ceil(hits);
    let lost = u128::from(emission) * u128::from(hits) - u128::from(window.0);
    let (refill, burst_max) = if lost * ROUNDING_PARTS < u128::from(window.0) {
        (Refill::Arrival { emission: Micros(emission) }, (ARRIVAL_BOUND - 1) / emission)
    } else {
        (Refill::Credits { hits: Hits(hits), window }, (CREDITS_BOUND - 1) / window.0)
    };
    match burst {
        Some(burst) if burst > burst_max => Err(Misfit::BurstTooLarge { burst, burst_max }),
        None if hits > burst_max => Err(Misfit::RateTooLargeForBurst { burst_max }),
        burst => Ok(Bucket {
            burst: Hits(burst.unwrap_or(hits)),
            refill,
            floor: Hits::ZERO,
            leaky: false,
        }),
    }
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
        counting: Counting::FixedWindow(FixedWindow { hits, window: Window::Epoch { length } }),
        rate,
        charge: Charge::Admitted,
        on_store_failure: OnStoreFailure::default(),
        family: stable_hash(&[
            domain.as_bytes(),
            b"override".as_slice(),
            length.0.to_be_bytes().as_slice(),
        ]),
    }
}

/// 64 bits that are the same for the same parts, on every machine and in every version.
pub(super) fn stable_hash(parts: &[&[u8]]) -> u64 {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(&(part.len() as u64).to_be_bytes());
        hasher.update(part);
    }
    let mut first = [0_u8; 8];
    first.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
    u64::from_be_bytes(first)
}
