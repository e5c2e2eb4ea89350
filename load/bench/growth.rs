//! How the cost of a call grows with rules, keys, and descriptors. `curves` draws what is printed
//! here.

use super::drive::Bodies;
use super::redis_server::Redis;
use super::servers::{self, DOMAIN, Server};
use super::{Scale, calls, cpu, drive, rules};

const RULES: [usize; 5] = [10, 100, 1_000, 10_000, 100_000];
const KEYS: [usize; 4] = [1_000, 10_000, 100_000, 1_000_000];
const DESCRIPTORS: [usize; 10] = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000];
const RUNS: usize = 3;

pub fn run(redis: &[Redis; 2], scale: Scale) {
    let scale = Scale { calls: scale.calls / 2, ..scale };
    println!("\nGrowth: CPU per call in µs, Redis counted in; medians of {RUNS} runs.\n");
    println!("{:<8} {:<12} {:<12} {:>9} {:>10}", "", "of", "series", "number", "µs");
    of_rules(scale);
    for keys in KEYS {
        let bodies = servers::bodies_of(1, keys);
        stores("keys", keys, &calls::policy(DOMAIN, 1), redis, &bodies, scale);
    }
    for descriptors in DESCRIPTORS {
        let policy = calls::policy(DOMAIN, descriptors);
        let scale = Scale { calls: servers::fewer(scale.calls, descriptors), ..scale };
        stores("descriptors", descriptors, &policy, redis, &servers::bodies(descriptors), scale);
    }
}

fn of_rules(scale: Scale) {
    let dir = tempfile::tempdir().unwrap();
    for kind in ["exact", "default", "pattern"] {
        for count in RULES {
            let text = rules::policy(DOMAIN, kind, count);
            let policy = servers::write_policy(dir.path(), "rules.yaml", &text);
            // 100,000 rules take 10 MB.
            let server = Server::tidegate(&policy, &[("TIDEGATE_POLICY_FILE_SIZE", "16MiB")]);
            let bodies = rules::bodies(DOMAIN, kind, count);
            point("rules", kind, count, &server, None, &bodies, scale);
        }
    }
}

/// A point of each store's curve.
fn stores(of: &str, number: usize, text: &str, redis: &[Redis; 2], bodies: &Bodies, scale: Scale) {
    let dir = tempfile::tempdir().unwrap();
    let policy = servers::write_policy(dir.path(), "policy.yaml", text);
    point(of, "memory", number, &Server::tidegate(&policy, &[]), None, bodies, scale);
    for redis in redis {
        let server = Server::tidegate_on(redis, &policy);
        point(of, redis.name(), number, &server, Some(redis), bodies, scale);
    }
}

fn point(
    of: &str,
    series: &str,
    number: usize,
    server: &Server,
    redis: Option<&Redis>,
    bodies: &Bodies,
    scale: Scale,
) {
    let (connections, streams) = (servers::CONNECTIONS, servers::STREAMS);
    let calls = scale.calls.div_ceil(connections * streams) * connections * streams;
    let spent = || cpu::of_process(server.pid()) + redis.map(Redis::cpu).unwrap_or_default();
    let cost = || {
        let before = spent();
        let seen = drive::run(server.port, bodies, calls, connections, streams);
        assert_eq!((seen.ok, seen.failed), (calls, 0), "every call is admitted");
        (spent() - before).as_secs_f64() * 1e6 / calls as f64
    };
    cost();
    let median = cpu::median((0..RUNS).map(|_| cost()).collect());
    println!("growth   {of:<12} {series:<12} {number:>9} {median:>10.2}");
}
