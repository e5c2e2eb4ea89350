//! Checks and calls. A check applies a limit to one counter; a call is the list of checks of one
//! request, which the store decides together.
//!
//! Not here: finding the checks of a request (`policy`), deciding them (`store`).

use std::sync::Arc;
use std::time::Instant;

use super::named_enum::named_enum;
use super::{Algorithm, Charge, Hits, Limit, Micros};

/// Key of a counter. The `policy` module computes it from the domain, the limit's name, the window
/// and the entries that select the counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CounterKey {
    /// Keyed 128-bit hash that identifies the counter.
    pub identity: u128,
    /// Hash of the `hash_tag` entries, which determines the Redis Cluster slot. If `None`,
    /// `identity` determines the slot. Two keys with the same identity always have the same tag.
    pub tag: Option<u128>,
}

/// Operation that a check performs on its counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Charges the hits if enough are available, or in any case under [`Charge::Always`].
    Take {
        /// Hits to charge, at least 1: the descriptor's hits times the rule's `cost`, or only the
        /// descriptor's hits for a bill under [`Charge::Billed`].
        cost: Hits,
    },
    /// Reports whether `hits` more hits would pass, without charging them.
    Peek {
        /// Hits that must be available; at least 1. For a descriptor with `hits_addend: 0`, this
        /// is the rule's `cost`, that is, the charge for one more hit.
        hits: Hits,
    },
    /// Refunds hits that were charged earlier. A refund of more hits than the counter holds resets
    /// the counter to zero.
    Refund {
        /// Hits to refund: the descriptor's hits times the rule's `cost`.
        cost: Hits,
    },
    /// Holds hits under the check's [holder](Check::holder) if they fit beside the used and held
    /// hits. Replaces the holder's former hold. Only for limits with [`Limit::reserve`].
    Hold {
        /// Hits to hold: an upper estimate, at least 1.
        cost: Hits,
        /// Seconds after which the hold ends if it is not settled; at least 1.
        ttl_secs: u32,
    },
    /// Charges the hits in any case, and ends the holder's hold. Charges nothing if the hold was
    /// settled before and its time is not over. Only for limits with [`Limit::reserve`].
    Settle {
        /// Hits that were used; 0 only ends the hold.
        cost: Hits,
    },
}

impl Op {
    /// Peek for a single hit. Reads the state of a counter without charging it.
    pub const PEEK: Op = Op::Peek { hits: Hits::ONE };

    /// Refund of everything, which resets a counter: it also lifts a block, and on a limit with
    /// [`Limit::reserve`] it ends all holds.
    pub const RESET: Op = Op::Refund { cost: Hits(u64::MAX) };
}

/// Role of a check in deciding whether its call is admitted; see [`Admission`](super::Admission).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// The call is admitted only if this check passes.
    #[default]
    Required,
    /// The check belongs to a quota group. The call is admitted only if all checks of at least one
    /// quota group pass. The number identifies the group within the call and is below
    /// [`Bounds::checks_max`](super::Bounds::checks_max).
    Quota(u16),
    /// The check has no effect on admission.
    Shadow,
}

/// Holder of a concurrency slot, or id of a hold: a 128-bit hash of the name that the caller sent or,
/// if it sent none, of the generated token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Holder(pub u128);

/// Token that identifies a generated holder of a concurrency slot, or a hold: 128 bits as 32
/// hexadecimal digits. The caller sends the token to release its slot, or to settle.
///
/// ```
/// assert_eq!(tidegate::domain::HolderToken::new(255).as_str(),
/// "000000000000000000000000000000ff");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HolderToken([u8; 32]);

impl HolderToken {
    /// Creates the token that represents `bits` as 32 lowercase hexadecimal digits.
    pub fn new(bits: u128) -> HolderToken {
        let mut text = [b'0'; 32];
        for (at, digit) in text.iter_mut().rev().enumerate() {
            *digit = b"0123456789abcdef"[(bits >> (4 * at)) as usize & 0xf];
        }
        HolderToken(text)
    }

    /// Returns the token as 32 lowercase hexadecimal digits.
    pub fn as_str(&self) -> &str {
        // The conversion cannot fail, because hexadecimal digits are ASCII.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

/// Check of one limit against one counter. Its operation charges the counter, peeks at it, or
/// refunds hits to it.
#[derive(Clone, Copy, Debug)]
pub struct Check<'a> {
    /// Key of the counter to check.
    pub key: CounterKey,
    /// Limit to enforce. It is in an `Arc`, because a refund may need the limit after the call has
    /// ended.
    pub limit: &'a Arc<Limit>,
    /// Operation to apply to the counter.
    pub op: Op,
    /// Role of this check in deciding whether the call is admitted.
    pub role: Role,
    /// Holder that acquires or releases concurrency slots, or id of the hold to make or settle. Only
    /// concurrency limits, [`Op::Hold`], and [`Op::Settle`] use it.
    pub holder: Option<Holder>,
    /// Whether a refusal of this check blocks its key, if the limit has `block`. False for bills,
    /// refunds, quota descriptors, and tools that only read counters.
    pub may_block: bool,
}

impl Check<'_> {
    /// Returns whether the check is refused while its key is blocked: a charge, a hold, or a peek to a
    /// limit with `block`.
    pub fn reads_block(&self) -> bool {
        self.limit.block_seconds.is_some() && !self.comes_first()
    }

