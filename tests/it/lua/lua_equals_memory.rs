//! Random calls get identical outcomes from the memory store and from Lua on a real Redis.
//!
//! Wider than the contract's random calls: every algorithm, class method and calendar window, up to
//! the bounds of the arithmetic; time jumps of up to years, old receipts, many checks in a call.
//! 10,000 operations, in `make proof` 1,000,000. The seeds are printed, TIDEGATE_SEED sets the
//! first, and the seeds that once failed run each time.

use std::collections::HashSet;
use std::sync::Arc;

use tidegate::domain::{
    Accounting, Answer, Call, Charge, Check, CounterKey, Fraction, Hits, Holder, Limit, Micros, Op,
    Receipt, Role, Unit,
};
use tidegate::store::Store;
use tidegate::store::memory::MemoryStore;
use tidegate::store::redis::RedisStore;
use tidegate::store::redis::script::keys::Prefix;
use tidegate::store::redis::store::TimeSource;

use crate::support::drawn_check::DrawnCheck;
use crate::support::environment::number;
use crate::support::limits::*;
use crate::support::plain_transport::Plain;
use crate::support::proof;
use crate::support::random::Random;
use crate::support::redis_server::Server;

const OPERATIONS: u64 = 10_000;
const OPERATIONS_PROVED: u64 = 1_000_000;
/// Then new counters begin: long enough for receipts and limits to change, short enough to read.
const OPERATIONS_PER_SEED: u64 = 2_000;
/// Eight of windows and buckets, the same charged always, twelve more, and eleven that charge bills
/// in any case.
const COUNTERS: u64 = 16 + 12 + 11;
const YEAR: u64 = 8_760 * HOUR;

/// What once failed: seeds, of 2,000 operations each.
const REGRESSIONS: [u64; 2] = [6, 38];

#[tokio::test]
async fn memory_and_lua_answer_random_calls_alike() {
    let server = Server::start(&[]);
    let plain = Plain(server.connect().await);
    let operations = proof::times(OPERATIONS, OPERATIONS_PROVED);
    let first = number("TIDEGATE_SEED").unwrap_or(1);
    let mut done = 0;
    let regressions = REGRESSIONS.into_iter().filter(|_| first == 1);
    for seed in regressions.chain(first..) {
        let mut trace = Trace::new(seed, plain.clone());
        trace.begin().await;
        let end = (done + OPERATIONS_PER_SEED).min(operations);
        println!("seed {seed}: operations {done} to {end}");
        while done < end {
            done += trace.step().await;
        }
        if done >= operations {
            return;
        }
        redis::cmd("FLUSHALL").exec_async(&mut plain.0.clone()).await.unwrap();
    }
}

/// What became of a check, for those who look for a fault.
struct Told {
    now: Micros,
    key: CounterKey,
    asked: (Op, Role, Option<Holder>, Hits),
    answer: Answer,
}

struct Trace {
    seed: u64,
    told: Vec<Told>,
    random: Random,
    now: Micros,
    latest: Micros,
    memory: MemoryStore,
    lua: RedisStore<Plain>,
    receipts: Vec<Receipt>,
}

impl Trace {
    fn new(seed: u64, plain: Plain) -> Trace {
        Trace {
            seed,
            told: Vec::new(),
            random: Random::seeded(seed),
            now: START,
            latest: START,
            memory: MemoryStore::new(1_000_000),
            lua: RedisStore::new(plain, Prefix::default(), TimeSource::Call),
            receipts: Vec::new(),
        }
    }

    /// Every counter exists before the clock first moves: the memory store forgets what has expired
    /// when it makes room for a new entry, and a clock that steps back behind that would show it.
    async fn begin(&mut self) {
        for n in 0..COUNTERS {
            let limit = limit_of(n, 0);
            self.compare(&[take(self.key(n), &limit, 1)], Accounting::AllOrNothing).await;
        }
    }

    fn key(&self, n: u64) -> CounterKey {
        key(self.seed * COUNTERS + n)
    }

