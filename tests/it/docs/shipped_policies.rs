//! Every shipped policy compiles without a diagnostic.

use std::fs;
use std::path::{Path, PathBuf};

use tidegate::policy::{Options, Source, compile};

use crate::envoy::bootstrap::repository;

/// Panics with every fault and warning of a policy, if it has any.
pub fn assert_flawless(name: &str, text: &str) {
    let source = Source { name: name.to_owned(), text: text.as_bytes().to_vec() };
    let compiled =
        compile(&[source], &Options::default()).unwrap_or_else(|faults| panic!("{faults}"));
    let warnings: Vec<String> =
        compiled.warnings.iter().chain(&compiled.notes).map(ToString::to_string).collect();
    assert!(warnings.is_empty(), "{}", warnings.join("\n"));
}

fn policies() -> Vec<PathBuf> {
    let examples = fs::read_dir(repository("config/examples")).expect("the examples");
    let mut files: Vec<PathBuf> =
        examples.map(|entry| entry.expect("an entry").path().join("policy.yaml")).collect();
    files.push(repository("config/first.yaml"));
    files.sort();
    files
}

fn text(file: &Path) -> String {
    fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

#[test]
fn every_policy_that_ships_is_flawless() {
    for file in policies() {
        assert_flawless(&file.display().to_string(), &text(&file));
    }
}
