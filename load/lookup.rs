//! The lookup alone: nanoseconds per descriptor with 10, 1,000 and 100,000 rules.

<<<<<<<< HEAD:load/bench/lookup.rs
========
// A bench prints, reads the clock, and stops at the first surprise.
#![allow(clippy::disallowed_methods, clippy::print_stdout, clippy::panic, clippy::unwrap_used)]
#![allow(missing_docs, dead_code, unreachable_pub)]

#[path = "../tests/support/specs.rs"]
mod specs;

use std::hint::black_box;
>>>>>>>> matcher:load/lookup.rs
use std::time::Instant;

use bytes::Bytes;
use tidegate::domain::{Descriptor, Entry, Hits, Request};
use tidegate::policy::{self, Policy, Secret};

use super::calls;

<<<<<<<< HEAD:load/bench/lookup.rs
/// A policy of that many sibling rules of one kind.
pub fn policy(domain: &str, kind: &str, rules: usize) -> String {
    let mut yaml = format!("domain: {domain}\ndescriptors:\n");
    for nth in 0..rules {
        let node = match kind {
            "exact" => format!("key: path\n    value: /v1/resource/{nth}"),
            "default" => format!("key: dimension_{nth}"),
            _ => format!("key: path\n    value: /v1/resource/{nth}/*"),
        };
        yaml +=
            &format!("  - {node}\n    rate_limit: {{unit: hour, requests_per_unit: 4000000000}}\n");
========
/// How nodes of a kind are written, and what meets the one of that number.
struct Kind {
    name: &'static str,
    node: fn(usize) -> Node,
    asks: fn(usize) -> (String, String),
}

const KINDS: [Kind; 6] = [
    Kind {
        name: "exact",
        node: |n| pair("k", &format!("value-{n}")),
        asks: |n| ("k".into(), format!("value-{n}")),
    },
    Kind {
        name: "default",
        node: |n| key(&format!("key-{n}")),
        asks: |n| (format!("key-{n}"), "192.168.100.100".into()),
    },
    Kind {
        name: "pattern foo*",
        node: |n| pair("k", &format!("/api/{n}/*")),
        asks: |n| ("k".into(), format!("/api/{n}/orders/17")),
    },
    Kind {
        name: "pattern *foo",
        node: |n| pair("k", &format!("*.{n}.example.com")),
        asks: |n| ("k".into(), format!("www.{n}.example.com")),
    },
    Kind {
        name: "pattern foo*bar",
        node: |n| pair("k", &format!("/api/*/item-{n}")),
        asks: |n| ("k".into(), format!("/api/orders/item-{n}")),
    },
    Kind {
        name: "pattern *foo*",
        node: |n| pair("k", &format!("*agent/{n};*")),
        asks: |n| ("k".into(), format!("some agent/{n}; of one kind")),
    },
];

fn main() {
    println!(
        "{:<18} {:>8} {:>12} {:>12} {:>14}",
        "nodes", "rules", "find same", "find all", "+ checks same"
    );
    for kind in &KINDS {
        for size in SIZES {
            let policy = policy((0..size).map(kind.node));
            let scattered: Vec<_> = (0..REQUESTS).map(|n| (kind.asks)(n * 7_919 % size)).collect();
            let same = vec![(kind.asks)(size / 2)];
            println!(
                "{:<18} {size:>8} {:>9.0} ns {:>9.0} ns {:>11.0} ns",
                kind.name,
                time(&policy, &same, false),
                time(&policy, &scattered, false),
                time(&policy, &same, true),
            );
        }
>>>>>>>> matcher:load/lookup.rs
    }
    yaml
}

<<<<<<<< HEAD:load/bench/lookup.rs
fn entry(kind: &str, nth: usize) -> (String, String) {
    match kind {
        "exact" => ("path".to_owned(), format!("/v1/resource/{nth}")),
        "default" => (format!("dimension_{nth}"), "203.0.113.7".to_owned()),
        _ => ("path".to_owned(), format!("/v1/resource/{nth}/item")),
========
fn policy(nodes: impl Iterator<Item = Node>) -> Policy {
    let mut spec = domain("d", []);
    spec.nodes = nodes.map(|node| node.limit(10).0).collect();
    Policy::build(vec![spec], Secret::default())
}

/// A value of 40 kB made of nothing but pieces by which patterns are found, each of which lacks its
/// other piece.
fn hostile() {
    for size in SIZES {
        let policy = policy((0..size).map(|n| pair("k", &format!("*<{n}>*</{n}>*"))));
        let value: String = (0..size).rev().map(|n| format!("</{n}>")).take(5_000).collect();
        let value: String = value.chars().cycle().take(40_000).collect();
        let entries = [entry("k", &value)];
        let descriptors = [descriptor(&entries)];
        let request = request(&descriptors);
        let best = best_of(1, || {
            assert!(matches!(policy.find(&request).found[0], Found::Nothing));
        });
        println!("{:<18} {size:>8} {:>9.0} us for 40 kB", "hostile *<n>*</n>*", best / 1_000.0);
>>>>>>>> matcher:load/lookup.rs
    }
}

/// Which rules the bench asks for: a thousand, spread evenly.
fn asked(rules: usize) -> impl Iterator<Item = usize> {
    (0..1_000).map(move |n| n * rules / 1_000 % rules)
}

/// Requests of two descriptors, each meeting one of the rules.
pub fn bodies(domain: &str, kind: &str, rules: usize) -> Vec<Bytes> {
    let of = |nth| {
        let (key, value) = entry(kind, nth);
        calls::Descriptor { entries: vec![calls::Entry { key, value }] }
    };
    asked(rules)
        .map(|nth| {
            calls::framed(&calls::Request {
                domain: domain.to_owned(),
                descriptors: vec![of(nth), of((nth + 1) % rules)],
                hits_addend: 0,
            })
        })
        .collect()
}

pub fn run() {
    println!("\nThe lookup alone (one descriptor; find, without the counter's key)");
    println!("{:<22} {:>10}", "rules", "ns");
    for kind in ["exact", "default", "pattern"] {
        for rules in [10, 1_000, 100_000] {
            println!("{:<22} {:>10.0}", format!("{rules} {kind}"), measure(kind, rules));
        }
    }
}

fn measure(kind: &str, rules: usize) -> f64 {
    let text = policy("bench", kind, rules).into_bytes();
    let source = policy::Source { name: "bench.yaml".to_owned(), text };
    let compiled =
        policy::compile(&[source], &policy::Options::default()).expect("a policy without faults");
    let policy = Policy::build(compiled.domains, Secret([7; 32]));
    let paths: Vec<(String, String)> = asked(rules).map(|nth| entry(kind, nth)).collect();
    let rounds = 300;
    let mut found = 0usize;
    let began = Instant::now();
    for _ in 0..rounds {
        for (key, value) in &paths {
            let entries = [Entry { key: key.as_bytes(), value: value.as_bytes() }];
            let descriptors = [Descriptor {
                entries: &entries,
                hits: Hits::ONE,
                give_back: false,
                limit: None,
                holder: None,
            }];
            let request = Request { domain: "bench", descriptors: &descriptors };
            let matches = std::hint::black_box(policy.find(std::hint::black_box(&request)));
            found += usize::from(matches!(matches.found[0], policy::Found::Limited(_)));
        }
    }
    let spent = began.elapsed();
    assert_eq!(found, rounds * paths.len(), "every request meets its rule");
    spent.as_secs_f64() * 1e9 / found as f64
}
