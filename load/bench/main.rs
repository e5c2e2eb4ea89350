//! `make bench`: what a decision costs, measured against a no-op server in the same run.
//!
//! Prints tables and judges nothing. Times are CPU time of the *server process*, read from the
//! kernel's own accounting (`/proc/PID/task/*/schedstat`, nanoseconds), so that the load generator
//! on the same machine does not count; every comparison alternates the two sides and prints the
//! median of the paired runs. See `load/README.md`.

#![allow(
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a bench measures time, prints, and stops at the first surprise"
)]

mod algorithms;
mod answers;
mod batches;
mod calls;
mod compare;
mod cpu;
mod drive;
mod grpc;
mod instructions;
mod lookup;
mod memory;
mod noop;
mod paced;
mod redis;
mod redis_server;
mod script_calls;
mod scripts;
mod telemetry;

use std::time::Duration;

/// How much is measured; `TIDEGATE_BENCH=quick` is for trying the bench itself.
#[derive(Clone, Copy)]
pub struct Scale {
    pub calls: usize,
    pub pairs: usize,
    pub keys: &'static [usize],
    pub settle: Duration,
    pub lasts: Duration,
}

fn main() {
    let quick = std::env::var("TIDEGATE_BENCH").is_ok_and(|v| v == "quick");
    let scale = if quick {
        Scale {
            calls: 20_000,
            pairs: 3,
            keys: &[100_000],
            settle: Duration::from_millis(100),
            lasts: Duration::from_secs(1),
        }
    } else {
        Scale {
            calls: 150_000,
            pairs: 7,
            keys: &[1_000_000, 10_000_000],
            settle: Duration::from_millis(300),
            lasts: Duration::from_secs(10),
        }
    };
    let mut args = std::env::args().skip(1).filter(|arg| arg != "--bench");
    match args.next().as_deref() {
        Some("noop-server") => noop::serve(),
        Some("script-calls") => {
            cpu::describe_machine();
            script_calls::run(scale, args);
        }
        Some("instructions") => {
            cpu::describe_machine();
            instructions::run();
        }
        Some("compare") => {
            cpu::describe_machine();
            compare::run(&args.next().expect("the path of a build"), scale);
        }
        Some(part) => run(Some(part), scale),
        None => run(None, scale),
    }
}

fn run(part: Option<&str>, scale: Scale) {
    cpu::describe_machine();
    let wanted = |name: &str| part.is_none_or(|part| part == name);
    if wanted("lookup") {
        lookup::run();
    }
    if wanted("memory") {
        memory::run(scale);
    }
    if wanted("grpc") {
        grpc::run(scale);
    }
    if wanted("telemetry") {
        telemetry::run(scale);
    }
    if wanted("redis") {
        redis::run(scale);
    }
    if wanted("answers") {
        answers::run(scale);
    }
    if wanted("algorithms") {
        algorithms::run(scale);
    }
    if wanted("batches") {
        // Counting instructions takes a minute.
        batches::run(scale, part.is_some());
    }
    if part == Some("scripts") {
        scripts::run(scale);
    }
    if part == Some("waits") {
        redis::waits(scale);
    }
}
