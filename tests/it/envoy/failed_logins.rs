//! Failed logins only, charged after the answer (`config/examples/failed-logins`) and taken before and
//! refunded (`config/examples/failed-logins-refunded`): which answers count is the example's choice.

use std::fs;
use std::net::SocketAddr;

use tempfile::{NamedTempFile, TempDir};

use super::backend::Backend;
use super::bootstrap::{Bootstrap, repository};
use super::envoy_process::Edge;
use super::http_client::{Begun, Reply, post};
use super::slow_backend::{End, Exports};
use super::stack::written;
use super::tidegate_behind_envoy::Tidegate;
use crate::support::wait;

/// As both examples state it.
const LIMIT: u64 = 5;
const FAILURES: &str = "response.code in [401, 403]";

const EXAMPLES: [&str; 2] = ["failed-logins", "failed-logins-refunded"];

/// An example behind Envoy. Its minutes are months, so that no window ends while a test runs.
struct Stand {
    edge: Edge,
    tidegate: Tidegate,
    _directory: TempDir,
    _files: [NamedTempFile; 2],
}

impl Stand {
    /// The example in front of a service, with these answers as failures. Calls that fail let their
    /// request pass.
    fn new(name: &str, failures: &str, service: SocketAddr) -> Stand {
        let read = |file: &str| {
            fs::read_to_string(repository(&format!("config/examples/{name}/{file}.yaml")))
                .expect("the example")
        };
        let (policy, routes) = (read("policy"), read("routes"));
        assert_eq!(routes.matches(FAILURES).count(), 1, "{name}");
        let routes = written(&routes.replace(FAILURES, failures));
        let policy = written(&policy.replace("unit: minute", "unit: month"));
        let directory = TempDir::new().expect("a temporary directory");
        let tidegate = Tidegate::start(policy.path(), &[]);
        let bootstrap = Bootstrap::shipped()
            .with_routes(routes.path())
            .with_undecided("/undecided")
            .aimed_at(service, &[tidegate.grpc])
            .with_filter("failure_mode_deny", false);
        let edge = Edge::start(&bootstrap, directory.path(), 1);
        Stand { edge, tidegate, _directory: directory, _files: [policy, routes] }
    }

    /// Failed logins that are left.
    fn left(&self) -> u64 {
        let left = self.tidegate.left("edge", "endpoint=login,remote_address=127.0.0.1");
        left["failed-logins"]
    }

    /// Sends a login that the service answers like this, and waits until both of its calls are over:
    /// Envoy does not wait for the second one.
    fn log_in(&self, path: &str, answer: u16) -> Reply {
        let calls = || self.edge.counter("cluster.tidegate.upstream_rq_completed");
        let before = calls();
        let reply = self.edge.ask(&post(path).with("x-backend-status", answer.to_string()));
        wait::until("both calls", || (calls() == before + 2).then_some(()));
        reply
    }
}

#[test]
fn which_answers_are_charged_is_the_choice_of_the_example() {
    const ANSWERS: [u16; 5] = [200, 401, 403, 404, 429];
    let choices: [(&str, &[u16]); 3] = [
        (FAILURES, &[401, 403]),
        ("response.code == 401", &[401]),
        ("response.code >= 400", &[401, 403, 404, 429]),
    ];
    let backend = Backend::start();
    for name in EXAMPLES {
        for (failures, charged) in choices {
            let stand = Stand::new(name, failures, backend.address);
            let mut left = LIMIT;
            for answer in ANSWERS {
                assert_eq!(stand.log_in("/login", answer).status, answer);
                left -= u64::from(charged.contains(&answer));
                assert_eq!(stand.left(), left, "{name}, {failures}: after {answer}");
            }
        }
    }
}

#[test]
fn after_the_last_failure_nobody_may_try_and_a_refusal_changes_nothing() {
    let backend = Backend::start();
    for name in EXAMPLES {
        let stand = Stand::new(name, FAILURES, backend.address);
        for answer in [401, 403, 401, 403, 401] {
            assert_eq!(stand.log_in("/login", answer).status, answer, "{name}");
        }
        let served = backend.served();
        for answer in [200, 401, 404] {
            let reply = stand.log_in("/login", answer);
            assert_eq!((reply.status, reply.header("x-envoy-ratelimited")), (429, Some("true")));
            assert!(reply.header("retry-after").is_some(), "{name}: {reply:?}");
            assert_eq!(stand.left(), 0, "{name}");
        }
        assert_eq!(backend.served(), served, "{name}: a refused login reached the service");
    }
}

#[test]
fn a_login_that_nobody_decided_gives_nothing_back() {
    let backend = Backend::start();
    let stand = Stand::new("failed-logins-refunded", FAILURES, backend.address);
    stand.log_in("/login", 401);
    for answer in [200, 404] {
        assert_eq!(stand.log_in("/undecided", answer).status, answer);
        assert_eq!(stand.left(), LIMIT - 1);
    }
}

#[test]
fn of_logins_at_the_same_time_no_more_than_the_limit_pass_if_they_are_charged_before() {
    let service = Exports::start("/login");
    let stand = Stand::new("failed-logins-refunded", FAILURES, service.address);
    let begin = |nth: u64| {
        let path = format!("/login?{nth}");
        let begun = post(&path).begin(stand.edge.address);
        wait::until(&path, || service.has(&path).then_some(()));
        begun
    };
    let mut begun: Vec<Begun> = (0..LIMIT).map(begin).collect();
    assert_eq!(stand.edge.ask(&post("/login?refused")).status, 429);
    service.end_first(End::Answer(200)).expect("a login");
    assert_eq!(begun.remove(0).finish().status, 200);
    wait::until("the hit of the right password", || (stand.left() == 1).then_some(()));
    begun.push(begin(LIMIT));
    while service.end_first(End::Answer(401)).is_some() {}
    assert!(begun.into_iter().all(|begun| begun.finish().status == 401));
    assert_eq!(stand.edge.ask(&post("/login?refused")).status, 429);
    assert_eq!(stand.left(), 0);
}

#[test]
fn a_guess_that_hangs_up_is_charged_only_if_it_was_charged_before() {
    let service = Exports::start("/login?held");
    for (name, left) in EXAMPLES.into_iter().zip([LIMIT, LIMIT - 1]) {
        let stand = Stand::new(name, FAILURES, service.address);
        let begun = post("/login?held").begin(stand.edge.address);
        wait::until("the guess", || service.has("/login?held").then_some(()));
        drop(begun);
        wait::until("the end of the guess", || (service.now() == 0).then_some(()));
        // Without an answer there is no code, and Envoy sends nothing at the end; nor does this one
        // change anything, but it comes after.
        stand.log_in("/login", 200);
        assert_eq!(stand.left(), left, "{name}");
    }
}
