//! Many calls at once on few counters, whose callers leave or stall at random: afterwards, each counter
//! holds the hits of the calls that were admitted, and those that nobody heard, which a metric counts.

use std::time::Duration;

use tidegate::domain::{Algorithm, Answers, Check, Verdict};
use tidegate::store::Store;

use super::each_await::{Bench, Caller, paused, poll_as, settle};
use super::scripted_transport::{Fate, Step};
use crate::support::limits::*;
use crate::support::proof::times;
use crate::support::random::Random;

/// Calls that are in flight at once.
const CALLS: u64 = 40;

/// Hits that the answers say were charged, per check, if they admit the call.
fn charged(answers: &Answers) -> Vec<u64> {
    let passes = |answer: &tidegate::domain::Answer| answer.verdict() == Some(Verdict::Pass);
    let is_admitted = answers.each.iter().all(passes);
    let outcomes = answers.each.iter().map(|answer| answer.outcome());
    outcomes.map(|outcome| outcome.filter(|_| is_admitted).map_or(0, |of| of.charged.0)).collect()
}

/// Prompt enough that every reply arrives before its call's deadline.
fn quick_step(random: &mut Random) -> Step {
    let mut delay = || random.below(8);
    let [written_after, runs_after, answered_after] = [(); 3].map(|()| delay());
    Step { written_after, runs_after, answered_after, fate: Fate::Answered }
}

fn try_sequence(bench: &Bench, seed: u64, counters: &[Check<'_>]) {
    let mut random = Random::seeded(seed);
    paused(async {
        let before = bench.used_by_each(counters).await;
        let unheard = bench.unheard();
        let steps: Vec<Step> = (0..10 * CALLS).map(|_| quick_step(&mut random)).collect();
        bench.transport.follow(&steps);
        let chosen: Vec<(Vec<usize>, Caller, u64)> = (0..CALLS)
            .map(|_| {
                let first = random.below(counters.len() as u64) as usize;
                let count = 1 + random.below(2.min(counters.len() as u64)) as usize;
                let which = (0..count).map(|n| (first + n) % counters.len()).collect();
                let caller = match random.below(3) {
                    0 => Caller::Stays,
                    1 => Caller::DropsAt(1 + random.below(3)),
                    _ => Caller::StallsAt(1 + random.below(3)),
                };
                (which, caller, random.below(60))
            })
            .collect();
        let calls = chosen.iter().map(async |(which, caller, after)| {
            tokio::time::sleep(Duration::from_millis(*after)).await;
            let checks: Vec<Check<'_>> = which.iter().map(|at| counters[*at]).collect();
            let call = bench.call_now(&checks);
            let future = Box::pin(bench.stack.apply(&call));
            let (heard, _) = poll_as(*caller, future, async || ()).await;
            (which, heard.as_ref().map(charged))
        });
        let results = futures_util::future::join_all(calls).await;
        settle().await;
        let mut heard = vec![0; counters.len()];
        for (which, charged) in results {
            for (at, hits) in which.iter().zip(charged.unwrap_or_default()) {
                heard[*at] += hits;
            }
        }
        let after = bench.used_by_each(counters).await;
        let total = |each: &[u64]| each.iter().sum::<u64>();
        let charged = total(&after) - total(&before);
        let expected = total(&heard) + bench.unheard() - unheard;
        // A bucket keeps what may have refilled until a refund: less than a hit, but it shows as one.
        // A call costs more than all of these hits.
        let is_bucket = |check: &&Check<'_>| matches!(check.limit.algorithm, Algorithm::Bucket(_));
        let most = expected + counters.iter().filter(is_bucket).count() as u64;
        assert!(
            (expected..=most).contains(&charged),
            "seed {seed}: {charged} of {expected}: {before:?} {after:?} {heard:?}"
        );
        for ((before, after), heard) in before.iter().zip(&after).zip(&heard) {
            assert!(after - before >= *heard, "seed {seed}: hits were lost");
        }
    });
}

#[test]
fn no_hit_of_many_calls_at_once_is_lost() {
    for is_cluster in [false, true] {
        let bench = Bench::new(is_cluster);
        let long = 1_000_000 * SECOND;
        let limits = [window(1_000, long), window(40, long), bucket(1_000, HOUR)];
        for seed in 1..=times(40, 2_000) {
            let seed = 10_000 * u64::from(is_cluster) + seed;
            let counters: Vec<Check<'_>> = (0..6)
                .map(|n| take(key(seed << 8 | n), &limits[n as usize % limits.len()], 4 + n % 3))
                .collect();
            try_sequence(&bench, seed, &counters);
        }
    }
}

/// A prepaid limit beside one whose node does not execute: the fallback admits the calls, so what Redis
/// has charged for them stands.
#[test]
fn prepaid_hits_of_calls_that_the_fallback_admits_stay_charged() {
    let bench = Bench::new(true);
    let long = 1_000_000 * SECOND;
    let limits = [prepaid(&window(100_000, long)), window(100_000, long)];
    // In different slots, and the second one fails whenever both are asked.
    let counters = [0, 1].map(|n| take(key(n), &limits[n as usize], 1));
    let refused = Step { fate: Fate::NotExecuted, ..Step::PROMPT };
    let mut admitted = 0;
    for _ in 0..40 {
        // Calls of the prepaid limit alone make it hot, so that lots are charged.
        paused(async {
            bench.transport.follow(&[]);
            for _ in 0..200 {
                let call = bench.call_now(&counters[..1]);
                admitted += charged(&bench.stack.apply(&call).await)[0];
            }
            settle().await;
        });
        for steps in [[Step::PROMPT, refused], [refused, Step::PROMPT]] {
            paused(async {
                bench.transport.follow(&steps);
                let call = bench.call_now(&counters);
                let answers = bench.stack.apply(&call).await;
                let passed = answers.each.iter().all(|of| of.verdict() == Some(Verdict::Pass));
                let first = answers.each[0].outcome().expect("it is decided");
                // What the local store has charged has no record.
                admitted += u64::from(passed && first.taken.is_some());
                settle().await;
            });
        }
        let used = paused(bench.used(&counters[0]));
        assert!(used >= admitted, "{used} of {admitted} admitted hits are charged");
    }
}

#[test]
fn no_prepaid_hit_of_a_caller_that_leaves_is_lost() {
    for is_cluster in [false, true] {
        let bench = Bench::new(is_cluster);
        let limits =
            [prepaid(&window(100_000, 1_000_000 * SECOND)), window(100_000, 1_000_000 * SECOND)];
        let counters = [0, 1].map(|n| take(key(n), &limits[n as usize], 1));
        let sequences = times(60, 3_000);
        for seed in 1..=sequences {
            try_sequence(&bench, seed, &counters[..1]);
            try_sequence(&bench, sequences + seed, &counters);
        }
        let commands = bench.transport.submitted();
        assert!(commands < 2 * sequences * CALLS, "{commands} commands: none was prepaid");
    }
}
