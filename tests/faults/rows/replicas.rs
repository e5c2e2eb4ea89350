//! One of two replicas leaves, gracefully or not; callers follow its health, as Envoy does.

use std::io::Write as _;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::grpc_caller::CallResult;
use crate::open_loop_load::in_turn;
use crate::redis_behind_proxy::{self, PATIENT};
use crate::results_table::Observation;
use crate::support::http;
use crate::support::wait::until_so as until;
use crate::tidegate_replica::Tidegate;
use crate::trial::{Trial, at_length, keys, limit, rate};

/// How often Envoy asks for health with config/envoy.yaml.
const HEALTH_CHECK: Duration = Duration::from_millis(250);
const HARD_LIMIT: Duration = Duration::from_secs(3);

/// Callers that freeze: one after the preface, one in the middle of a call's headers, one at once.
fn frozen(tidegate: &Tidegate) -> Vec<TcpStream> {
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    const HEADERS_BEGUN: [u8; 10] = [0, 0, 40, 1, 4, 0, 0, 0, 1, 0x83];
    [vec![], [PREFACE, &SETTINGS].concat(), [PREFACE, &SETTINGS, &HEADERS_BEGUN].concat()]
        .iter()
        .map(|bytes| {
            let mut stream = TcpStream::connect(tidegate.port("grpc")).unwrap();
            stream.write_all(bytes).unwrap();
            stream
        })
        .collect()
}

pub fn terminated() -> Observation {
    let server = redis_behind_proxy::redis(&[]);
    let mut flags = PATIENT.to_vec();
    let hard_limit = format!("{}s", HARD_LIMIT.as_secs());
    flags.extend(["--drain-delay", "1s", "--hard-limit", &hard_limit]);
    let stays = redis_behind_proxy::tidegate(server.port, &flags);
    let mut leaves = redis_behind_proxy::tidegate(server.port, &flags);
    let mut trial = Trial::with(&[&stays, &leaves], rate(), &in_turn("local", keys() - 1));
    let _frozen = frozen(&leaves);
    trial.calm();
    trial.inject(|| leaves.signal(Signal::TERM));
    let told = Instant::now();
    let mut noticed = None;
    while noticed.is_none() {
        std::thread::sleep(HEALTH_CHECK);
        let health = http::try_get(leaves.port("http"), "/healthcheck");
        if health.is_none_or(|reply| reply.status != 200) {
            trial.load.close(1);
            noticed = Some(told.elapsed());
        }
    }
    assert_eq!(leaves.exit_code(), Some(0));
    let left = told.elapsed();
    assert!(!at_length() || left <= HARD_LIMIT + Duration::from_millis(500), "{left:?}");
    trial.fault();
    let outcome = trial.end();
    outcome.assert_no_errors();
    let said = format!("0 lost, left in {:.1} s of {hard_limit}", left.as_secs_f64());
    let seen = Observation { detect: noticed, recover: None, ..Observation::of(&outcome, said) };
    seen.assert_beyond_at_most(0.0);
    seen
}

pub fn killed() -> Observation {
    let server = redis_behind_proxy::redis(&[]);
    let flags = PATIENT;
    let stays = redis_behind_proxy::tidegate(server.port, &flags);
    let mut dies = redis_behind_proxy::tidegate(server.port, &flags);
    let mut trial = Trial::with(&[&stays, &dies], rate(), &in_turn("local", keys() - 1));
    trial.calm();
    trial.inject(|| dies.signal(Signal::KILL));
    let _code = dies.exit_code();
    until("its health to be missed", || http::try_get(dies.port("http"), "/healthcheck").is_none());
    trial.load.close(1);
    trial.fault();
    trial.fault();
    let outcome = trial.end();
    let lost = outcome.failed();
    assert!(
        lost.iter().all(|entry| entry.target == 1 && entry.told == CallResult::Lost),
        "{lost:?}"
    );
    let admitted: u64 = crate::admission_oracle::admitted(&outcome.book).into_values().sum();
    let most = u64::from(keys() - 1) * limit();
    assert!(admitted + lost.len() as u64 >= most, "{admitted} of {most}, {} lost", lost.len());
    let said = format!("{} calls lost with it, {admitted} of {most} admitted", lost.len());
    let seen = Observation { detect: None, recover: None, ..Observation::of(&outcome, said) };
    seen.assert_beyond_at_most(0.0);
    seen
}
