//! `make bench`: what a decision costs in memory, in a standalone Redis, and in a Redis Cluster, as
//! multiples of what a no-op server takes for the same call in the same round.
//!
//! The no-op server decodes the call and encodes an answer of the same size, and decides nothing.

use super::drive::{self, Bodies};
use super::redis_server::{self, Redis};
use super::servers::{self, DOMAIN, Server};
use super::{Scale, batches, calls, cpu, growth, waits};

/// Callers of a row that is not about their number, as connections and streams of each.
const CALLERS: (usize, usize) = (servers::CONNECTIONS, servers::STREAMS);
/// Calls of a run are a multiple of this, so that every caller makes as many.
const CALLS_UNIT: usize = 512;

/// A line of the table.
struct Row {
    name: String,
    policy: String,
    path: &'static str,
    bodies: Bodies,
    /// Decisions of a call.
    batch: usize,
    descriptors: usize,
    callers: (usize, usize),
    expects: Expects,
}

/// What the answers of a run must be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Expects {
    Ok,
    OverLimit,
    /// Batches, whose answers have no overall code: that there is an answer.
    Answers,
}

impl Row {
    fn plain(name: &str, descriptors: usize, bodies: Bodies) -> Row {
        Row {
            name: name.to_owned(),
            policy: calls::policy(DOMAIN, descriptors),
            path: drive::PATH,
            bodies,
            batch: 1,
            descriptors,
            callers: CALLERS,
            expects: Expects::Ok,
        }
    }

    fn calls(&self, scale: Scale) -> usize {
        let callers = self.callers.0 * self.callers.1;
        let calls = servers::fewer(scale.calls, self.descriptors) / self.batch;
        // One caller alone waits for every answer: a tenth of the calls takes as long.
        let calls = if callers == 1 { calls / 10 } else { calls };
        calls.div_ceil(CALLS_UNIT) * CALLS_UNIT
    }

    /// CPU microseconds per decision of one run, of the service.
    fn service_cost(&self, server: &Server, calls: usize) -> f64 {
        let before = cpu::of_process(server.pid());
        let (connections, streams) = self.callers;
        let seen =
            drive::run_path(self.path, server.port, &self.bodies, calls, connections, streams);
        let spent = cpu::of_process(server.pid()) - before;
        let expected = match self.expects {
            Expects::Ok => seen.ok,
            Expects::OverLimit => seen.over_limit,
            Expects::Answers => seen.answered,
        };
        assert_eq!((expected, seen.failed), (calls, 0), "{}: every answer is right", self.name);
        spent.as_secs_f64() * 1e6 / (calls * self.batch) as f64
    }

    /// The same of the service and of its Redis.
    fn cost_in(&self, server: &Server, redis: &Redis, calls: usize) -> [f64; 2] {
        let before = redis.cpu();
        let service = self.service_cost(server, calls);
        let spent = (redis.cpu() - before).as_secs_f64() * 1e6;
        [service, spent / (calls * self.batch) as f64]
    }
}

fn rows() -> Vec<Row> {
    let single = || Row::plain("", 1, servers::bodies(1));
    let named = |name: &str, row: Row| Row { name: name.to_owned(), ..row };
    let mut rows: Vec<Row> = [1, 2, 10]
        .map(|n| {
            let limits = if n == 1 { "limit" } else { "limits" };
            Row::plain(&format!("{n} {limits}, 1,000 keys"), n, servers::bodies(n))
        })
        .into();
    rows.push(Row::plain("hot key", 1, servers::bodies_of(1, 1)));
    rows.push(Row {
        policy: calls::policy(DOMAIN, 1).replace("unit: hour,", "unit: hour, prepay: auto,"),
        ..Row::plain("hot key, prepaid", 1, servers::bodies_of(1, 1))
    });
    rows.push(Row::plain("1 million keys", 1, servers::bodies_of(1, 1_000_000)));
    let refused = Row::plain("refused flood, one key", 1, servers::bodies_of(1, 1));
    rows.push(Row {
        policy: refused.policy.replace("4000000000", "1").replace("unit: hour", "unit: year"),
        expects: Expects::OverLimit,
        ..refused
    });
    for (name, callers) in [
        ("1 caller", (1, 1)),
        ("8 callers", (4, 2)),
        ("64 callers", (4, 16)),
        ("512 callers", (8, 64)),
    ] {
        rows.push(Row { callers, ..named(name, single()) });
    }
    rows.extend(batches::kinds().into_iter().filter(|kind| kind.path != drive::PATH).map(|kind| {
        Row {
            path: kind.path,
            bodies: kind.bodies,
            batch: kind.size,
            callers: kind.callers,
            expects: Expects::Answers,
            ..named(&kind.name, single())
        }
    }));
    rows
}

