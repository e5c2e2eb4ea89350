//! `check --strict` accepts the samples of envoyproxy/ratelimit, which are rebuilt in `samples`: what
//! they do is what they say, so nothing about them is a warning.
//!
//! Not here: what they decide (`decisions::ratelimit_samples`).

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::tidegate_process::{run, run_with};

fn samples() -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/migration/samples");
    let files = fs::read_dir(directory).expect("the samples");
    files.map(|file| file.expect("a file").path()).collect()
}

#[test]
fn every_sample_of_ratelimit_passes_a_strict_check() {
    let samples = samples();
    assert!(samples.len() >= 14, "{samples:?}");
    for sample in samples {
        let ran = run(&["check", "--strict", &sample.display().to_string()]).with_code(0);
        assert!(!ran.err.contains("warning"), "{}: {}", sample.display(), ran.err);
        let said = ran.out.lines().last().unwrap_or_default();
        assert!(said.starts_with("ok: 1 file, ") && said.contains(", 0 warnings"), "{said}");
    }
}

#[test]
fn a_strict_check_fails_where_a_leaf_or_a_domain_has_no_limit() {
    let limited = "  - key: remote_address\n    rate_limit: {unit: day, requests_per_unit: 1}\n";
    for (policy, expected) in [
        (
            format!("domain: d\ndescriptors:\n{limited}  - key: tenant\n"),
            "has no limit and exempts",
        ),
        ("domain: d\ndescriptors: []\n".to_owned(), "this domain has no limit"),
        ("domain: d\n".to_owned(), "this domain has no limit"),
    ] {
        let files = [("p.yaml", &*policy)];
        let ran = run_with(&files, &["check", "."]).with_code(0);
        assert!(ran.err.starts_with("warning: ") && ran.err.contains(expected), "{}", ran.err);
        run_with(&files, &["check", "--strict", "."]).with_code(65);
    }
}
