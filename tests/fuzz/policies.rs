//! Policies: any bytes compile or give diagnostics with positions; a compiled policy can be
//! matched, listed and explained.

use std::sync::LazyLock;

use tidegate::domain::{Descriptor, Entry, Hits, Request};
use tidegate::policy::{Options, Policy, Secret, Source, compile};

use crate::fuzzer::{Target, feed};
use crate::mutation::Random;
use crate::sort;
use crate::support::policy_cases;
use crate::support::policy_specs::descriptor;
use crate::support::yaml_fragments::PIECES;

/// Pieces of YAML, and words of the language.
static WORDS: LazyLock<Vec<&str>> = LazyLock::new(|| [&PIECES[..], &LANGUAGE].concat());

const LANGUAGE: [&str; 20] = [
    "rate_limit: ",
    "rate_limits: ",
    "tiers: ",
    "per: ",
    "cost: ",
    "burst: ",
    "share: 50%",
    "floor: 1%",
    "unit_multiplier: ",
    "algorithm: ",
    "token_bucket",
    "sliding_log",
    "concurrency",
    "0",
    "4294967295",
    "hash_tag: ",
    "value: \"*\"",
    "time_zone: Asia/Kathmandu",
    "align: calendar",
    "charge: always",
];
/// A file of the seeds that is larger only takes longer.
const SEED_MAX: usize = 4_096;

fn seeds() -> Vec<Vec<u8>> {
    let cases = ["good", "bad"].into_iter().flat_map(policy_cases::read);
    let texts = cases.flat_map(|case| case.files).map(|file| file.text);
    let all = texts.chain([include_bytes!("policy.yaml").to_vec()]);
    all.filter(|text| text.len() <= SEED_MAX).collect()
}

/// YAML of the language's words, now and then in the right places.
fn made(random: &mut Random) -> Vec<u8> {
    let mut text = String::from("domain: edge\ndescriptors:\n");
    let mut indent = 2;
    for _ in 0..random.below(30) {
        text += &" ".repeat(indent);
        match random.below(6) {
            0 => text += "- key: a",
            1 => {
                text += "  descriptors:";
                indent += 4;
            }
            2 => {
                text += "  rate_limit:";
                indent += 4;
            }
            3 => {
                text += random.pick::<&str>(&WORDS);
                indent = indent.saturating_sub(4).max(2);
            }
            4 => text += &format!("requests_per_unit: {}", random.odd()),
            _ => text += &format!("{}{}", random.pick::<&str>(&WORDS), random.odd()),
        }
        text.push('\n');
    }
    text.into_bytes()
}

fn used(policy: &Policy) {
    assert!(policy.listing().count() <= policy.rules().len() + 64);
    let entry = |key: &'static str, value: &'static str| Entry {
        key: key.as_bytes(),
        value: value.as_bytes(),
    };
    let entries = [entry("a", "trial-1"), entry("b", "x"), entry("b", "")];
    for length in 1..=entries.len() {
        let entries = &entries[..length];
        let descriptors = [Descriptor { hits: Hits(u64::MAX), ..descriptor(entries) }];
        let request = Request { domain: "edge", descriptors: &descriptors };
        let matches = policy.find(&request);
        let checks = policy.checks(&request, &matches);
        assert_eq!(checks.spans.len(), 1);
        let _ = policy.explain("edge", entries);
    }
}

#[test]
fn any_bytes_are_a_policy_or_faults_with_a_place() {
    let target = Target { name: "policies", share: 8, words: &WORDS };
    let mut merge = false;
    feed(&target, seeds(), made, |input| {
        merge = !merge;
        let sources = [
            Source { name: "a".to_owned(), text: input.to_vec() },
            Source { name: "b".to_owned(), text: b"domain: other\n".to_vec() },
        ];
        match compile(&sources, &Options { merge_domains: merge, ..Options::default() }) {
            Ok(compiled) => {
                assert!(compiled.warnings.iter().all(|warning| warning.kind.is_warning()));
                assert!(compiled.notes.iter().all(|note| note.kind.is_note()));
                let warnings = compiled.warnings.iter().map(|warning| warning.kind as u8);
                let mut kinds: Vec<_> = warnings.collect();
                let policy = Policy::build(compiled.domains, Secret::default());
                used(&policy);
                kinds.dedup();
                sort((policy.rules().len().min(8), kinds))
            }
            Err(faults) => {
                assert!(!faults.0.is_empty() && !faults.to_string().is_empty());
                let placed = |f: &tidegate::policy::Diagnostic| f.line > 0 && f.column > 0;
                assert!(faults.0.iter().all(|f| placed(f) && !f.kind.is_warning()), "{faults}");
                let mut kinds: Vec<_> = faults.0.iter().map(|fault| fault.kind as u8).collect();
                kinds.sort_unstable();
                kinds.dedup();
                sort(kinds)
            }
        }
    });
}
