//! Limits with other numbers than those of the policy, which count on the same counters.
//!
//! Not here: whose numbers apply (`request_override`, `operator_overrides`), the numbers of policies
//! (`compile`).

use crate::domain::{
    Algorithm, Bucket, Charge, Concurrency, FixedWindow, Fraction, Hits, Limit, Micros,
    OnStoreFailure, Rate, Refill, SlidingLog, SlidingWindow, Window,
};
use crate::policy::override_entry::fault;

/// Returns a limit with `number` as its `requests_per_unit`. Without `burst`, the burst of a bucket
/// changes in proportion.
///
/// # Errors
///
/// Returns an error if the algorithm cannot count these numbers, or has no single number.
pub(crate) fn with_numbers(
    limit: &Limit,
    number: u32,
    burst: Option<u64>,
) -> Result<Limit, String> {
    let (hits, rate) = (Hits(number.into()), Rate { requests_per_unit: number, ..limit.rate });
    match (&limit.algorithm, burst) {
        (Algorithm::Bucket(_), Some(0)) => return fault("`burst` must be at least 1"),
        (Algorithm::Bucket(_), _) | (_, None) => {}
        (_, Some(_)) => {
            return fault("`burst` is only allowed on a token_bucket or leaky_bucket; remove it");
        }
    }
    if number == 0 {
        return match burst {
            Some(_) => fault("`limit: 0` rejects everything; remove `burst`"),
            None => Ok(Limit { rate, ..deny_all(limit) }),
        };
    }
    let mut algorithm = limit.algorithm.clone();
    match &mut algorithm {
        Algorithm::FixedWindow(FixedWindow { hits: old, .. })
        | Algorithm::SlidingWindow(SlidingWindow { hits: old, .. })
        | Algorithm::SlidingLog(SlidingLog { hits: old, .. })
        | Algorithm::Concurrency(Concurrency { slots: old, .. }) => *old = hits,
        Algorithm::Bucket(bucket) => *bucket = bucket_with_numbers(limit, bucket, hits, burst)?,
        Algorithm::Hybrid(_) => return fault(TIERS_FAULT),
    }
    let hits_max = algorithm.hits_max();
    if hits.0 > hits_max {
        return fault(format!("`limit` must be at most {hits_max} with this algorithm"));
    }
    Ok(Limit { algorithm, rate, ..limit.clone() })
}

fn bucket_with_numbers(
    limit: &Limit,
    bucket: &Bucket,
    hits: Hits,
    burst: Option<u64>,
) -> Result<Bucket, String> {
    let refill = Refill::per_window(hits, limit.rate.window());
    let burst = match (burst, limit.rate.requests_per_unit) {
        (Some(burst), _) => burst,
        // The defaults of the policy.
        (None, 0) if bucket.leaky => 1,
        (None, 0) => hits.0,
        (None, old) => {
            let burst = (u128::from(bucket.burst.0) * u128::from(hits.0)).div_ceil(old.into());
            u64::try_from(burst).unwrap_or(u64::MAX).max(1)
        }
    };
    // No override owes more than the rule's largest debt and one window, in which at least one hit
    // refills. All overrides have this bound, so none clamps what another one owes.
    let debt_burst = bucket.debt_at(refill).0.saturating_add(hits.0).max(burst);
    let burst_max = refill.burst_max(limit.debt_charge());
    if debt_burst > burst_max {
        return fault(format!(
            "`burst` must be at most {burst_max} at this rate: larger numbers cannot be counted \
             exactly"
        ));
    }
    Ok(Bucket { burst: Hits(burst), debt_burst: Hits(debt_burst), refill, ..*bucket })
}

/// Returns a limit with the numbers that a percentage of its own numbers makes, rounded up.
pub(crate) fn scaled(limit: &Limit, percent: u32, has_tiers: bool) -> Limit {
    let (fraction, old) = (Fraction::from_percent(percent), limit.rate.requests_per_unit);
    if old == 0 || fraction.is_whole() {
        return limit.clone();
    }
    let number = scaled_number(old, percent);
    let burst = match &limit.algorithm {
        Algorithm::Bucket(bucket) => Some(fraction.of_hits(bucket.burst).0),
        _ => None,
    };
    // The floors and shares of consumer classes are scaled with the bucket.
    let changed = if has_tiers { None } else { with_numbers(limit, number, burst).ok() };
    changed.unwrap_or_else(|| {
        let rate = Rate { requests_per_unit: number, ..limit.rate };
        Limit { rate, ..limit.scaled_by(fraction) }
    })
}

/// Returns a percentage of a number, rounded up, which is at least 1 unless the number is 0.
pub(crate) fn scaled_number(number: u32, percent: u32) -> u32 {
    let scaled = Fraction::from_percent(percent).of_hits(Hits(number.into()));
    u32::try_from(scaled.0).unwrap_or(number)
}

/// Returns a limit of 0 hits that refuses every check, even if the store is unavailable. The limit
/// is always a fixed window, because a bucket of capacity 0 would clamp its counter's debt to 0.
/// While the override is set, neither refunds nor bills (hits already used) are recorded, because
/// writing them would overwrite the counter's state.
pub(crate) fn deny_all(limit: &Limit) -> Limit {
    // The limit's own window, whose end the status reports: with a shorter one, a client would soon
    // retry.
    let window = match &limit.algorithm {
        Algorithm::FixedWindow(fixed) => fixed.window.clone(),
        Algorithm::SlidingWindow(_)
        | Algorithm::SlidingLog(_)
        | Algorithm::Bucket(_)
        | Algorithm::Hybrid(_)
        | Algorithm::Concurrency(_) => {
            Window::Epoch { length: limit.rate.window().max(Micros::SECOND) }
        }
    };
    Limit {
        algorithm: Algorithm::FixedWindow(FixedWindow { hits: Hits::ZERO, window }),
        charge: Charge::Admitted,
        on_store_failure: OnStoreFailure::Deny,
        // A block would outlast the override.
        block_seconds: None,
        ..limit.clone()
    }
}

/// Error for numbers on a limit with consumer classes.
pub(crate) const TIERS_FAULT: &str =
    "numbers cannot override `tiers`; use `scale`, or change the policy";
