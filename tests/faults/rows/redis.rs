//! Redis itself fails: gone, restarted, full, busy, demoted, locked.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::admission_oracle;
use crate::grpc_caller::{CallResult, question};
use crate::open_loop_load::{CallPlan, in_turn};
use crate::redis_behind_proxy::{self, PATIENT, RedisBehindProxy};
use crate::results_table::Observation;
use crate::support::acl;
use crate::support::http::{self, Reply};
use crate::support::redis_server::Server;
use crate::support::wait::until_so as until;
use crate::trial::{Outcome, Trial, either, keys, limit, p99};

/// Threads that a Tidegate may start to dial with.
const THREADS_TO_DIAL: usize = 4;

/// No caller sees an error, and an outage admits at most its limit once more.
fn bounded(outcome: &Outcome, more: &str) -> Observation {
    outcome.assert_no_errors();
    let seen = Observation::of(outcome, format!("{} % local{more}", outcome.local_share()));
    seen.assert_beyond_at_most(1.0);
    seen
}

/// The same where Redis comes back empty, which grants the limit once more. Where times are measured
/// the budget is the usual one, and a starved machine has outages of its own besides.
fn bounded_but_forgotten(outcome: &Outcome, more: &str) -> Observation {
    outcome.assert_no_errors();
    let seen = Observation::of(outcome, format!("{} % local{more}", outcome.local_share()));
    seen.assert_beyond_at_most(either(1.0, 2.0));
    seen
}

/// A killed Redis is noticed without a budget.
fn patient_if_brief() -> Vec<&'static str> {
    either(PATIENT.to_vec(), Vec::new())
}

/// The usual trial, on one Redis behind a proxy: a fault, some time, a cure.
fn disturbed(
    stand: &RedisBehindProxy,
    fault: impl FnOnce(&Server),
    cure: impl FnOnce(&Server),
) -> Outcome {
    let mut trial = Trial::start(&stand.tidegate);
    trial.calm();
    trial.inject(|| fault(&stand.server));
    trial.until_local();
    trial.fault();
    trial.heal(|| cure(&stand.server));
    trial.until_redis();
    trial.end()
}

/// Calls a second that are promised to be answered while Redis is killed.
fn promised_rate() -> u64 {
    either(500, 2_000)
}

fn killed(rule: &'static str, flags: &[&str]) -> (Outcome, RedisBehindProxy) {
    let mut stand = RedisBehindProxy::plain(flags);
    let mut trial = Trial::with(&[&stand.tidegate], promised_rate(), &in_turn(rule, keys()));
    trial.calm();
    let server = &mut stand.server;
    trial.inject(|| server.kill());
    trial.until_local();
    trial.fault();
    trial.calls(promised_rate());
    trial.heal(|| server.restart());
    trial.until_redis();
    (trial.end(), stand)
}

pub fn killed_local() -> Observation {
    let (outcome, _stand) = killed("local", &patient_if_brief());
    bounded_but_forgotten(&outcome, ", 0 errors")
}

/// A refusal that Redis gave before it was killed is remembered for a second; here it is not.
pub fn killed_allow() -> Observation {
    let (outcome, _stand) = killed("allow", &["--rejection-cache", "false"]);
    outcome.assert_no_errors();
    let known = outcome.detected().unwrap_or_default() + outcome.injected;
    let away = outcome.during().filter(|entry| entry.due > known + Duration::from_millis(100));
    let refused = away.filter(|entry| entry.told == CallResult::Refused).count();
    let mut seen = Observation::of(&outcome, format!("all pass ({refused} refused), 0 errors"));
    assert_eq!(refused, 0, "the rule says that all pass");
    seen.beyond = None;
    seen
}

/// Every call is answered, and from 200 ms on none waits for the frozen Redis.
pub fn frozen() -> Observation {
    let stand = RedisBehindProxy::plain(&[]);
    let mut trial = Trial::with(&[&stand.tidegate], promised_rate(), &in_turn("local", keys()));
    trial.calm();
    let opened = |trial: &Trial| trial.figures.metric("redis_breaker_opened_total");
    let before = opened(&trial);
    trial.inject(|| stand.server.freeze());
    trial.until_local();
    trial.fault();
    trial.calls(promised_rate());
    assert!(opened(&trial) <= before + 1, "it opens once and stays open");
    trial.heal(|| stand.server.thaw());
    trial.until_redis();
    let outcome = trial.end();
    let known = outcome.injected + Duration::from_millis(200);
    let mut seen = bounded(&outcome, ", 0 errors");
    seen.p99 = p99(outcome.during().filter(|entry| entry.due >= known));
    seen
}

