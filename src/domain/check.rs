//! A check is a limit applied to one counter; a call is the list of checks that one request leads
//! to, decided together by the store.
//!
//! Not here: which checks a request leads to (`policy`), how they are decided (`store`).

use std::sync::Arc;
use std::time::Instant;

use super::{Algorithm, Charge, Hits, Limit, Micros};

/// Identity of a counter: 128 bits, a keyed hash of the domain, the limit's name, the window and
/// the entries that select the counter (`policy` computes it).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CounterKey {
    /// The hash.
    pub identity: u128,
    /// Hash of the `hash_tag` entries, which chooses the slot in a Redis Cluster; `None` if the
    /// identity chooses it. Two keys that differ only in the tag do not occur.
    pub tag: Option<u128>,
}

/// What a check does to its counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Charge the hits if they are available.
    Take {
        /// Hits, multiplied by the rule's own `cost`; at least 1.
        cost: Hits,
    },
    /// Report whether one more hit would pass. Charges nothing.
    Peek,
    /// Return hits that the caller took earlier. A counter never exceeds its capacity and never
    /// falls below zero used.
    Refund {
        /// Hits, multiplied by the rule's own `cost`.
        cost: Hits,
    },
}

/// How a check counts towards the admission of its call; see [`Admission`](super::Admission).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// Must pass.
    #[default]
    Required,
    /// At least one of the call's quota checks must pass.
    Quota,
    /// Has no effect on admission.
    Shadow,
}

/// Holder of a concurrency slot: 128 bits, a hash of the name that the caller sent, or random.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Holder(pub u128);

/// Token of a generated slot holder: 128 bits as 32 hexadecimal digits. The caller sends it to return
/// its slot.
///
/// ```
/// assert_eq!(tidegate::domain::HolderToken::new(255).as_str(), "000000000000000000000000000000ff");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HolderToken([u8; 32]);

impl HolderToken {
    /// Formats 128 bits.
    pub fn new(bits: u128) -> HolderToken {
        let mut text = [b'0'; 32];
        for (at, digit) in text.iter_mut().rev().enumerate() {
            *digit = b"0123456789abcdef"[(bits >> (4 * at)) as usize & 0xf];
        }
        HolderToken(text)
    }

    /// Returns the digits.
    pub fn as_str(&self) -> &str {
        // Cannot fail: the digits are ASCII.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

/// A limit applied to one counter.
#[derive(Clone, Copy, Debug)]
pub struct Check<'a> {
    /// The counter.
    pub key: CounterKey,
    /// The limit; shared, because a receipt outlives the call.
    pub limit: &'a Arc<Limit>,
    /// What to do.
    pub op: Op,
    /// How it counts towards admission.
    pub role: Role,
    /// Who takes or returns a slot; only for concurrency limits.
    pub holder: Option<Holder>,
}

impl Check<'_> {
    /// Hits that the check takes or refunds; 0 for a peek.
    pub fn cost(&self) -> Hits {
        match self.op {
            Op::Take { cost } | Op::Refund { cost } => cost,
            Op::Peek => Hits::ZERO,
        }
    }

    /// Hits that must be available for the check to pass: the cost of a take and at least 1, because
    /// a peek asks for one hit. 0 for a refund, which always passes.
    pub fn hits_needed(&self) -> Hits {
        match self.op {
            Op::Take { cost } => cost.max(Hits::ONE),
            Op::Peek => Hits::ONE,
            Op::Refund { .. } => Hits::ZERO,
        }
    }

    /// Whether the check refunds hits.
    pub fn is_refund(&self) -> bool {
        matches!(self.op, Op::Refund { .. })
    }

