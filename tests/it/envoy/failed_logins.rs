//! Failed logins only: charged after the response, or taken before it and refunded. The example
//! decides which responses count.

use std::fs;
use std::net::SocketAddr;

use tempfile::{NamedTempFile, TempDir};

use super::backend::Backend;
use super::bootstrap::{Bootstrap, repository};
use super::envoy_process::Envoy;
use super::http_client::{PendingRequest, Reply, post};
use super::slow_backend::{End, SlowBackend};
use super::stack::written;
use super::tidegate_behind_envoy::Tidegate;
use crate::support::wait;

/// As both examples state it.
const LIMIT: u64 = 5;
const FAILURES: &str = "response.code in [401, 403]";

const EXAMPLES: [&str; 2] = ["failed-logins", "failed-logins-refunded"];

/// An example behind Envoy. Its minutes are months, so that no window ends while a test runs.
struct Stack {
    edge: Envoy,
    tidegate: Tidegate,
    _directory: TempDir,
    _files: [NamedTempFile; 2],
}

impl Stack {
    /// The example in front of a service, with these answers as failures. Calls that fail let their
    /// request pass.
    fn new(name: &str, failures: &str, service: SocketAddr) -> Stack {
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
        let edge = Envoy::start(&bootstrap, directory.path(), 1);
        Stack { edge, tidegate, _directory: directory, _files: [policy, routes] }
    }

    /// Failed logins that are left.
    fn left(&self) -> u64 {
        let left = self.tidegate.left("edge", "endpoint=login,remote_address=127.0.0.1");
        left["failed-logins"]
    }

    /// Returns how many calls to Tidegate Envoy has completed.
    fn calls(&self) -> u64 {
        self.edge.counter("cluster.tidegate.upstream_rq_completed")
    }

    /// Sends a login that the service answers like this, and waits until both of its calls are over:
    /// Envoy does not wait for the second one.
    fn log_in(&self, path: &str, answer: u16) -> Reply {
        let before = self.calls();
        let reply = self.edge.ask(&post(path).with("x-backend-status", answer.to_string()));
        wait::until("both calls", || (self.calls() == before + 2).then_some(()));
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
            let stack = Stack::new(name, failures, backend.address);
            let mut left = LIMIT;
            for answer in ANSWERS {
                assert_eq!(stack.log_in("/login", answer).status, answer);
                left -= u64::from(charged.contains(&answer));
                assert_eq!(stack.left(), left, "{name}, {failures}: after {answer}");
            }
        }
    }
}

#[test]
fn after_the_last_failure_nobody_may_try_and_a_refusal_changes_nothing() {
    let backend = Backend::start();
    for name in EXAMPLES {
        let stack = Stack::new(name, FAILURES, backend.address);
        for answer in [401, 403, 401, 403, 401] {
            assert_eq!(stack.log_in("/login", answer).status, answer, "{name}");
        }
        let served = backend.served();
        for answer in [200, 401, 404] {
            let reply = stack.log_in("/login", answer);
            assert_eq!((reply.status, reply.header("x-envoy-ratelimited")), (429, Some("true")));
            assert!(reply.header("retry-after").is_some(), "{name}: {reply:?}");
            assert_eq!(stack.left(), 0, "{name}");
        }
        assert_eq!(backend.served(), served, "{name}: a refused login reached the service");
    }
}

#[test]
fn a_login_that_nobody_decided_gives_nothing_back() {
    let backend = Backend::start();
    let stack = Stack::new("failed-logins-refunded", FAILURES, backend.address);
    stack.log_in("/login", 401);
    for answer in [200, 404] {
        assert_eq!(stack.log_in("/undecided", answer).status, answer);
        assert_eq!(stack.left(), LIMIT - 1);
    }
}

#[test]
fn of_logins_at_the_same_time_no_more_than_the_limit_pass_if_they_are_charged_before() {
    let service = SlowBackend::start("/login");
    let stack = Stack::new("failed-logins-refunded", FAILURES, service.address);
    let begin = |nth: u64| {
        let path = format!("/login?{nth}");
        let begun = post(&path).begin(stack.edge.address);
        wait::until(&path, || service.has(&path).then_some(()));
        begun
    };
    let mut begun: Vec<PendingRequest> = (0..LIMIT).map(begin).collect();
    assert_eq!(stack.edge.ask(&post("/login?refused")).status, 429);
    service.end_first(End::Answer(200)).expect("a login");
    assert_eq!(begun.remove(0).finish().status, 200);
    wait::until("the hit of the right password", || (stack.left() == 1).then_some(()));
    begun.push(begin(LIMIT));
    while service.end_first(End::Answer(401)).is_some() {}
    assert!(begun.into_iter().all(|begun| begun.finish().status == 401));
    assert_eq!(stack.edge.ask(&post("/login?refused")).status, 429);
    assert_eq!(stack.left(), 0);
}

#[test]
fn a_guess_that_hangs_up_is_charged_only_if_it_was_charged_before() {
    let service = SlowBackend::start("/login?held");
    for (name, (calls, left)) in EXAMPLES.into_iter().zip([(1, LIMIT), (2, LIMIT - 1)]) {
        let stack = Stack::new(name, FAILURES, service.address);
        let begun = post("/login?held").begin(stack.edge.address);
        wait::until("the guess", || service.has("/login?held").then_some(()));
        drop(begun);
        wait::until("the end of the guess", || (service.now() == 0).then_some(()));
        // Without a response there is no code: Envoy charges nothing at the end of the first
        // example, and its call at the end of the second refunds nothing.
        wait::until("the calls of the guess", || (stack.calls() == calls).then_some(()));
        stack.log_in("/login", 200);
        assert_eq!(stack.left(), left, "{name}");
    }
}
