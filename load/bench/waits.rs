//! The 99th percentile at half of the peak, against that of a no-op server at the same rate: in
//! memory, and with Redis, where a round trip to Redis is measured at the same time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::redis_server::{Redis, RedisServer};
use super::servers::{self, DOMAIN, Server};
use super::{Scale, answers, calls, cpu};

/// Between two round trips to Redis; so few that they load nothing.
const PAUSE: Duration = Duration::from_millis(2);
/// A shorter run has too few calls above its 99th percentile.
const LASTS_MIN: Duration = Duration::from_secs(2);

pub fn run(redis: &Redis, scale: Scale) {
    let scale = Scale { lasts: scale.lasts.max(LASTS_MIN), ..scale };
    let dir = tempfile::tempdir().unwrap();
    let policy = servers::write_policy(dir.path(), "policy.yaml", &calls::policy(DOMAIN, 1));
    let noop = Server::noop();
    println!(
        "\nThe 99th percentile at half of peak, one limit, open loop over 4 connections, {} s each; medians of {} pairs.\n\
         times: Tidegate's, less one round trip to Redis, divided by the no-op server's at the same rate.\n",
        scale.lasts.as_secs(),
        scale.pairs
    );
    println!(
        "{:<12} {:>6} {:>10} {:>12} {:>10} {:>22}",
        "counters", "times", "calls/s", "Tidegate ms", "no-op ms", "Redis round trip ms"
    );
    let memory = Server::tidegate(&policy, &[]);
    row("memory", &memory, &noop, None, scale);
    let shared = Server::tidegate_on(redis, &policy);
    row("standalone", &shared, &noop, Some(&redis.nodes()[0]), scale);
}

fn row(name: &str, ours: &Server, noop: &Server, redis: Option<&RedisServer>, scale: Scale) {
    let bodies = servers::bodies(1);
    let rate = answers::peak(ours.port, &bodies, scale.lasts) / 2.0;
    let (mut times, mut waits) = (vec![], [vec![], vec![], vec![]]);
    for _ in 0..scale.pairs {
        let theirs = answers::p99_ms(noop.port, &bodies, rate, scale.lasts);
        let (mine, round_trip) = match redis {
            None => (answers::p99_ms(ours.port, &bodies, rate, scale.lasts), 0.0),
            Some(redis) => {
                beside_round_trips(redis, || answers::p99_ms(ours.port, &bodies, rate, scale.lasts))
            }
        };
        times.push((mine - round_trip) / theirs);
        for (all, one) in waits.iter_mut().zip([mine, theirs, round_trip]) {
            all.push(one);
        }
    }
    let [mine, theirs, round_trip] = waits.map(cpu::median);
    println!(
        "{name:<12} {:>6.2} {rate:>10.0} {mine:>12.2} {theirs:>10.2} {round_trip:>22.2}",
        cpu::median(times)
    );
}

/// Runs something, and returns with its result the 99th percentile of round trips to Redis meanwhile,
/// in milliseconds.
fn beside_round_trips(redis: &RedisServer, run: impl FnOnce() -> f64) -> (f64, f64) {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let pings = scope.spawn(|| {
            let mut connection = redis.client().get_connection().unwrap();
            let mut waits = Vec::new();
            while !done.load(Ordering::Relaxed) {
                let began = Instant::now();
                redis::cmd("PING").exec(&mut connection).unwrap();
                waits.push(began.elapsed().as_secs_f64() * 1e3);
                std::thread::sleep(PAUSE);
            }
            waits.sort_by(f64::total_cmp);
            waits[waits.len() * 99 / 100]
        });
        let result = run();
        done.store(true, Ordering::Relaxed);
        (result, pings.join().expect("Redis answers"))
    })
}
