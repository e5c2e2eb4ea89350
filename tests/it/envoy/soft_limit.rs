//! Soft limit, `config/examples/soft-limit`: the marks reach the service and choose the route, a
//! client cannot set them itself, and the hard limit beside it rejects.

use std::fs;

use super::bootstrap::repository;
use super::http_client::{Request, get};
use super::stack::{Stack, example, written};
use crate::support::wait::until;

/// The example, with windows that no test outlasts.
fn policy() -> String {
    let file = repository("config/examples/soft-limit/policy.yaml");
    let text = fs::read_to_string(file).expect("the example");
    let years = text.replace("unit: minute", "unit: year");
    assert_ne!(years, text);
    years
}

/// Sends a request: its status, the marks that the service saw, and the model of the route.
fn seen(stack: &Stack, request: &Request) -> (u16, String, String) {
    let reply = stack.ask(request);
    let model = reply.header("x-model").unwrap_or_default().to_owned();
    (reply.status, stack.backend.last_values("x-quota").join(" "), model)
}

#[test]
fn the_service_sees_near_from_80_percent_and_over_from_the_last_hit_on() {
    let file = written(&policy());
    let stack = Stack::new(example("soft-limit"), file.path());
    for call in 1..=30 {
        let (marks, model) = match call {
            1..=7 => ("", "large"),
            8..=9 => ("near", "large"),
            _ => ("over", "small"),
        };
        let expected = (200, marks.to_owned(), model.to_owned());
        assert_eq!(seen(&stack, &get("/")), expected, "call {call}");
    }
    // The hard limit beside it.
    assert_eq!(stack.ask(&get("/")).status, 429);
    assert_eq!(stack.backend.served(), 30);
    assert_eq!(seen(&stack, &get("/").from(2)), (200, String::new(), "large".to_owned()));
    let log = until("the line", || {
        let log = stack.tidegate.log();
        log.contains("limit nearly used up").then_some(log)
    });
    let lines: Vec<_> = log.lines().filter(|line| line.contains("limit nearly used up")).collect();
    assert_eq!(lines.len(), 1, "{lines:?}");
    for part in ["budget_large-model", "keys", "remote_address", "counter", "large-model"] {
        assert!(lines[0].contains(part), "{part}: {}", lines[0]);
    }
    assert!(!lines[0].contains("127.0.0.1"), "{}", lines[0]);
}

#[test]
fn the_header_of_a_client_neither_reaches_the_service_nor_chooses_the_route() {
    let file = written(&policy());
    let stack = Stack::new(example("soft-limit"), file.path());
    let claims = |value: &str| get("/").with("x-quota", value).with("X-Quota", value);
    let unmarked = (200, String::new(), "large".to_owned());
    assert_eq!(seen(&stack, &claims("free")), unmarked);
    assert_eq!(seen(&stack, &claims("over")), unmarked);
    for _ in 3..=9 {
        stack.ask(&get("/"));
    }
    let over = (200, "over".to_owned(), "small".to_owned());
    assert_eq!(seen(&stack, &claims("free")), over);
}
