//! What a lookup costs among 10, 1,000 and 100,000 rules: exact, default and pattern nodes, and a
//! hostile value. `cargo bench --bench lookup`.
//!
//! Prints nanoseconds per request of one descriptor: `find` alone, and `find` with `checks` (which
//! adds the keyed hash of the counter). Each figure is the best of several rounds, the steadiest
//! on a shared machine. "Same" asks for one rule again and again; "all" walks all rules in a
//! scattered order, so that its growth is that of the processor's cache misses.

// A bench prints, reads the clock, and stops at the first surprise.
#![allow(clippy::disallowed_methods, clippy::print_stdout, clippy::panic, clippy::unwrap_used)]
#![allow(missing_docs, dead_code, unreachable_pub)]

#[path = "../tests/it/support/policy_specs.rs"]
mod specs;

use std::hint::black_box;
use std::time::Instant;

use specs::{Node, descriptor, domain, entry, key, pair, request};
use tidegate::policy::{DescriptorMatch, Policy, Secret};

const SIZES: [usize; 3] = [10, 1_000, 100_000];
const ROUNDS: usize = 7;
const REQUESTS: usize = 20_000;

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
    }
    hostile();
}

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
            assert!(matches!(policy.find(&request).found[0], DescriptorMatch::NoRule));
        });
        println!("{:<18} {size:>8} {:>9.0} us for 40 kB", "hostile *<n>*</n>*", best / 1_000.0);
    }
}

fn time(policy: &Policy, asked: &[(String, String)], with_checks: bool) -> f64 {
    let entries: Vec<_> = asked.iter().map(|(key, value)| [entry(key, value)]).collect();
    let descriptors: Vec<_> = entries.iter().map(|entries| [descriptor(entries)]).collect();
    best_of(REQUESTS, || {
        for at in 0..REQUESTS {
            let request = request(&descriptors[at % descriptors.len()]);
            let matches = policy.find(black_box(&request));
            assert!(matches!(matches.found[0], DescriptorMatch::Limited(_)));
            if with_checks {
                black_box(policy.checks(&request, &matches));
            }
        }
    })
}

/// Nanoseconds for one of `count` things that a round does, in the best round.
fn best_of(count: usize, mut round: impl FnMut()) -> f64 {
    let rounds = (0..ROUNDS).map(|_| {
        let start = Instant::now();
        round();
        start.elapsed().as_secs_f64() * 1e9 / count as f64
    });
    rounds.fold(f64::INFINITY, f64::min)
}
