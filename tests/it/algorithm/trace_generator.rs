//! Generators for the property tests: limits of each algorithm, and sequences of operations.

use proptest::prelude::*;
use tidegate::algorithm::{self, State};
use tidegate::domain::{
    Algorithm, Bucket, Charge, FixedWindow, Hits, Hybrid, Limit, Micros, Op, Outcome, Refill,
    SlidingLog, SlidingWindow, Window,
};

use crate::support::vectors;

pub const START: Micros = Micros(1_763_596_800_000_000);
pub const SECOND: u64 = 1_000_000;

/// A counter: a limit and what is stored under it.
#[derive(Clone, Debug)]
pub struct Counter {
    pub limit: Limit,
    pub state: Option<State>,
}

impl Counter {
    pub fn new(limit: &Limit) -> Counter {
        Counter { limit: limit.clone(), state: None }
    }

    pub fn apply(&mut self, op: Op, now: Micros) -> Outcome {
        let step = algorithm::apply(self.state.as_ref(), &self.limit, op, now);
        if step.write.is_some() {
            self.state = step.write;
        }
        step.outcome
    }

    pub fn take(&mut self, cost: u64, now: Micros) -> Outcome {
        self.apply(Op::Take { cost: Hits(cost) }, now)
    }

    pub fn peek(&mut self, now: Micros) -> Outcome {
        self.apply(Op::PEEK, now)
    }

    pub fn refund(&mut self, taken: &tidegate::domain::ChargeRecord, now: Micros) {
        if let Some(state) = &self.state {
            let new = algorithm::refund(state, &self.limit, taken, now);
            if new.is_some() {
                self.state = new;
            }
        }
    }
}

pub fn limit(algorithm: Algorithm) -> Limit {
    vectors::limit(algorithm, Charge::Admitted)
}

pub fn window(hits: u64, length: u64) -> Limit {
    let window = Window::Epoch { length: Micros(length) };
    limit(Algorithm::FixedWindow(FixedWindow { hits: Hits(hits), window }))
}

pub fn bucket(burst: u64, refill: Refill) -> Limit {
    limit(Algorithm::Bucket(Bucket {
        burst: Hits(burst),
        debt_burst: Hits(burst),
        refill,
        floor: Hits::ZERO,
        leaky: false,
    }))
}

/// Credits per hit and credits per microsecond, as the bucket's file has them.
pub fn flow(refill: Refill) -> (u64, u64) {
    match refill {
        Refill::Arrival { emission } => (emission.0, 1),
        Refill::Credits { hits, window } => (window.0, hits.0),
    }
}

pub fn a_refill() -> impl Strategy<Value = Refill> {
    prop_oneof![
        (1..200_000_u64).prop_map(|e| Refill::Arrival { emission: Micros(e) }),
        (1..1_000_u64, 1..2_000_u64)
            .prop_map(|(l, w)| Refill::Credits { hits: Hits(l), window: Micros(w * 997) }),
        // More than a hit per microsecond.
        (1_000_000..5_000_000_u64)
            .prop_map(|l| Refill::Credits { hits: Hits(l), window: Micros(SECOND) }),
    ]
}

pub fn a_bucket() -> impl Strategy<Value = Limit> {
    (1..30_u64, a_refill()).prop_map(|(burst, refill)| bucket(burst, refill))
}

pub fn a_window() -> impl Strategy<Value = Limit> {
    (1..30_u64, 1..100_u64).prop_map(|(hits, seconds)| window(hits, seconds * SECOND))
}

pub fn a_sliding_window() -> impl Strategy<Value = Limit> {
    (1..30_u64, prop_oneof![1..50_u64, 60..4_000_u64, 86_400..300_000_u64]).prop_map(
        |(hits, seconds)| {
            let length = Micros(seconds * SECOND);
            limit(Algorithm::SlidingWindow(SlidingWindow { hits: Hits(hits), length }))
        },
    )
}

pub fn a_log() -> impl Strategy<Value = Limit> {
    (1..30_u64, 1..100_u64).prop_map(|(hits, seconds)| {
        let length = Micros(seconds * SECOND);
        limit(Algorithm::SlidingLog(SlidingLog { hits: Hits(hits), length }))
    })
}

