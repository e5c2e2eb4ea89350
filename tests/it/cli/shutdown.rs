//! SIGTERM and SIGINT: probes fail, calls are served for the drain delay, the exit code is 0, and
//! nobody can hold the process past the hard limit.

use std::net::TcpStream;

use crate::support::http::get;
use crate::support::tidegate_process::{FIVE_A_DAY, Tidegate};
use crate::support::wait::until;

#[test]
fn during_the_drain_probes_fail_and_calls_are_answered() {
    let mut serving = Tidegate::policy(FIVE_A_DAY, &["--drain-delay", "4s", "--hard-limit", "30s"]);
    let http = serving.port("http");
    serving.signal("TERM");
    until("readiness to say no", || (get(http, "/readyz").status == 503).then_some(()));
    assert_eq!(get(http, "/healthcheck").status, 500);
    assert_eq!(get(http, "/healthz").status, 200, "it is not ill, it is leaving");
    assert!(serving.ask("ann").contains("4 left"));
    assert_eq!(serving.exit_code(), Some(0));
    assert!(serving.logged("stopped").is_some(), "{}", serving.log());
}

#[test]
fn sigint_and_sighup_shut_down_like_sigterm() {
    for signal in ["INT", "HUP"] {
        let flags = ["--drain-delay", "0s", "--hard-limit", "10s"];
        let mut serving = Tidegate::policy(FIVE_A_DAY, &flags);
        serving.signal(signal);
        assert_eq!(serving.exit_code(), Some(0), "{signal}");
    }
}

#[test]
fn silent_connections_cannot_delay_the_exit() {
    let flags = ["--drain-delay", "0s", "--hard-limit", "1s", "--preface-timeout", "60s"];
    let mut serving = Tidegate::policy(FIVE_A_DAY, &flags);
    let _silent: Vec<TcpStream> = ["grpc", "http", "debug"]
        .into_iter()
        .map(|port| TcpStream::connect(serving.port(port)).expect("it listens"))
        .collect();
    serving.signal("TERM");
    assert_eq!(serving.exit_code(), Some(0));
}
