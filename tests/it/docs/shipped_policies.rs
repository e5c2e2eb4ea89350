//! Every shipped policy compiles without a diagnostic, and tells editors its schema.

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

/// Editors with a YAML language server check a file against the schema that this line names.
#[test]
fn every_example_names_the_schema_on_its_first_line() {
    let mut files = policies();
    files.extend(["config/compose/policy/edge.yaml", "load/ghz/policy.yaml"].map(repository));
    assert!(files.len() >= 14, "only {}", files.len());
    let schema = fs::canonicalize(repository("config/policy.schema.json")).expect("the schema");
    for file in files {
        let text = text(&file);
        let line = text.lines().next().unwrap_or_default();
        let path = line.strip_prefix("# yaml-language-server: $schema=");
        let path = path.unwrap_or_else(|| panic!("{}: begins with {line:?}", file.display()));
        let named = fs::canonicalize(file.parent().expect("a folder").join(path));
        assert_eq!(named.expect("a file"), schema, "{}", file.display());
    }
}
