//! Random calls, answered by a store and as expected: time that jumps, costs from 0 to huge, refunds,
//! receipts, changed limits, several algorithms in one call.
//!
//! The seeds are fixed, and a failure names its seed.

use std::collections::HashSet;
use std::sync::Arc;

use tidegate::domain::{
    Accounting, Algorithm, Call, Charge, Check, CounterKey, Hits, Holder, Micros, Op, Outcome,
    Receipt, Role,
};
use tidegate::store::Store;

use super::random_limits::{COUNTERS, HOLDS, SLOTS, limit_of};
use super::reference_store::{Model, sane};
use super::store_under_test::*;
use crate::support::drawn_check::{DrawnCheck, scaled};
use crate::support::random::Random;

const CALLS: u64 = 250;
/// More keys than all traces begin with.
const KEYS_OF_ALL: u64 = 1 << 20;

/// Each trace has a third of the counters, so that its calls meet.
pub async fn random_calls_are_answered_as_the_model_answers_them<B: Bench>(bench: Arc<B>) {
    let counters = |seed| (0..HOLDS).filter(|n| n % 3 == seed % 3).collect();
    random_calls(&*bench, counters).await;
}

/// The same with counters of hits that can be held, and of slots.
pub async fn random_holds_are_answered_as_the_model_answers_them<B: Bench>(bench: Arc<B>) {
    random_calls(&*bench, |_| [SLOTS].into_iter().chain(HOLDS..COUNTERS).collect()).await;
}

async fn random_calls<B: Bench>(bench: &B, counters: impl Fn(u64) -> Vec<u64>) {
    bench.set(START);
    for seed in 1..=bench.traces() {
        let traffic = Traffic { counters: counters(seed), clock: moved, has_blocks: false };
        println!("seed {seed}");
        let mut trace = Trace::new(bench, Model::default(), seed, traffic);
        for _ in 0..CALLS {
            trace.step().await;
        }
        // No step back from one trace to the next: what a store makes of its receipts depends on
        // the latest time that it has seen.
        bench.set(Micros(trace.latest.0 + 60 * MINUTE));
    }
}

/// Whatever was taken before, and whatever else the refused call asks for.
pub async fn c04_a_refused_call_leaves_every_counter_as_it_was<B: Bench>(bench: Arc<B>) {
    let bench = &*bench;
    let mut random = Random::seeded(4);
    let limits: Vec<_> = (1..4).flat_map(|n| of_each_kind(n * 4)).collect();
    let none = window(0, MINUTE);
    let looks: Vec<_> = limits.iter().zip(0..).map(|(l, n)| peek(bench.key(n), l)).collect();
    for round in 0..300 {
        bench.advance(random.below(SECOND));
        let mut checks = Vec::new();
        for (limit, n) in limits.iter().zip(0..) {
            if random.one_in(2) {
                checks.push(take(bench.key(n), limit, 1 + random.below(6)));
            }
        }
        apply(bench, &checks).await;
        let before = apply(bench, &looks).await;
        let refuses = take(bench.key(99), &none, 1);
        let place = random.below(checks.len() as u64 + 1);
        checks.insert(usize::try_from(place).unwrap(), refuses);
        let refused = apply(bench, &checks).await;
        assert!(charged(&refused).iter().all(|hits| *hits == 0), "round {round}");
        assert_eq!(apply(bench, &looks).await, before, "round {round}: {checks:#?}");
    }
}

fn moved(random: &mut Random, now: Micros) -> Micros {
    Micros(match random.below(100) {
        0..40 => now.0,
        40..70 => now.0 + random.below(200_000),
        70..85 => now.0 + random.below(3 * SECOND),
        85..95 => now.0 + random.below(3 * MINUTE),
        95..98 => now.0 - random.below(2 * SECOND),
        98 => now.0 - random.below(5 * MINUTE),
        _ => now.0 + random.below(10_000 * MINUTE),
    })
}

