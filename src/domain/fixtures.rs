//! Limits and checks for unit tests.

use std::sync::Arc;

use super::{
    Algorithm, Charge, Check, CounterKey, FixedWindow, Hits, Limit, Micros, OnStoreFailure, Op,
    Rate, Role, Unit, Window,
};

/// Returns a limit that charges admitted hits only. Responses report its rate as 1 per second.
pub(crate) fn limit(algorithm: Algorithm) -> Limit {
    Limit {
        algorithm,
        rate: Rate { requests_per_unit: 1, unit: Some(Unit::Second), unit_multiplier: 1 },
        charge: Charge::Admitted,
        on_store_failure: OnStoreFailure::Local,
        prepay: false,
        limit_id: 1,
    }
}

/// Returns a limit of `hits` hits per fixed window of the given length.
pub(crate) fn fixed_window(hits: u64, length: Micros) -> Limit {
    let window = Window::Epoch { length };
    limit(Algorithm::FixedWindow(FixedWindow { hits: Hits(hits), window }))
}

/// Returns a check with [`Role::Required`] that charges `cost` hits to the counter with this
/// identity.
pub(crate) fn take(identity: u128, cost: u64, limit: &Arc<Limit>) -> Check<'_> {
    let (key, op) = (CounterKey { identity, tag: None }, Op::Take { cost: Hits(cost) });
    Check { key, limit, op, role: Role::Required, holder: None }
}
