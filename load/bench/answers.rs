//! `cargo bench -- answers`: the share of answers that do not come from Redis at high load, with default settings: open loop
//! at half and at 80 % of the peak, beside a no-op server at the same rate, and closed loops.
//!
//! The generator and Redis share the machine with the server, so a part of the calls is late
//! whatever the server does. The no-op server's late answers in the same run show how many. The
//! machine's speed differs from minute to minute, so the peak is measured again before each run: as
//! the rate of a closed loop of this generator with the same calls.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::http2_caller::{self, Answer, Caller, Code};
use super::redis_server::RedisServer;
use super::servers::{self, Server};
use super::{Scale, calls, cpu};

const CONNECTIONS: usize = 4;
/// How often due calls are sent.
const TICK: Duration = Duration::from_millis(1);
/// Shares of the peak at which the open loop runs.
const SHARES: [f64; 2] = [0.5, 0.8];
/// The closed loop that measures the peak: connections, streams of each.
const PEAK: (usize, usize) = (4, 25);
/// Closed loops: connections, streams of each, deadline in milliseconds.
const CLOSED: [(usize, usize, Option<u64>); 2] = [(4, 25, Some(20)), (8, 64, None)];
/// An answer that is later than this may miss the budget that Envoy's 20 ms leave.
const LATE: Duration = Duration::from_millis(15);
/// Limit that one in [`LIMITED_EVERY`] calls is under, so that each run reaches it early.
const LIMIT: usize = 1_000;
const LIMITED_EVERY: usize = 10;
/// How many times as long as other benches a run lasts, and how many runs there are.
const LASTS_TIMES: u32 = 3;
const RUNS_MAX: usize = 5;

/// What the callers of one run saw.
#[derive(Clone, Debug, Default)]
struct Run {
    /// Time of each call from when it was due to its answer.
    waits: Vec<Duration>,
    /// Calls with a gRPC status other than 0, or without an answer.
    failed: usize,
    /// Calls under [`LIMIT`] that were admitted.
    admitted: usize,
}

impl Run {
    fn late_percent(&self) -> f64 {
        percent(self.waits.iter().filter(|wait| **wait > LATE).count(), self.waits.len())
    }

    fn p99_ms(&self) -> f64 {
        let mut waits = self.waits.clone();
        waits.sort_unstable();
        waits.get(waits.len() * 99 / 100).map_or(0.0, |wait| wait.as_secs_f64() * 1e3)
    }
}

fn percent(part: usize, whole: usize) -> f64 {
    part as f64 * 100.0 / whole.max(1) as f64
}

/// Decisions by source, and breakers opened, as the server's metrics count them.
#[derive(Clone, Copy, Debug, Default)]
struct Decisions {
    all: u64,
    local: u64,
    shed: u64,
    breaker_opened: u64,
}

impl Decisions {
    fn read(port: u16) -> Decisions {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream
            .write_all(b"GET /metrics HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n")
            .unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let sum = |name: &str, label: &str| -> u64 {
            let lines = text.lines().filter(|line| line.starts_with(name) && line.contains(label));
            lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
        };
        let decisions = "tidegate_decisions_total{";
        Decisions {
            all: sum(decisions, ""),
            local: sum(decisions, "source=\"local\""),
            shed: sum(decisions, "source=\"shed\""),
            breaker_opened: sum("tidegate_redis_breaker_opened_total{", ""),
        }
    }

    fn since(self, before: Decisions) -> Decisions {
        Decisions {
            all: self.all - before.all,
            local: self.local - before.local,
            shed: self.shed - before.shed,
            breaker_opened: self.breaker_opened - before.breaker_opened,
        }
    }
}

/// Tidegate with default settings and its HTTP port.
fn tidegate(dir: &std::path::Path, redis: &RedisServer) -> (Server, u16) {
    let limited =
        format!("  - {{key: limited, rate_limit: {{unit: day, requests_per_unit: {LIMIT}}}}}\n");
    let text = calls::policy(servers::DOMAIN, 1) + &limited;
    let policy = servers::write_policy(dir, "answers.yaml", &text);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let http = listener.local_addr().unwrap().port();
    drop(listener);
    let (url, port) = (redis.address(), http.to_string());
    let server = Server::tidegate(
        &policy,
        &[("REDIS_URL", &url), ("TIDEGATE_REQUIRE_REDIS", "true"), ("PORT", &port)],
    );
    (server, http)
}

