//! Limits that requests bring along, which override the limits of the policy.
//!
//! Not here: the counters of such limits (`matcher`).

use super::changed_limits::with_numbers;
use crate::domain::{
    Algorithm, Charge, FixedWindow, Hits, Limit, OnStoreFailure, Override, Rate, Window,
};
use crate::policy::compiled_policy::WINDOW_MAX;

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
    let has_same_period = match &limit.algorithm {
        Algorithm::FixedWindow(FixedWindow { window: Window::Calendar(calendar), .. }) => {
            rate.unit == Some(calendar.unit()) && rate.unit_multiplier == 1
        }
        Algorithm::FixedWindow(_)
        | Algorithm::SlidingWindow(_)
        | Algorithm::SlidingLog(_)
        | Algorithm::Bucket(_) => rate.window().min(WINDOW_MAX) == limit.rate.window(),
        Algorithm::Hybrid(_) | Algorithm::Concurrency(_) => false,
    };
    let changed = has_same_period.then(|| with_numbers(limit, new, None).ok())??;
    Some(Limit { rate, prepay: false, ..changed })
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
