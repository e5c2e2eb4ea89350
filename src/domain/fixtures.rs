//! Limits, checks, check events and a calendar for unit tests.

use std::sync::Arc;

use super::{
    Algorithm, Anchor, Calendar, CalendarWindows, Charge, Check, CheckEvent, CounterKey,
    FixedWindow, Hits, Limit, Micros, OnStoreFailure, Op, Outcome, Rate, Role, RuleId, Source,
    Unit, Window, WindowBounds,
};

/// Length of a day in UTC.
pub(crate) const DAY: Micros = Micros::from_secs(86_400);

struct UtcDays;

impl CalendarWindows for UtcDays {
    fn window_at(&self, at: Micros) -> WindowBounds {
        let start = Micros(at.0 - at.0 % DAY.0);
        WindowBounds { start, end: start.saturating_add(DAY) }
    }
}

pub(crate) fn utc_days() -> Calendar {
    Calendar::new(Unit::Day, "UTC", Anchor::FIRST_DAY, Arc::new(UtcDays))
}

/// Returns a limit that charges admitted hits only. Responses report its rate as 1 per second.
pub(crate) fn limit(algorithm: Algorithm) -> Limit {
    Limit {
        algorithm,
        rate: Rate { requests_per_unit: 1, unit: Some(Unit::Second), unit_multiplier: 1 },
        charge: Charge::Admitted,
        on_store_failure: OnStoreFailure::Local,
        prepay: false,
        block_seconds: None,
        reserve: None,
        limit_id: 1,
    }
}

pub(crate) fn fixed_window(hits: u64, length: Micros) -> Limit {
    let window = Window::Epoch { length };
    limit(Algorithm::FixedWindow(FixedWindow { hits: Hits(hits), window }))
}

/// Returns a check with [`Role::Required`] that charges `cost` hits to the counter with this
/// identity.
pub(crate) fn take(identity: u128, cost: u64, limit: &Arc<Limit>) -> Check<'_> {
    let (key, op) = (CounterKey { identity, tag: None }, Op::Take { cost: Hits(cost) });
    Check { key, limit, op, role: Role::Required, holder: None, may_block: true }
}

/// Returns the event of a check of `hits` hits on a limit of 10 hits of the rule with the id `rule`,
/// in an admitted call that the memory store decided.
pub(crate) fn check_event(rule: u32, hits: u64, outcome: Outcome) -> CheckEvent {
    CheckEvent {
        rule: Some(RuleId(rule)),
        hits: Hits(hits),
        capacity: Hits(10),
        outcome,
        decided: true,
        shadow: false,
        admitted: true,
        is_refund: false,
        is_peek: false,
        lost_bill: None,
        is_blocked: false,
        source: Source::Memory,
    }
}