    /// Returns whether the check blocks its key if it is refused and no block is in force: not if
    /// no wait would let it pass. A required check that is refused rejects its call, and a shadow
    /// limit blocks in shadow, so this does not depend on the other checks of the call.
    pub fn starts_block(&self) -> bool {
        self.may_block && self.reads_block() && self.hits_needed() <= self.limit.capacity()
    }

    /// Returns whether the check resets its counter and lifts a block. A caller's refund is smaller.
    pub fn is_reset(&self) -> bool {
        self.op == Op::RESET
    }

    /// Returns the hits to charge, hold, or refund; 0 for a peek.
    pub fn cost(&self) -> Hits {
        match self.op {
            Op::Take { cost }
            | Op::Refund { cost }
            | Op::Hold { cost, .. }
            | Op::Settle { cost } => cost,
            Op::Peek { .. } => Hits::ZERO,
        }
    }

    /// Returns the hits that must be available for the check to pass: at least 1 for a charge, a hold,
    /// or a peek, and 0 for a refund or a settle, which always pass.
    pub fn hits_needed(&self) -> Hits {
        match self.op {
            Op::Take { cost } | Op::Hold { cost, .. } => cost.max(Hits::ONE),
            Op::Peek { hits } => hits.max(Hits::ONE),
            Op::Refund { .. } | Op::Settle { .. } => Hits::ZERO,
        }
    }

    /// Returns whether the call is admitted only if this check passes.
    pub fn is_required(&self) -> bool {
        self.role == Role::Required
    }

    /// Returns whether the check belongs to a quota group.
    pub fn is_quota(&self) -> bool {
        matches!(self.role, Role::Quota(_))
    }

    /// Returns whether the check refunds hits.
    pub fn is_refund(&self) -> bool {
        matches!(self.op, Op::Refund { .. })
    }

    /// Returns whether the check holds hits.
    pub fn is_hold(&self) -> bool {
        matches!(self.op, Op::Hold { .. })
    }

    /// Returns whether the check is applied before all others and always passes: a refund or a
    /// settle.
    pub fn comes_first(&self) -> bool {
        matches!(self.op, Op::Refund { .. } | Op::Settle { .. })
    }

    /// Returns whether the hits are charged even if the check is refused. This is true for settles,
    /// and for charges to a limit with [`Charge::Always`], including bills; see
    /// [`Limit::bill_limit`].
    ///
    /// Always false for concurrency and hybrid limits, which cannot record debt.
    pub fn charges_always(&self) -> bool {
        self.limit.algorithm.keeps_debt()
            && self.limit.charge == Charge::Always
            && matches!(self.op, Op::Take { cost: Hits(1..) })
            || matches!(self.op, Op::Settle { .. })
    }

    /// Returns the time that the check takes in Redis at most, in microseconds, as measured on
    /// counters of the largest size that a policy allows.
    ///
    /// A check that asks for several slots may read that many leases to find out when they are free.
    pub fn work(&self) -> u64 {
        // A block is read, and perhaps written, like a window.
        let block = if self.limit.block_seconds.is_some() { 12 } else { 0 };
        block
            + match &self.limit.algorithm {
                _ if self.limit.reserve.is_some() => 60,
                Algorithm::FixedWindow(_) | Algorithm::SlidingWindow(_) | Algorithm::Bucket(_) => {
                    12
                }
                Algorithm::SlidingLog(_) | Algorithm::Hybrid(_) => 50,
                Algorithm::Concurrency(limit) => 30 + self.hits_needed().min(limit.slots).0,
            }
    }

    /// Returns whether the check may change its counter even if its call is rejected. Under
    /// all-or-nothing accounting, this is true for refunds, for settles, for bills (see
    /// [`Charge::Billed`]), and for charges with `charge: always`; otherwise for all but holds.
    pub fn applies_when_rejected(&self, accounting: Accounting) -> bool {
        match accounting {
            Accounting::AllOrNothing => self.comes_first() || self.charges_always(),
            Accounting::Independent => !self.is_hold(),
        }
    }
}

named_enum! {
    /// Accounting mode of a call, which determines what is charged if the call is rejected.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum Accounting {
        /// A rejected call charges nothing, except bills (see [`Charge::Billed`]) and limits with
        /// `charge: always`. Its refunds are still applied. See [`Check::applies_when_rejected`].
        #[default]
        AllOrNothing => "all_or_nothing",
        /// Every check that passes is charged, even if another check rejects the call. A rejected
        /// call holds nothing, though.
        Independent => "independent",
    }
}

