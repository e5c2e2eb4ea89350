//! What an outcome reports is true: `retry_after`, `available` and the reset. And nothing panics.

use proptest::prelude::*;
use tidegate::algorithm::{
    State, apply, apply_for, bucket, expires_at, fixed_window, refund, sliding_window,
};
use tidegate::domain::{
    Algorithm, Charge, ChargeRecord, Concurrency, Hits, Holder, Hybrid, Limit, Micros, Op, Outcome,
    Refill, SlidingLog, SlidingWindow, Verdict,
};

use super::trace_generator;
use super::trace_generator::*;

/// A counter after a trace, and the time.
fn after(limit: &Limit, trace: &[(u64, u64)]) -> (Counter, Micros) {
    let mut counter = Counter::new(limit);
    let mut now = START;
    for (at, cost) in times(limit, trace) {
        now = at;
        counter.take(cost, now);
    }
    (counter, now)
}

fn charged(mut limit: Limit, always: bool) -> Limit {
    limit.charge = if always { Charge::Always } else { Charge::Admitted };
    limit
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn waiting_exactly_retry_after_passes_and_one_tick_less_does_not(
        limit in a_limit(),
        trace in a_trace(),
        cost in 1..30_u64,
        always in any::<bool>(),
        behind in 0..2 * SECOND,
    ) {
        let is_hybrid = matches!(limit.algorithm, Algorithm::Hybrid(_));
        let limit = charged(limit, always && !is_hybrid);
        let (mut counter, now) = after(&limit, &trace);
        let now = Micros(now.0 - behind);
        let refused = counter.take(cost, now);
        if let Some(wait) = refused.retry_after {
            let at = |now| counter.clone().take(cost, now).verdict;
            prop_assert_eq!(at(Micros(now.0 + wait.0)), Verdict::Pass);
            prop_assert_eq!(at(Micros(now.0 + wait.0 - 1)), Verdict::Refuse);
        } else {
            let floor = match &limit.algorithm {
                Algorithm::Bucket(bucket) => bucket.floor.0.min(bucket.burst.0),
                _ => 0,
            };
            let never = cost + floor.max(1) - 1 > limit.capacity().0;
            // What is lent for a while beyond the pool's size is no promise, so more than a class
            // can have for certain has no wait.
            prop_assert!(is_hybrid || (refused.verdict == Verdict::Refuse) == never);
        }
    }

    #[test]
    fn available_is_what_single_hits_can_be_taken_next(
        limit in a_limit(),
        trace in a_trace(),
    ) {
        let (mut counter, now) = after(&limit, &trace);
        let left = counter.peek(now).available.0;
        for _ in 0..left {
            prop_assert_eq!(counter.take(1, now).verdict, Verdict::Pass);
        }
        prop_assert_eq!(counter.take(1, now).verdict, Verdict::Refuse);
    }

    #[test]
    fn at_the_reset_nothing_is_used_and_an_absent_counter_means_the_same(
        limit in a_limit(),
        trace in a_trace(),
        cost in 1..40_u64,
    ) {
        let (mut counter, now) = after(&limit, &trace);
        let reset = counter.peek(now).reset_after;
        let then = Micros(now.0 + reset.0);
        prop_assume!(counter.state.is_some());
        let state = counter.state.clone().unwrap();
        // A hybrid is kept longer, for the limit that its limit may be a fraction of.
        if !matches!(limit.algorithm, Algorithm::Hybrid(_)) {
            prop_assert!(expires_at(&state, &limit) <= then);
        }
        let op = Op::Take { cost: Hits(cost) };
        let (kept, absent) =
            (apply(Some(&state), &limit, op, then), apply(None, &limit, op, then));
        // (A log goes on numbering its entries.)
        let seen = |mut outcome: Outcome| {
            outcome.taken = outcome.taken.map(|taken| ChargeRecord { entry: 0, ..taken });
            outcome
        };
        prop_assert_eq!(seen(kept.outcome), seen(absent.outcome));
        // (A window's reset is told whether or not there is a counter for it.)
        if reset.0 > 0 && matches!(limit.algorithm, Algorithm::Bucket(_)) {
            let before = Micros(then.0 - 1);
            prop_assert!(expires_at(&state, &limit) > before);
        }
    }

    #[test]
    fn a_refusal_and_a_peek_write_nothing(
        limit in a_limit(),
        trace in a_trace(),
        cost in 1..40_u64,
    ) {
        let (counter, now) = after(&limit, &trace);
        prop_assert_eq!(apply(counter.state.as_ref(), &limit, Op::PEEK, now).write, None);
        let step = apply(counter.state.as_ref(), &limit, Op::Take { cost: Hits(cost) }, now);
        prop_assert_eq!(step.write.is_none(), step.outcome.verdict == Verdict::Refuse);
    }

    #[test]
    fn a_charge_beyond_the_limit_refuses_the_next_peek(
        limit in prop_oneof![a_plain_limit(), a_log()],
        trace in a_trace(),
        cost in 1..100_u64,
    ) {
        let limit = charged(limit, true);
        let (mut counter, now) = after(&limit, &trace);
        let left = counter.peek(now).available.0;
        let charge = counter.take(cost, now);
        prop_assert_eq!(charge.verdict == Verdict::Pass, cost <= left);
        prop_assert_eq!(counter.peek(now).verdict == Verdict::Pass, cost < left);
        // The debt is at most one more capacity.
        if matches!(limit.algorithm, Algorithm::Bucket(_)) {
            let full_debt = Counter::new(&limit).take(u64::MAX, now).reset_after;
            prop_assert!(charge.reset_after <= full_debt);
        }
    }

    /// Whatever a state, a limit, a cost or a clock says: an answer, and no panic. (Tests run with
    /// overflow checks.)
    #[test]
    fn no_numbers_panic(
        numbers in prop::array::uniform8(prop_oneof![
            any::<u64>(), 0..4_u64, (0..64_u32).prop_map(|bit| 1 << bit), Just(u64::MAX),
        ]),
        rem in any::<u32>(),
        kind in 0..14_u8,
    ) {
        let [a, b, c, start, now, cost, at, window] = numbers;
        let length = Micros(b);
        let limit = match kind % 7 {
            0 => trace_generator::window(a, b),
            1 => trace_generator::bucket(a, Refill::Arrival { emission: length }),
            2 => trace_generator::bucket(a, Refill::Credits { hits: Hits(b), window: Micros(c) }),
            3 => trace_generator::limit(Algorithm::SlidingWindow(SlidingWindow { hits: Hits(a), length })),
            4 => trace_generator::limit(Algorithm::SlidingLog(SlidingLog { hits: Hits(a), length })),
            5 => trace_generator::limit(Algorithm::Concurrency(Concurrency { slots: Hits(a), lease: length })),
            _ => trace_generator::limit(Algorithm::Hybrid(Hybrid {
                burst: Hits(a),
                expiry_burst: Hits(b),
                hits: Hits(c),
                window: length,
                shares: [30, 0, 50].into(),
                class: 1,
                floor_percent: rem % 101,
            })),
        };
        let limit = charged(limit, kind > 6);
        let taken = ChargeRecord {
            hits: Hits(cost),
            at: Micros(at),
            window: Micros(window),
            entry: 0,
        };
        let mut states = vec![
            State::FixedWindow(fixed_window::State { start: Micros(start), count: rem }),
            State::Bucket(bucket::State { tat: Micros(start), rem }),
            State::SlidingWindow(sliding_window::State {
                start: Micros(start),
                prev: rem,
                cur: rem / 2,
            }),
        ];
        let holder = Some(Holder(7));
        let take = Op::Take { cost: Hits(1) };
        states.extend(apply_for(None, &limit, take, holder, Micros(start)).write);
        for op in [
            Op::PEEK,
            Op::Take { cost: Hits(cost) },
            Op::Refund { cost: Hits(cost) },
        ] {
            let _ = apply_for(None, &limit, op, holder, Micros(now));
            for state in &states {
                let _ = apply_for(Some(state), &limit, op, holder, Micros(now));
                let _ = refund(state, &limit, &taken, Micros(now));
                let _ = expires_at(state, &limit);
            }
        }
    }
}
