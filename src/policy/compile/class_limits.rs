//! Compiles consumer classes: one limit per class, from its floor and share of the bucket.
//!
//! Not here: reading and validating classes (`tiers`).

use std::sync::Arc;

use super::limit_context::limit_id;
use super::limit_parameters::{BoundsError, RawLimit, compile_bucket, hybrid_burst_max};
use crate::domain::{Algorithm, Bucket, Charge, Hits, Hybrid, Limit, Micros, Rate};
use crate::policy::compiled_policy::TierMethod;
use crate::policy::diagnostic::to_u32;

/// Denominator of the shares and floors of consumer classes, which are given as percentages.
pub(crate) const HUNDRED_PERCENT: u64 = 100;

/// Consumer class as read from the policy file, with shares and floors in percent.
pub(crate) struct RawClass {
    pub(crate) name: String,
    pub(crate) floor: Option<u32>,
    pub(crate) share: Option<u32>,
    pub(crate) burst: Option<u64>,
    pub(crate) requests: Option<u64>,
}

/// Bucket that is divided among consumer classes, with the raw limit from which it was compiled.
pub(crate) struct DividedBucket<'a> {
    pub(crate) raw_limit: &'a RawLimit,
    pub(crate) bucket: &'a Bucket,
}

/// Compiles one limit per consumer class, in class order. Returns an error if a limit is out of
/// bounds.
///
/// The `limit_id` of each limit is a hash of `identity`, the name of `method` and, if each class
/// has a separate counter, the class name. Appends the name of `method` to `identity`.
pub(crate) fn compile_class_limits(
    method: TierMethod,
    classes: &[RawClass],
    divided: &DividedBucket<'_>,
    identity: &mut Vec<Vec<u8>>,
) -> Result<Vec<Limit>, BoundsError> {
    identity.push(method.as_str().into());
    let shares: Arc<[u32]> = classes.iter().map(|class| class.share.unwrap_or(0)).collect();
    let mut limits = Vec::new();
    for (at, class) in classes.iter().enumerate() {
        let (algorithm, rate) = match method {
            TierMethod::Shared => divided.compile_shared(class),
            TierMethod::Separate => {
                identity.push(class.name.clone().into());
                divided.compile_separate(class)?
            }
            TierMethod::Hybrid => divided.compile_hybrid(class, at, &shares)?,
        };
        let mut limit = divided.raw_limit.with_algorithm(algorithm, rate, limit_id(identity));
        if !limit.algorithm.keeps_debt() {
            // The default of a domain must not be an error for a limit that keeps no debt.
            limit.charge = Charge::Admitted;
        }
        if method == TierMethod::Separate {
            identity.pop();
        }
        divided.raw_limit.check_cost(&limit)?;
        limits.push(limit);
    }
    Ok(limits)
}

impl DividedBucket<'_> {
    /// Returns the shared bucket with the floor of this class. The floor is rounded up to a whole
    /// hit.
    fn compile_shared(&self, class: &RawClass) -> (Algorithm, Rate) {
        let burst = self.bucket.burst;
        let floor = u128::from(burst.0) * u128::from(class.floor.unwrap_or(0));
        let floor = u64::try_from(floor.div_ceil(u128::from(HUNDRED_PERCENT))).unwrap_or(burst.0);
        let bucket = Bucket { floor: Hits(floor), ..self.bucket.clone() };
        (Algorithm::Bucket(bucket), self.raw_limit.rate)
    }

    /// Returns a bucket for this class alone. Its capacity is rounded down to a whole hit; its
    /// refill rate is not rounded.
    fn compile_separate(&self, class: &RawClass) -> Result<(Algorithm, Rate), BoundsError> {
        let (window, charge) = (self.raw_limit.rate.window(), self.raw_limit.charge);
        if let (Some(burst), Some(requests)) = (class.burst, class.requests) {
            let rate = Rate { requests_per_unit: to_u32(requests), ..self.raw_limit.rate };
            let bucket = compile_bucket(requests, window, Some(burst), charge)?;
            return Ok((Algorithm::Bucket(bucket), rate));
        }
        let share = u64::from(class.share.unwrap_or(0));
        let burst = self.bucket.burst.0 / HUNDRED_PERCENT * share
            + self.bucket.burst.0 % HUNDRED_PERCENT * share / HUNDRED_PERCENT;
        // requests · share per 100 windows, in lowest terms.
        let hits = u64::from(self.raw_limit.rate.requests_per_unit) * share;
        let divisor = greatest_common_divisor(hits, HUNDRED_PERCENT);
        let window = Micros(window.0 * (HUNDRED_PERCENT / divisor));
        let bucket = compile_bucket(hits / divisor, window, Some(burst), charge)?;
        Ok((Algorithm::Bucket(bucket), self.displayed_rate(share)))
    }

    /// Returns a hybrid limit, with a guaranteed share for this class and a pool for all classes,
    /// or an error if the burst is too large. `at` is the index of the class.
    fn compile_hybrid(
        &self,
        class: &RawClass,
        at: usize,
        shares: &Arc<[u32]>,
    ) -> Result<(Algorithm, Rate), BoundsError> {
        let (burst, window) = (self.bucket.burst, self.raw_limit.rate.window());
        let burst_max = hybrid_burst_max(window);
        if burst.0 > burst_max {
            return Err(BoundsError::burst_too_large(burst.0, burst_max));
        }
        let hybrid = Hybrid {
            burst,
            expiry_burst: burst,
            hits: Hits(self.raw_limit.rate.requests_per_unit.into()),
            window,
            shares: Arc::clone(shares),
            class: at,
            floor_percent: class.floor.unwrap_or(0),
        };
        Ok((Algorithm::Hybrid(hybrid), self.displayed_rate(u64::from(class.share.unwrap_or(0)))))
    }

    /// Returns the rate that responses report for a class with a share of `share` percent, rounded
    /// down but at least 1.
    fn displayed_rate(&self, share: u64) -> Rate {
        let requests = u64::from(self.raw_limit.rate.requests_per_unit) * share / HUNDRED_PERCENT;
        Rate { requests_per_unit: to_u32(requests.max(1)), ..self.raw_limit.rate }
    }
}

/// Returns the greatest common divisor; 1 if both numbers are 0.
fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a.max(1) } else { greatest_common_divisor(b, a % b) }
}
