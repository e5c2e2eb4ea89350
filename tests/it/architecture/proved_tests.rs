//! `make proof` runs every test whose amount of work it sets.

use std::collections::BTreeSet;

use super::none;
use super::source_reader::{SourceFile, all_files};

const MAKEFILE: &str = include_str!("../../../Makefile");

/// Returns the words of a list in the Makefile: names, and names that it skips.
fn list(name: &str) -> (Vec<&'static str>, Vec<&'static str>) {
    let (_, after) = MAKEFILE.split_once(&format!("\n{name} := ")).expect("the list");
    let joined = after.split_inclusive('\n').scan(true, |goes_on, line| {
        goes_on.then(|| {
            *goes_on = line.ends_with("\\\n");
            line.trim_end_matches(['\\', '\n'])
        })
    });
    let mut words = joined.flat_map(str::split_whitespace);
    let (mut selected, mut skipped) = (Vec::new(), Vec::new());
    while let Some(word) = words.next() {
        match word {
            "--skip" => skipped.extend(words.next()),
            word => selected.push(word),
        }
    }
    (selected, skipped)
}

/// Returns the functions of a file that read `support::proof`; `None` stands for a line outside of functions.
fn readers(file: &SourceFile) -> BTreeSet<Option<String>> {
    let uses_times = file.lines.iter().any(|line| line.code.contains("proof::times;"));
    let (mut function, mut found) = (None, BTreeSet::new());
    for line in &file.lines {
        if let Some((_, after)) = line.code.split_once("fn ") {
            function = after.split(['(', '<']).next().map(str::to_owned);
        }
        let is_import = line.code.trim_start().starts_with("use ");
        let reads = line.code.contains("proof::") || uses_times && line.code.contains("times(");
        if reads && !is_import {
            found.insert(function.clone());
        }
        if line.code == "}" {
            function = None;
        }
    }
    found
}

#[test]
fn make_proof_runs_every_test_that_it_lengthens() {
    let (selected, skipped) = list("PROVED");
    let files = all_files("tests/it");
    let files = files.iter().filter(|file| !file.module.starts_with("tests::it::support"));
    let readers: Vec<(String, BTreeSet<Option<String>>)> = files
        .map(|file| (format!("{}::", file.module.trim_start_matches("tests::it::")), readers(file)))
        .filter(|(_, readers)| !readers.is_empty())
        .collect();
    assert!(readers.len() > 15, "{readers:?}");
    let mut broken = Vec::new();
    for (module, functions) in &readers {
        if !selected.iter().any(|name| module.starts_with(name)) {
            broken.push(format!("{module} uses `proof`, and PROVED of the Makefile lacks it"));
        }
        let names = functions.iter().flatten().map(String::as_str);
        for name in names.chain([module.as_str()]) {
            if skipped.contains(&name) {
                broken.push(format!("{name} uses `proof`, and PROVED of the Makefile skips it"));
            }
        }
    }
    for name in selected {
        let is_needed = |(module, _): &(String, _)| module.starts_with(name);
        if !readers.iter().any(is_needed) {
            broken
                .push(format!("nothing in {name} uses `proof`, and PROVED of the Makefile has it"));
        }
    }
    none(broken);
}

#[test]
fn every_name_of_the_shorter_proofs_selects_tests() {
    let (proved, _) = list("PROVED");
    let faults = include_str!("../../faults/main.rs");
    let modules = all_files("tests/it");
    let is_in_it = |name: &str| {
        modules.iter().any(|file| format!("{}::", file.module).contains(&format!("::{name}")))
    };
    let unknown = |list_name: &str, is_known: &dyn Fn(&str) -> bool| -> Vec<String> {
        let names = list(list_name).0.into_iter().filter(|name| !is_known(name));
        names.map(|name| format!("{list_name} of the Makefile: no test has {name}")).collect()
    };
    let is_proved = |name: &str| proved.iter().any(|test| name.starts_with(test)) && is_in_it(name);
    none(unknown("PROVED_IN_PART", &is_proved));
    none(unknown("PROVED_ON_EACH_REDIS", &is_in_it));
    none(unknown("FAULTS_ON_EACH_REDIS", &|name| faults.contains(name)));
}
