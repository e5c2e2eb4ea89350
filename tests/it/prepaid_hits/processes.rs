//! Processes that share hot counters over gRPC: the limit holds, and a killed process loses one
//! lot.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::Signal;

use crate::support::grpc_client::{CallDescriptor, CallRequest, Client, ClientSettings};
use tidegate::clock::Clock;
use tokio::time::MissedTickBehavior;

use super::replica::{LOTS_ARE_OVER, server};
use crate::support::heavy;
use crate::support::proof;
use crate::support::redis_server::{Server, until};
use crate::support::tidegate_process::{Tidegate, metric};

const PROCESSES: usize = 3;
const SECOND: u64 = 1_000_000;

/// A call as its caller saw it, with times of this machine's clock, which is also Redis'.
#[derive(Clone, Copy, Debug)]
struct Call {
    sent: u64,
    received: u64,
    /// `None` if the call was not answered.
    admitted: Option<bool>,
}

/// One of `replicas` processes under a policy whose only limit is this.
fn serve(server: &Server, replicas: usize, limit: &str) -> Tidegate {
    let policy = format!(
        "domain: edge\ndescriptors:\n  - key: hot\n    rate_limit: {{{limit}, prepay: auto}}\n"
    );
    let patient = ["--redis-budget", "5s", "--require-redis", "true"];
    let replicas = ["--replicas", &replicas.to_string()];
    Tidegate::on_redis(server, &policy, &[&patient[..], &replicas].concat())
}

async fn connect(process: &Tidegate) -> Client {
    let target = process.port("grpc").to_string();
    let settings = ClientSettings { target, ..ClientSettings::default() };
    Client::connect(&settings).await.expect("it listens")
}

async fn call(client: &mut Client) -> Call {
    let entries = vec![(b"hot".to_vec(), b"one".to_vec())];
    let descriptors = vec![CallDescriptor { entries, ..CallDescriptor::default() }];
    let request = CallRequest { domain: "edge".to_owned(), descriptors, hits: 1 };
    let sent = Clock::System.now().0;
    let admitted = client.send(&request).await.ok().map(|response| !response.refused);
    Call { sent, received: Clock::System.now().0, admitted }
}

/// Callers of one process, each with one call at a time and at most one per `interval`, until
/// stopped or until a call is not answered. They count admitted calls in `admitted`.
async fn start(
    process: &Tidegate,
    callers: usize,
    interval: Duration,
    stop: &Arc<AtomicBool>,
    admitted: &Arc<AtomicU64>,
) -> Vec<tokio::task::JoinHandle<Vec<Call>>> {
    let mut tasks = Vec::new();
    for _ in 0..callers {
        let (stop, admitted) = (Arc::clone(stop), Arc::clone(admitted));
        let mut client = connect(process).await;
        let mut ticks = tokio::time::interval(interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        tasks.push(tokio::spawn(async move {
            let mut calls = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                ticks.tick().await;
                let seen = call(&mut client).await;
                admitted.fetch_add(u64::from(seen.admitted == Some(true)), Ordering::Relaxed);
                calls.push(seen);
                if seen.admitted.is_none() {
                    break;
                }
            }
            calls
        }));
    }
    tasks
}

async fn join(tasks: Vec<tokio::task::JoinHandle<Vec<Call>>>) -> Vec<Call> {
    let mut all = Vec::new();
    for task in tasks {
        all.extend(task.await.unwrap());
    }
    all
}

/// What is known of a window from the times of calls.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    offered: u64,
    /// Admitted calls that began and ended in the window.
    inside: u64,
    /// Admitted calls that began in it and ended in the next one.
    across: u64,
}

