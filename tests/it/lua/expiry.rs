//! Every key expires when its file in `lua/` says so; and how much memory it needs until then.

use std::sync::Arc;
use std::time::Duration;

use tidegate::domain::{
    Accounting, Check, Hits, Holder, Limit, Micros, Op, Outcome, Receipt, Unit,
};
use tidegate::store::redis::script::call;
use tidegate::store::redis::script::library::{PRODUCTION, STRICT};

use super::window_and_buckets;
use crate::support::limits::*;
use crate::support::random::Random;
use crate::support::script_bench::Bench;
use crate::support::script_bench::encode_call;

/// A write's own rounding to milliseconds, twice.
const SLACK_MS: i64 = 2;

async fn ends_at_ms(bench: &Bench, key: &[u8]) -> i64 {
    bench.command(&[b"PEXPIRETIME", key]).await
}

/// The server's clock, in microseconds.
async fn time(bench: &Bench) -> Micros {
    let (seconds, micros): (u64, u64) = bench.command(&[b"TIME"]).await;
    Micros(seconds * SECOND + micros)
}

/// Awaits a write. Returns its result, and the milliseconds that it took by the server's clock. Redis may
/// wait as long for a processor between its reading of the clock and its counting of the expiry.
async fn timed<T>(bench: &Bench, write: impl Future<Output = T>) -> (T, i64) {
    let before = time(bench).await;
    let result = write.await;
    let after = time(bench).await;
    (result, i64::try_from((after.0 - before.0) / 1_000).unwrap())
}