pub fn run(scale: Scale) {
    let dir = tempfile::tempdir().unwrap();
    let redis = RedisServer::start();
    let (ours, http) = tidegate(dir.path(), &redis);
    let noop = Server::noop();
    let bodies = servers::bodies(1);
    let (lasts, runs) = (scale.lasts * LASTS_TIMES, scale.pairs.min(RUNS_MAX));
    println!("\nAnswers not from Redis, default settings, {} s each", lasts.as_secs());
    println!(
        "medians of {runs} runs; open loops: a share of the peak, measured before each run; late: later than {} ms as seen by the generator",
        LATE.as_millis()
    );
    println!(
        "{:>18} {:>9} {:>9} {:>10} {:>9} {:>9} {:>9} {:>11} {:>8} {:>9} {:>11}",
        "load",
        "deadline",
        "calls/s",
        "not Redis",
        "of these",
        "failed",
        "late",
        "no-op late",
        "p99 ms",
        "breakers",
        "admitted"
    );
    println!(
        "{:>18} {:>9} {:>9} {:>10} {:>9} {:>9} {:>9} {:>11} {:>8} {:>9} {:>11}",
        "",
        "ms",
        "",
        "%",
        "shed %",
        "%",
        "%",
        "%",
        "",
        "opened",
        format!("of {LIMIT}")
    );
    for deadline in [Some(20), None] {
        for share in SHARES {
            let pace = || Pace::Open(share * peak(ours.port, &bodies, scale.lasts));
            let name = format!("open, {:.0} %", share * 100.0);
            report(&name, &ours, http, Some(&noop), &bodies, deadline, &pace, lasts, runs);
        }
    }
    for (connections, streams, deadline) in CLOSED {
        let pace = || Pace::Closed { connections, streams };
        let name = format!("closed, {}", connections * streams);
        report(&name, &ours, http, None, &bodies, deadline, &pace, lasts, runs);
    }
}

/// Calls per second of a closed loop without a deadline.
pub fn peak(port: u16, bodies: &[Bytes], lasts: Duration) -> f64 {
    let (connections, streams) = PEAK;
    let load = Load { deadline: None, pace: Pace::Closed { connections, streams } };
    drive_load(port, bodies, load, lasts).waits.len() as f64 / lasts.as_secs_f64()
}

#[derive(Clone, Copy, Debug)]
struct Load {
    deadline: Option<u64>,
    pace: Pace,
}

#[derive(Clone, Copy, Debug)]
enum Pace {
    /// Calls per second.
    Open(f64),
    Closed {
        connections: usize,
        streams: usize,
    },
}

#[allow(clippy::too_many_arguments, reason = "one row of the table")]
fn report(
    name: &str,
    ours: &Server,
    http: u16,
    noop: Option<&Server>,
    bodies: &[Bytes],
    deadline: Option<u64>,
    pace: &dyn Fn() -> Pace,
    lasts: Duration,
    runs: usize,
) {
    let (mut not_redis, mut shed, mut failed, mut late) = (vec![], vec![], vec![], vec![]);
    let (mut noop_late, mut p99, mut rates, mut opened) = (vec![], vec![], vec![], 0);
    let mut admitted = vec![];
    for run in 0..runs {
        let load = Load { deadline, pace: pace() };
        let before = Decisions::read(http);
        let bodies = with_limited(bodies, &format!("{name}, {:?}, run {run}", load.deadline));
        let seen = drive_load(ours.port, &bodies, load, lasts);
        admitted.push(seen.admitted);
        let decided = Decisions::read(http).since(before);
        let local = decided.local + decided.shed;
        not_redis.push(percent(local as usize, decided.all as usize));
        shed.push(percent(decided.shed as usize, local as usize));
        failed.push(percent(seen.failed, seen.waits.len()));
        late.push(seen.late_percent());
        p99.push(seen.p99_ms());
        rates.push(seen.waits.len() as f64 / lasts.as_secs_f64());
        opened += decided.breaker_opened;
        if let Some(noop) = noop {
            noop_late.push(drive_load(noop.port, &bodies, load, lasts).late_percent());
        }
    }
    let deadline = deadline.map_or("none".to_owned(), |deadline| deadline.to_string());
    let noop_late =
        if noop.is_some() { format!("{:.3}", cpu::median(noop_late)) } else { "–".to_owned() };
    admitted.sort_unstable();
    let (least, most) = (admitted[0], admitted[admitted.len() - 1]);
    let admitted = if least == most { most.to_string() } else { format!("{least} to {most}") };
    println!(
        "{name:>18} {deadline:>9} {:>9.0} {:>10.3} {:>9.1} {:>9.3} {:>9.3} {noop_late:>11} {:>8.2} {opened:>9} {admitted:>11}",
        cpu::median(rates),
        cpu::median(not_redis),
        cpu::median(shed),
        cpu::median(failed),
        cpu::median(late),
        cpu::median(p99),
    );
}

