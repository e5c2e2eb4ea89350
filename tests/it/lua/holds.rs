//! Holds on a real Redis: many callers of several replicas at once, the end of a hold that nobody settles, what
//! a hold costs in memory, and holds of which the server has evicted a part.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tidegate::domain::{Accounting, Check, Limit, Micros, Outcome, Verdict};
use tidegate::store::Store;
use tidegate::store::redis::RedisStore;
use tidegate::store::redis::script::keys::Prefix;
use tidegate::store::redis::script::library::PRODUCTION;
use tidegate::store::redis::store::TimeSource;

use crate::support::limits::*;
use crate::support::plain_transport::Plain;
use crate::support::redis_server::Server;
use crate::support::script_bench::Bench;

const REPLICAS: u64 = 3;
const CALLERS: u64 = 200;
const LIMIT: u64 = 100;
const ESTIMATE: u64 = 20;

async fn replica(server: &Server) -> Arc<RedisStore<Plain>> {
    let plain = Plain(server.connect().await);
    Arc::new(RedisStore::new(plain, Prefix::default(), TimeSource::Server))
}

async fn ask(store: &RedisStore<Plain>, check: Check<'_>) -> Outcome {
    let checks = [check];
    let call = call(&checks, START);
    *store.apply(&call).await.each[0].outcome().expect("decided")
}

/// Reads what is used and what is held at one moment.
const USED_AND_HELD: &str = "local used = redis.call('GET', KEYS[1]) or '0' \
                             local head = redis.call('HGET', KEYS[2], '+') \
                             return {tonumber(string.sub(used, -10)), head and (cmsgpack.unpack(head)) or 0}";

#[tokio::test(flavor = "multi_thread")]
async fn callers_of_three_replicas_never_use_and_hold_more_than_the_limit() {
    let server = Server::start(&[]);
    let limit = reserved(&window(LIMIT, 87_600 * HOUR), 600);
    let mut replicas = Vec::new();
    for _ in 0..REPLICAS {
        replicas.push(replica(&server).await);
    }
    let (used, done) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let callers: Vec<_> = (0..CALLERS)
        .map(|n| {
            let (store, limit) =
                (Arc::clone(&replicas[(n % REPLICAS) as usize]), Arc::clone(&limit));
            let used = Arc::clone(&used);
            tokio::spawn(async move {
                let id = u128::from(n) + 1;
                if ask(&store, hold(key(1), &limit, id, ESTIMATE)).await.verdict == Verdict::Refuse
                {
                    return;
                }
                let actual = 5 + n % 16;
                let outcome = ask(&store, settle(key(1), &limit, id, actual)).await;
                assert_eq!((outcome.verdict, outcome.charged.0), (Verdict::Pass, actual));
                used.fetch_add(actual, Ordering::Relaxed);
            })
        })
        .collect();
    let mut connection = server.connect().await;
    let watched = Arc::clone(&done);
    let [counter, amounts, _] = keys_of(&limit);
    let watcher = tokio::spawn(async move {
        let mut most = 0;
        while !watched.load(Ordering::Relaxed) {
            let mut read = redis::cmd("EVAL");
            read.arg(USED_AND_HELD).arg(2).arg(&counter[..]).arg(&amounts[..]);
            let (used, held): (u64, u64) = read.query_async(&mut connection).await.unwrap();
            most = most.max(used + held);
        }
        most
    });
    for caller in callers {
        caller.await.unwrap();
    }
    done.store(true, Ordering::Relaxed);
    let most = watcher.await.unwrap();
    assert!(most <= LIMIT, "{most}");
    let used = used.load(Ordering::Relaxed);
    assert!(used > LIMIT - ESTIMATE - 5 || used >= 5 * LIMIT / ESTIMATE, "{used}");
    let left = ask(&replicas[0], peek(key(1), &limit)).await;
    assert_eq!((left.available.0, left.held.0), (LIMIT - used, 0));
}

