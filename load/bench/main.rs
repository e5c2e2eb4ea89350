//! Benches of decisions: `cargo bench --bench decisions -- PART`. load/README.md lists the parts.
//!
//! They print tables and judge nothing. Times are CPU time of the *server process*, read from the
//! kernel's own accounting (`/proc/PID/task/*/schedstat`, nanoseconds), so that the load generator
//! on the same machine does not count; every comparison alternates the sides and prints medians of
//! paired runs.

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
mod cpu_instructions;
mod curves;
mod drive;
mod flame;
mod growth;
mod http2_caller;
mod memory;
mod noop;
mod peers;
mod redis_server;
mod rules;
mod script_calls;
mod scripts;
mod servers;
mod shared_writes;
mod table;
mod telemetry;
mod waits;

use std::path::Path;
use std::time::Duration;

/// How much is measured; `TIDEGATE_BENCH=quick` is for trying the bench itself.
#[derive(Clone, Copy)]
pub struct Scale {
    pub is_quick: bool,
    pub calls: usize,
    pub pairs: usize,
    pub keys: &'static [usize],
    pub settle: Duration,
    pub lasts: Duration,
}

impl Scale {
    /// Says in a record that the runs were short.
    fn form(self) -> &'static str {
        if self.is_quick { " (quick form)" } else { "" }
    }
}

fn main() {
    let quick = std::env::var("TIDEGATE_BENCH").is_ok_and(|v| v == "quick");
    let scale = if quick {
        Scale {
            is_quick: true,
            calls: 20_000,
            pairs: 3,
            keys: &[100_000],
            settle: Duration::from_millis(100),
            lasts: Duration::from_secs(1),
        }
    } else {
        Scale {
            is_quick: false,
            calls: 150_000,
            pairs: 7,
            keys: &[1_000_000, 10_000_000],
            settle: Duration::from_millis(300),
            lasts: Duration::from_secs(10),
        }
    };
    let mut args = std::env::args().skip(1).filter(|arg| arg != "--bench");
    let part = args.next();
    if part.as_deref() == Some("noop-server") {
        return noop::serve();
    }
    if part.as_deref() == Some("curves") {
        return draw(&args.next().expect("a record"), &args.next().expect("a directory"));
    }
    if part.as_deref() == Some("flame") {
        return flame::run(Path::new(&args.next().expect("a directory")));
    }
    cpu::describe_machine();
    match part.as_deref() {
        None | Some("table") => table::run(scale),
        Some("peers") => peers::run(scale),
        Some("answers") => answers::run(scale),
        Some("algorithms") => algorithms::run(scale),
        Some("batches") => batches::run(scale),
        Some("compare") => compare::run(&args.next().expect("the path of a build"), scale),
        Some("instructions") => cpu_instructions::run(),
        Some("memory") => memory::run(scale),
        Some("script-calls") => script_calls::run(scale, args),
        Some("scripts") => scripts::run(scale),
        Some("shared-writes") => shared_writes::run(scale),
        Some("telemetry") => telemetry::run(scale),
        Some(other) => panic!("{other} is none of the parts in load/README.md"),
    }
}

/// Draws the growth curves of a record into a directory.
fn draw(record: &str, directory: &str) {
    let record = std::fs::read_to_string(record).expect("a record");
    for (name, svg) in curves::draw(&record) {
        std::fs::write(Path::new(directory).join(name), svg).expect("a directory");
    }
}