    /// One call, and now and then a receipt; how many operations that made.
    async fn step(&mut self) -> u64 {
        let random = &mut self.random;
        // The memory store forgets counters that have expired when it adds a block.
        let first = if has_blocks(self.seed) { self.now } else { Micros::ZERO };
        self.now = moved(random, self.now).max(first);
        let size = if random.one_in(3) { random.below(8) } else { 0 };
        let mut drawn: Vec<DrawnCheck> = Vec::new();
        if random.one_in(4) {
            // A refund and takes of one counter, which may fill it again.
            let n = random.below(COUNTERS);
            let cost = Hits(1 + random.below(limit_of(n, 0).capacity().0.clamp(1, 60)));
            let refund = Op::Refund { cost };
            drawn.push(DrawnCheck { op: refund, ..drawn_check(random, self.seed, n) });
            drawn.extend((0..3).map(|_| drawn_check(random, self.seed, n)));
        } else {
            for _ in 0..=size {
                let n = random.below(COUNTERS);
                drawn.push(drawn_check(random, self.seed, n));
            }
        }
        let mut checks: Vec<Check<'_>> = drawn.iter().map(DrawnCheck::check).collect();
        if random.one_in(3) {
            only_takes(&mut checks);
        }
        let accounting =
            if random.one_in(3) { Accounting::Independent } else { Accounting::AllOrNothing };
        self.compare(&checks, accounting).await;
        self.latest = self.latest.max(self.now);
        if !self.random.one_in(4) || self.receipts.is_empty() || self.now < self.latest {
            return checks.len() as u64;
        }
        let at = self.random.below(self.receipts.len() as u64);
        let receipt = self.receipts.swap_remove(usize::try_from(at).unwrap());
        // Both stores refund as of the latest call that they saw on the counter.
        let look = [peek(receipt.key, &receipt.limit)];
        self.compare(&look, Accounting::AllOrNothing).await;
        let receipts = std::slice::from_ref(&receipt);
        tokio::join!(self.memory.refund(receipts), self.lua.refund(receipts));
        self.compare(&look, Accounting::AllOrNothing).await;
        checks.len() as u64 + 1
    }

    fn history(&self, key: &CounterKey) -> String {
        let of = self.told.iter().filter(|told| told.key == *key);
        of.map(|told| format!("\n{} {:?}: {:?}", told.now.0, told.asked, told.answer)).collect()
    }