/// Replaces one in [`LIMITED_EVERY`] calls by a call of one client under [`LIMIT`].
fn with_limited(bodies: &[Bytes], client: &str) -> Vec<Bytes> {
    let entry = calls::Entry { key: "limited".to_owned(), value: client.to_owned() };
    let limited = calls::framed(&calls::Request {
        domain: servers::DOMAIN.to_owned(),
        descriptors: vec![calls::Descriptor { entries: vec![entry] }],
        hits_addend: 0,
    });
    let body = |(at, body): (usize, &Bytes)| match is_limited(at) {
        true => limited.clone(),
        false => body.clone(),
    };
    bodies.iter().enumerate().map(body).collect()
}

fn is_limited(body: usize) -> bool {
    body.is_multiple_of(LIMITED_EVERY)
}

fn drive_load(port: u16, bodies: &[Bytes], load: Load, lasts: Duration) -> Run {
    let connections = match load.pace {
        Pace::Open(_) => CONNECTIONS,
        Pace::Closed { connections, .. } => connections,
    };
    let connect = |_| Caller::connect(port, bodies, load.deadline);
    let callers = (0..connections).map(connect).collect();
    match load.pace {
        Pace::Open(rate) => open_loop(callers, bodies.len(), rate, lasts),
        Pace::Closed { streams, .. } => closed_loop(callers, bodies.len(), streams, lasts),
    }
}

/// The 99th percentile of waits at a fixed rate, in milliseconds. Every call must be answered.
pub fn p99_ms(port: u16, bodies: &[Bytes], rate: f64, lasts: Duration) -> f64 {
    let run = drive_load(port, bodies, Load { deadline: None, pace: Pace::Open(rate) }, lasts);
    assert_eq!(run.failed, 0, "every call is answered");
    run.p99_ms()
}

fn open_loop(mut callers: Vec<Caller>, bodies: usize, rate: f64, lasts: Duration) -> Run {
    let mut run = Run::default();
    let (began, mut number, mut tick) = (Instant::now(), 0, 0);
    while began.elapsed() < lasts || !callers.iter().all(Caller::is_idle) {
        // The whole tick falls due now: what the timer was too late by is not the server's.
        let now = Instant::now();
        if now - began < lasts && now >= began + TICK * tick {
            let due = ((now - began).as_secs_f64() * rate) as usize;
            (number..due).for_each(|call| callers[call % CONNECTIONS].call(call, now));
            number = due;
            tick = (now - began).div_duration_f64(TICK) as u32 + 1;
        }
        callers.iter_mut().for_each(Caller::write);
        let next = if now - began < lasts { began + TICK * tick } else { now + TICK };
        http2_caller::read_until(&mut callers, next, &mut |_, answer| run.add(&answer, bodies));
    }
    run
}

fn closed_loop(mut callers: Vec<Caller>, bodies: usize, streams: usize, lasts: Duration) -> Run {
    let mut run = Run::default();
    let began = Instant::now();
    let in_flight = callers.len() * streams;
    for (caller, first) in callers.iter_mut().zip((0..in_flight).step_by(streams)) {
        (first..first + streams).for_each(|call| caller.call(call, began));
    }
    while !callers.iter().all(Caller::is_idle) {
        callers.iter_mut().for_each(Caller::write);
        let end = Instant::now() + TICK;
        http2_caller::read_until(&mut callers, end, &mut |caller, answer| {
            run.add(&answer, bodies);
            let now = Instant::now();
            if now - began < lasts {
                caller.call(answer.call + in_flight, now);
            }
        });
    }
    run
}

impl Run {
    fn add(&mut self, answer: &Answer, bodies: usize) {
        self.failed += usize::from(answer.code.is_none());
        let is_limited = is_limited(answer.call % bodies);
        self.admitted += usize::from(is_limited && answer.code == Some(Code::Ok));
        self.waits.push(answer.wait);
    }
}