pub fn cold_start() -> Observation {
    let mut server = redis_behind_proxy::redis(&[]);
    server.kill();
    let began = std::time::Instant::now();
    let tidegate = redis_behind_proxy::tidegate(server.port, &[]);
    let ready_after = began.elapsed();
    let stand = RedisBehindProxy { tidegate, proxy: None, server };
    assert!(stand.tidegate.logged("Redis is not connected, starting without it").is_some());
    let mut trial = Trial::start(&stand.tidegate);
    trial.inject(|| ());
    trial.fault();
    let Reply { status, body: told, .. } = http::get(stand.tidegate.port("http"), "/readyz");
    assert!(status == 200 && told.starts_with("ready, degraded"), "{told}");
    let RedisBehindProxy { tidegate: _tidegate, mut server, .. } = stand;
    trial.heal(|| server.restart());
    trial.until_redis();
    let outcome = trial.end();
    let mut seen = bounded(&outcome, &format!(", ready in {} ms", ready_after.as_millis()));
    seen.calm = seen.p99;
    seen
}

pub fn restarted_empty() -> Observation {
    let mut stand = RedisBehindProxy::plain(&patient_if_brief());
    let mut trial = Trial::start(&stand.tidegate);
    trial.calm();
    let server = &mut stand.server;
    trial.inject(|| {
        let _ends = server.try_ask(&["SHUTDOWN", "NOSAVE"]);
        server.restart();
    });
    trial.until_redis();
    trial.heal(|| ());
    trial.calls(2 * u64::from(keys()) * limit());
    let mut seen = bounded_but_forgotten(&trial.end(), "");
    seen.recover = None;
    seen
}

pub fn scripts_flushed() -> Observation {
    let stand = RedisBehindProxy::plain(&PATIENT);
    let mut trial = Trial::start(&stand.tidegate);
    trial.calm();
    let stop = Arc::new(AtomicBool::new(false));
    let (told, port) = (Arc::clone(&stop), stand.server.port);
    let flushing = thread::spawn(move || {
        let client = redis::Client::open(("127.0.0.1", port)).unwrap();
        let mut connection = client.get_connection().unwrap();
        while !told.load(Ordering::SeqCst) {
            redis::cmd("SCRIPT").arg("FLUSH").exec(&mut connection).unwrap();
            thread::sleep(Duration::from_millis(100));
        }
    });
    trial.inject(|| ());
    trial.fault();
    trial.heal(|| stop.store(true, Ordering::SeqCst));
    flushing.join().unwrap();
    let missed = trial.figures.metric("redis_noscript_total");
    assert!(missed > 0, "no script was missed");
    let outcome = trial.end();
    let mut seen = bounded(&outcome, &format!(", {missed} scripts loaded again"));
    seen.recover = None;
    assert_eq!((seen.beyond, outcome.local_share()), (Some(0.0), 0));
    seen
}

/// Every other call asks a counter that is used up before the fault.
fn half_used_up() -> CallPlan {
    let (usual, used_up) = (in_turn("local", keys()), question(&[&[("narrow", "hot")]]));
    Arc::new(move |number| match number % 2 {
        0 => usual(number / 2),
        _ => (keys(), used_up.clone()),
    })
}

pub fn out_of_memory() -> Observation {
    let stand = RedisBehindProxy::plain(&["--rejection-cache", "false"]);
    let mut trial = Trial::with(&[&stand.tidegate], crate::trial::rate(), &half_used_up());
    trial.calm();
    trial.inject(|| drop(stand.server.ask(&["CONFIG", "SET", "maxmemory", "1"])));
    trial.until_local();
    trial.fault();
    let redis = trial.figures.latest().redis;
    trial.fault();
    until("a full Redis to tell who is refused", || trial.figures.latest().redis > redis);
    trial.heal(|| drop(stand.server.ask(&["CONFIG", "SET", "maxmemory", "0"])));
    trial.until_redis();
    bounded(&trial.end(), ", refusals by Redis")
}

pub fn demoted() -> Observation {
    let stand = RedisBehindProxy::plain(&[]);
    let outcome = disturbed(
        &stand,
        |server| drop(server.ask(&["REPLICAOF", "127.0.0.1", "1"])),
        |server| drop(server.ask(&["REPLICAOF", "NO", "ONE"])),
    );
    bounded(&outcome, "")
}