    async fn compare(&mut self, checks: &[Check<'_>], accounting: Accounting) {
        let call = Call { checks, accounting, now: self.now, deadline: None };
        let expected = self.memory.apply(&call).await.each;
        let got = self.lua.apply(&call).await.each;
        for (n, (got, expected)) in got.iter().zip(&expected).enumerate() {
            let seed = self.seed;
            assert_eq!(
                got,
                expected,
                "check {n}: left is Lua, right is memory; TIDEGATE_SEED={seed}, {accounting:?}: \
                 {checks:?}\nso far: {}",
                self.history(&checks[n].key)
            );
        }
        let told = checks.iter().zip(&got).map(|(check, answer)| Told {
            now: self.now,
            key: check.key,
            asked: (check.op, check.role, check.holder, check.limit.capacity()),
            answer: *answer,
        });
        self.told.extend(told);
        self.receipts.extend(checks.iter().zip(&got).filter_map(|(check, answer)| {
            answer.outcome().and_then(|outcome| Receipt::for_check(check, outcome))
        }));
        assert!(got.iter().all(|answer| matches!(answer, Answer::Decided(_))));
    }
}

/// Whether a third of the counters have blocks.
fn has_blocks(seed: u64) -> bool {
    seed % 2 == 1
}

/// What most calls are, and what the leaner scripts decide: different counters, charged when
/// admitted, all required.
fn only_takes(checks: &mut Vec<Check<'_>>) {
    let mut seen = HashSet::new();
    checks.retain(|check| check.limit.charge != Charge::Always && seen.insert(check.key));
    for check in checks {
        check.role = Role::Required;
        if let Op::Peek { .. } | Op::Refund { .. } = check.op {
            check.op = Op::Take { cost: Hits::ONE };
        }
    }
}

fn moved(random: &mut Random, now: Micros) -> Micros {
    Micros(match random.below(200) {
        0..80 => now.0,
        80..110 => now.0 + random.below(2_000),
        110..150 => now.0 + random.below(SECOND),
        150..175 => now.0 + random.below(2 * MINUTE),
        175..185 => now.0 + random.below(3 * HOUR),
        185..193 => now.0.saturating_sub(random.below(3 * SECOND)),
        193..196 => now.0.saturating_sub(random.below(3 * MINUTE)),
        196 => now.0.saturating_sub(random.below(100 * HOUR)).max(START.0 / 2),
        197..199 => now.0 + random.below(100 * HOUR),
        _ => now.0 + random.below(YEAR),
    })
}

fn drawn_check(random: &mut Random, seed: u64, n: u64) -> DrawnCheck {
    let variant = if random.one_in(8) { random.below(5) } else { 0 };
    let mut limit = limit_of(n, variant);
    if random.one_in(16) {
        let percent = 1 + u32::try_from(random.below(99)).unwrap();
        limit = Arc::new(limit.scaled_by(Fraction::from_percent(percent)));
    }
    if has_blocks(seed) && n.is_multiple_of(3) && n != SLOTS {
        limit = blocking(&limit, [1, 5, 5, 600][random.below(4) as usize]);
    }
    let capacity = limit.capacity().0;
    let cost = match random.below(24) {
        0 => 0,
        1 => u64::MAX,
        2 => 1 << 53,
        3 => capacity + 1,
        4..7 => capacity,
        7..9 => 1 + random.below(capacity.max(1)),
        9 => 2 * capacity,
        _ => 1 + random.below(3),
    };
    DrawnCheck::new(random, key(seed * COUNTERS + n), limit, Hits(cost))
}

/// The counter of slots, and how many ask for them.
const SLOTS: u64 = 24;

/// A counter keeps its algorithm, its window and its charge; its other numbers change.
fn limit_of(counter: u64, variant: u64) -> Arc<Limit> {
    let limit = match counter {
        0..8 => plain(counter, variant),
        8..16 => return always(&plain(counter - 8, variant)),
        28..36 => return billed(&plain(counter - 28, variant)),
        36..39 => return billed(&other([18, 21, 23][(counter - 36) as usize], variant)),
        _ => other(counter, variant),
    };
    match counter {
        18 | 21 | 23 => always(&limit),
        _ => limit,
    }
}

/// Windows and buckets.
fn plain(counter: u64, variant: u64) -> Arc<Limit> {
    let pick = |numbers: [u64; 5]| numbers[usize::try_from(variant).unwrap()];
    let window_hits = pick([5, 3, 20, 0, u64::from(u32::MAX)]);
    match counter {
        0 => window(window_hits, SECOND),
        1 => window(window_hits, 7 * MINUTE),
        2 => window(window_hits, 10 * YEAR),
        3 => bucket(pick([10, 3, 40, 0, 1_000_000]), pick([70_000, 50, SECOND, 1, 3])),
        4 => match variant {
            4 => bucket(12, 333_333),
            _ => credits(pick([7, 4, 90, 0, 1]), pick([7, 3, 89, 1, 1]), SECOND),
        },
        // At the bounds: burst * emission just below 2^51 µs, burst * window just below 2^52.
        5 => {
            bucket(pick([2, 1, 100, 71_000_000, 3]), pick([HOUR, MINUTE, YEAR / 50, 31_000_000, 9]))
        }
        6 => credits(
            pick([52_000, 7, 1_000, 3, 4_000_000]),
            pick([50_000, 4_294_967_295, 999_983, 7, 4_000_000]),
            pick([24 * HOUR, MINUTE, HOUR, YEAR, SECOND]),
        ),
        _ => credits(pick([1, 2, 3, 4, 5]), pick([3_000_001, 3, 4_000_037, 7, 11]), 7 * SECOND),
    }
}

/// Everything else: sliding windows in each tick, logs, slots, classes of each method, calendars.
fn other(counter: u64, variant: u64) -> Arc<Limit> {
    let pick = |numbers: [u64; 5]| numbers[usize::try_from(variant).unwrap()];
    let class = usize::try_from(variant).unwrap() % 3;
    match counter {
        16 => sliding_window(pick([5, 3, 20, 0, 1_000_000]), 2 * SECOND),
        17 => sliding_window(pick([50, 3, 20, 0, 104_000]), 24 * HOUR - SECOND),
        18 => sliding_window(pick([50, 30, 200, 1, 1_000]), 7 * 24 * HOUR),
        19 => sliding_log(pick([5, 3, 20, 0, 1]), 2 * SECOND),
        20 => sliding_log(pick([300, 280, 400, 1, 350]), HOUR),
        21 => sliding_log(pick([5, 3, 20, 0, 7]), MINUTE),
        // Shared classes: one bucket, seen with each class's floor.
        22 => floored(&bucket(10, 70_000), pick([0, 3, 7, 10, 1])),
        23 => calendar(pick([5, 3, 20, 0, 4_000_000]), Unit::Day, "Europe/Berlin"),
        SLOTS => slots(pick([4, 3, 6, 0, 1]), MINUTE),
        25 => calendar(pick([50, 30, 200, 0, 4_000_000]), Unit::Month, "America/New_York"),
        26 => hybrid(100, 10, SECOND, &[30, 20, 10], class),
        _ => hybrid(50, 600, HOUR, &[50, 30, 20], class),
    }
}
