//! What calls of ten buckets in ten slots cost the nodes of a Cluster: by one script call per slot,
//! and by node scripts, which decide all checks of a node together.

use std::path::Path;
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

/// Calls before those whose instructions are counted, and the counted ones.
const WARM_UP_CALLS: usize = 8_192;
const COUNTED_CALLS: usize = 8_192;
/// Few, because a counted server is 50 times slower, and every call still waits for it.
const COUNTED_CALLERS: (usize, usize) = (4, 4);

pub fn run(scale: Scale) {
    let dir = tempfile::tempdir().unwrap();
    // One token a minute, so that a used bucket stays below its burst, and its key does not expire
    // between two calls of a client, also on a server that is 50 times slower.
    let policy = calls::policy(servers::DOMAIN, LIMITS).replace(
        "unit: hour, requests_per_unit: 4000000000",
        "algorithm: token_bucket, unit: minute, requests_per_unit: 1, burst: 4000000",
    );
    assert!(policy.contains("burst"), "{policy}");
    let policy = servers::write_policy(dir.path(), "buckets.yaml", &policy);
    println!(
        "redis-server {}; load average before: {}",
        redis_server::version(),
        cpu::load_average()
    );
    compare_cpu(&policy, scale);
    compare_instructions(&policy);
}

/// Starts a server whose counters are in `redis`, with node scripts or without.
fn serve(redis: &Redis, policy: &Path, has_node_scripts: bool) -> Server {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.envs(servers::on_redis(redis));
    command.env("TIDEGATE_REDIS_NODE_SCRIPTS", has_node_scripts.to_string());
    Server::serve(&mut command, policy, &[])
}

fn compare_cpu(policy: &Path, scale: Scale) {
    let pairs = if scale.is_quick { scale.pairs } else { PAIRS };
    let redis = Redis::cluster();
    let (per_slot, per_node) = (serve(&redis, policy, false), serve(&redis, policy, true));
    let bodies = servers::bodies(LIMITS);
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

/// Prints the instructions of all masters per call: those of a run with the counted calls without
/// those of a run with the first ones only.
fn compare_instructions(policy: &Path) {
    let bodies = servers::bodies(LIMITS);
    let run = |has_node_scripts: bool, calls: usize| {
        let redis = Redis::counted_cluster();
        let server = serve(&redis, policy, has_node_scripts);
        let seen = drive::run(server.port, &bodies, calls, COUNTED_CALLERS.0, COUNTED_CALLERS.1);
        assert_eq!((seen.ok, seen.failed), (calls, 0), "every call is admitted");
        let scripts = redis.script_calls();
        // A few clients have two counters in one slot.
        let fewest = if has_node_scripts { calls } else { calls * LIMITS / 100 * 99 };
        let allowed = fewest..=calls * if has_node_scripts { 3 } else { LIMITS };
        assert!(allowed.contains(&scripts), "{scripts} script calls, not {allowed:?}");
        drop(server);
        redis.instructions()
    };
    let count = |has_node_scripts: bool| {
        let most = run(has_node_scripts, WARM_UP_CALLS + COUNTED_CALLS);
        (most - run(has_node_scripts, WARM_UP_CALLS)) / COUNTED_CALLS as f64
    };
    let (per_slot, per_node) = (count(false), count(true));
    println!("\nInstructions of three masters per call, counted by valgrind");
    println!("{:>8} {:>10} {:>10} {:>7}", "callers", "per slot", "per node", "ratio");
    println!(
        "{:>8} {per_slot:>10.0} {per_node:>10.0} {:>7.2}",
        COUNTED_CALLERS.0 * COUNTED_CALLERS.1,
        per_node / per_slot
    );
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
