//! Many callers at once, on a server that loses its scripts meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tidegate::domain::{Limit, Micros, Verdict};
use tidegate::store::Store;
use tidegate::store::redis::RedisStore;
use tidegate::store::redis::script::keys::Prefix;
use tidegate::store::redis::store::TimeSource;

use crate::support::limits::*;
use crate::support::plain_transport::Plain;
use crate::support::redis_server::Server;

const CALLERS: u64 = 64;
const STORES: u64 = 8;
const LIMIT: u64 = 1_000;

async fn stores(server: &Server) -> Vec<Arc<RedisStore<Plain>>> {
    let mut stores = Vec::new();
    for _ in 0..STORES {
        let plain = Plain(server.connect().await);
        stores.push(Arc::new(RedisStore::new(plain, Prefix::default(), TimeSource::Server)));
    }
    stores
}

/// Each caller calls until it is refused; how many were admitted in all.
async fn storm(stores: &[Arc<RedisStore<Plain>>], limits: &[Arc<Limit>]) -> u64 {
    let admitted = Arc::new(AtomicU64::new(0));
    let tasks: Vec<_> = (0..CALLERS)
        .map(|n| {
            let (store, limits) = (Arc::clone(&stores[(n % STORES) as usize]), limits.to_vec());
            let admitted = Arc::clone(&admitted);
            tokio::spawn(async move {
                loop {
                    let checks: Vec<_> = limits
                        .iter()
                        .enumerate()
                        .map(|(n, limit)| take(key(n as u64), limit, 1))
                        .collect();
                    let call = call(&checks, Micros::ZERO);
                    let answers = store.apply(&call).await;
                    let passes = |answer: &tidegate::domain::Answer| {
                        answer.outcome().expect("decided").verdict == Verdict::Pass
                    };
                    if !answers.each.iter().all(passes) {
                        return;
                    }
                    admitted.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    admitted.load(Ordering::Relaxed)
}

#[tokio::test(flavor = "multi_thread")]
async fn racing_callers_over_many_connections_admit_exactly_the_limit() {
    let year = 8_760 * HOUR;
    for limit in [window(LIMIT, 10 * year), bucket(LIMIT, HOUR), credits(LIMIT, 7, 24 * HOUR)] {
        let server = Server::start(&[]);
        let stores = stores(&server).await;
        assert_eq!(storm(&stores, &[limit]).await, LIMIT);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn racing_callers_of_several_limits_admit_what_the_narrowest_allows() {
    let server = Server::start(&[]);
    let stores = stores(&server).await;
    let limits = [bucket(LIMIT, HOUR), bucket(LIMIT / 2, HOUR), window(LIMIT, 87_600 * HOUR)];
    assert_eq!(storm(&stores, &limits).await, LIMIT / 2);
    for (n, limit) in limits.iter().enumerate() {
        let checks = [peek(key(n as u64), limit)];
        let answers = stores[0].apply(&call(&checks, Micros::ZERO)).await;
        let left = answers.each[0].outcome().unwrap().available;
        assert_eq!(left.0, limit.capacity().0 - LIMIT / 2, "refused calls left nothing behind");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_forgets_its_scripts_is_told_them_again() {
    let server = Server::start(&[]);
    let stores = stores(&server).await;
    let over = Arc::new(AtomicBool::new(false));
    let flusher = tokio::spawn({
        let (mut connection, over) = (server.connect().await, Arc::clone(&over));
        async move {
            while !over.load(Ordering::Relaxed) {
                let mut flush = redis::cmd("SCRIPT");
                flush.arg("FLUSH").exec_async(&mut connection).await.unwrap();
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        }
    });
    assert_eq!(storm(&stores, &[bucket(LIMIT, HOUR)]).await, LIMIT);
    over.store(true, Ordering::Relaxed);
    flusher.await.unwrap();
}