/// Checks of one request. A store decides them together.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// Checks in the order of the request's descriptors and, within a descriptor, in the order of
    /// the policy file. There are at most [`Bounds::checks_max`](super::Bounds::checks_max).
    pub checks: &'a [Check<'a>],
    /// Accounting mode, which determines what is charged if the call is rejected.
    pub accounting: Accounting,
    /// Wall-clock time of this process. The memory store uses it; the Redis store uses the Redis
    /// server's clock instead.
    pub now: Micros,
    /// Monotonic time at which the caller stops waiting, or `None` if the caller set no deadline.
    pub deadline: Option<Instant>,
}

/// Copy of a call that does not borrow from its caller, for a task that outlives the caller.
#[derive(Clone, Debug)]
pub struct OwnedCall {
    checks: Vec<OwnedCheck>,
    accounting: Accounting,
    now: Micros,
    deadline: Option<Instant>,
}

#[derive(Clone, Debug)]
struct OwnedCheck {
    key: CounterKey,
    limit: Arc<Limit>,
    op: Op,
    role: Role,
    holder: Option<Holder>,
    may_block: bool,
}

impl OwnedCheck {
    fn to_check(&self) -> Check<'_> {
        let OwnedCheck { key, ref limit, op, role, holder, may_block } = *self;
        Check { key, limit, op, role, holder, may_block }
    }
}

impl OwnedCall {
    /// Copies a call.
    pub fn new(call: &Call<'_>) -> OwnedCall {
        let own = |check: &Check<'_>| {
            let Check { key, limit, op, role, holder, may_block } = *check;
            OwnedCheck { key, limit: Arc::clone(limit), op, role, holder, may_block }
        };
        let Call { checks, accounting, now, deadline } = *call;
        OwnedCall { checks: checks.iter().map(own).collect(), accounting, now, deadline }
    }

    /// Returns the deadline of the call.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Returns the checks, from which [`to_call`](Self::to_call) makes the call.
    pub fn checks(&self) -> Vec<Check<'_>> {
        self.each_check().collect()
    }

    /// Returns the checks one by one.
    pub fn each_check(&self) -> impl Iterator<Item = Check<'_>> {
        self.checks.iter().map(OwnedCheck::to_check)
    }

    /// Returns the call with the given checks.
    pub fn to_call<'a>(&self, checks: &'a [Check<'a>]) -> Call<'a> {
        let OwnedCall { accounting, now, deadline, .. } = *self;
        Call { checks, accounting, now, deadline }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Algorithm, Concurrency, FixedWindow, Window, fixtures};
    use super::*;

    fn limit(algorithm: Algorithm, charge: Charge) -> Arc<Limit> {
        Arc::new(Limit { charge, ..fixtures::limit(algorithm) })
    }

    fn check(limit: &Arc<Limit>, op: Op) -> Check<'_> {
        let key = CounterKey { identity: 1, tag: None };
        Check { key, limit, op, role: Role::Required, holder: None, may_block: true }
    }

    #[test]
    fn only_refunds_and_charges_that_are_always_made_apply_to_a_rejected_call() {
        let window = Window::Epoch { length: Micros::SECOND };
        let window = Algorithm::FixedWindow(FixedWindow { hits: Hits(9), window });
        let slots =
            Algorithm::Concurrency(Concurrency { slots: Hits(9), lease: Micros::from_secs(60) });
        let take = |cost| Op::Take { cost: Hits(cost) };
        for (algorithm, charge, op, applies) in [
            (&window, Charge::Always, take(1), true),
            (&window, Charge::Always, take(0), false),
            (&window, Charge::Always, Op::PEEK, false),
            (&window, Charge::Admitted, take(1), false),
            // The bills of such a limit have a limit of their own.
            (&window, Charge::Billed, take(1), false),
            (&window, Charge::Admitted, Op::Refund { cost: Hits(1) }, true),
            (&slots, Charge::Always, take(1), false),
            (&slots, Charge::Admitted, Op::Refund { cost: Hits(1) }, true),
        ] {
            let limit = limit(algorithm.clone(), charge);
            assert_eq!(
                check(&limit, op).applies_when_rejected(Accounting::AllOrNothing),
                applies,
                "{charge:?} {op:?}"
            );
        }
    }

    #[test]
    fn a_peek_needs_one_hit_and_costs_none() {
        let window = Window::Epoch { length: Micros::SECOND };
        let window = Algorithm::FixedWindow(FixedWindow { hits: Hits(9), window });
        let limit = limit(window, Charge::Admitted);
        let numbers = |op| (check(&limit, op).cost().0, check(&limit, op).hits_needed().0);
        assert_eq!(numbers(Op::Take { cost: Hits(3) }), (3, 3));
        assert_eq!(numbers(Op::PEEK), (0, 1));
        assert_eq!(numbers(Op::Peek { hits: Hits(5) }), (0, 5));
        assert_eq!(numbers(Op::Refund { cost: Hits(3) }), (3, 0));
    }
}
