//! No trace is admitted more than its limit's documented worst case.

use proptest::prelude::*;
use tidegate::domain::{
    Algorithm, ChargeRecord, Hits, Hybrid, Limit, Micros, Refill, SlidingWindow, Verdict,
};

use super::trace_generator::*;

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

/// Credits per hit and per microsecond of a hybrid's whole, and what flows in within a tick.
fn hybrid_flow(hybrid: &Hybrid) -> (u64, u64, u64) {
    let (unit, flow) = (hybrid.window.0 * 100, hybrid.hits.0 * 100);
    (unit, flow, flow * hybrid_tick(hybrid))
}

fn hybrid_tick(hybrid: &Hybrid) -> u64 {
    SlidingWindow { hits: Hits::ZERO, length: hybrid.window }.tick().0
}

fn parts(limit: &Limit) -> (u64, Refill) {
    match &limit.algorithm {
        Algorithm::Bucket(bucket) => (bucket.burst.0, bucket.refill),
        other => panic!("not a bucket: {other:?}"),
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
        let Algorithm::FixedWindow(w) = &limit.algorithm else { unreachable!() };
        let length = length(w);
        let admitted = admitted(&limit, &trace);
        prop_assert!(most_within(&admitted, length) <= 2 * w.hits.0);
        let mut counts = std::collections::HashMap::new();
        for (at, hits) in admitted {
            *counts.entry(at.0 / length).or_insert(0) += hits;
        }
        prop_assert!(counts.values().all(|count| *count <= w.hits.0));
    }

    /// Hits that are refunded by their receipts are as if they had never been taken, and what is
    /// admitted in their place keeps the bound. (Returning all of them, whatever refilled since,
    /// breaks it.)
    #[test]
    fn refunds_by_receipt_keep_the_bound(
        limit in a_limit(),
        trace in a_trace(),
        returns in prop::collection::vec(prop::option::weighted(0.4, 0..6_usize), 120),
    ) {
        let mut counter = Counter::new(&limit);
        let mut held: Vec<(Micros, u64, ChargeRecord)> = Vec::new();
        for ((now, cost), back) in times(&limit, &trace).into_iter().zip(returns) {
            if let Some(taken) = counter.take(cost, now).taken {
                held.push((now, cost, taken));
            }
            if let Some(back) = back && back < held.len() {
                let (_, _, taken) = held.remove(held.len() - 1 - back);
                counter.refund(&taken, now);
            }
        }
        let kept: Vec<(Micros, u64)> = held.iter().map(|(at, hits, _)| (*at, *hits)).collect();
        match &limit.algorithm {
            Algorithm::Bucket(bucket) => {
                let (unit, flow) = flow(bucket.refill);
                prop_assert!(highest_level(&kept, unit, flow) <= bucket.burst.0 * unit);
            }
            Algorithm::FixedWindow(w) => {
                prop_assert!(most_within(&kept, length(w)) <= 2 * w.hits.0);
            }
            Algorithm::SlidingWindow(w) => {
                prop_assert!(most_within(&kept, w.length.0) < 2 * w.hits.0.max(2));
            }
            Algorithm::SlidingLog(w) => prop_assert!(most_within(&kept, w.length.0) <= w.hits.0),
            Algorithm::Hybrid(h) => {
                let (unit, flow, slack) = hybrid_flow(h);
                prop_assert!(highest_level(&kept, unit, flow) <= h.burst.0 * unit + slack);
            }
            Algorithm::Concurrency(_) => unreachable!(),
        }
    }

    #[test]
    fn a_sliding_window_stays_below_twice_its_limit_in_any_interval(
        limit in a_sliding_window(),
        trace in a_trace(),
    ) {
        let Algorithm::SlidingWindow(w) = &limit.algorithm else { unreachable!() };
        let admitted = admitted(&limit, &trace);
        prop_assert!(most_within(&admitted, w.length.0) < 2 * w.hits.0.max(2));
        // Nor does a window of its own ever hold more than the limit.
        let mut counts = std::collections::HashMap::new();
        for (at, hits) in admitted {
            *counts.entry(at.0 / w.length.0).or_insert(0) += hits;
        }
        prop_assert!(counts.values().all(|count| *count <= w.hits.0));
    }

    /// Every decision, wait and rest of a log, against a list of all hits that is gone through
    /// anew each time; with hits refunded by receipt.
    #[test]
    fn a_sliding_log_is_what_a_list_of_all_hits_says(
        limit in a_log(),
        trace in a_trace(),
        returns in prop::collection::vec(prop::option::weighted(0.2, 0..6_usize), 120),
    ) {
        let Algorithm::SlidingLog(log) = &limit.algorithm else { unreachable!() };
        let (most, length) = (log.hits.0, log.length.0);
        let mut counter = Counter::new(&limit);
        let mut all: Vec<(u64, u64, ChargeRecord)> = Vec::new();
        for ((now, cost), back) in times(&limit, &trace).into_iter().zip(returns) {
            let within = |at: u64, all: &[(u64, u64, ChargeRecord)]| -> u64 {
                all.iter().filter(|(t, ..)| t + length > at).map(|(_, hits, _)| hits).sum()
            };
            let passes = |at| within(at, &all) + cost <= most;
            let wait = all.iter().map(|(t, ..)| t + length).filter(|t| *t > now.0);
            let wait = wait.filter(|at| passes(*at)).min().map(|at| Micros(at - now.0));
            let expected = passes(now.0);
            let outcome = counter.take(cost, now);
            prop_assert_eq!(outcome.verdict == Verdict::Pass, expected);
            let wait = wait.filter(|_| !expected && cost <= most);
            prop_assert_eq!(outcome.retry_after, wait);
            all.extend(outcome.taken.map(|taken| (now.0, cost, taken)));
            prop_assert_eq!(outcome.available.0, most - within(now.0, &all));
            if let Some(back) = back && back < all.len() {
                let (.., taken) = all.remove(all.len() - 1 - back);
                counter.refund(&taken, now);
            }
        }
    }

    #[test]
    fn classes_of_a_shared_bucket_stay_within_it_together(
        limit in a_bucket(),
        floors in prop::collection::vec(0..30_u64, 120),
        trace in a_trace(),
    ) {
        let (burst, refill) = parts(&limit);
        let (unit, flow) = flow(refill);
        let mut counter = Counter::new(&limit);
        let mut admitted = Vec::new();
        for ((now, cost), floor) in times(&limit, &trace).into_iter().zip(floors) {
            let there = counter.peek(now).available.0;
            let Algorithm::Bucket(bucket) = &mut counter.limit.algorithm else { unreachable!() };
            bucket.floor = Hits(floor.min(burst));
            let outcome = counter.take(cost, now);
            let needed = cost + floor.min(burst).max(1) - 1;
            prop_assert_eq!(outcome.verdict == Verdict::Pass, there >= needed);
            if outcome.verdict == Verdict::Pass {
                admitted.push((now, cost));
            }
            let Algorithm::Bucket(bucket) = &mut counter.limit.algorithm else { unreachable!() };
            bucket.floor = Hits::ZERO;
        }
        prop_assert!(highest_level(&admitted, unit, flow) <= burst * unit);
    }

    /// All classes together get no more than the bucket and its rate; and each gets its share,
    /// whatever the others take.
    #[test]
    fn classes_of_a_hybrid_stay_within_it_and_none_is_starved(
        limit in a_hybrid(),
        classes in prop::collection::vec(0..3_usize, 120),
        trace in a_trace(),
    ) {
        let Algorithm::Hybrid(hybrid) = &limit.algorithm else { unreachable!() };
        let (hybrid, count) = (hybrid.clone(), hybrid.shares.len());
        let mut counter = Counter::new(&limit);
        let mut admitted = Vec::new();
        // What a bucket of each class's share alone would hold, in credits.
        let (unit, flow, _) = hybrid_flow(&hybrid);
        let tick = hybrid_tick(&hybrid);
        let share = |class: usize| u64::from(hybrid.shares[class]);
        let mut own: Vec<u64> = (0..count).map(|c| hybrid.burst.0 * unit * share(c) / 100).collect();
        let mut last = START.0 / tick;
        for ((now, cost), class) in times(&limit, &trace).into_iter().zip(classes) {
            let class = class % count;
            let at = now.0 / tick;
            for (class, own) in own.iter_mut().enumerate() {
                let cap = hybrid.burst.0 * unit * share(class) / 100;
                *own = cap.min(*own + (at - last) * tick * flow * share(class) / 100);
            }
            last = at;
            let Algorithm::Hybrid(seen) = &mut counter.limit.algorithm else { unreachable!() };
            seen.class = class;
            let passes = counter.take(cost, now).verdict == Verdict::Pass;
            prop_assert!(passes || own[class] < cost * unit, "a share is there for its class");
            if passes {
                own[class] -= own[class].min(cost * unit);
                admitted.push((Micros(at * tick), cost));
            }
        }
        prop_assert!(highest_level(&admitted, unit, flow) <= hybrid.burst.0 * unit);
    }

    #[test]
    fn splitting_a_cost_into_single_hits_admits_the_same(
        limit in a_plain_limit(),
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
