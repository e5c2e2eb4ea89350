//! A full memory table: what a flood on one rule does to its own keys, and that it does nothing to
//! the keys of other rules.

use std::sync::Arc;

use tidegate::domain::{
    Accounting, Algorithm, Call, Charge, Check, CounterKey, Hits, Holder, Limit, Micros, Op,
    Outcome, Receipt,
};
use tidegate::store::memory::{MemoryStore, Overflow};
use tidegate::store::{LocalStore, Store};

use super::memory_bound::{count, family};
use super::memory_store::MemoryBench;
use super::store_under_test::*;
use crate::support::proof;
use crate::support::random::Random;

/// Spreads the bits as a hash would; hashing a million keys takes longer.
pub fn flood_key(n: u64) -> CounterKey {
    let identity = u128::from(n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
    CounterKey { identity, tag: None }
}

/// Sends one hit for each of these flood keys.
pub fn flood(store: &MemoryStore, keys: std::ops::Range<u64>, limit: &Arc<Limit>, now: Micros) {
    for n in keys {
        store.decide_one(&take(flood_key(n), limit, 1), now);
    }
}

/// Returns how many of so many new users of a rule are refused their first hit.
fn refused_newcomers(store: &MemoryStore, users: u64, limit: &Arc<Limit>, now: Micros) -> u64 {
    let first = |n| store.decide_one(&take(flood_key(1 << 40 | n), limit, 1), now);
    (0..users).map(|n| u64::from(!passes(&first(n)))).sum()
}

#[tokio::test]
async fn a_flood_on_one_rule_refuses_no_user_of_another() {
    for flooded in [window(3, MINUTE), sliding_log(3, MINUTE), bucket(3, MINUTE)] {
        let bench = MemoryBench::new(50_000);
        let log = family(2, &sliding_log(5, MINUTE));
        let user = bench.key(1);
        taken(&bench, user, &log, 1).await;
        taken(&bench, user, &log, 1).await;
        // A debug build sends a fifth.
        flood(&bench.store, 0..500_000 / proof::times(5, 1), &family(1, &flooded), START);
        for n in 3..=5 {
            assert!(passes(&one(&bench, take(user, &log, 1)).await), "hit {n} of 5");
        }
        assert!(!passes(&one(&bench, take(user, &log, 1)).await));
        for (id, limit) in
            (10..).zip([window(1, MINUTE), bucket(1, MINUTE), log.as_ref().clone().into()])
        {
            assert_eq!(refused_newcomers(&bench.store, 4_000, &family(id, &limit), START), 0);
        }
        assert!(bench.store.len() <= 50_000, "{}", bench.store.len());
        assert!(count(&bench.store.stats().folded) > 0);
    }
}

#[tokio::test]
async fn concurrency_slots_get_room_during_a_flood_and_leave_room_for_others() {
    let bench = MemoryBench::new(10_000);
    flood(&bench.store, 0..50_000, &family(1, &window(3, MINUTE)), START);
    let limit = family(2, &slots(5, MINUTE));
    for n in 0..500 {
        let check = held(u128::from(n) + 1, take(flood_key(1 << 41 | n), &limit, 1));
        assert!(passes(&one(&bench, check).await), "{n}");
    }
    // A flood of a rule whose entries cannot be folded is refused at last, and harms no other rule.
    let bench = MemoryBench::new(10_000);
    let mut refused = 0;
    for n in 0..20_000 {
        let check = held(1, take(flood_key(n), &limit, 1));
        refused += u64::from(!passes(&one(&bench, check).await));
    }
    assert!(refused > 10_000, "{refused}");
    assert_eq!(refused_newcomers(&bench.store, 500, &family(3, &bucket(1, MINUTE)), START), 0);
    let overflow = Overflow { limit_id: 2, is_refusing: true };
    assert_eq!(bench.store.new_overflows(), [overflow]);
}

/// The default size, in `make test` a quarter, and a quarter of that many keys beyond it. At full
/// length, the curve in docs/OPERATING.md.
#[test]
fn a_flood_on_a_rule_refuses_at_most_one_in_a_hundred_of_its_new_users() {
    let is_full_length = proof::judges_times();
    let table = 1_000_000 / proof::times(4, 1);
    let store = MemoryStore::new(table as usize);
    let limit = window(5, 60 * MINUTE);
    let mut sent = 0;
    for percent in [10, 25, 50, 75, 100, 150, 200] {
        if percent > 25 && !is_full_length {
            break;
        }
        let beyond = table * percent / 100;
        flood(&store, sent..table + beyond, &limit, START);
        sent = table + beyond;
        assert!(store.len() as u64 <= table);
        // Peeks, so that one measurement does not change the next.
        let first = |n: u64| store.decide_one(&peek(flood_key(1 << 42 | n), &limit), START);
        let refused = (0..4_000).filter(|n| !passes(&first(*n))).count();
        println!("{beyond} keys beyond the table: {refused} of 4,000 refused");
        assert!(percent > 25 || refused <= 40, "{refused} of 4,000");
    }
    let refused = refused_newcomers(&store, 4_000, &limit, START);
    assert!(is_full_length || refused <= 40, "{refused} of 4,000");
    assert_eq!(store.new_overflows(), [Overflow { limit_id: 1, is_refusing: false }]);
}

#[tokio::test]
async fn a_key_that_gets_an_entry_later_forgets_nothing() {
    // One shard. The flood expires, and its rule is the only one.
    let bench = MemoryBench::new(64);
    let limit = bucket(50, SECOND);
    flood(&bench.store, 0..80, &limit, START);
    let key = bench.key(1);
    assert!(passes(&one(&bench, take(key, &limit, 30)).await));
    let overflowed = count(&bench.store.stats().overflowed);
    assert!(overflowed > 0);
    bench.advance(2 * SECOND);
    bench.store.sweep(bench.now(), usize::MAX);
    assert!(passes(&one(&bench, take(key, &limit, 1)).await));
    assert_eq!(count(&bench.store.stats().overflowed), overflowed, "an entry of its own");
    let left = left(&bench, key, &limit).await;
    assert!((1..=50 - 29).contains(&left), "{left}");
    bench.advance(60 * SECOND);
    bench.store.sweep(bench.now(), usize::MAX);
    assert_eq!(bench.store.len(), 0, "an expired sketch goes, too");
}

#[tokio::test]
async fn a_receipt_from_a_sketch_refunds_no_charge_of_a_later_log() {
    let bench = MemoryBench::new(64);
    let limit = sliding_log(1_000, MINUTE);
    let (key, large, other) = (bench.key(1), bench.key(2), family(2, &limit));
    for _ in 0..10 {
        taken(&bench, large, &other, 1).await;
    }
    flood(&bench.store, 0..80, &limit, START);
    let overflowed = || count(&bench.store.stats().overflowed);
    let before = overflowed();
    let receipt = taken(&bench, key, &limit, 3).await;
    assert_eq!(overflowed(), before + 1);
    // The log of the other rule shrinks, which makes room in the same microsecond.
    one(&bench, refund(large, &other, 10)).await;
    taken(&bench, large, &other, 1).await;
    taken(&bench, key, &limit, 4).await;
    assert_eq!(overflowed(), before + 1, "an entry of its own");
    let rest = left(&bench, key, &limit).await;
    bench.store.refund(&[receipt]).await;
    assert_eq!(left(&bench, key, &limit).await, rest);
}

#[tokio::test]
async fn refunds_do_not_change_a_sketch() {
    let bench = MemoryBench::new(64);
    let limit = window(50, MINUTE);
    flood(&bench.store, 0..80, &limit, START);
    let key = bench.key(1);
    let receipt = taken(&bench, key, &limit, 3).await;
    let rest = left(&bench, key, &limit).await;
    assert!(passes(&one(&bench, refund(key, &limit, 3)).await));
    let checks = [refund(key, &limit, 3), peek(bench.key(2), &limit)];
    assert_eq!(verdicts(&apply(&bench, &checks).await), [true, true]);
    bench.store.refund(&[receipt]).await;
    assert_eq!(left(&bench, key, &limit).await, rest);
}

#[tokio::test]
async fn beyond_the_rules_for_whose_sketches_there_is_room_new_keys_are_refused() {
    // One shard with room for two sketches.
    let bench = MemoryBench::new(64);
    let limits: Vec<_> = (1..=6).map(|id| family(id, &bucket(2, MINUTE))).collect();
    let mut refused = Vec::new();
    for limit in &limits {
        for n in 0..100 {
            let check = take(flood_key(limit.limit_id << 32 | n), limit, 1);
            if !passes(&one(&bench, check).await) {
                refused.push(limit.limit_id);
            }
        }
    }
    assert!(!refused.is_empty());
    assert!(bench.store.len() <= 64, "{}", bench.store.len());
    let warned = bench.store.new_overflows();
    assert!(warned.iter().any(|overflow| overflow.is_refusing), "{warned:?}");
    assert!(warned.iter().any(|overflow| !overflow.is_refusing), "{warned:?}");
    assert_eq!(bench.store.new_overflows(), [], "once");
}

#[test]
fn a_full_store_searches_34_slots_for_an_expired_entry() {
    let (short, long) = (bucket(1, SECOND), bucket(1, 60 * MINUTE));
    let mut reclaimed = 0;
    // One shard, with room for 56 entries: eight of the 64 keys are reserved for sketches.
    for expired in 0..56 {
        let store = MemoryStore::new(64);
        flood(&store, 0..expired, &long, START);
        flood(&store, expired..expired + 1, &short, START);
        flood(&store, expired + 1..56, &long, START);
        flood(&store, 56..57, &long, Micros(START.0 + SECOND));
        let stats = store.stats();
        assert_eq!(count(&stats.evicted) + count(&stats.overflowed), 1, "{expired}");
        reclaimed += count(&stats.evicted);
    }
    // Two as for every new key, and 32 because the store is full.
    assert_eq!(reclaimed, 34);
}

#[test]
fn room_for_a_new_rule_is_made_by_the_rule_that_holds_the_most() {
    // One shard, with room for 112 entries. Two rules hold more than a third of it.
    let store = MemoryStore::new(127);
    let [most, less, new] = [1, 2, 3].map(|id| family(id, &bucket(5, MINUTE)));
    for n in 0..50 {
        flood(&store, n..n + 1, &most, START);
        flood(&store, 1_000 + n..1_001 + n, &less, START);
    }
    flood(&store, 50..62, &most, START);
    assert_eq!((store.len(), count(&store.stats().folded)), (112, 0));
    flood(&store, 2_000..2_010, &new, START);
    assert!(count(&store.stats().folded) > 0);
    // A refund has an effect only if the key still has an entry.
    for n in 1_000..1_050 {
        let outcome = store.decide_one(&refund(flood_key(n), &less, 1), START);
        assert_eq!(outcome.available, Hits(5), "{n}");
    }
}

#[tokio::test]
async fn released_slots_no_longer_count_against_their_rule() {
    let bench = MemoryBench::new(1_000);
    let (key, limit) = (bench.key(1), slots(1_000, MINUTE));
    // 20 times 68 keys' worth, of which the entries of a rule that cannot be folded may hold 785.
    for _ in 0..20 {
        for holder in 1..=100 {
            assert!(passes(&one(&bench, held(holder, take(key, &limit, 1))).await));
        }
        for holder in 1..=100 {
            one(&bench, held(holder, refund(key, &limit, 1))).await;
        }
    }
    assert!(passes(&one(&bench, held(1, take(bench.key(2), &limit, 1))).await));
}

#[test]
fn a_key_without_room_is_refused_for_a_second_and_counted() {
    let store = MemoryStore::new(64);
    let in_flight = family(1, &slots(1, MINUTE));
    let first = |n| store.decide_one(&held(1, take(flood_key(n), &in_flight, 1)), START);
    let refused: Vec<_> = (0..20).map(first).filter(|outcome| !passes(outcome)).collect();
    assert!(!refused.is_empty() && refused.len() < 20, "{}", refused.len());
    assert!(refused.iter().all(|outcome| *outcome == Outcome::refuse_for(Micros(SECOND))));
    let before = count(&store.stats().no_room);
    assert_eq!(before, refused.len() as u64);
    // Slots cannot be folded, and there is room for the sketches of two rules.
    for id in [2, 3] {
        flood(&store, id * 100..(id + 1) * 100, &family(id, &window(1_000, MINUTE)), START);
    }
    let outcome = store.decide_one(&take(flood_key(400), &family(4, &window(3, MINUTE)), 1), START);
    let reset_after = Micros(MINUTE);
    assert_eq!(outcome, Outcome { reset_after, ..Outcome::refuse_for(Micros(SECOND)) });
    assert_eq!(count(&store.stats().no_room), before + 1);
}

#[tokio::test]
async fn each_charge_to_a_sketch_is_counted_in_a_call_of_several_checks() {
    let bench = MemoryBench::new(64);
    let limit = window(50, MINUTE);
    flood(&bench.store, 0..80, &limit, START);
    let before = count(&bench.store.stats().overflowed);
    let checks =
        [take(bench.key(1), &limit, 3), take(bench.key(2), &limit, 3), peek(bench.key(3), &limit)];
    assert_eq!(charged(&apply(&bench, &checks).await), [3, 3, 0]);
    assert_eq!(count(&bench.store.stats().overflowed), before + 2);
    let rejected = [take(bench.key(4), &limit, 3), take(bench.key(5), &limit, 51)];
    assert_eq!(charged(&apply(&bench, &rejected).await), [0, 0]);
    assert_eq!(count(&bench.store.stats().overflowed), before + 2, "charged nothing");
}

#[test]
fn an_overflow_lasts_until_the_store_has_no_sketch() {
    let store = MemoryStore::new(64);
    let (flooded, brief) = (family(1, &window(1_000, MINUTE)), family(2, &bucket(1, SECOND)));
    let overflow = Overflow { limit_id: 1, is_refusing: false };
    flood(&store, 0..40, &brief, START);
    flood(&store, 100..200, &flooded, START);
    assert_eq!(store.new_overflows(), [overflow]);
    // The entries of the other rule expire, so that the store is no longer full.
    let later = Micros(START.0 + 2 * SECOND);
    store.sweep(later, usize::MAX);
    assert!(store.len() < 56 && count(&store.stats().sketch_weight) > 0);
    assert_eq!(store.new_overflows(), []);
    flood(&store, 200..300, &flooded, later);
    assert_eq!(store.new_overflows(), [], "the same overflow");
    let much_later = Micros(START.0 + 2 * MINUTE);
    store.sweep(much_later, usize::MAX);
    assert_eq!((store.len(), count(&store.stats().sketch_weight)), (0, 0));
    assert_eq!(store.new_overflows(), []);
    flood(&store, 300..400, &flooded, much_later);
    assert_eq!(store.new_overflows(), [overflow], "another overflow");
}

#[tokio::test]
async fn memory_is_freed_after_a_flood_and_the_remaining_keys_keep_their_hits() {
    let bench = MemoryBench::new(200_000);
    let (flooded, other) = (family(1, &bucket(1, SECOND)), family(2, &window(5, 60 * MINUTE)));
    flood(&bench.store, 0..1_000, &other, START);
    bench.store.sweep(START, usize::MAX);
    let before = bench.store.footprint();
    flood(&bench.store, 1_000..200_000, &flooded, START);
    // Keys that stay, spread over the slab.
    flood(&bench.store, 1_000_000..1_000_500, &other, START);
    let flooded_bytes = bench.store.footprint();
    assert!(flooded_bytes > 4 * before, "{before} {flooded_bytes}");
    bench.advance(2 * SECOND);
    for _ in 0..50 {
        bench.store.sweep(bench.now(), usize::MAX);
    }
    let after = bench.store.footprint();
    assert!(after < before + flooded_bytes / 20, "{before} {flooded_bytes} {after}");
    for n in (0..1_000).chain(1_000_000..1_000_500) {
        assert_eq!(left(&bench, flood_key(n), &other).await, 4, "{n}");
    }
    assert_eq!(bench.store.len(), 1_500);
}

/// One check of a random call, as both stores get it.
struct Planned {
    key: CounterKey,
    limit: usize,
    op: Op,
    holder: Option<Holder>,
}

impl Planned {
    fn check<'a>(&self, limits: &'a [Arc<Limit>]) -> Check<'a> {
        Check { holder: self.holder, ..check(self.key, &limits[self.limit], self.op) }
    }
}

