//! Callers that abuse HTTP/2 while others call normally.
//!
//! Not here: each abuse by itself, frame by frame (`tests/it/hostile/http2_abuse.rs`).

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use crate::redis_behind_proxy::{PATIENT, RedisBehindProxy};
use crate::results_table::Observation;
use crate::support::raw_http2::{
    CONTINUATION, DATA, END_HEADERS, HEADERS, PREFACE, RST_STREAM, SETTINGS, frame,
};
use crate::support::wait::until_so as until;
use crate::trial::{Trial, either, rate};

const CANCEL: [u8; 4] = [0, 0, 0, 8];

fn hello() -> Vec<u8> {
    [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat()
}

/// POST of something, over HTTP: the static table's entries 3, 6 and 4.
const BLOCK: [u8; 3] = [0x83, 0x86, 0x84];

/// Calls that are reset as soon as they are opened.
fn rapid_resets(many: u32) -> Vec<u8> {
    let mut bytes = hello();
    for stream in (0..many).map(|call| 2 * call + 1) {
        bytes.extend(frame(HEADERS, END_HEADERS, stream, &BLOCK));
        bytes.extend(frame(RST_STREAM, 0, stream, &CANCEL));
    }
    bytes
}

/// Headers that never end.
fn continuations() -> Vec<u8> {
    let mut bytes = [hello(), frame(HEADERS, 0, 1, &BLOCK)].concat();
    let filler = [&[0, 1][..], b"x", &[100], &[b'y'; 100]].concat().repeat(100);
    (0..200).for_each(|_| bytes.extend(frame(CONTINUATION, 0, 1, &filler)));
    bytes
}

/// Frames of data that carry nothing, for a call that does not exist.
fn empty_frames() -> Vec<u8> {
    let mut bytes = [hello(), frame(HEADERS, END_HEADERS, 1, &BLOCK)].concat();
    (0..20_000).for_each(|_| bytes.extend(frame(DATA, 0, 1, &[])));
    bytes
}

/// Sends it all and reads until the other side has had enough, or half a second is over.
fn abuse(address: SocketAddr, bytes: &[u8]) {
    let Ok(mut stream) = TcpStream::connect(address) else { return };
    let _ = stream.set_read_timeout(Some(Duration::from_millis(500)));
    let _ = stream.set_write_timeout(Some(Duration::from_millis(500)));
    let _ = stream.write_all(bytes);
    let _ = stream.read_to_end(&mut Vec::new());
}

pub fn http2() -> Observation {
    let idle = either(200, 10_000);
    let stand = RedisBehindProxy::plain(&PATIENT);
    let address = stand.tidegate.port("grpc");
    let mut trial = Trial::start(&stand.tidegate);
    trial.calm();
    let mut held = Vec::new();
    trial.inject(|| ());
    // Slow prefaces: three bytes, and then nothing; two thousand a second.
    for number in 0..idle {
        if let Ok(mut stream) = TcpStream::connect(address) {
            let _ = stream.write_all(&PREFACE[..3]);
            held.push(stream);
        }
        if number % 50 == 0 {
            trial.calls(rate() / 40);
        }
    }
    let floods = [rapid_resets(either(3_000, 100_000)), continuations(), empty_frames()];
    thread::scope(|scope| {
        for bytes in &floods {
            scope.spawn(move || abuse(address, bytes));
        }
    });
    trial.fault();
    trial.heal(|| ());
    // The two lines of the load; whoever abused is gone, whoever was slow too.
    until("they to be gone", || trial.figures.metric("connections") <= 2);
    let evicted = trial.figures.metric("connections_evicted_total");
    let outcome = trial.end();
    outcome.assert_no_errors();
    let many = held.len();
    let said = format!("{many} silent connections and three floods gone, {evicted} over the bound");
    let seen = Observation { detect: None, recover: None, ..Observation::of(&outcome, said) };
    seen.assert_beyond_at_most(0.0);
    seen
}