/// The keys of a counter, and of the amounts and the ends of its holds.
fn keys_of(limit: &Limit) -> [Vec<u8>; 3] {
    let prefix = Prefix::default();
    let [amounts, ends] = prefix.hold_keys(&key(1)).map(|text| text.to_vec());
    [prefix.key(&key(1), &limit.algorithm).to_vec(), amounts, ends]
}

#[tokio::test]
async fn a_hold_that_nobody_settles_ends_by_the_clock_of_the_server() {
    let server = Server::start(&[]);
    let store = replica(&server).await;
    let limit = reserved(&bucket(10, 87_600 * HOUR), 1);
    assert_eq!(ask(&store, hold(key(1), &limit, 1, 10)).await.verdict, Verdict::Pass);
    let refused = ask(&store, hold(key(1), &limit, 2, 10)).await;
    assert!(refused.retry_after.is_some_and(|wait| wait <= Micros::SECOND), "{refused:?}");
    while ask(&store, hold(key(1), &limit, 2, 10)).await.verdict == Verdict::Refuse {
        tokio::task::yield_now().await;
    }
    assert_eq!(
        ask(&store, settle(key(1), &limit, 1, 3)).await.charged.0,
        3,
        "a late settle is a bill"
    );
    let left = ask(&store, peek(key(1), &limit)).await;
    assert_eq!((left.available.0, left.held.0), (0, 10));
}

#[tokio::test]
async fn a_hold_takes_at_most_200_bytes() {
    let bench = Bench::new(&PRODUCTION, &[]).await;
    let limit = reserved(&window(10_000_000, HOUR), 60);
    let [_, amounts, ends] = keys_of(&limit);
    for count in [1_000, 5_000, 10_000_u64] {
        for first in (0..count).step_by(250) {
            let checks: Vec<Check<'_>> =
                (1..=250).map(|n| hold(key(1), &limit, spread(first + n), 900 + n)).collect();
            bench.decide(&checks, Accounting::AllOrNothing, Some(START)).await;
        }
        let mut bytes = 0;
        for key in [&amounts, &ends] {
            bytes += bench.command::<u64>(&[b"MEMORY", b"USAGE", key, b"SAMPLES", b"0"]).await;
        }
        println!("{count} holds: {} bytes each", bytes / count);
        assert!(bytes <= 200 * count, "{bytes} for {count}");
    }
}

/// The server evicts whole keys. Holds whose ends are gone would otherwise be held for ever.
#[tokio::test]
async fn holds_of_which_a_key_is_gone_are_forgotten() {
    let limit = reserved(&window(100, HOUR), 60);
    let [_, amounts, ends] = keys_of(&limit);
    // Without the ends, it is not known of which holds they were: all are forgotten when the first ends.
    for (gone, left) in [(amounts, 80), (ends, 100)] {
        let bench = Bench::new(&PRODUCTION, &[]).await;
        let at = |seconds: u64| Some(Micros(START.0 + seconds * SECOND));
        bench.one(hold(key(1), &limit, 1, 60), at(0)).await;
        let removed: u64 = bench.command(&[b"DEL", &gone]).await;
        assert_eq!(removed, 1);
        bench.one(hold(key(1), &limit, 2, 20), at(30)).await;
        assert_eq!(bench.one(peek(key(1), &limit), at(61)).await.available.0, left);
        assert_eq!(bench.one(peek(key(1), &limit), at(91)).await.available.0, 100);
    }
}

/// A value that none of our scripts wrote is replaced.
#[tokio::test]
async fn a_key_of_another_type_counts_as_no_holds() {
    let bench = Bench::new(&PRODUCTION, &[]).await;
    let limit = reserved(&window(100, HOUR), 60);
    let [_, amounts, ends] = keys_of(&limit);
    for key_of in [&amounts, &ends] {
        bench.command::<()>(&[b"SET", key_of, b"something"]).await;
    }
    assert_eq!(bench.one(peek(key(1), &limit), Some(START)).await.available.0, 100);
    assert_eq!(bench.one(hold(key(1), &limit, 1, 60), Some(START)).await.available.0, 40);
    assert_eq!(bench.one(settle(key(1), &limit, 1, 5), Some(START)).await.available.0, 95);
}
