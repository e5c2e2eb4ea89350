//! Limits, keys and checks in one line each.

use std::num::NonZeroU32;
use std::sync::Arc;

use tidegate::domain::{
    Accounting, Algorithm, Bucket, Call, Charge, Check, Concurrency, CounterKey, Entry,
    FixedWindow, Hits, Holder, Hybrid, Limit, Micros, OnStoreFailure, Op, Refill, Reserve, Role,
    SlidingLog, SlidingWindow, Unit, Window,
};
use tidegate::policy::{self, Policy, Secret};

use super::{policy_specs, vectors};

pub const SECOND: u64 = 1_000_000;
pub const MINUTE: u64 = 60 * SECOND;
pub const HOUR: u64 = 60 * MINUTE;
/// A whole number of days since the epoch, so that windows begin here.
pub const START: Micros = Micros(1_763_596_800_000_000);

pub fn window(hits: u64, length_us: u64) -> Arc<Limit> {
    let window = Window::Epoch { length: Micros(length_us) };
    let algorithm = Algorithm::FixedWindow(FixedWindow { hits: Hits(hits), window });
    Arc::new(vectors::limit(algorithm, Charge::Admitted))
}

pub fn bucket(burst: u64, emission_us: u64) -> Arc<Limit> {
    refilled(burst, Refill::Arrival { emission: Micros(emission_us) })
}

pub fn credits(burst: u64, hits: u64, window_us: u64) -> Arc<Limit> {
    refilled(burst, Refill::Credits { hits: Hits(hits), window: Micros(window_us) })
}

fn refilled(burst: u64, refill: Refill) -> Arc<Limit> {
    let burst = Hits(burst);
    let bucket = Bucket { burst, debt_burst: burst, refill, floor: Hits::ZERO, leaky: false };
    Arc::new(vectors::limit(Algorithm::Bucket(bucket), Charge::Admitted))
}

/// The same bucket as a class with that floor sees it.
pub fn floored(limit: &Arc<Limit>, floor: u64) -> Arc<Limit> {
    let mut limit = Limit::clone(limit);
    if let Algorithm::Bucket(bucket) = &mut limit.algorithm {
        bucket.floor = Hits(floor);
    }
    Arc::new(limit)
}

pub fn calendar(hits: u64, unit: Unit, zone: &str) -> Arc<Limit> {
    let window = Window::Calendar(tidegate::policy::calendar(unit, zone).unwrap());
    let algorithm = Algorithm::FixedWindow(FixedWindow { hits: Hits(hits), window });
    Arc::new(vectors::limit(algorithm, Charge::Admitted))
}

pub fn sliding_window(hits: u64, length_us: u64) -> Arc<Limit> {
    let (hits, length) = (Hits(hits), Micros(length_us));
    let algorithm = Algorithm::SlidingWindow(SlidingWindow { hits, length });
    Arc::new(vectors::limit(algorithm, Charge::Admitted))
}

pub fn sliding_log(hits: u64, length_us: u64) -> Arc<Limit> {
    let (hits, length) = (Hits(hits), Micros(length_us));
    Arc::new(vectors::limit(Algorithm::SlidingLog(SlidingLog { hits, length }), Charge::Admitted))
}

pub fn slots(slots: u64, lease_us: u64) -> Arc<Limit> {
    let (slots, lease) = (Hits(slots), Micros(lease_us));
    Arc::new(vectors::limit(Algorithm::Concurrency(Concurrency { slots, lease }), Charge::Admitted))
}

pub fn hybrid(burst: u64, hits: u64, window_us: u64, shares: &[u32], class: usize) -> Arc<Limit> {
    let classes = Hybrid {
        burst: Hits(burst),
        expiry_burst: Hits(burst),
        hits: Hits(hits),
        window: Micros(window_us),
        shares: shares.into(),
        class,
        floor_percent: [0, 24, 62][class % 3],
    };
    Arc::new(vectors::limit(Algorithm::Hybrid(classes), Charge::Admitted))
}

