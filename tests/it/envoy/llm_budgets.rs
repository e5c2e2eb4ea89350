//! Tokens of a language model, `config/examples/llm-budgets`: what is used and reserved never
//! exceeds a budget, however a request ends.

use std::collections::BTreeMap;

use tempfile::TempDir;

use super::bootstrap::repository;
use super::envoy_process::Envoy;
use super::http_client::{PendingRequest, Request, post};
use super::model::Model;
use super::stack::example;
use super::tidegate_behind_envoy::Tidegate;
use crate::support::redis_server::Server;
use crate::support::wait;

/// As the example states them.
const KEY: u64 = 20_000;
const USER: u64 = 200_000;
const DEFAULT_ESTIMATE: u64 = 2_000;

/// Descriptors of the key and of the user.
const OF_KEY: &str = "organisation=acme,team=search,user=ann,api_key=k1";
const OF_USER: &str = "organisation=acme,team=search,user=ann";

struct Stack {
    edge: Envoy,
    model: Model,
    tidegate: Tidegate,
    _directory: TempDir,
}

impl Stack {
    fn new(settings: &[(&str, &str)]) -> Stack {
        let policy = repository("config/examples/llm-budgets/policy.yaml");
        let (model, tidegate) = (Model::start(), Tidegate::start(&policy, settings));
        let directory = TempDir::new().expect("a temporary directory");
        let bootstrap = example("llm-budgets").aimed_at(model.address, &[tidegate.grpc]);
        let edge = Envoy::start(&bootstrap, directory.path(), 1);
        Stack { edge, model, tidegate, _directory: directory }
    }

    fn begin(&self, body: &str) -> PendingRequest {
        chat(body).begin(self.edge.address)
    }

    /// What is left of each budget: neither used nor reserved.
    fn left(&self) -> BTreeMap<String, u64> {
        let mut left = self.tidegate.left("edge", OF_KEY);
        left.extend(self.tidegate.left("edge", OF_USER));
        left
    }

    /// Envoy does not wait for the settle, so the test does.
    fn wait_for_left_of_key(&self, left: u64) {
        wait::until(&format!("{left} left"), || (self.left()["key"] == left).then_some(()));
        assert_eq!(self.left()["user"], USER - KEY + left);
    }
}

fn chat(body: &str) -> Request {
    post("/v1/chat/completions")
        .with("content-type", "application/json")
        .with("x-organisation", "acme")
        .with("x-team", "search")
        .with("x-user", "ann")
        .with("x-key-id", "k1")
        // Not the client's to choose.
        .with("x-hold-id", "mine")
        .with("x-request-id", "mine")
        .with_body(body)
}

fn asking(max_tokens: u64) -> String {
    format!("{{\"max_tokens\": {max_tokens}}}")
}

#[test]
fn of_five_requests_at_once_those_pass_whose_estimates_fit() {
    budgets_hold(&Stack::new(&[]));
}

#[test]
fn in_redis_too_those_pass_whose_estimates_fit() {
    let redis = Server::start(&[]);
    let url = format!("127.0.0.1:{}", redis.port);
    // Redis' answer is waited for, however busy the machine is.
    budgets_hold(&Stack::new(&[("REDIS_URL", &*url), ("TIDEGATE_REDIS_BUDGET", "20s")]));
}

/// 58, 80, 175, 175, and 175 % of the key's budget: the first passes.
fn budgets_hold(stack: &Stack) {
    let [first, others @ ..] = [58, 80, 175, 175, 175].map(|percent| asking(KEY * percent / 100));
    let passed = stack.begin(&first);
    let asked = stack.model.asked(&first);
    assert_eq!(stack.left()["key"], KEY - 11_600);
    for body in &others {
        let reply = stack.edge.ask(&chat(body));
        assert_eq!(reply.status, 429, "{body}: {reply:?}");
    }
    // What is rejected reserves nothing and settles nothing, so that this fits exactly.
    let rest = asking(KEY - 11_600);
    let also = stack.begin(&rest);
    let also_asked = stack.model.asked(&rest);
    assert_eq!(stack.edge.ask(&chat(&asking(1))).status, 429);
    asked.answer(11_000);
    assert_eq!(passed.finish().status, 200);
    stack.wait_for_left_of_key(600);
    also_asked.answer(100);
    assert_eq!(also.finish().status, 200);
    stack.wait_for_left_of_key(KEY - 11_100);
    assert_eq!(stack.model.waiting(), 0);
}

#[test]
fn a_stream_pays_what_its_last_event_says_and_one_that_the_client_leaves_its_estimate() {
    let stack = Stack::new(&[]);
    let whole = "{\"max_completion_tokens\": 5000, \"stream\": true}";
    let pending = stack.begin(whole);
    let mut asked = stack.model.asked(whole);
    asked.begin_stream();
    wait::until("the first event", || pending.is_answered().then_some(()));
    assert_eq!(stack.left()["key"], KEY - 5_000);
    asked.end_stream(700);
    assert_eq!(pending.finish().status, 200);
    stack.wait_for_left_of_key(KEY - 700);

    let left_early = asking(4_000);
    let pending = stack.begin(&left_early);
    let mut asked = stack.model.asked(&left_early);
    asked.begin_stream();
    wait::until("the first event", || pending.is_answered().then_some(()));
    assert!(stack.tidegate.counter("edge", OF_KEY).contains("4000 held"));
    drop(pending);
    let held = || stack.tidegate.counter("edge", OF_KEY).contains("4000 held");
    wait::until("the settle", || (!held()).then_some(()));
    stack.wait_for_left_of_key(KEY - 4_700);
    drop(asked);
}

#[test]
fn an_estimate_out_of_range_is_rejected_and_a_missing_one_has_a_default() {
    let stack = Stack::new(&[]);
    for bad in ["-5", "0", "100001", "1e30", "\"-1\"", "\"inf\"", "2147483647"] {
        let reply = stack.edge.ask(&chat(&format!("{{\"max_tokens\": {bad}}}")));
        assert_eq!(reply.status, 403, "{bad}: {reply:?}");
    }
    assert_eq!(stack.left()["key"], KEY);
    for (at, body) in ["{}", "not JSON", "[1]", "{\"max_tokens\": \"x\"}"].into_iter().enumerate() {
        let pending = stack.begin(body);
        let asked = stack.model.asked(body);
        assert_eq!(stack.left()["key"], KEY - at as u64 - DEFAULT_ESTIMATE, "{body}");
        asked.answer(1);
        assert_eq!(pending.finish().status, 200);
        stack.wait_for_left_of_key(KEY - at as u64 - 1);
    }
}