pub fn busy() -> Observation {
    let server = redis_behind_proxy::redis(&["busy-reply-threshold 50"]);
    let tidegate = redis_behind_proxy::tidegate(server.port, &[]);
    let stand = RedisBehindProxy { tidegate, proxy: None, server };
    let threads = stand.tidegate.proc_status("Threads");
    let mut trial = Trial::start(&stand.tidegate);
    trial.calm();
    let port = stand.server.port;
    let millis = either(800, 3_000);
    trial.inject(|| {
        thread::spawn(move || {
            let script = format!(
                "local function now() local t = redis.call('TIME') return t[1] * 1000 + t[2] / 1000 end \
                 local from = now() while now() < from + {millis} do end"
            );
            let client = redis::Client::open(("127.0.0.1", port)).unwrap();
            let mut connection = client.get_connection().unwrap();
            let _ = redis::cmd("EVAL").arg(script).arg(0).exec(&mut connection);
        });
    });
    trial.until_local();
    let server = &stand.server;
    until("the script to end", || server.try_ask(&["GET", "x"]).is_ok());
    trial.heal(|| ());
    trial.until_redis();
    // Dialling resolves names on threads of the runtime's; calls have none of their own.
    let more = stand.tidegate.proc_status("Threads").saturating_sub(threads);
    assert!(more <= THREADS_TO_DIAL, "{more} threads more: calls are parked in them");
    bounded(&trial.end(), "")
}

pub fn paused() -> Observation {
    let stand = RedisBehindProxy::plain(&[]);
    let outcome = disturbed(
        &stand,
        |server| drop(server.ask(&["CLIENT", "PAUSE", "60000", "WRITE"])),
        |server| drop(server.ask(&["CLIENT", "UNPAUSE"])),
    );
    bounded(&outcome, "")
}

pub fn locked_out() -> Observation {
    let stand = RedisBehindProxy::plain(&[]);
    let mut trial = Trial::start(&stand.tidegate);
    trial.calm();
    let lines = stand.tidegate.log().lines().count();
    let server = &stand.server;
    trial.inject(|| drop(server.ask(&["ACL", "SETUSER", acl::USER, "-evalsha"])));
    trial.until_local();
    trial.fault();
    // And the password is another one, for whoever comes anew.
    let other = ["ACL", "SETUSER", acl::USER, "+evalsha", "resetpass", ">other"];
    server.ask(&other);
    server.ask(&["CLIENT", "KILL", "USER", acl::USER]);
    trial.until_local();
    trial.fault();
    let logged = stand.tidegate.log().lines().count() - lines;
    assert!(logged < 20, "{logged} lines:\n{}", stand.tidegate.log());
    assert!(stand.tidegate.logged("Redis denied the login or a command").is_some());
    let back = format!(">{}", acl::PASSWORD);
    trial.heal(|| drop(server.ask(&["ACL", "SETUSER", acl::USER, "resetpass", &back])));
    trial.until_redis();
    bounded(&trial.end(), &format!(", {logged} lines of log"))
}

pub fn evicting() -> Observation {
    let user = acl::line(&format!("{} +info", acl::SINGLE));
    let server = Server::start(&[&user, "maxmemory 3mb", "maxmemory-policy volatile-ttl"]);
    let tidegate = redis_behind_proxy::tidegate(server.port, &PATIENT);
    let warned = "Redis may evict counters: set maxmemory-policy noeviction";
    assert!(tidegate.logged(warned).is_some(), "{}", tidegate.log());
    let mut trial = Trial::start(&tidegate);
    trial.calm();
    let port = server.port;
    trial.inject(move || {
        let client = redis::Client::open(("127.0.0.1", port)).unwrap();
        let mut connection = client.get_connection().unwrap();
        // Noise that outlives the counters: with this policy they go first.
        for number in 0..4_000 {
            let mut noise = redis::cmd("SET");
            noise
                .arg(format!("noise:{number}"))
                .arg("x".repeat(1_000))
                .arg("EX")
                .arg(1_000_000_000);
            let _ = noise.exec(&mut connection);
        }
    });
    trial.calls(2 * u64::from(keys()) * limit());
    let outcome = trial.end();
    outcome.assert_no_errors();
    let beyond = admission_oracle::beyond(&outcome.book, limit());
    let mut seen =
        Observation::of(&outcome, format!("warned; {:.1} times the limit", 1.0 + beyond));
    seen.recover = None;
    seen
}
