//! Sends rate limit calls at a fixed rate to any server of Envoy's protocol and reports what it saw.
//!
//! Open loop: call i is due at i / rate, whether or not earlier ones were answered, and its latency
//! counts from then. A server that stalls is shown stalling; a closed loop would wait with it and
//! report the calm before and after (coordinated omission).
//!
//!     cargo run --profile dist --example generator -- --rate 20000 --seconds 30 --keys 100000
//!
//! Not here: what a decision should be (tests), the service's own benches (`load/bench`).

#![allow(
    missing_docs,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a program of its own: it prints, and measures by the clock itself"
)]

mod histogram;
mod keys;
mod messages;
mod report;
mod target;

use std::cell::RefCell;
use std::error::Error;
use std::rc::Rc;
use std::time::{Duration, Instant};

use clap::Parser;

use keys::Keys;
use report::Seen;
use target::Target;

/// A load of rate limit calls at a fixed rate.
#[derive(Debug, Parser)]
struct Given {
    /// Where the server listens (plaintext HTTP/2)
    #[arg(long, default_value = "127.0.0.1:8081")]
    target: String,
    /// Calls a second
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rate: u32,
    /// Seconds of measuring, after one of warming up
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    seconds: u32,
    /// Connections; Envoy has one per worker thread
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    connections: u32,
    /// Different values that are asked for
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    keys: u32,
    /// Share of the calls, 0 to 1, that ask for one and the same value
    #[arg(long, default_value_t = 0.0)]
    hot: f64,
    /// The domain
    #[arg(long, default_value = "load")]
    domain: String,
    /// The descriptor's key
    #[arg(long, default_value = "remote_address")]
    key: String,
    /// Hits a second that a value is granted: tells what was admitted beyond it
    #[arg(long)]
    limit: Option<f64>,
    /// Hits that it is granted at once, besides
    #[arg(long, default_value_t = 0.0)]
    burst: f64,
    /// The server's process: tells the CPU that a decision took
    #[arg(long)]
    pid: Option<u32>,
    /// Seed of the order of values
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// One line of JSON
    #[arg(long)]
    json: bool,
}

/// Calls without an answer yet; above it a call is not sent but counted as lost, since memory is
/// bounded and a server that far behind has failed anyway.
const IN_FLIGHT_MAX: usize = 100_000;

/// How often due calls are sent: the finest step of the runtime's timer.
const TICK: Duration = Duration::from_millis(1);

/// What calls that began before the measuring had warmed up do not count for.
const WARM_UP: Duration = Duration::from_secs(1);

/// How long the last answers are waited for.
const LAST_ANSWERS_MAX: Duration = Duration::from_secs(5);

fn main() -> Result<(), Box<dyn Error>> {
    let given = Given::parse();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    tokio::task::LocalSet::new().block_on(&runtime, run(given))
}

async fn run(given: Given) -> Result<(), Box<dyn Error>> {
    let target = Target::connect(&given.target, given.connections).await?;
    let mut keys = Keys::new(given.keys, given.hot, given.seed);
    let seen = Rc::new(RefCell::new(Seen::new(given.keys)));
    let time = WARM_UP + Duration::from_secs(given.seconds.into());
    let calls = (f64::from(given.rate) * time.as_secs_f64()) as u64;
    let warm_up_calls = (f64::from(given.rate) * WARM_UP.as_secs_f64()) as u64;
    let mut cpu = None;

    let begin = Instant::now();
    let mut ticks = tokio::time::interval(TICK);
    let mut sent = 0;
    while sent < calls {
        ticks.tick().await;
        let due = (begin.elapsed().as_secs_f64() * f64::from(given.rate)) as u64;
        while sent < due.min(calls) {
            if sent == warm_up_calls {
                cpu = given.pid.map(report::cpu_time).transpose()?;
            }
            let due_at = begin + Duration::from_secs_f64(sent as f64 / f64::from(given.rate));
            send(&given, &target, &seen, keys.next(), due_at, sent >= warm_up_calls);
            sent += 1;
        }
    }
    let deadline = Instant::now() + LAST_ANSWERS_MAX;
    while seen.borrow().in_flight > 0 && Instant::now() < deadline {
        ticks.tick().await;
    }
    let cpu = match (given.pid, cpu) {
        (Some(pid), Some(before)) => Some(report::cpu_time(pid)?.saturating_sub(before)),
        _ => None,
    };
    let seen = seen.borrow();
    let asked = report::Asked {
        rate: given.rate,
        time,
        measured: Duration::from_secs(given.seconds.into()),
        grant: given.limit.map(|limit| (limit, given.burst)),
        cpu,
    };
    println!("{}", if given.json { seen.json(&asked) } else { seen.text(&asked) });
    Ok(())
}

/// Sends one call, on a task of its own.
fn send(
    given: &Given,
    target: &Target,
    seen: &Rc<RefCell<Seen>>,
    key: u32,
    due_at: Instant,
    measured: bool,
) {
    if seen.borrow().in_flight >= IN_FLIGHT_MAX {
        seen.borrow_mut().lost += 1;
        return;
    }
    seen.borrow_mut().in_flight += 1;
    let call = target.call(target::question(&given.domain, &given.key, key));
    let seen = Rc::clone(seen);
    tokio::task::spawn_local(async move {
        let answer = call.await;
        let latency = due_at.elapsed();
        let mut seen = seen.borrow_mut();
        seen.in_flight -= 1;
        seen.note(key, answer.ok(), latency, measured);
    });
}
