//! The lookup alone: nanoseconds per descriptor with 10 to 100,000 rules.

use std::time::Instant;

use bytes::Bytes;
use tidegate::domain::{Descriptor, Entry, Hits, Request};
use tidegate::policy::{self, Policy, Secret};

use super::calls;

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
    }
    yaml
}

fn entry(kind: &str, nth: usize) -> (String, String) {
    match kind {
        "exact" => ("path".to_owned(), format!("/v1/resource/{nth}")),
        "default" => (format!("dimension_{nth}"), "203.0.113.7".to_owned()),
        _ => ("path".to_owned(), format!("/v1/resource/{nth}/item")),
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
        for rules in [10, 100, 1_000, 100_000] {
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
                names_hits: false,
                refund: false,
                limit: None,
                holder: None,
            }];
            let request = Request { domain: "bench", descriptors: &descriptors };
            let matches = std::hint::black_box(policy.find(std::hint::black_box(&request)));
            found += usize::from(matches!(matches.found[0], policy::DescriptorMatch::Limited(_)));
        }
    }
    let spent = began.elapsed();
    assert_eq!(found, rounds * paths.len(), "every request meets its rule");
    spent.as_secs_f64() * 1e9 / found as f64
}
