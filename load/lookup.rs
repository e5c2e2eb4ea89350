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
use std::sync::Arc;
use std::time::Instant;

use specs::{Node, descriptor, domain, entry, key, pair, request};
use tidegate::domain::Micros;
use tidegate::policy::{
    DescriptorMatch, OverrideChange, OverrideEntry, OverrideTarget, Policy, Secret,
};

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
    overridden();
}

fn policy(nodes: impl Iterator<Item = Node>) -> Policy {
    let mut spec = domain("d", []);
    spec.nodes = nodes.map(|node| node.limit(10).0).collect();
    Policy::build(vec![spec], Secret::default())
}

/// One rule with any value, and operators' overrides of 100,000 values: calls that meet one, and calls
/// that meet none. The second row has no overrides. Then the time that changes take.
fn overridden() {
    const OVERRIDES: usize = 100_000;
    let entry = |value: String, limit| {
        Arc::new(OverrideEntry {
            target: OverrideTarget {
                domain: "d".into(),
                rule: None,
                entries: vec![("k".into(), value)],
                limit_name: None,
            },
            change: OverrideChange::Numbers { limit: Some(limit), burst: None, anchor: None },
            until: None,
            set_at: Micros::ZERO,
            reason: "T-42".into(),
            by: "ann".into(),
        })
    };
    let written = policy([key("k")].into_iter());
    let entries: Vec<_> = (0..OVERRIDES).map(|n| entry(format!("value-{n}"), 500)).collect();
    let start = Instant::now();
    let full = written.with_overrides(&entries);
    println!("{OVERRIDES} overrides: built in {:?}", start.elapsed());
    let asked = |word: &str, step: usize| -> Vec<_> {
        (0..REQUESTS)
            .map(|n| ("k".to_owned(), format!("{word}-{}", n * step % OVERRIDES)))
            .collect()
    };
    let patterns = [entry("a*".into(), 7), entry("value-*".into(), 7)];
    let few = written.with_overrides(&patterns);
    for (name, policy, asked) in [
        ("no overrides, any", &written, asked("value", 7_919)),
        ("100,000, one is met", &full, asked("value", 7_919)),
        ("100,000, same is met", &full, asked("value", 0)),
        ("100,000, none is met", &full, asked("other", 7_919)),
        ("2 with `*`, one is met", &few, asked("value", 7_919)),
        ("2 with `*`, none is met", &few, asked("other", 7_919)),
    ] {
        let (find, checks) = (time(policy, &asked, false), time(policy, &asked, true));
        println!("{name:<24} find {find:>5.0} ns, with checks {checks:>5.0} ns");
    }
    let changes: Vec<_> = (0..1_000).map(|n| entry(format!("value-{}", n * 97), 9)).collect();
    let mut policy = full;
    let each = best_of(changes.len(), || {
        for change in &changes {
            policy = policy.with_changed_overrides(&[], &[change]).unwrap();
        }
    });
    println!("one of {OVERRIDES} changes in {:.0} us", each / 1_000.0);
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