/// The limit of a rule, written as the keys of a `rate_limit`, and the one that a request override
/// of each of these numbers makes of it.
pub fn overridden(rate_limit: &str, unit: Unit, numbers: &[u32]) -> Vec<Arc<Limit>> {
    let text = format!("{{domain: d, descriptors: [{{key: k, rate_limit: {{{rate_limit}}}}}]}}");
    let source = policy::Source { name: "test.yaml".to_owned(), text: text.into_bytes() };
    let compiled = policy::compile(&[source], &policy::Options::default()).unwrap();
    let policy = Policy::build(compiled.domains, Secret::default());
    let entries = [Entry { key: b"k", value: b"a" }];
    let limit = |requests_per_unit: &u32| {
        let descriptor = policy_specs::bringing(&entries, *requests_per_unit, unit);
        let matches = policy.find(&policy_specs::request(&[descriptor]));
        let counts_together = matches.found[0].rule().is_some();
        assert!(counts_together, "counts apart: {rate_limit}, {:?}", descriptor.limit);
        Arc::clone(&matches.overrides[0])
    };
    let own = Arc::clone(&policy.rules()[0].limits[0].limit);
    [own].into_iter().chain(numbers.iter().map(limit)).collect()
}

pub fn always(limit: &Arc<Limit>) -> Arc<Limit> {
    Arc::new(Limit { charge: Charge::Always, ..Limit::clone(limit) })
}

/// The same limit, for which something else happens while its store fails.
pub fn on_failure(limit: &Arc<Limit>, on_store_failure: OnStoreFailure) -> Arc<Limit> {
    Arc::new(Limit { on_store_failure, ..Limit::clone(limit) })
}

/// The same limit, whose refusals block the key for so many seconds.
pub fn blocking(limit: &Arc<Limit>, seconds: u32) -> Arc<Limit> {
    Arc::new(Limit { block_seconds: NonZeroU32::new(seconds), ..Limit::clone(limit) })
}

/// The same limit, whose hits can be held for so many seconds.
pub fn reserved(limit: &Arc<Limit>, ttl_secs: u32) -> Arc<Limit> {
    Arc::new(Limit { reserve: Reserve::from_secs(ttl_secs), ..Limit::clone(limit) })
}

pub fn hold<'a>(key: CounterKey, limit: &'a Arc<Limit>, id: u128, cost: u64) -> Check<'a> {
    let ttl_secs = limit.reserve.expect("a limit whose hits can be held").ttl_secs();
    let op = Op::Hold { cost: Hits(cost), ttl_secs };
    Check { holder: Some(Holder(id)), ..check(key, limit, op) }
}

pub fn settle<'a>(key: CounterKey, limit: &'a Arc<Limit>, id: u128, cost: u64) -> Check<'a> {
    let op = Op::Settle { cost: Hits(cost) };
    Check { holder: Some(Holder(id)), role: Role::Shadow, ..check(key, limit, op) }
}

/// The same limit, which charges bills in any case.
pub fn billed(limit: &Arc<Limit>) -> Arc<Limit> {
    Arc::new(Limit { charge: Charge::Billed, ..Limit::clone(limit) })
}

/// The limit under which the bills of such a limit are charged.
pub fn bill_limit(limit: &Limit) -> Arc<Limit> {
    Arc::new(limit.bill_limit().expect("a limit that charges bills in any case"))
}

/// 128 bits as evenly spread as those of a keyed hash.
pub fn spread(n: u64) -> u128 {
    let hash = blake3::hash(&n.to_le_bytes());
    u128::from_le_bytes(hash.as_bytes()[..16].try_into().unwrap())
}

pub fn key(n: u64) -> CounterKey {
    CounterKey { identity: spread(n), tag: None }
}

pub fn tagged(n: u64, tag: u64) -> CounterKey {
    CounterKey { identity: spread(n), tag: Some(spread(tag)) }
}

pub fn take<'a>(key: CounterKey, limit: &'a Arc<Limit>, cost: u64) -> Check<'a> {
    check(key, limit, Op::Take { cost: Hits(cost) })
}

pub fn peek(key: CounterKey, limit: &Arc<Limit>) -> Check<'_> {
    check(key, limit, Op::PEEK)
}

pub fn refund<'a>(key: CounterKey, limit: &'a Arc<Limit>, cost: u64) -> Check<'a> {
    check(key, limit, Op::Refund { cost: Hits(cost) })
}

pub fn check<'a>(key: CounterKey, limit: &'a Arc<Limit>, op: Op) -> Check<'a> {
    Check { key, limit, op, role: Role::Required, holder: None, may_block: true }
}

/// An all-or-nothing call.
pub fn call<'a>(checks: &'a [Check<'a>], now: Micros) -> Call<'a> {
    Call { checks, accounting: Accounting::AllOrNothing, now, deadline: None }
}

/// The same limit with `prepay: auto`.
pub fn prepaid(limit: &Arc<Limit>) -> Arc<Limit> {
    Arc::new(Limit { prepay: true, ..Limit::clone(limit) })
}