/// Decides a call in production's way, and holds the first check's expiry to its answer: the key
/// ends when the answer says that the counter is unused.
async fn decide_and_compare(bench: &Bench, checks: &[Check<'_>]) -> Outcome {
    let before = time(bench).await;
    let call = encode_call(&bench.encoder, checks, Accounting::AllOrNothing, None, before);
    let reply = bench.plain.run(&call).await.unwrap();
    let after = time(bench).await;
    let decoded = call::decode(&reply, checks, Accounting::AllOrNothing, false).unwrap();
    let outcome = decoded.outcomes[0];
    let ends = ends_at_ms(bench, &bench.text(&checks[0])).await;
    let bound = |now: Micros| i64::try_from((now.0 + outcome.reset_after.0) / 1_000).unwrap();
    let allowed = bound(before)..=bound(after) + 1 + SLACK_MS;
    assert!(allowed.contains(&ends), "{ends} is outside {allowed:?}: {checks:?}");
    outcome
}

fn held(check: Check<'_>, holder: u128) -> Check<'_> {
    Check { holder: Some(Holder(holder)), ..check }
}

#[tokio::test]
async fn every_counter_expires_when_its_answer_says_that_it_is_unused() {
    let bench = Bench::new(&PRODUCTION, &[]).await;
    let beside = bucket(1_000, HOUR);
    let limits = [
        window(10, HOUR),
        calendar(10, Unit::Day, "UTC"),
        sliding_window(10, HOUR),
        sliding_log(10, HOUR),
        bucket(10, HOUR),
        credits(10, 7, HOUR),
        slots(10, HOUR),
    ];
    for (n, limit) in (1..).zip(&limits) {
        let (key, other) = (key(n), key(100 + n));
        decide_and_compare(&bench, &[held(take(key, limit, 3), 1)]).await;
        decide_and_compare(&bench, &[held(take(key, limit, 2), 2)]).await;
        decide_and_compare(&bench, &[held(refund(key, limit, 1), 2)]).await;
        let another = take(other, &beside, 1);
        let taken = decide_and_compare(&bench, &[held(take(key, limit, 2), 3), another]).await;
        let taken = taken.taken.expect("charged");
        let receipt = Receipt { key, limit: Arc::clone(limit), taken };
        bench.plain.run(&bench.encoder.encode_refund(&[receipt], None)).await.unwrap();
        decide_and_compare(&bench, &[peek(key, limit)]).await;
    }
}

/// The counter may also be that of the limit that this one is a fraction of, which fills later.
#[tokio::test]
async fn a_hybrid_outlives_the_time_in_which_it_would_refill_from_nothing() {
    let bench = Bench::new(&PRODUCTION, &[]).await;
    let (limit, key) = (hybrid(10, 5, HOUR, &[30, 20], 0), key(1));
    let before = time(&bench).await;
    for check in [take(key, &limit, 3), refund(key, &limit, 2)] {
        bench.one(check, None).await;
        let after = time(&bench).await;
        let ends = ends_at_ms(&bench, &bench.text(&check)).await;
        let bound = |now: Micros| i64::try_from((now.0 + 2 * HOUR) / 1_000).unwrap();
        assert!((bound(before)..=bound(after) + 1 + SLACK_MS).contains(&ends), "{ends}");
    }
}

#[tokio::test]
async fn a_window_ends_with_its_window_and_hits_do_not_move_that() {
    let bench = Bench::new(&PRODUCTION, &[]).await;
    let limit = window(1_000, 10 * HOUR);
    let check = take(key(1), &limit, 1);
    let (first, took_ms) = timed(&bench, bench.one(check, None)).await;
    let end = first.taken.unwrap().at.0 + first.reset_after.0;
    assert_eq!(end % (10 * HOUR), 0);
    let end_ms = i64::try_from(end / 1_000).unwrap();
    let ends = ends_at_ms(&bench, &bench.text(&check)).await;
    assert!((end_ms..=end_ms + took_ms + SLACK_MS).contains(&ends), "{ends} for {end_ms}");
    for n in 0..20 {
        bench.one(take(key(1), &limit, 1 + n % 3), None).await;
        let two = [take(key(1), &limit, 1), take(key(2), &limit, 1)];
        bench.decide(&two, Accounting::AllOrNothing, None).await;
        assert_eq!(ends_at_ms(&bench, &bench.text(&check)).await, ends);
    }
}

#[tokio::test]
async fn a_log_ends_one_window_after_its_newest_hit() {
    let bench = Bench::new(&PRODUCTION, &[]).await;
    let limit = sliding_log(10, HOUR);
    for _ in 0..3 {
        decide_and_compare(&bench, &[take(key(1), &limit, 1)]).await;
        // Longer than the expiry may differ from the answer.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn expired_takes_and_leases_are_removed_while_others_count() {
    let bench = Bench::new(&STRICT, &[]).await;
    let (log, seats) = (sliding_log(5, SECOND), slots(5, MINUTE));
    let (of_log, of_seats) = (take(key(1), &log, 1), take(key(2), &seats, 1));
    let (mut longest, mut most) = (0, 0);
    for n in 0..40 {
        let after = |micros| Some(Micros(START.0 + micros));
        assert_eq!(bench.one(of_log, after(n * SECOND / 4)).await.charged, Hits(1));
        let bytes: u64 = bench.command(&[b"STRLEN", &bench.text(&of_log)]).await;
        longest = longest.max(bytes);
        let another = held(of_seats, 1 + u128::from(n));
        assert_eq!(bench.one(another, after(n * MINUTE / 2)).await.charged, Hits(1));
        let members: u64 = bench.command(&[b"ZCARD", &bench.text(&of_seats)]).await;
        most = most.max(members);
    }
    // Four takes of 20 bytes count. The log is rewritten once more than that have expired.
    assert_eq!((longest, most), (8 * 20, 2));
}

/// The first window of all began with the Unix epoch: its number is 0, and what began in 1970 ends
/// as every other window does.
#[tokio::test]
async fn a_window_that_began_with_the_epoch_ends_too() {
    let length = 100 * 366 * 24 * HOUR;
    let limit = window(1_000, length);
    for scripts in [&PRODUCTION, &STRICT] {
        let bench = Bench::new(scripts, &[]).await;
        let checks = [1, 2, 3].map(|n| take(key(n), &limit, n));
        let mut first_took_ms = None;
        for used in 1..=3 {
            let decide = bench.decide(&checks, Accounting::AllOrNothing, None);
            let (_, took_ms) = timed(&bench, decide).await;
            // Later hits do not move the end.
            let late_ms = *first_took_ms.get_or_insert(took_ms) + SLACK_MS;
            let left = bench.one(peek(key(3), &limit), None).await.available;
            assert_eq!(left, Hits(1_000 - 3 * used));
            for check in &checks {
                let ends = ends_at_ms(&bench, &bench.text(check)).await;
                let end_ms = i64::try_from(length / 1_000).unwrap();
                assert!((end_ms..=end_ms + late_ms).contains(&ends), "{ends} for {end_ms}");
            }
        }
    }
}

#[tokio::test]
async fn a_bucket_ends_when_it_is_full() {
    let bench = Bench::new(&PRODUCTION, &[]).await;
    for (n, limit) in [bucket(100, HOUR), credits(100, 7, HOUR)].iter().enumerate() {
        for cost in [1, 7, 30] {
            let check = take(key(n as u64), limit, cost);
            let (outcome, took_ms) = timed(&bench, bench.one(check, None)).await;
            let full = outcome.taken.unwrap().at.0 + outcome.reset_after.0;
            let full_ms = i64::try_from(full.div_ceil(1_000)).unwrap();
            let ends = ends_at_ms(&bench, &bench.text(&check)).await;
            let latest_ms = full_ms + took_ms + SLACK_MS;
            assert!((full_ms..=latest_ms).contains(&ends), "{ends} for {full_ms}");
        }
    }
}

#[tokio::test]
async fn the_shortest_expiry_is_a_millisecond_not_an_error() {
    let bench = Bench::new(&PRODUCTION, &[]).await;
    // A microsecond per hit: the time to full is far below what Redis can express.
    for limit in [bucket(1_000_000, 1), credits(1_000_000, 3_000_001, SECOND)] {
        for cost in [1, 999] {
            assert_eq!(bench.one(take(key(cost), &limit, cost), None).await.charged, Hits(cost));
        }
    }
    // A refund that leaves nothing used.
    let limit = bucket(10, SECOND);
    let refund = [take(key(9), &limit, 2), refund(key(9), &limit, 2)];
    bench.one(refund[0], None).await;
    bench.one(refund[1], None).await;
}

#[tokio::test]
async fn after_random_calls_no_key_is_without_an_end() {
    let bench = Bench::new(&PRODUCTION, &[]).await;
    let mut random = Random::seeded(7);
    let limits: Vec<Arc<Limit>> =
        window_and_buckets(20).into_iter().flat_map(|limit| [always(&limit), limit]).collect();
    for _ in 0..400 {
        let checks: Vec<_> = (0..=random.below(4))
            .map(|_| {
                let n = random.below(limits.len() as u64);
                let cost = Hits(random.below(9));
                let op = match random.below(4) {
                    0 => Op::Refund { cost },
                    1 => Op::PEEK,
                    _ => Op::Take { cost },
                };
                check(key(n), &limits[n as usize], op)
            })
            .collect();
        bench.decide(&checks, Accounting::Independent, None).await;
    }
    let keys: Vec<Vec<u8>> = bench.command(&[b"KEYS", b"*"]).await;
    assert!(keys.len() > 3, "{keys:?}");
    for key in keys {
        let ttl: i64 = bench.command(&[b"PTTL", &key]).await;
        assert!(ttl > 0, "{} has no end", String::from_utf8_lossy(&key));
    }
}

#[tokio::test]
async fn in_tests_an_expiry_is_a_day_longer() {
    let bench = Bench::new(&STRICT, &[]).await;
    for (n, limit) in window_and_buckets(10).iter().enumerate() {
        let check = take(key(n as u64), limit, 1);
        let outcome = bench.one(check, Some(START)).await;
        let ttl: i64 = bench.command(&[b"PTTL", &bench.text(&check)]).await;
        let kept = Micros(outcome.reset_after.0).ceil_millis() as i64 + 86_400_000;
        assert!((kept - 60_000..=kept + SLACK_MS).contains(&ttl), "{ttl} for {kept}");
    }
}

#[tokio::test]
async fn a_counter_is_one_integer() {
    let bench = Bench::new(&PRODUCTION, &[]).await;
    for (n, limit) in
        [window(10, MINUTE), window(10, SECOND), bucket(10, MINUTE)].iter().enumerate()
    {
        let check = take(key(n as u64), limit, 1);
        for _ in 0..3 {
            bench.one(check, None).await;
        }
        let text = bench.text(&check);
        let encoding: String = bench.command(&[b"OBJECT", b"ENCODING", &text]).await;
        assert_eq!(encoding, "int", "{limit:?}");
        // Key, entry and expiry included: 29 characters and 8 bytes.
        let bytes: u64 = bench.command(&[b"MEMORY", b"USAGE", &text]).await;
        assert!(bytes <= 133, "{bytes} bytes");
    }
}
