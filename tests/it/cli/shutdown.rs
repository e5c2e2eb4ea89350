//! SIGTERM and SIGINT: probes fail, calls are served for the drain delay (SIGTERM only), the exit code
//! is 0, and nobody can hold the process past the hard limit.

use std::net::TcpStream;

use crate::support::http::get;
use crate::support::redis_server::free_port;
use crate::support::tidegate_process::{FIVE_A_DAY, Tidegate, directory, tidegate};
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

/// Long beyond the patience of a test: whoever waits for it fails.
const LONG: [&str; 4] = ["--drain-delay", "9m", "--hard-limit", "10m"];

#[test]
fn sigint_shuts_down_without_the_drain_delay() {
    let mut serving = Tidegate::policy(FIVE_A_DAY, &LONG);
    serving.signal("INT");
    assert_eq!(serving.exit_code(), Some(0));
    assert!(serving.logged("stopped").is_some(), "{}", serving.log());
}

#[test]
fn a_second_signal_ends_the_process_at_once() {
    for second in ["TERM", "INT"] {
        let mut serving = Tidegate::policy(FIVE_A_DAY, &LONG);
        serving.signal("TERM");
        serving.logged_in_time("stopping");
        serving.signal(second);
        assert_eq!(serving.exit_code(), Some(0), "{second}");
        assert!(serving.logged("second signal, exiting at once").is_some(), "{}", serving.log());
    }
}

#[test]
fn sigterm_ends_the_wait_for_a_required_store() {
    let url = format!("127.0.0.1:{}", free_port());
    let files = directory(&[("policy.yaml", FIVE_A_DAY)]);
    let mut command = tidegate();
    command.args(["serve", "--require-store", "true", "--redis-url", &url, "--policy"]);
    command.arg(files.path().join("policy.yaml"));
    let mut serving = Tidegate::start_listening(&mut command, files);
    serving.signal("TERM");
    assert_eq!(serving.exit_code(), Some(0), "69 is the code of a store that was not reached");
    let message = "stopped before Redis was connected";
    assert!(serving.logged(message).is_some(), "{}", serving.log());
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
