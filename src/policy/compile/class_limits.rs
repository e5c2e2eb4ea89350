//! The part of a bucket that each consumer class gets, as a limit.
//!
//! Not here: how classes are written and what they must be (`tiers`).

use std::sync::Arc;

use super::limit_context::limit_id;
use super::limit_numbers::{BoundsError, Terms, bucket, hybrid_burst_max};
use super::spec::TierMethod;
use crate::domain::{Algorithm, Bucket, Hits, Hybrid, Limit, Micros, Rate};

/// Shares and floors are in per cent.
pub(crate) const WHOLE: u64 = 100;

/// A class as it is written.
pub(crate) struct Written {
    pub(crate) name: String,
    pub(crate) floor: Option<u32>,
    pub(crate) share: Option<u32>,
    pub(crate) burst: Option<u64>,
    pub(crate) requests: Option<u64>,
}

/// The whole that classes divide.
pub(crate) struct Whole<'a> {
    pub(crate) terms: &'a Terms,
    pub(crate) bucket: &'a Bucket,
}

/// One limit for each class. Classes that count on one state are of one limit_id.
pub(crate) fn limits(
    method: TierMethod,
    classes: &[Written],
    whole: &Whole<'_>,
    identity: &mut Vec<Vec<u8>>,
) -> Result<Vec<Limit>, BoundsError> {
    identity.push(method.as_str().into());
    let shares: Arc<[u32]> = classes.iter().map(|class| class.share.unwrap_or(0)).collect();
    let mut limits = Vec::new();
    for (at, class) in classes.iter().enumerate() {
        let (algorithm, rate) = match method {
            TierMethod::Shared => whole.shared(class),
            TierMethod::Separate => {
                identity.push(class.name.clone().into());
                whole.separate(class)?
            }
            TierMethod::Hybrid => whole.hybrid(class, at, &shares)?,
        };
        let limit = whole.terms.counted(algorithm, rate, limit_id(identity));
        if method == TierMethod::Separate {
            identity.pop();
        }
        whole.terms.affordable(&limit)?;
        limits.push(limit);
    }
    Ok(limits)
}

impl Whole<'_> {
    /// The same bucket under another floor, rounded up to a whole hit.
    fn shared(&self, class: &Written) -> (Algorithm, Rate) {
        let burst = self.bucket.burst;
        let floor = u128::from(burst.0) * u128::from(class.floor.unwrap_or(0));
        let floor = u64::try_from(floor.div_ceil(u128::from(WHOLE))).unwrap_or(burst.0);
        let bucket = Bucket { floor: Hits(floor), ..self.bucket.clone() };
        (Algorithm::Bucket(bucket), self.terms.rate)
    }

    /// A bucket of its own: the size rounded down to a whole hit, the rate exact.
    fn separate(&self, class: &Written) -> Result<(Algorithm, Rate), BoundsError> {
        let (window, charge) = (self.terms.rate.window(), self.terms.charge);
        if let (Some(burst), Some(requests)) = (class.burst, class.requests) {
            let rate = Rate { requests_per_unit: wire_number(requests), ..self.terms.rate };
            let bucket = bucket(requests, window, Some(burst), charge)?;
            return Ok((Algorithm::Bucket(bucket), rate));
        }
        let share = u64::from(class.share.unwrap_or(0));
        let burst =
            self.bucket.burst.0 / WHOLE * share + self.bucket.burst.0 % WHOLE * share / WHOLE;
        // requests · share per 100 windows, in lowest terms.
        let hits = u64::from(self.terms.rate.requests_per_unit) * share;
        let common = common_divisor(hits, WHOLE);
        let window = Micros(window.0 * (WHOLE / common));
        let bucket = bucket(hits / common, window, Some(burst), charge)?;
        Ok((Algorithm::Bucket(bucket), self.rate_of(share)))
    }

    fn hybrid(
        &self,
        class: &Written,
        at: usize,
        shares: &Arc<[u32]>,
    ) -> Result<(Algorithm, Rate), BoundsError> {
        let (burst, window) = (self.bucket.burst, self.terms.rate.window());
        let burst_max = hybrid_burst_max(window);
        if burst.0 > burst_max {
            return Err(BoundsError::BurstTooLarge { burst: burst.0, burst_max });
        }
        let hybrid = Hybrid {
            burst,
            hits: Hits(self.terms.rate.requests_per_unit.into()),
            window,
            shares: Arc::clone(shares),
            class: at,
            floor_percent: class.floor.unwrap_or(0),
        };
        Ok((Algorithm::Hybrid(hybrid), self.rate_of(u64::from(class.share.unwrap_or(0)))))
    }

    /// A class's rate as statuses show it: rounded down, at least 1.
    fn rate_of(&self, share: u64) -> Rate {
        let requests = u64::from(self.terms.rate.requests_per_unit) * share / WHOLE;
        Rate { requests_per_unit: wire_number(requests.max(1)), ..self.terms.rate }
    }
}

fn wire_number(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Euclid's.
fn common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a.max(1) } else { common_divisor(b, a % b) }
}