fn planned(random: &mut Random, limits: &[Arc<Limit>]) -> Planned {
    let limit = usize::try_from(random.below(limits.len() as u64)).unwrap();
    // Every limit has keys of its own, and some keys are in use more often than others.
    let n = if random.one_in(3) { random.below(4) } else { random.below(150) };
    let is_slot = matches!(limits[limit].algorithm, Algorithm::Concurrency(_));
    // A renewal charges nothing, so only one that keeps the number of slots has no effect to copy.
    let hits = Hits(if is_slot { 1 } else { 1 + random.below(3) });
    let op = match random.below(10) {
        0 => Op::Refund { cost: hits },
        1 => Op::PEEK,
        _ => Op::Take { cost: hits },
    };
    let holder = is_slot.then(|| Holder(u128::from(1 + random.below(6))));
    Planned { key: flood_key((limit as u64) << 32 | n), limit, op, holder }
}

fn random_limits(random: &mut Random) -> Vec<Arc<Limit>> {
    [
        window(5, 10 * SECOND),
        always(&window(5, 10 * SECOND)),
        bucket(5, SECOND),
        always(&bucket(5, SECOND)),
        credits(5, 7, 10 * SECOND),
        sliding_window(6, 10 * SECOND),
        sliding_log(6, 10 * SECOND),
        always(&sliding_log(6, 10 * SECOND)),
        slots(4, 10 * SECOND),
        hybrid(6, 6, 10 * SECOND),
    ]
    .iter()
    .zip(1..)
    .map(|(limit, id)| family(id, limit))
    .filter(|_| !random.one_in(2))
    .collect()
}

