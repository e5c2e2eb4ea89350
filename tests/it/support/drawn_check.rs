//! A check of a random call.

use std::sync::Arc;

use tidegate::domain::{
    Algorithm, Charge, Check, CounterKey, Fraction, Hits, Holder, Limit, Op, Reserve, Role,
};

use super::limits::bill_limit;
use super::random::Random;

/// Callers that hold slots, or hits.
const HOLDERS: u64 = 6;

/// A check that owns its limit.
pub struct DrawnCheck {
    pub key: CounterKey,
    pub limit: Arc<Limit>,
    pub op: Op,
    pub role: Role,
    pub holder: Option<Holder>,
}

/// Draws a percentage from 1 to 99, and returns the limit scaled by it.
pub fn scaled(random: &mut Random, limit: &Limit) -> Arc<Limit> {
    let percent = 1 + u32::try_from(random.below(99)).unwrap();
    Arc::new(limit.scaled_by(Fraction::from_percent(percent)))
}

impl DrawnCheck {
    /// Draws a peek, or a take or refund of this cost, and a role; now and then a bill, where the limit
    /// has bills, and mostly a holder, where it has slots. Where hits can be held, also a hold or a settle.
    pub fn new(
        random: &mut Random,
        key: CounterKey,
        mut limit: Arc<Limit>,
        cost: Hits,
    ) -> DrawnCheck {
        let ttl_secs = limit.reserve.map_or(0, Reserve::ttl_secs);
        let op = match random.below(10) {
            3..6 if ttl_secs > 0 => Op::Hold { cost: cost.max(Hits::ONE), ttl_secs },
            6..8 if ttl_secs > 0 => Op::Settle { cost },
            0 => Op::PEEK,
            1 => Op::Peek { hits: Hits(1 + random.below(limit.capacity().0.clamp(1, 5))) },
            2 => Op::Refund { cost },
            _ => Op::Take { cost },
        };
        if limit.charge == Charge::Billed && matches!(op, Op::Take { .. }) && random.one_in(3) {
            limit = bill_limit(&limit);
        }
        let role = match random.below(10) {
            0 => Role::Shadow,
            1 | 2 => Role::Quota(0),
            3 => Role::Quota(1),
            _ => Role::Required,
        };
        let has_slots = matches!(limit.algorithm, Algorithm::Concurrency(_));
        let needs_holder = matches!(op, Op::Hold { .. } | Op::Settle { .. });
        let holder = (needs_holder || has_slots && !random.one_in(4))
            .then(|| Holder(1 + u128::from(random.below(HOLDERS))));
        DrawnCheck { key, limit, op, role, holder }
    }

    pub fn check(&self) -> Check<'_> {
        let DrawnCheck { key, limit, op, role, holder } = self;
        Check { key: *key, limit, op: *op, role: *role, holder: *holder, may_block: true }
    }
}
