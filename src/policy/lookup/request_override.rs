//! Limits that requests bring along, which override the limits of the policy.
//!
//! Not here: the counters of such limits (`matcher`).

use crate::domain::{
    Algorithm, Bucket, CREDITS_BOUND, Charge, FixedWindow, Hits, Limit, OnStoreFailure, Override,
    Rate, Refill, STORED_ENTRIES_MAX, SlidingLog, SlidingWindow, Window,
};
use crate::policy::spec::WINDOW_MAX;

/// Compiles a request override to a fixed-window limit with the given charge mode. If the override
/// allows 0 requests per unit, the limit refuses every check.
///
/// Windows longer than [`WINDOW_MAX`] are clamped to it, and a multiplier of 0 counts as 1.
/// Responses report the rate as sent in the request.
///
/// ```
/// use tidegate::domain::{Charge, Hits, Override, Unit};
/// let unit = Unit::Minute;
/// let request_override = Override { requests_per_unit: 5, unit, unit_multiplier: 1 };
/// let limit = tidegate::policy::compile_override("edge", &request_override, Charge::Admitted);
/// assert_eq!(limit.capacity(), Hits(5));
/// ```
pub fn compile_override(domain: &str, request_override: &Override, charge: Charge) -> Limit {
    let rate = override_rate(request_override);
    let length = rate.window().min(WINDOW_MAX);
    let hits = Hits(request_override.requests_per_unit.into());
    Limit {
        algorithm: Algorithm::FixedWindow(FixedWindow { hits, window: Window::Epoch { length } }),
        rate,
        charge,
        on_store_failure: OnStoreFailure::default(),
        prepay: false,
        block_seconds: None,
        reserve: None,
        limit_id: Limit::OVERRIDE_BIT
            | stable_hash(&[
                domain.as_bytes(),
                b"override".as_slice(),
                length.0.to_be_bytes().as_slice(),
            ]),
    }
}

/// Returns a rule's limit with the number of a request override, to count on the rule's counter.
/// Returns `None` if the override counts apart: if its period is another one, one of the numbers is
/// 0, the algorithm has no period, or the number is beyond the algorithm's bounds.
pub(crate) fn replace_number(limit: &Limit, request_override: &Override) -> Option<Limit> {
    let rate = override_rate(request_override);
    let (old, new) = (limit.rate.requests_per_unit, rate.requests_per_unit);
    if limit.capacity() == Hits::ZERO || old == 0 || new == 0 {
        return None;
    }
    let (hits, length) = (Hits(new.into()), rate.window().min(WINDOW_MAX));
    let has_same_length = length == limit.rate.window();
    let algorithm = match &limit.algorithm {
        Algorithm::FixedWindow(FixedWindow { window, .. }) => {
            let has_same_period = match window {
                Window::Epoch { .. } => has_same_length,
                Window::Calendar(calendar) => {
                    rate.unit == Some(calendar.unit()) && rate.unit_multiplier == 1
                }
            };
            let window = has_same_period.then(|| window.clone())?;
            Algorithm::FixedWindow(FixedWindow { hits, window })
        }
        Algorithm::SlidingWindow(_) if has_same_length => {
            let window = SlidingWindow { hits, length };
            let fits = hits.0 <= (CREDITS_BOUND - 1) / window.window_ticks();
            fits.then_some(Algorithm::SlidingWindow(window))?
        }
        Algorithm::SlidingLog(_) if has_same_length && hits.0 <= STORED_ENTRIES_MAX => {
            Algorithm::SlidingLog(SlidingLog { hits, length })
        }
        Algorithm::Bucket(bucket) if has_same_length => {
            let burst = u128::from(bucket.burst.0) * u128::from(new);
            let burst = Hits(u64::try_from(burst.div_ceil(u128::from(old))).ok()?.max(1));
            let refill = Refill::per_window(hits, length);
            // No override owes more than the rule's largest debt and one window, in which at least
            // one hit refills. All overrides have this bound, so none clamps what another one owes.
            let debt_burst = Hits(bucket.debt_at(refill).0.saturating_add(hits.0)).max(burst);
            let fits = debt_burst.0 <= refill.burst_max(limit.debt_charge());
            fits.then_some(Algorithm::Bucket(Bucket { burst, debt_burst, refill, ..*bucket }))?
        }
        Algorithm::SlidingWindow(_)
        | Algorithm::SlidingLog(_)
        | Algorithm::Bucket(_)
        | Algorithm::Hybrid(_)
        | Algorithm::Concurrency(_) => return None,
    };
    Some(Limit { algorithm, rate, prepay: false, ..limit.clone() })
}

fn override_rate(request_override: &Override) -> Rate {
    Rate {
        requests_per_unit: request_override.requests_per_unit,
        unit: Some(request_override.unit),
        unit_multiplier: request_override.unit_multiplier.max(1),
    }
}

/// Hashes the parts to 64 bits. The hash is the same on every machine and in every version.
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
