//! The network between Tidegate and Redis fails or corrupts data; Redis' clock jumps.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redis::Value;

use crate::admission_oracle;
use crate::grpc_caller::CallResult;
use crate::open_loop_load::{each_its_own, in_turn};
use crate::redis_behind_proxy::{self, RedisBehindProxy};
use crate::results_table::Observation;
use crate::support::fault_proxy::{Fault, Proxy};
use crate::trial::{Outcome, Trial, either, keys, policy, rate};

/// The slower answers that Redis is given.
fn late(by: u64) -> Fault {
    Fault::Delay { by: Duration::from_millis(by), jitter: Duration::from_millis(2) }
}

/// The usual trial behind a proxy.
fn disturbed(stand: &RedisBehindProxy, fault: impl FnOnce(&Proxy)) -> Outcome {
    let mut trial = Trial::start(&stand.tidegate);
    trial.calm();
    trial.inject(|| fault(stand.proxy()));
    trial.until_local();
    trial.fault();
    trial.heal(|| stand.proxy().heal());
    trial.until_redis();
    trial.end()
}

fn bounded(outcome: &Outcome) -> Observation {
    outcome.assert_no_errors();
    let seen = Observation::of(outcome, format!("{} % local, 0 errors", outcome.local_share()));
    seen.assert_beyond_at_most(1.0);
    seen
}

pub fn within_budget() -> Observation {
    let stand = RedisBehindProxy::proxied(&[]);
    let mut trial = Trial::start(&stand.tidegate);
    trial.calm();
    trial.inject(|| {
        let (by, jitter) = (Duration::from_millis(1), Duration::from_millis(1));
        stand.proxy().replies(Fault::Delay { by, jitter });
    });
    trial.fault();
    trial.heal(|| stand.proxy().heal());
    trial.until_redis();
    let mut seen = bounded(&trial.end());
    (seen.detect, seen.recover) = (None, None);
    seen
}

pub fn slow_20() -> Observation {
    let stand = RedisBehindProxy::proxied(&[]);
    bounded(&disturbed(&stand, |proxy| proxy.replies(late(20))))
}

pub fn slow_100() -> Observation {
    let stand = RedisBehindProxy::proxied(&[]);
    bounded(&disturbed(&stand, |proxy| proxy.both(late(100))))
}

pub fn sleeping() -> Observation {
    let stand = RedisBehindProxy::plain(&[]);
    let stop = Arc::new(AtomicBool::new(false));
    let mut trial = Trial::start(&stand.tidegate);
    trial.calm();
    let (told, port) = (Arc::clone(&stop), stand.server.port);
    let mut sleeper = None;
    trial.inject(|| {
        sleeper = Some(thread::spawn(move || {
            let client = redis::Client::open(("127.0.0.1", port)).unwrap();
            let mut connection = client.get_connection().unwrap();
            while !told.load(Ordering::SeqCst) {
                redis::cmd("DEBUG").arg("SLEEP").arg("0.05").exec(&mut connection).unwrap();
            }
        }));
    });
    trial.until_local();
    trial.fault();
    trial.heal(|| {
        stop.store(true, Ordering::SeqCst);
        sleeper.unwrap().join().unwrap();
    });
    trial.until_redis();
    bounded(&trial.end())
}

pub fn black_hole() -> Observation {
    let stand = RedisBehindProxy::proxied(&[]);
    bounded(&disturbed(&stand, |proxy| proxy.both(Fault::Swallow)))
}

pub fn half_open() -> Observation {
    let stand = RedisBehindProxy::proxied(&[]);
    let mut seen = bounded(&disturbed(&stand, Proxy::strand));
    // It recovers by itself as soon as it has dialled anew: there is nothing to heal.
    seen.recover = None;
    seen
}

pub fn dripping() -> Observation {
    let stand = RedisBehindProxy::proxied(&[]);
    let drip = Fault::Drip { bytes: 2, every: Duration::from_millis(10) };
    bounded(&disturbed(&stand, |proxy| proxy.replies(drip)))
}

