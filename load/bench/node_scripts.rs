//! What calls of ten buckets in ten slots cost the nodes of a Cluster: by one script call per slot,
//! and by node scripts, which decide all checks of a node together.

use std::process::Command;

use super::drive::{self, Bodies};
use super::redis_server::{self, Redis};
use super::servers::{self, Server};
use super::{Scale, calls, cpu};

const LIMITS: usize = 10;
/// Connections and streams of each.
const CALLERS: [(usize, usize); 3] = [(4, 16), (4, 25), (8, 64)];
/// Pairs of runs in full form: enough for a narrow interval.
const PAIRS: usize = 20;

pub fn run(scale: Scale) {
    let dir = tempfile::tempdir().unwrap();
    let pairs = if scale.is_quick { scale.pairs } else { PAIRS };
    let redis = Redis::cluster();
    // One token a second, so that a used bucket stays below its burst, and its key does not expire
    // between two calls of a client.
    let policy = calls::policy(servers::DOMAIN, LIMITS).replace(
        "unit: hour, requests_per_unit: 4000000000",
        "algorithm: token_bucket, unit: second, requests_per_unit: 1, burst: 4000000000",
    );
    assert!(policy.contains("burst"), "{policy}");
    let policy = servers::write_policy(dir.path(), "buckets.yaml", &policy);
    let server = |node_scripts: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.envs(servers::on_redis(&redis)).env("TIDEGATE_REDIS_NODE_SCRIPTS", node_scripts);
        Server::serve(&mut command, &policy, &[])
    };
    let (per_slot, per_node) = (server("false"), server("true"));
    let bodies = servers::bodies(LIMITS);
    println!(
        "redis-server {}; load average before: {}",
        redis_server::version(),
        cpu::load_average()
    );
    println!(
        "\nCPU of three masters per call of {LIMITS} buckets in {LIMITS} slots, in microseconds, 1,000 clients (median of {pairs}\n\
         pairs, with the interval that holds the median of the ratios with 95 % probability)"
    );
    println!(
        "{:>8} {:>10} {:>10} {:>7} {:>18}",
        "callers", "per slot", "per node", "ratio", "95 %"
    );
    let calls = scale.calls / 10;
    for (connections, streams) in CALLERS {
        let run = |server: &Server| cost(server, &redis, &bodies, calls, connections, streams);
        run(&per_slot);
        run(&per_node);
        let (mut before, mut after, mut ratios) = (vec![], vec![], vec![]);
        for _ in 0..pairs {
            let (one, other) = (run(&per_slot), run(&per_node));
            before.push(one);
            after.push(other);
            ratios.push(other / one);
        }
        let (low, high) = cpu::median_interval(ratios.clone());
        println!(
            "{:>8} {:>10.2} {:>10.2} {:>7.2} {:>18}",
            connections * streams,
            cpu::median(before),
            cpu::median(after),
            cpu::median(ratios),
            format!("{low:.2} to {high:.2}")
        );
    }
}

/// CPU microseconds of all masters per call of one run.
fn cost(
    server: &Server,
    redis: &Redis,
    bodies: &Bodies,
    calls: usize,
    connections: usize,
    streams: usize,
) -> f64 {
    let calls = calls.div_ceil(connections * streams) * connections * streams;
    let before = redis.cpu();
    let seen = drive::run(server.port, bodies, calls, connections, streams);
    assert_eq!((seen.ok, seen.failed), (calls, 0), "every call is admitted");
    (redis.cpu() - before).as_secs_f64() * 1e6 / calls as f64
}
