//! The limit that a caller brings along, compiled.
//!
//! Not here: whether the unit is one that exists (`wire::decode`), its counter's key (`key`).

use super::key::{Identity, Secret};
use crate::domain::{
    Charge, Counting, FixedWindow, Hits, Limit, Micros, OnStoreFailure, Override, Rate, Window,
};

/// The longest window, some 142 years: beyond it the microseconds of a store's arithmetic, which
/// are exact below 2^53, would not be. A longer one is counted as this long.
const WINDOW_MAX: Micros = Micros(1 << 52);

/// A fixed window over unit × multiplier. Such limits have no name, no mode, and no place in the
/// policy; those of one domain and window are one family.
pub(super) fn compile(domain: &str, brought: &Override, secret: &Secret) -> Limit {
    let rate = Rate {
        requests_per_unit: brought.requests_per_unit,
        unit: Some(brought.unit),
        unit_multiplier: brought.unit_multiplier.max(1),
    };
    let mut limit = Limit {
        counting: Counting::FixedWindow(FixedWindow {
            hits: Hits(u64::from(brought.requests_per_unit)),
            window: Window::Epoch { length: rate.window().min(WINDOW_MAX) },
        }),
        rate,
        charge: Charge::Admitted,
        on_store_failure: OnStoreFailure::default(),
        family: 0,
    };
    let mut identity = Identity::default();
    identity.begin_override(domain, &limit);
    limit.family = (identity.hash(secret) >> 64) as u64;
    limit
}
