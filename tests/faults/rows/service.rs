//! Tidegate itself is short of CPU, of file descriptors, or of a reader for its logs; is flooded
//! with calls or keys; gets one policy after another.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::TcpStream;
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::grpc_caller::{CallResult, Caller, question};
use crate::open_loop_load::in_turn;
use crate::redis_behind_proxy::{self, PATIENT, RedisBehindProxy};
use crate::results_table::Observation;
use crate::support::tidegate_process::{program, tidegate};
use crate::support::wait::until_so as until;
use crate::tidegate_replica::{self, Tidegate};
use crate::trial::{Outcome, Trial, either, keys, limit, policy, rate};

fn bounded(outcome: &Outcome, said: String) -> Observation {
    outcome.assert_no_errors();
    let seen = Observation::of(outcome, said);
    seen.assert_beyond_at_most(1.0);
    seen
}

/// Nothing was admitted too much, where the budget leaves no doubt.
fn exact(seen: Observation) -> Observation {
    seen.assert_beyond_at_most(0.0);
    Observation { detect: None, recover: None, ..seen }
}

pub fn reloads() -> Observation {
    let stand = RedisBehindProxy::plain(&PATIENT);
    let mut trial = Trial::start(&stand.tidegate);
    trial.calm();
    trial.inject(|| ());
    for round in 0..either(12, 40) {
        let good = policy() + &format!("  - key: round\n    value: r{round}\n");
        let text = match round % 3 {
            0 => good,
            1 => good.replace("requests_per_unit", "requests_per_untie"),
            _ => good[..good.len() / 2].to_owned(),
        };
        stand.tidegate.rewrite(&text);
        // Files are looked at once a second, or when told.
        stand.tidegate.signal(Signal::HUP);
        trial.calls(rate() / 10);
    }
    trial.heal(|| stand.tidegate.rewrite(&policy()));
    let loads = || trial.figures.metric("config_load_success_total");
    until("a reload", || loads() > 1 && trial.figures.metric("config_load_error_total") > 0);
    let said = format!("{} policies taken, bad ones refused", loads() - 1);
    exact(bounded(&trial.end(), said))
}

/// A process that runs for a fifth of the time, in slices as a container's quota gives them.
struct Starved {
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Starved {
    fn start(process: Pid) -> Starved {
        let stop: Arc<AtomicBool> = Arc::default();
        let told = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            while !told.load(Ordering::SeqCst) {
                let _ = kill_process(process, Signal::STOP);
                thread::sleep(Duration::from_millis(40));
                let _ = kill_process(process, Signal::CONT);
                thread::sleep(Duration::from_millis(10));
            }
        });
        Starved { stop, thread: Some(thread) }
    }
}