/// A bucket seen by a class with a floor.
pub fn a_floor() -> impl Strategy<Value = Limit> {
    (a_bucket(), 0..100_u64).prop_map(|(mut limit, percent)| {
        if let Algorithm::Bucket(bucket) = &mut limit.algorithm {
            bucket.floor = Hits((bucket.burst.0 * percent).div_ceil(100));
        }
        limit
    })
}

/// One class's view of a bucket that is divided.
pub fn a_hybrid() -> impl Strategy<Value = Limit> {
    let shares = prop_oneof![
        Just(vec![100]),
        Just(vec![50, 50]),
        Just(vec![30, 20]),
        Just(vec![0, 40, 25]),
        Just(vec![33, 33, 34]),
    ];
    let window = prop_oneof![1..50_u64, 60..4_000_u64];
    (1..30_u64, 1..500_u64, window, shares, 0..3_usize, 0..100_u32).prop_map(
        |(burst, hits, seconds, shares, class, floor_percent)| {
            limit(Algorithm::Hybrid(Hybrid {
                burst: Hits(burst),
                expiry_burst: Hits(burst),
                hits: Hits(hits),
                window: Micros(seconds * SECOND),
                class: class % shares.len(),
                shares: shares.into(),
                floor_percent,
            }))
        },
    )
}

/// Limits for which a cost is the same as so many single hits.
pub fn a_plain_limit() -> impl Strategy<Value = Limit> {
    prop_oneof![a_bucket(), a_window(), a_sliding_window()]
}

/// Limits of every kind that counts hits.
pub fn a_limit() -> impl Strategy<Value = Limit> {
    prop_oneof![a_bucket(), a_window(), a_sliding_window(), a_log(), a_floor(), a_hybrid()]
}

/// How long a trace pauses, in thousandths of the limit's own pace, and what it asks for.
pub fn a_trace() -> impl Strategy<Value = Vec<(u64, u64)>> {
    let pause = prop_oneof![4 => Just(0), 4 => 1..2_000_u64, 1 => 1..30_000_u64];
    prop::collection::vec((pause, 1..8_u64), 1..120)
}

/// A limit's own pace: the time in which about one hit comes back.
pub fn pace(limit: &Limit) -> u64 {
    let even = |length: u64, hits: Hits| (length / hits.0.max(1)).max(1);
    match &limit.algorithm {
        Algorithm::FixedWindow(w) => even(length(w), w.hits),
        Algorithm::SlidingWindow(w) => even(w.length.0, w.hits),
        Algorithm::SlidingLog(w) => even(w.length.0, w.hits),
        Algorithm::Hybrid(h) => even(h.window.0, h.hits),
        Algorithm::Concurrency(c) => even(c.lease.0, c.slots),
        Algorithm::Bucket(b) => {
            let (unit, flow) = flow(b.refill);
            (unit / flow).max(1)
        }
    }
}

/// The length of an epoch-aligned window.
pub fn length(window: &FixedWindow) -> u64 {
    match &window.window {
        Window::Epoch { length } => length.0,
        Window::Calendar(_) => panic!("not of one length"),
    }
}

/// The times of a trace.
pub fn times(limit: &Limit, trace: &[(u64, u64)]) -> Vec<(Micros, u64)> {
    let pace = pace(limit);
    let mut now = START;
    trace
        .iter()
        .map(|(pause, cost)| {
            now = Micros(now.0 + (pause * pace).div_ceil(1_000));
            (now, *cost)
        })
        .collect()
}

/// Failures are kept beside the tests and tried first from then on.
pub fn config() -> ProptestConfig {
    use proptest::test_runner::{FileFailurePersistence, RngSeed};
    let mut config = ProptestConfig::with_cases(400);
    config.failure_persistence =
        Some(Box::new(FileFailurePersistence::SourceParallel("proptest-regressions")));
    // A fixed seed: the same run everywhere. (A failure prints its own case.)
    config.rng_seed = RngSeed::Fixed(0x7469_6465);
    config
}
