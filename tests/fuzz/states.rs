//! Counter states, also those that no call ever produced, under limits that change, clocks that
//! jump and absurd requests: no overflow, no panic, never more left than the limit has.

use std::sync::Arc;

use tidegate::algorithm::{
    State, apply_for, bucket, expires_at, fixed_window, refund, sliding_window,
};
use tidegate::domain::{
    Charge, ChargeRecord, Hits, Holder, Limit, Micros, Op, Outcome, Unit, Verdict,
};

use crate::fuzzer::{Target, feed};
use crate::mutation::{Decisions, Random};
use crate::sort;
use crate::support::limits::{
    self, HOUR, MINUTE, SECOND, START, always, calendar, credits, floored, hybrid, sliding_log,
    sliding_window, slots, window,
};

const YEAR: u64 = 8_760 * HOUR;

/// Families of limits: those of one family may stand in for each other on one counter, as they do
/// when a policy is reloaded. The largest of each are at the bounds of the arithmetic.
fn families() -> Vec<Vec<Arc<Limit>>> {
    let most = u64::from(u32::MAX);
    let buckets = vec![
        limits::bucket(10, 70_000),
        limits::bucket(0, 1),
        limits::bucket(71_000_000, 31_000_000),
        credits(52_000, 50_000, 24 * HOUR),
        credits(7, most, MINUTE),
        floored(&limits::bucket(10, 70_000), 9),
    ];
    vec![
        vec![window(5, SECOND), window(0, SECOND), window(most, SECOND)],
        vec![window(5, 10 * YEAR), window(most, 10 * YEAR)],
        vec![
            calendar(5, Unit::Month, "America/Sao_Paulo"),
            calendar(most, Unit::Month, "America/Sao_Paulo"),
        ],
        vec![
            sliding_window(5, MINUTE),
            sliding_window(0, MINUTE),
            sliding_window(1_000_000, MINUTE),
        ],
        buckets.clone(),
        buckets.iter().map(always).collect(),
        vec![always(&window(5, MINUTE)), always(&window(0, MINUTE))],
        vec![sliding_log(5, MINUTE), sliding_log(0, MINUTE), sliding_log(300, MINUTE)],
        vec![slots(5, MINUTE), slots(1, SECOND), slots(300, YEAR)],
        (0..3)
            .map(|class| hybrid(200, 40, SECOND, &[20, 20, 20], class))
            .chain([hybrid(10, 1, HOUR, &[0, 50], 1)])
            .collect(),
    ]
}

/// A state that no call made, where the state's parts are anybody's.
fn invented(of: &State, random: &mut Decisions<'_>) -> State {
    match of {
        State::FixedWindow(_) => State::FixedWindow(fixed_window::State {
            start: Micros(random.odd()),
            count: random.odd() as u32,
        }),
        State::Bucket(_) => {
            State::Bucket(bucket::State { tat: Micros(random.odd()), rem: random.odd() as u32 })
        }
        State::SlidingWindow(_) => State::SlidingWindow(sliding_window::State {
            start: Micros(random.odd()),
            prev: random.odd() as u32,
            cur: random.odd() as u32,
        }),
        other => other.clone(),
    }
}

fn moved(now: Micros, by: &mut Decisions<'_>) -> Micros {
    let step = by.odd();
    match by.below(8) {
        0 => Micros(step),
        1 => now.saturating_sub(Micros(step)),
        2 => now.saturating_add(Micros(step)),
        3 | 4 => now.saturating_add(Micros(step % (2 * MINUTE))),
        5 => now.saturating_sub(Micros(step % (2 * SECOND))),
        _ => now,
    }
}

fn fits(limit: &Limit, op: Op, outcome: &Outcome) {
    let passes = outcome.verdict == Verdict::Pass;
    assert!(outcome.available <= limit.capacity(), "{limit:?} {op:?} {outcome:?}");
    assert!(!passes || outcome.retry_after.is_none(), "{limit:?} {op:?} {outcome:?}");
    if limit.charge == Charge::Admitted && !passes {
        assert_eq!(outcome.charged, Hits::ZERO, "{limit:?} {op:?} {outcome:?}");
    }
    if matches!(op, Op::PEEK) {
        assert_eq!(outcome.charged, Hits::ZERO, "{limit:?} {outcome:?}");
    }
}

fn eat(families: &[Vec<Arc<Limit>>], input: &[u8]) -> u64 {
    let mut by = Decisions::of(input);
    let family = by.pick(families).clone();
    let (mut state, mut now, mut taken): (Option<State>, _, Vec<(Arc<Limit>, ChargeRecord)>) =
        (None, START, Vec::new());
    let mut sorts = Vec::new();
    while !by.is_over() {
        now = moved(now, &mut by);
        let limit = by.pick(&family);
        if by.below(16) == 0 {
            state = state.map(|state| invented(&state, &mut by));
        }
        if let (Some(held), Some((limit, one)), 0) = (&state, taken.last(), by.below(4)) {
            let left = refund(held, limit, one, now);
            taken.pop();
            state = left.or(state);
            continue;
        }
        let cost = Hits(by.odd());
        let op = match by.below(6) {
            0 => Op::PEEK,
            1 => Op::Refund { cost },
            _ => Op::Take { cost },
        };
        let holder = (by.below(3) == 0).then(|| Holder(by.below(4) as u128));
        let step = apply_for(state.as_ref(), limit, op, holder, now);
        fits(limit, op, &step.outcome);
        let written = step.write.is_some();
        state = step.write.or(state);
        if let Some(state) = &state {
            let _ = (expires_at(state, limit), state.heap_bytes());
        }
        if let Some(one) = step.outcome.taken {
            taken.push((Arc::clone(limit), one));
        }
        let verdict = step.outcome.verdict == Verdict::Pass;
        sorts.push((verdict, written, step.stepped_back, step.outcome.retry_after.is_none()));
    }
    sorts.sort_unstable();
    sorts.dedup();
    sort(sorts)
}

#[test]
fn any_state_under_any_limit_at_any_time_is_answered() {
    let target = Target { name: "states", share: 15, words: &[] };
    let families = families();
    let make = |random: &mut Random| random.bytes(300);
    feed(&target, Vec::new(), make, |input| eat(&families, input));
}