/// The calls of a trace.
pub struct Traffic {
    pub counters: Vec<u64>,
    /// Draws the time of the next call.
    pub clock: fn(&mut Random, Micros) -> Micros,
    /// Whether a third of the counters have blocks. The clock does not step back then.
    pub has_blocks: bool,
}

/// Who knows the right answers.
pub trait Reference {
    async fn apply(&mut self, call: &Call<'_>) -> Vec<Outcome>;

    async fn refund(&mut self, receipt: &Receipt, now: Micros);

    /// Whether a store may have forgotten a counter by now, as the reference has not: then a step
    /// back does not bring it back.
    fn may_be_gone(&self, _: &Check<'_>, _: Micros) -> bool {
        false
    }
}

/// What became of a check, for those who look for a fault.
struct Told {
    now: Micros,
    key: CounterKey,
    asked: (Op, Role, Option<Holder>, Hits),
    outcome: Outcome,
}

/// Random calls of one seed.
pub struct Trace<'a, B, R> {
    bench: &'a B,
    reference: R,
    seed: u64,
    traffic: Traffic,
    random: Random,
    keys: Vec<u64>,
    /// The latest time of a call.
    latest: Micros,
    receipts: Vec<Receipt>,
    told: Vec<Told>,
}

impl<'a, B: Bench, R: Reference> Trace<'a, B, R> {
    pub fn new(bench: &'a B, reference: R, seed: u64, traffic: Traffic) -> Trace<'a, B, R> {
        Trace {
            bench,
            reference,
            seed,
            traffic,
            random: Random::seeded(seed),
            keys: (0..COUNTERS).map(|n| seed * COUNTERS + n).collect(),
            latest: bench.now(),
            receipts: Vec::new(),
            told: Vec::new(),
        }
    }

    /// Takes one hit of every counter.
    pub async fn begin(&mut self) {
        for n in self.traffic.counters.clone() {
            let limit = limit_of(n, 0);
            self.compare(&[take(self.key(n), &limit, 1)], Accounting::AllOrNothing).await;
        }
    }

    /// One call, and now and then a receipt; how many operations that made.
    pub async fn step(&mut self) -> u64 {
        self.move_clock();
        let drawn = self.drawn_checks();
        let checks: Vec<Check<'_>> = drawn.iter().map(DrawnCheck::check).collect();
        let accounting =
            if self.random.one_in(3) { Accounting::Independent } else { Accounting::AllOrNothing };
        self.compare(&checks, accounting).await;
        let now = self.bench.now();
        self.latest = self.latest.max(now);
        if !self.random.one_in(4) || self.receipts.is_empty() || now < self.latest {
            return checks.len() as u64;
        }
        let at = self.random.below(self.receipts.len() as u64);
        let receipt = self.receipts.swap_remove(usize::try_from(at).unwrap());
        // A store without a clock refunds as of its latest call on the counter: so there is one.
        let look = [peek(receipt.key, &receipt.limit)];
        self.compare(&look, Accounting::AllOrNothing).await;
        self.bench.store().refund(std::slice::from_ref(&receipt)).await;
        self.reference.refund(&receipt, now).await;
        self.compare(&look, Accounting::AllOrNothing).await;
        checks.len() as u64 + 1
    }

    fn key(&self, n: u64) -> CounterKey {
        self.bench.key(self.keys[usize::try_from(n).unwrap()])
    }

    fn move_clock(&mut self) {
        let before = self.bench.now();
        // The memory store forgets counters that have expired when it adds a block.
        let first = if self.traffic.has_blocks { before } else { Micros::ZERO };
        let now = (self.traffic.clock)(&mut self.random, before).max(first);
        self.bench.set(now);
        if now < before {
            for n in 0..COUNTERS {
                let limit = limit_of(n, 0);
                // It is asked no more.
                if self.reference.may_be_gone(&peek(self.key(n), &limit), before) {
                    self.keys[usize::try_from(n).unwrap()] += KEYS_OF_ALL;
                }
            }
        }
    }

    fn drawn_checks(&mut self) -> Vec<DrawnCheck> {
        let size = if self.random.one_in(3) { self.random.below(8) } else { 0 };
        let mut drawn: Vec<DrawnCheck> = Vec::new();
        if self.random.one_in(4) {
            // A refund and takes of one counter, which may fill it again.
            let n = self.drawn_counter();
            let capacity = limit_of(n, 0).capacity().0;
            let refund = Op::Refund { cost: Hits(1 + self.random.below(capacity.clamp(1, 60))) };
            let mut first = DrawnCheck { op: refund, ..self.drawn_check(n) };
            // Only holds and settles have the id of a hold.
            first.holder = first.holder.filter(|_| first.limit.reserve.is_none());
            drawn.push(first);
            drawn.extend((0..3).map(|_| self.drawn_check(n)));
        } else {
            for _ in 0..=size {
                let n = self.drawn_counter();
                drawn.push(self.drawn_check(n));
            }
        }
        if self.random.one_in(3) {
            only_takes(&mut drawn);
        }
        drawn
    }

    fn drawn_counter(&mut self) -> u64 {
        let counters = &self.traffic.counters;
        counters[usize::try_from(self.random.below(counters.len() as u64)).unwrap()]
    }

    fn drawn_check(&mut self, n: u64) -> DrawnCheck {
        let (key, random) = (self.key(n), &mut self.random);
        let variant = if random.one_in(8) { random.below(5) } else { 0 };
        let mut limit = limit_of(n, variant);
        if random.one_in(16) {
            let part = scaled(random, &limit);
            // A smaller hybrid cuts what is stored of a full one. The memory store forgets a full one
            // when it makes room for a block, and then nothing is cut.
            let may_be_forgotten = self.traffic.has_blocks;
            if !(may_be_forgotten && matches!(limit.algorithm, Algorithm::Hybrid(_))) {
                limit = part;
            }
        }
        if self.traffic.has_blocks && n.is_multiple_of(3) && n != SLOTS {
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
        DrawnCheck::new(random, key, limit, Hits(cost))
    }

    async fn compare(&mut self, checks: &[Check<'_>], accounting: Accounting) {
        // No store is ever asked for nothing.
        if checks.is_empty() {
            return;
        }
        let (seed, now) = (self.seed, self.bench.now());
        let outcomes = call(self.bench, accounting, checks).await;
        let call = Call { checks, accounting, now, deadline: None };
        let expected = self.reference.apply(&call).await;
        for (n, (check, outcome)) in checks.iter().zip(&outcomes).enumerate() {
            assert!(
                *outcome == expected[n] && sane(outcome),
                "seed {seed}, check {n}: {outcome:?}\nexpected: {:?}\nin a call at {}, \
                 {accounting:?}: {checks:?}\nso far: {}",
                expected[n],
                now.0,
                self.history(&check.key)
            );
        }
        let told = checks.iter().zip(&outcomes).map(|(check, outcome)| Told {
            now,
            key: check.key,
            asked: (check.op, check.role, check.holder, check.limit.capacity()),
            outcome: *outcome,
        });
        self.told.extend(told);
        let receipts = checks.iter().zip(&outcomes).filter_map(|(c, o)| Receipt::for_check(c, o));
        self.receipts.extend(receipts);
    }

    fn history(&self, key: &CounterKey) -> String {
        let of = self.told.iter().filter(|told| told.key == *key);
        of.map(|told| format!("\n{} {:?}: {:?}", told.now.0, told.asked, told.outcome)).collect()
    }
}

/// What most calls are, and what the leaner scripts decide: different counters, charged when
/// admitted, all required.
fn only_takes(checks: &mut Vec<DrawnCheck>) {
    let mut seen = HashSet::new();
    checks.retain(|check| check.limit.charge != Charge::Always && seen.insert(check.key));
    for check in checks {
        check.role = Role::Required;
        if let Op::Peek { .. } | Op::Refund { .. } = check.op {
            check.op = Op::Take { cost: Hits::ONE };
        }
    }
}
