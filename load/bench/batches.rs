//! What a decision costs in a batch of `tidegate.v1.Limits`, against a call of its own: CPU of the
//! service, in memory and with Redis, and its instructions, counted by valgrind.

use std::path::Path;
use std::process::Command;

use prost::Message;

use super::calls::{self, Request};
use super::drive::Bodies;
use super::redis_server::Redis;
use super::servers::{self, Server};
use super::{Scale, cpu, cpu_instructions, drive};

const CHECK_PATH: &str = "/tidegate.v1.Limits/Check";
const BATCHES: [usize; 3] = [1, 10, 100];
/// Requests of a run, in bodies of one batch each.
const REQUESTS: usize = 1_000;
/// Pairs of runs in full form: enough for a narrow interval.
const PAIRS: usize = 20;
/// Decisions in the run whose instructions are counted.
const COUNTED: usize = 12_800;

/// The message of a batch, by field number.
#[derive(Clone, PartialEq, Message)]
struct CheckRequest {
    #[prost(message, repeated, tag = "1")]
    requests: Vec<Request>,
}

/// Calls with the same number of requests, and their encoded bodies.
pub struct CallKind {
    pub name: String,
    pub path: &'static str,
    pub size: usize,
    pub bodies: Bodies,
    /// Connections and streams of each.
    pub callers: (usize, usize),
}

/// Callers of single calls, and of batches.
const CALLERS: (usize, usize) = (servers::CONNECTIONS, servers::STREAMS);
/// Fewer callers, whose batches of 100 are 800 decisions in flight instead of 6,400.
const FEW_CALLERS: (usize, usize) = (servers::CONNECTIONS, 2);

pub fn kinds() -> Vec<CallKind> {
    let requests: Vec<Request> =
        (0..REQUESTS).map(|client| calls::request(servers::DOMAIN, 1, client)).collect();
    let single = CallKind {
        name: "single call".to_owned(),
        path: drive::PATH,
        size: 1,
        bodies: requests.iter().map(calls::framed).collect(),
        callers: CALLERS,
    };
    let batch = |size, name: String, callers| CallKind {
        name,
        path: CHECK_PATH,
        size,
        bodies: requests
            .chunks(size)
            .map(|batch| calls::framed(&CheckRequest { requests: batch.to_vec() }))
            .collect(),
        callers,
    };
    let few = batch(100, "batch of 100, 8 callers".to_owned(), FEW_CALLERS);
    let batches = BATCHES.map(|size| batch(size, format!("batch of {size}"), CALLERS));
    std::iter::once(single).chain(batches).chain([few]).collect()
}

pub fn run(scale: Scale) {
    let dir = tempfile::tempdir().unwrap();
    let text = calls::policy(servers::DOMAIN, 1);
    let policy = servers::write_policy(dir.path(), "batches.yaml", &text);
    let scale = Scale { pairs: if scale.is_quick { scale.pairs } else { PAIRS }, ..scale };
    let redis = Redis::standalone();
    let memory = Server::tidegate(&policy, &[]);
    let with_redis = Server::tidegate_on(&redis, &policy);
    println!(
        "\nCPU of the service per decision with one descriptor, single calls against batches (median of {} pairs,",
        scale.pairs
    );
    println!("with the interval that holds the median with 95 % probability)");
    println!(
        "{:<24} {:>10} {:>20} {:>12} {:>7} {:>10} {:>20} {:>9}",
        "call", "memory us", "times", "instructions", "times", "redis us", "times", "its own"
    );
    let kinds = kinds();
    let mut single_instructions = 0.0;
    for kind in &kinds {
        let instructions = counted(&policy, kind);
        if kind.path == drive::PATH {
            single_instructions = instructions;
        }
        let (in_memory, times) = paired(&memory, &kinds[0], kind, scale);
        let before = redis.cpu();
        let (redis_us, redis_times) = paired(&with_redis, &kinds[0], kind, scale);
        let own = redis.cpu() - before;
        let decisions = 2 * scale.pairs * decisions(scale) + 2 * warm_up(scale);
        let own = own.as_secs_f64() * 1e6 / decisions as f64;
        println!(
            "{:<24} {in_memory:>10.2} {times:>20} {instructions:>12.0} {:>7.1} {redis_us:>10.2} {redis_times:>20} {own:>9.2}",
            kind.name,
            single_instructions / instructions
        );
    }
}

/// Decisions of one run: a whole number of batches of every size, for each call in flight.
fn decisions(scale: Scale) -> usize {
    let whole = 100 * servers::CONNECTIONS * servers::STREAMS;
    scale.calls.div_ceil(whole) * whole
}

fn warm_up(scale: Scale) -> usize {
    decisions(Scale { calls: scale.calls / 4, ..scale })
}

/// CPU microseconds per decision of one run.
fn cost(server: &Server, kind: &CallKind, decisions: usize) -> f64 {
    let before = cpu::of_process(server.pid());
    drive_kind(server, kind, decisions);
    (cpu::of_process(server.pid()) - before).as_secs_f64() * 1e6 / decisions as f64
}

fn drive_kind(server: &Server, kind: &CallKind, decisions: usize) {
    let (connections, streams) = kind.callers;
    let calls = decisions / kind.size;
    let seen = drive::run_path(kind.path, server.port, &kind.bodies, calls, connections, streams);
    assert_eq!((seen.failed, seen.answered), (0, calls), "every call is answered");
}

/// The median cost of a decision in calls of this kind, and how many times that of a single call is
/// more, pair by pair, with its interval.
fn paired(server: &Server, single: &CallKind, kind: &CallKind, scale: Scale) -> (f64, String) {
    for kind in [single, kind] {
        cost(server, kind, warm_up(scale));
    }
    let (mut costs, mut times) = (Vec::new(), Vec::new());
    for _ in 0..scale.pairs {
        std::thread::sleep(scale.settle);
        let one = cost(server, single, decisions(scale));
        let other = cost(server, kind, decisions(scale));
        costs.push(other);
        times.push(one / other);
    }
    let (low, high) = cpu::median_interval(times.clone());
    (cpu::median(costs), format!("{:.2} [{low:.2}, {high:.2}]", cpu::median(times)))
}

/// Instructions per decision of the service, embedded store.
fn counted(policy: &Path, kind: &CallKind) -> f64 {
    let whole = 100 * servers::CONNECTIONS * servers::STREAMS;
    let drive = |server: &Server, decisions| drive_kind(server, kind, decisions);
    let serve = |command: &mut Command| Server::serve(command, policy, &[]);
    cpu_instructions::count(env!("CARGO_BIN_EXE_tidegate"), serve, drive, whole, COUNTED)
}