pub fn throttled() -> Observation {
    let stand = RedisBehindProxy::proxied(&[]);
    bounded(&disturbed(&stand, |proxy| proxy.requests(Fault::Bandwidth(2_000))))
}

/// Every call has a counter of its own: one that holds more than one hit was charged twice.
fn charged_once(fault: impl Fn(&Proxy, u64)) -> (Outcome, u64) {
    let stand = RedisBehindProxy::proxied(&[]);
    let mut trial = Trial::with(&[&stand.tidegate], rate(), &each_its_own("wide"));
    trial.calls(rate() / 2);
    trial.inject(|| ());
    for round in 0..either(6, 20) {
        fault(stand.proxy(), round);
        trial.calls(rate() / 5);
    }
    trial.heal(|| stand.proxy().heal());
    trial.until_redis();
    let unknown = trial.figures.metric("redis_unknown_total");
    let outcome = trial.end();
    outcome.assert_no_errors();
    let Value::Array(keys) = stand.server.ask(&["KEYS", "tg1w*"]) else { panic!("no keys") };
    assert!(keys.len() > 50, "{} counters in Redis", keys.len());
    for key in keys {
        let key: String = redis::from_redis_value(key).unwrap();
        // A window's state: its number, then ten digits of hits.
        let hits = stand.server.count(&key) % 10_000_000_000;
        assert_eq!(hits, 1, "{key} was charged {hits} times");
    }
    (outcome, unknown)
}

fn twice_is_never((outcome, unknown): (Outcome, u64)) -> Observation {
    let said = format!("0 charged twice, {unknown} unknown, {} % local", outcome.local_share());
    Observation { recover: None, ..Observation::of(&outcome, said) }
}

pub fn resets() -> Observation {
    let seen = charged_once(|proxy, round| match round % 2 {
        0 => proxy.replies(Fault::ResetAfter(200 + 37 * round)),
        _ => proxy.requests(Fault::ResetAfter(900 + 101 * round)),
    });
    assert!(seen.1 > 0, "no outcome was unknown");
    twice_is_never(seen)
}

pub fn cuts() -> Observation {
    twice_is_never(charged_once(|proxy, round| proxy.replies(Fault::CutAfter(150 + 41 * round))))
}

pub fn lost_bytes() -> Observation {
    twice_is_never(charged_once(|proxy, round| proxy.replies(Fault::DropOneIn(100 + 7 * round))))
}

/// Turned-over bits and replies that no script of ours gives. What a reply says is believed as far as
/// it can be true; the caller is answered whatever it says.
pub fn lies() -> Observation {
    const LIES: [&[u8]; 6] =
        [b":-1\r\n", b"$-1\r\n", b"*1\r\n:7\r\n", b"+QUEUED\r\n", b"*-1\r\n", b"-WEIRD x\r\n"];
    let stand = RedisBehindProxy::proxied(&[]);
    let mut trial = Trial::start(&stand.tidegate);
    trial.calm();
    trial.inject(|| stand.proxy().replies(Fault::Corrupt));
    trial.calls(rate() / 2);
    for lie in LIES {
        // As many as there were replies, or nobody would wait for the rest.
        let lie = move |bytes: &[u8]| {
            let replies = bytes.windows(2).filter(|pair| *pair == b"\r\n").count();
            lie.repeat(replies.max(1))
        };
        stand.proxy().replies(Fault::Rewrite(Arc::new(lie)));
        trial.calls(rate() / 5);
    }
    trial.heal(|| stand.proxy().heal());
    trial.until_redis();
    let unreadable = trial.figures.metric("redis_unreadable_total");
    let outcome = trial.end();
    outcome.assert_no_errors();
    let said = format!("0 errors, {unreadable} replies not believed");
    Observation { recover: None, ..Observation::of(&outcome, said) }
}