/// Whatever a full table admits would also be admitted by a table without bounds that has the same
/// history of admissions.
#[tokio::test]
async fn whatever_passes_also_passes_an_unbounded_store() {
    let (mut admitted, mut overflowed, mut folded) = (0_u64, 0, 0);
    for seed in 1..=60 {
        let mut random = Random::seeded(seed);
        let limits = random_limits(&mut random);
        if limits.is_empty() {
            continue;
        }
        let max = [64, 100, 200, 4_096][usize::try_from(random.below(4)).unwrap()];
        let (bounded, unbounded) = (MemoryStore::new(max), MemoryStore::new(1_000_000));
        let mut now = START;
        let mut receipts: Vec<(Receipt, Receipt)> = Vec::new();
        if max == 4_096 {
            // Two shards, full before the first call.
            flood(&bounded, 1 << 40..(1 << 40) + 4_096, &limits[0], now);
        }
        for step in 0..600 {
            now.0 += if random.one_in(40) {
                random.below(20 * SECOND)
            } else {
                random.below(SECOND / 4)
            };
            if random.one_in(20) {
                bounded.sweep(now, usize::MAX);
            }
            if random.one_in(15) && !receipts.is_empty() {
                let at = usize::try_from(random.below(receipts.len() as u64)).unwrap();
                let (one, other) = receipts.swap_remove(at);
                for (store, receipt) in [(&bounded, one), (&unbounded, other)] {
                    // A receipt has no time: the shard uses that of its latest call.
                    store.decide_one(&peek(receipt.key, &receipt.limit), now);
                    store.refund(&[receipt]).await;
                }
                continue;
            }
            let many = 1 + random.below(3);
            let plan: Vec<_> = (0..many).map(|_| planned(&mut random, &limits)).collect();
            let checks: Vec<_> = plan.iter().map(|one| one.check(&limits)).collect();
            let accounting =
                if random.one_in(3) { Accounting::Independent } else { Accounting::AllOrNothing };
            let answers =
                bounded.decide(&Call { checks: &checks, accounting, now, deadline: None });
            assert!(bounded.len() <= max, "seed {seed}, step {step}: {}", bounded.len());
            for check in checks.iter().filter(|check| check.is_refund()) {
                unbounded.decide_one(check, now);
            }
            for (check, answer) in checks.iter().zip(&answers) {
                let outcome = answer.outcome().unwrap();
                if outcome.charged == Hits::ZERO {
                    continue;
                }
                let reference = unbounded.decide_one(check, now);
                if passes(outcome) {
                    assert!(passes(&reference), "seed {seed}, step {step}: {check:?} {outcome:?}");
                    admitted += 1;
                } else {
                    assert_eq!(check.limit.charge, Charge::Always);
                }
                let one = Receipt::for_check(check, outcome);
                receipts.extend(one.zip(Receipt::for_check(check, &reference)));
            }
        }
        overflowed += count(&bounded.stats().overflowed);
        folded += count(&bounded.stats().folded);
    }
    println!("{admitted} admitted, {overflowed} charged to sketches, {folded} folded");
    assert!(
        admitted > 5_000 && overflowed > 500 && folded > 500,
        "{admitted} {overflowed} {folded}"
    );
}
