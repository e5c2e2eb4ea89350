//! No trace gets more out of a limit than its stated worst case.

use proptest::prelude::*;
use tidegate::domain::{Counting, Hits, Limit, Micros, Refill, Taken, Verdict, Window};

use crate::traces::*;

/// The largest level that admitted hits reach in a bucket that leaks `flow` credits a microsecond:
/// exceeding `burst * unit` and exceeding B + r * interval in some interval are the same.
fn highest_level(admitted: &[(Micros, u64)], unit: u64, flow: u64) -> u64 {
    let (mut level, mut highest, mut last) = (0_u64, 0_u64, Micros::ZERO);
    for (at, hits) in admitted {
        let leaked = at.saturating_sub(last).0.saturating_mul(flow);
        level = level.saturating_sub(leaked) + hits * unit;
        highest = highest.max(level);
        last = *at;
    }
    highest
}

/// The most hits in any interval that is shorter than `length`.
fn most_within(admitted: &[(Micros, u64)], length: u64) -> u64 {
    let (mut first, mut sum, mut most) = (0, 0, 0);
    for (at, hits) in admitted {
        sum += hits;
        while admitted[first].0.0 + length <= at.0 {
            sum -= admitted[first].1;
            first += 1;
        }
        most = most.max(sum);
    }
    most
}

fn admitted(limit: &Limit, trace: &[(u64, u64)]) -> Vec<(Micros, u64)> {
    let mut counter = Counter::new(limit);
    times(limit, trace)
        .into_iter()
        .filter(|(now, cost)| counter.take(*cost, *now).verdict == Verdict::Pass)
        .collect()
}

fn parts(limit: &Limit) -> (u64, Refill) {
    match &limit.counting {
        Counting::Bucket(bucket) => (bucket.burst.0, bucket.refill),
        Counting::FixedWindow(_) => panic!("not a bucket"),
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_bucket_never_exceeds_its_burst_and_its_rate(limit in a_bucket(), trace in a_trace()) {
        let (burst, refill) = parts(&limit);
        let (unit, flow) = flow(refill);
        prop_assert!(highest_level(&admitted(&limit, &trace), unit, flow) <= burst * unit);
    }

    #[test]
    fn a_window_never_exceeds_its_limit_nor_any_interval_twice_that(
        limit in a_window(),
        trace in a_trace(),
    ) {
        let Counting::FixedWindow(w) = &limit.counting else { unreachable!() };
        let Window::Epoch { length } = w.window;
        let admitted = admitted(&limit, &trace);
        prop_assert!(most_within(&admitted, length.0) <= 2 * w.hits.0);
        let mut counts = std::collections::HashMap::new();
        for (at, hits) in admitted {
            *counts.entry(at.0 / length.0).or_insert(0) += hits;
        }
        prop_assert!(counts.values().all(|count| *count <= w.hits.0));
    }

    /// Hits that are given back by their receipts are as if they had never been taken, and what is
    /// admitted in their place keeps the bound. (Returning all of them, whatever refilled since,
    /// breaks it.)
    #[test]
    fn give_backs_by_receipt_keep_the_bound(
        limit in a_limit(),
        trace in a_trace(),
        returns in prop::collection::vec(prop::option::weighted(0.4, 0..6_usize), 120),
    ) {
        let mut counter = Counter::new(&limit);
        let mut held: Vec<(Micros, u64, Taken)> = Vec::new();
        for ((now, cost), back) in times(&limit, &trace).into_iter().zip(returns) {
            if let Some(taken) = counter.take(cost, now).taken {
                held.push((now, cost, taken));
            }
            if let Some(back) = back && back < held.len() {
                let (_, _, taken) = held.remove(held.len() - 1 - back);
                counter.give_back(&taken, now);
            }
        }
        let kept: Vec<(Micros, u64)> = held.iter().map(|(at, hits, _)| (*at, *hits)).collect();
        match &limit.counting {
            Counting::Bucket(bucket) => {
                let (unit, flow) = flow(bucket.refill);
                prop_assert!(highest_level(&kept, unit, flow) <= bucket.burst.0 * unit);
            }
            Counting::FixedWindow(w) => {
                let Window::Epoch { length } = w.window;
                prop_assert!(most_within(&kept, length.0) <= 2 * w.hits.0);
            }
        }
    }

    #[test]
    fn splitting_a_cost_into_single_hits_admits_the_same(
        limit in a_limit(),
        trace in a_trace(),
        cost in 1..30_u64,
    ) {
        let mut counter = Counter::new(&limit);
        let mut now = START;
        for (at, cost) in times(&limit, &trace) {
            now = at;
            counter.take(cost, now);
        }
        let mut split = counter.clone();
        let singles =
            (0..cost).filter(|_| split.take(1, now).verdict == Verdict::Pass).count() as u64;
        let whole = counter.take(cost, now);
        prop_assert_eq!(whole.verdict == Verdict::Pass, singles == cost);
        if singles == cost {
            prop_assert_eq!(split.state, counter.state);
        } else {
            prop_assert_eq!(Hits(singles), whole.available);
        }
    }
}