/// The time that Redis tells its scripts, off by as much as a test likes: the proxy fills in the
/// argument that tests have for it.
fn off(by: &Arc<AtomicI64>) -> Fault {
    let by = Arc::clone(by);
    Fault::Rewrite(Arc::new(move |bytes| {
        const EMPTY: &[u8] = b"\r\n$0\r\n\r\n";
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let now = since.as_micros() as i64 + by.load(Ordering::SeqCst);
        let told = format!("\r\n$16\r\n{now}\r\n").into_bytes();
        let mut out = Vec::with_capacity(bytes.len() + 32);
        let mut at = 0;
        while at < bytes.len() {
            if bytes[at..].starts_with(EMPTY) {
                out.extend_from_slice(&told);
                at += EMPTY.len();
            } else {
                out.push(bytes[at]);
                at += 1;
            }
        }
        out
    }))
}

/// The bucket of the policy: what it holds, and what comes back in a second.
const BURST: u64 = 20;
const REFILL: f64 = 10.0;

pub fn clock_jumps() -> Observation {
    const HOUR: i64 = 3_600_000_000;
    const JUMPS: [i64; 4] = [HOUR, 0, 10_000_000, 0];
    let stand = RedisBehindProxy::proxied(&["--rejection-cache", "false", "--redis-budget", "2s"]);
    let by: Arc<AtomicI64> = Arc::default();
    stand.proxy().requests(off(&by));
    let mut trial = Trial::with(&[&stand.tidegate], either(100, 400), &in_turn("bucket", 3));
    trial.calls(either(100, 400));
    trial.inject(|| ());
    let mut beyond = Vec::new();
    for jump in JUMPS {
        let from = trial.load.now();
        by.store(jump, Ordering::SeqCst);
        trial.calls(either(150, 800));
        beyond.push(from);
    }
    trial.heal(|| ());
    let clamped = trial.figures.metric("redis_clamped_total");
    let outcome = trial.end();
    outcome.assert_no_errors();
    for (from, jump) in beyond.iter().zip(JUMPS) {
        for key in 0..3 {
            let passes = outcome.book.iter().any(|entry| {
                entry.due >= *from && entry.key == key && entry.told == CallResult::Admitted
            });
            assert!(passes, "counter {key} is stuck after a jump to {jump}");
        }
    }
    let beyond = admission_oracle::beyond_bucket(&outcome.book, BURST, REFILL);
    let said = format!("no counter stuck, {clamped} clamped");
    // A jump forth fills the bucket once; each way back at most as much again.
    assert!(beyond <= JUMPS.len() as f64, "{beyond} bursts too many");
    Observation {
        beyond: Some(beyond),
        detect: None,
        recover: None,
        ..Observation::of(&outcome, said)
    }
}

/// One replica of two is cut off from Redis; the other is not.
pub fn partition() -> Observation {
    let server = redis_behind_proxy::redis(&[]);
    let proxy = Proxy::start(server.port);
    let cut_off = redis_behind_proxy::tidegate(proxy.port, &["--replicas", "2"]);
    let mut flags = vec!["--replicas", "2"];
    flags.extend(redis_behind_proxy::PATIENT);
    let other = redis_behind_proxy::tidegate(server.port, &flags);
    let mut trial = Trial::with(&[&cut_off, &other], rate(), &in_turn("local", keys() - 1));
    trial.calm();
    trial.inject(|| proxy.both(Fault::Swallow));
    trial.until_local();
    trial.fault();
    trial.fault();
    trial.heal(|| proxy.heal());
    trial.until_redis();
    let outcome = trial.end();
    outcome.assert_no_errors();
    let said = format!("the cut-off one {} % local, the other none", outcome.local_share());
    let seen = Observation::of(&outcome, said);
    // The shared limit, and the share of the one that is alone.
    seen.assert_beyond_at_most(0.5);
    seen
}

/// What the rules promise is about this policy.
#[test]
fn the_clock_is_tried_on_the_bucket_of_the_policy() {
    assert!(policy().contains(&format!("requests_per_unit: {REFILL}, burst: {BURST}")));
}