    /// Whether the hits are charged even if the check does not pass (`charge: always`).
    ///
    /// Never for concurrency, where a slot is held or not, nor for hybrid classes, which keep no
    /// debt; the policy rejects that combination.
    pub fn is_debt(&self) -> bool {
        let keeps_debt = match self.limit.algorithm {
            Algorithm::FixedWindow(_)
            | Algorithm::SlidingWindow(_)
            | Algorithm::SlidingLog(_)
            | Algorithm::Bucket(_) => true,
            Algorithm::Hybrid(_) | Algorithm::Concurrency(_) => false,
        };
        keeps_debt
            && self.limit.charge == Charge::Always
            && matches!(self.op, Op::Take { cost: Hits(1..) })
    }

    /// Whether the check changes its counter even if an all-or-nothing call is rejected: refunds
    /// and debts do.
    pub fn applies_when_rejected(&self) -> bool {
        self.is_refund() || self.is_debt()
    }
}

/// What a rejected call is charged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Accounting {
    /// Nothing, except for refunds and debts; see [`Check::applies_when_rejected`].
    #[default]
    AllOrNothing,
    /// Every check that passes, as if it were alone.
    Independent,
}

/// The checks of one request.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// At most [`Bounds::checks_max`](super::Bounds::checks_max) checks, in the order of the
    /// request's descriptors and, within a descriptor, of the policy file.
    pub checks: &'a [Check<'a>],
    /// What the call is charged if it is rejected.
    pub accounting: Accounting,
    /// Wall clock of this process. The memory store counts by it; Redis has its own clock.
    pub now: Micros,
    /// When the caller stops waiting, by the monotonic clock; `None` if it set no deadline.
    pub deadline: Option<Instant>,
}

#[cfg(test)]
mod tests {
    use super::super::{Concurrency, FixedWindow, OnStoreFailure, Rate, Window};
    use super::*;

    fn limit(algorithm: Algorithm, charge: Charge) -> Arc<Limit> {
        let rate = Rate { requests_per_unit: 1, unit: None, unit_multiplier: 1 };
        Arc::new(Limit {
            algorithm,
            rate,
            charge,
            on_store_failure: OnStoreFailure::Local,
            limit_id: 1,
        })
    }

    fn check(limit: &Arc<Limit>, op: Op) -> Check<'_> {
        let key = CounterKey { identity: 1, tag: None };
        Check { key, limit, op, role: Role::Required, holder: None }
    }

    #[test]
    fn only_refunds_and_debts_apply_to_a_rejected_call() {
        let window = Window::Epoch { length: Micros::SECOND };
        let window = Algorithm::FixedWindow(FixedWindow { hits: Hits(9), window });
        let slots =
            Algorithm::Concurrency(Concurrency { slots: Hits(9), lease: Micros::from_secs(60) });
        let take = |cost| Op::Take { cost: Hits(cost) };
        for (algorithm, charge, op, applies) in [
            (&window, Charge::Always, take(1), true),
            (&window, Charge::Always, take(0), false),
            (&window, Charge::Always, Op::Peek, false),
            (&window, Charge::Admitted, take(1), false),
            (&window, Charge::Admitted, Op::Refund { cost: Hits(1) }, true),
            (&slots, Charge::Always, take(1), false),
            (&slots, Charge::Admitted, Op::Refund { cost: Hits(1) }, true),
        ] {
            let limit = limit(algorithm.clone(), charge);
            assert_eq!(check(&limit, op).applies_when_rejected(), applies, "{charge:?} {op:?}");
        }
    }

    #[test]
    fn a_peek_needs_one_hit_and_costs_none() {
        let window = Window::Epoch { length: Micros::SECOND };
        let window = Algorithm::FixedWindow(FixedWindow { hits: Hits(9), window });
        let limit = limit(window, Charge::Admitted);
        let numbers = |op| (check(&limit, op).cost().0, check(&limit, op).hits_needed().0);
        assert_eq!(numbers(Op::Take { cost: Hits(3) }), (3, 3));
        assert_eq!(numbers(Op::Peek), (0, 1));
        assert_eq!(numbers(Op::Refund { cost: Hits(3) }), (3, 0));
    }
}
