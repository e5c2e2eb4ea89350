//! Policies of many rules, and the calls that meet them.

use super::calls;
use super::drive::Bodies;

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
pub fn bodies(domain: &str, kind: &str, rules: usize) -> Bodies {
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