impl Drop for Starved {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

pub fn starved() -> Observation {
    let stand = RedisBehindProxy::plain(&[]);
    let mut trial = Trial::start(&stand.tidegate);
    trial.calm();
    let mut starved = None;
    trial.inject(|| starved = Some(Starved::start(stand.tidegate.pid())));
    trial.fault();
    trial.heal(|| drop(starved));
    trial.until_redis();
    let outcome = trial.end();
    let said = format!("{} % local, 0 errors", outcome.local_share());
    // There is nothing to detect: it is late by itself.
    let during = crate::trial::p99(outcome.during());
    Observation { p99: during, detect: None, ..bounded(&outcome, said) }
}

/// How many calls a second are answered if callers wait for their answers.
fn capacity(tidegate: &Tidegate, lasts: Duration) -> f64 {
    const CALLERS: usize = 64;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let answered = AtomicU64::new(0);
    let (target, answered) = (tidegate.port("grpc"), &answered);
    let callers = async {
        let end = Instant::now() + lasts;
        let line = Caller::new(target);
        let one = async || {
            while Instant::now() < end {
                let told = line.ask(question(&[&[("wide", "x")]])).await;
                assert_eq!(told, CallResult::Admitted);
                answered.fetch_add(1, Ordering::Relaxed);
            }
        };
        futures_util::future::join_all((0..CALLERS).map(|_| one())).await;
    };
    tokio::task::LocalSet::new().block_on(&runtime, callers);
    answered.load(Ordering::Relaxed) as f64 / lasts.as_secs_f64()
}

pub fn overloaded() -> Observation {
    let stand = RedisBehindProxy::plain(&[]);
    let lasts = either(Duration::from_millis(500), Duration::from_secs(1));
    // A fifth of a core, so that whoever loads it is the faster one.
    let starved = Starved::start(stand.tidegate.pid());
    let capacity = capacity(&stand.tidegate, lasts);
    let before = stand.tidegate.proc_status("VmRSS");
    let twice = (2.0 * capacity) as u64;
    let mut trial = Trial::with(&[&stand.tidegate], twice.max(100), &in_turn("wide", keys()));
    trial.inject(|| ());
    until("the time to be over", || trial.load.now() >= lasts);
    let goodput = trial.load.booked() as f64 / trial.load.now().as_secs_f64();
    let more = stand.tidegate.proc_status("VmRSS").saturating_sub(before) / 1024;
    drop(starved);
    let outcome = trial.end();
    assert!(more < 256, "{more} MiB more");
    // RESOURCE_EXHAUSTED, and what the load itself gave up on.
    let shed = |told: CallResult| matches!(told, CallResult::Failed(8) | CallResult::NotSent);
    let others: Vec<_> = outcome.failed().into_iter().filter(|entry| !shed(entry.told)).collect();
    assert!(others.is_empty(), "{:?}", others[0]);
    let share = goodput / capacity;
    let said = format!(
        "goodput {:.0} % of {capacity:.0}/s, {} shed, {more} MiB more",
        share * 100.0,
        outcome.failed().len()
    );
    let seen = Observation::of(&outcome, said);
    let goodput = Some(share);
    Observation { beyond: Some(0.0), calm: seen.p99, goodput, detect: None, recover: None, ..seen }
}

pub fn key_flood() -> Observation {
    const MAX_KEYS: u64 = 50_000;
    let keys = either(20_000, 1_000_000);
    let most = MAX_KEYS.min(keys / 2).to_string();
    let tidegate = tidegate_replica::start(&policy(), &["--max-keys", &most]);
    let mut trial = Trial::start(&tidegate);
    trial.calm();
    let before = tidegate.proc_status("VmRSS");
    trial.inject(|| flood(&tidegate, keys));
    trial.heal(|| ());
    let more = tidegate.proc_status("VmRSS").saturating_sub(before) / 1024;
    trial.fault();
    let held = trial.figures.metric("keys");
    let outcome = trial.end();
    assert!(held <= most.parse().unwrap(), "{held} counters held");
    // 50,000 counters of a few hundred bytes, and what the calls themselves take.
    assert!(more < 64, "{more} MiB more");
    let said = format!("{keys} fresh keys: {held} held, {more} MiB more");
    exact(bounded(&outcome, said))
}

/// Fresh keys, 64 a call.
fn flood(tidegate: &Tidegate, keys: u64) {
    const EACH: u64 = 64;
    let target = tidegate.port("grpc");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let sent = async {
        let line = Caller::new(target);
        let one = async |first: u64| {
            let values: Vec<String> = (first..first + EACH).map(|n| format!("f{n}")).collect();
            let entries: Vec<[(&str, &str); 1]> =
                values.iter().map(|value| [("wide", value.as_str())]).collect();
            let descriptors: Vec<&[(&str, &str)]> = entries.iter().map(|one| &one[..]).collect();
            let told = line.ask(question(&descriptors)).await;
            assert!(matches!(told, CallResult::Admitted | CallResult::Refused), "{told:?}");
        };
        let calls: Vec<u64> = (0..keys).step_by(EACH as usize).collect();
        for batch in calls.chunks(16) {
            futures_util::future::join_all(batch.iter().map(|first| one(*first))).await;
        }
    };
    tokio::task::LocalSet::new().block_on(&runtime, sent);
}

pub fn hot_key() -> Observation {
    let stand = RedisBehindProxy::plain(&PATIENT);
    let mut trial = Trial::with(&[&stand.tidegate], rate(), &in_turn("local", 1));
    trial.calls(limit());
    trial.inject(|| ());
    trial.calls(rate() * 2);
    trial.heal(|| ());
    let asked = trial.figures.metric("redis_items_total");
    let outcome = trial.end();
    let calls = outcome.book.len();
    assert!(asked < calls as u64 / 2, "Redis was asked {asked} times for {calls} calls");
    let admitted = crate::admission_oracle::admitted(&outcome.book)[&0];
    assert!(admitted >= limit(), "{admitted} admitted");
    let said =
        format!("{admitted} of {} admitted; Redis asked {asked} times for {calls} calls", limit());
    exact(bounded(&outcome, said))
}

/// A Tidegate whose standard error is a pipe that is read until it is ready, and never again.
fn unread(port: u16) -> Tidegate {
    let flags = redis_behind_proxy::counting_in(port);
    tidegate_replica::start_by(tidegate(), &policy(), &flags, |log| {
        let (pipe, stderr) = std::io::pipe().unwrap();
        read_until_ready(pipe, log);
        stderr.into()
    })
}

/// Copies lines until the one that says that it is ready; then holds the pipe, full as it gets.
fn read_until_ready(pipe: impl std::io::Read + Send + 'static, mut log: File) {
    thread::spawn(move || {
        let mut lines = BufReader::new(pipe);
        let mut line = String::new();
        while !line.contains("\"ready") {
            line.clear();
            if lines.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            let _ = log.write_all(line.as_bytes());
        }
        // Held, as a log shipper holds it that hangs.
        loop {
            thread::park();
        }
    });
}

/// Fills a process's standard error to the last byte.
fn fill(process: Pid) {
    const NONBLOCK: i32 = 0o4_000;
    let path = format!("/proc/{}/fd/2", process.as_raw_nonzero());
    let mut pipe = OpenOptions::new().write(true).custom_flags(NONBLOCK).open(path).unwrap();
    for size in [4_096, 64, 1] {
        loop {
            match pipe.write(&vec![b'.'; size]) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

pub fn logs_blocked() -> Observation {
    let mut server = redis_behind_proxy::redis(&[]);
    let tidegate = unread(server.port);
    let mut trial = Trial::start(&tidegate);
    trial.calm();
    trial.inject(|| {
        fill(tidegate.pid());
        // Now there is something to say.
        server.kill();
        tidegate.rewrite("domain: [");
    });
    trial.until_local();
    trial.fault();
    trial.heal(|| server.restart());
    trial.until_redis();
    let outcome = trial.end();
    let said = format!("{} % local, 0 errors; lines are lost", outcome.local_share());
    outcome.assert_no_errors();
    let seen = Observation::of(&outcome, said);
    // Redis came back empty, besides.
    seen.assert_beyond_at_most(2.0);
    seen
}

pub fn no_descriptors() -> Observation {
    let server = redis_behind_proxy::redis(&[]);
    let flags = redis_behind_proxy::counting_in(server.port);
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 64; exec \"$0\" \"$@\""]).arg(program()).stdin(Stdio::null());
    let mut tidegate = tidegate_replica::start_by(command, &policy(), &flags, Stdio::from);
    let mut trial = Trial::start(&tidegate);
    trial.calm();
    let mut held: Vec<TcpStream> = Vec::new();
    trial.inject(|| {
        held = (0..200).filter_map(|_| TcpStream::connect(tidegate.port("grpc")).ok()).collect();
    });
    trial.fault();
    let many = held.len();
    trial.heal(|| drop(held));
    let address = tidegate.port("grpc");
    until("a new connection to be served", || fresh_call(address) != CallResult::Lost);
    let outcome = trial.end();
    assert!(tidegate.is_running());
    let lines = tidegate.log().lines().count();
    assert!(lines < 200, "{lines} lines of log");
    let said =
        format!("{many} connections more than it has room for; serves on, {lines} log lines");
    let seen = bounded(&outcome, said);
    Observation { detect: None, recover: None, ..seen }
}

fn fresh_call(address: std::net::SocketAddr) -> CallResult {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let call = async { Caller::new(address).ask(question(&[&[("wide", "x")]])).await };
    tokio::task::LocalSet::new().block_on(&runtime, call)
}