fn windows(calls: &[Call]) -> BTreeMap<u64, Window> {
    let mut windows = BTreeMap::<u64, Window>::new();
    for call in calls {
        let window = windows.entry(call.sent / SECOND).or_default();
        window.offered += 1;
        if call.admitted == Some(true) {
            match call.received / SECOND == call.sent / SECOND {
                true => window.inside += 1,
                false => window.across += 1,
            }
        }
    }
    windows
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_processes_admit_a_window_of_an_overloaded_key_and_not_a_hit_more() {
    const LIMIT: u64 = 1_000;
    /// Of each process; each makes at most one call per [`INTERVAL`]: 20,000 calls a second in all.
    const CALLERS: usize = 20;
    const INTERVAL: Duration = Duration::from_millis(3);
    let _turn = heavy::alone().await;
    let whole = proof::times(2, 30);
    let server = server();
    let limit = format!("unit: second, requests_per_unit: {LIMIT}");
    let processes: Vec<Tidegate> =
        (0..PROCESSES).map(|_| serve(&server, PROCESSES, &limit)).collect();
    let stop = Arc::new(AtomicBool::new(false));
    let mut tasks = Vec::new();
    for process in &processes {
        tasks.extend(start(process, CALLERS, INTERVAL, &stop, &Arc::default()).await);
    }
    tokio::time::sleep(Duration::from_secs(whole + 2)).await;
    // A window may be used up in 50 ms, before a process knows the rate and charges a lot.
    let spent = |process| metric(process, "redis_prepaid_decisions_total");
    until("every process has spent prepaid hits", || {
        processes.iter().all(|process| spent(process) > 0)
    })
    .await;
    stop.store(true, Ordering::Relaxed);
    let calls = join(tasks).await;
    assert!(calls.iter().all(|call| call.admitted.is_some()), "a call is not answered");
    let windows: Vec<Window> = windows(&calls).into_values().collect();
    println!("{windows:?}");
    for (at, window) in windows.iter().enumerate() {
        assert!(window.inside <= LIMIT, "window {at}: {window:?}");
    }
    // A call across a boundary counts in one of two windows, so only sums are exact.
    let admitted: u64 = windows.iter().map(|window| window.inside + window.across).sum();
    assert!(admitted <= LIMIT * windows.len() as u64, "{admitted} in {} windows", windows.len());
    for (at, window) in windows.iter().enumerate().skip(1).take(whole as usize) {
        let before = windows[at - 1].across;
        let most = before + window.inside + window.across;
        let (percent, is_overload) = match proof::judges_times() {
            true => (99, true),
            false => (80, window.offered >= 3 * LIMIT),
        };
        assert!(
            !is_overload || most >= LIMIT * percent / 100,
            "window {at} admits {most}, below {percent} %: {window:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_process_loses_at_most_one_lot() {
    const LIMIT: u64 = 6_000;
    const CALLERS: usize = 10;
    let _turn = heavy::alone().await;
    for _ in 0..proof::times(1, 10) {
        let server = server();
        let limit = format!("unit: year, requests_per_unit: {LIMIT}");
        let killed = serve(&server, 1, &limit);
        let stop = Arc::new(AtomicBool::new(false));
        let so_far = Arc::new(AtomicU64::new(0));
        let tasks = start(&killed, CALLERS, Duration::from_millis(1), &stop, &so_far).await;
        until("a third is admitted", || so_far.load(Ordering::Relaxed) > LIMIT / 3).await;
        killed.signal(Signal::KILL);
        let calls = join(tasks).await;
        let admitted = calls.iter().filter(|call| call.admitted == Some(true)).count() as u64;
        let unknown = calls.iter().filter(|call| call.admitted.is_none()).count() as u64;
        // A quarter of what remains is the most that a lot may hold.
        let lot = (LIMIT - admitted) / 4;
        let next = serve(&server, 1, &limit);
        let mut client = connect(&next).await;
        let mut rest = 0;
        let mut rejected = 0;
        while rejected < 3 {
            match call(&mut client).await.admitted.expect("an answer") {
                true => rest += 1,
                false => {
                    rejected += 1;
                    // The process may still hold prepaid hits, which it returns.
                    tokio::time::sleep(LOTS_ARE_OVER).await;
                }
            }
        }
        let all = admitted + rest;
        println!("{admitted} and {rest} admitted, {unknown} unknown, {} lost", LIMIT - all);
        assert!(all <= LIMIT, "{all} admitted");
        assert!(LIMIT - all <= unknown + lot, "{} are lost: {unknown} + {lot}", LIMIT - all);
    }
}