pub fn run(scale: Scale) {
    // A quarter of other benches' runs: there are many rows, of four sides each.
    let scale = Scale { calls: scale.calls / 4, lasts: scale.lasts / 2, ..scale };
    println!(
        "What a decision costs: make bench{}. CPU time of processes, with the kernel's share.",
        scale.form()
    );
    println!(
        "redis-server {}; load average before: {}",
        redis_server::version(),
        cpu::load_average()
    );
    let redis = [Redis::standalone(), Redis::cluster()];
    println!(
        "\nCPU per decision: as a multiple of what a no-op server takes for the same call, and in µs.\n\
         Redis is counted in. {} callers where none are named; medians of {} rounds.\n",
        CALLERS.0 * CALLERS.1,
        scale.pairs
    );
    println!("{:<24} {:^30}   {:>41}", "", "times the no-op server", "CPU per decision, µs");
    println!(
        "{:<24} {:>8} {:>11} {:>9}   {:>8} {:>8} {:>12} {:>8} {:>12} {:>8}",
        "call",
        "memory",
        "standalone",
        "Cluster",
        "no-op",
        "memory",
        "standalone",
        "+ Redis",
        "Cluster",
        "+ Redis"
    );
    for row in rows() {
        measure(&row, &redis, scale);
    }
    waits::run(&redis[0], scale);
    growth::run(&redis, scale);
    println!("\nload average after: {}", cpu::load_average());
}

fn measure(row: &Row, redis: &[Redis; 2], scale: Scale) {
    let dir = tempfile::tempdir().unwrap();
    let policy = servers::write_policy(dir.path(), "policy.yaml", &row.policy);
    let (noop, memory) = (Server::noop(), Server::tidegate(&policy, &[]));
    let shared = [0, 1].map(|at| Server::tidegate_on(&redis[at], &policy));
    // The no-op server knows single calls only, which it admits.
    let single = Row::plain(
        &row.name,
        row.descriptors,
        if row.path == drive::PATH { row.bodies.clone() } else { servers::bodies(1) },
    );
    let single = Row { callers: row.callers, ..single };
    let round = |scale: Scale| {
        let noop = single.service_cost(&noop, single.calls(scale));
        let calls = row.calls(scale);
        let memory = row.service_cost(&memory, calls);
        let [a, b] = [0, 1].map(|at| row.cost_in(&shared[at], &redis[at], calls));
        [noop, memory, a[0], a[1], b[0], b[1]]
    };
    warm_up(row, [&memory, &shared[0], &shared[1]]);
    round(Scale { calls: scale.calls / 4, ..scale });
    let rounds: Vec<[f64; 6]> = (0..scale.pairs).map(|_| round(scale)).collect();
    let median = |of: fn(&[f64; 6]) -> f64| cpu::median(rounds.iter().map(of).collect());
    println!(
        "{:<24} {:>8.2} {:>11.2} {:>9.2}   {:>8.2} {:>8.2} {:>12.2} {:>8.2} {:>12.2} {:>8.2}",
        row.name,
        median(|r| r[1] / r[0]),
        median(|r| (r[2] + r[3]) / r[0]),
        median(|r| (r[4] + r[5]) / r[0]),
        median(|r| r[0]),
        median(|r| r[1]),
        median(|r| r[2]),
        median(|r| r[3]),
        median(|r| r[4]),
        median(|r| r[5]),
    );
}

/// Uses up the limit of a row whose calls must be rejected.
fn warm_up(row: &Row, services: [&Server; 3]) {
    if row.expects == Expects::OverLimit {
        for service in services {
            drive::run(service.port, &row.bodies, 1, 1, 1);
        }
    }
}
