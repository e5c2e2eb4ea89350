//! One case per fault in `bad`: a file begins with `# expect: LINE:COL: path: message`, and has
//! exactly that fault.

use std::fmt::Write as _;

use tidegate::policy::{CompiledPolicy, DiagnosticKind, Diagnostics, Options, Source, compile};

use crate::support::policy_cases::{self, PolicyCase};

/// Cases that are too long to be written out.
fn long_cases() -> [PolicyCase; 4] {
    let limits = |indent: &str, count: u32| {
        let limit = |n| format!("{indent}- {{name: n{n}, unit: second, requests_per_unit: 5}}\n");
        (0..count).map(limit).collect::<String>()
    };
    let list_too_long = format!(
        "# expect: 8:11: descriptors[0].descriptors[0].rate_limits: a call can have at most 2048 \
         checks; remove some limits\n\
         domain: edge\ndescriptors:\n  - key: api_token\n    descriptors:\n      \
         - key: remote_address\n        rate_limits:\n{}",
        limits("          ", 2_049)
    );
    let rule = |n| format!("  - key: k{n}\n    rate_limits:\n{}", limits("      ", 683));
    let checks_too_many = format!(
        "# expect: 3:1: descriptors: a call that matches one rule for each sequence of keys of this \
         domain would need 2049 checks, and a call can have at most 2048; remove some limits, or \
         divide them among several domains\ndomain: edge\ndescriptors:\n{}",
        (0..3).map(rule).collect::<String>()
    );
    let mut nested =
        "# expect: 322:321: nested deeper than 160 levels, which is more than a request \
                      can have entries; flatten it\ndomain: edge\ndescriptors:\n"
            .to_owned();
    for level in 0..165 {
        let indent = "  ".repeat(level);
        write!(nested, "{indent}- key: k{level}\n{indent}  descriptors:\n").unwrap();
    }
    writeln!(nested, "{}- key: z", "  ".repeat(165)).unwrap();
    let metadata_too_large = format!(
        "# expect: 6:15: descriptors[0].metadata: `metadata` must have at most 16384 bytes as JSON, \
         not 16385, because every response for which the descriptor passes contains it; shorten \
         it\ndomain: edge\ndescriptors:\n  - key: k\n    \
         rate_limit: {{unit: day, requests_per_unit: 1}}\n    metadata: {{a: {}}}\n",
        "x".repeat(16_377)
    );
    [
        PolicyCase::of("list_too_long", list_too_long),
        PolicyCase::of("checks_too_many_in_the_worst_case", checks_too_many),
        PolicyCase::of("nested_too_deep", nested),
        PolicyCase::of("metadata_too_large", metadata_too_large),
    ]
}

/// All cases of `bad`.
pub fn cases() -> Vec<PolicyCase> {
    policy_cases::read("bad").into_iter().chain(long_cases()).collect()
}

/// What a case must print: its faults, one a line, each with its file's name.
fn expected(case: &PolicyCase) -> String {
    let files = case.files.iter().filter(|file| !file.expected.is_empty());
    let faults: Vec<_> = files.map(|file| format!("{}:{}", file.name, file.expected)).collect();
    faults.join("\n")
}

fn sources(case: &PolicyCase) -> Vec<Source> {
    let files = case.files.iter();
    files.map(|file| Source { name: file.name.clone(), text: file.text.clone() }).collect()
}

fn compiled(case: &PolicyCase) -> Result<CompiledPolicy, Diagnostics> {
    let merge_domains = case.name.starts_with("merged_");
    compile(&sources(case), &Options { merge_domains, ..Options::default() })
}

#[test]
fn every_bad_file_has_exactly_its_fault_at_its_place() {
    let mut wrong = Vec::new();
    let cases = cases();
    assert!(cases.len() >= 258, "only {} cases", cases.len());
    for case in &cases {
        let found = match compiled(case) {
            Ok(_) => "no fault".to_owned(),
            Err(faults) => faults.to_string(),
        };
        let expected = expected(case);
        if found != expected {
            wrong.push(format!("{}\n  expected {expected}\n  found    {found}", case.name));
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// Below the source line a caret stands in the column of the position, unless the line is cut.
#[test]
fn every_bad_file_is_shown_with_a_caret_at_its_place() {
    let mut shown = 0;
    for case in &cases() {
        let sources = sources(case);
        for error in compiled(case).unwrap_err().0 {
            let report = error.report("error");
            let place = format!("--> {}:{}:{}\n", error.file, error.line, error.column);
            assert!(report.contains(&place), "{report}");
            let lines: Vec<&str> = report.lines().collect();
            if error.excerpt.is_none() {
                let as_a_whole = matches!(
                    error.kind,
                    DiagnosticKind::Empty | DiagnosticKind::TooLarge | DiagnosticKind::Encoding
                );
                assert!(as_a_whole, "{report}");
                continue;
            }
            let source = sources.iter().find(|source| source.name == error.file).unwrap();
            let text = std::str::from_utf8(&source.text).unwrap();
            let line = text.lines().nth(error.line as usize - 1).unwrap_or_default();
            let margin = error.line.to_string().len() + 3;
            if line.is_ascii() && !line.contains(char::is_control) && error.column <= 60 {
                let found = &lines[3][margin..];
                assert!(line.starts_with(found.trim_end_matches('…')), "{report}");
                let caret = lines[4].find('^').unwrap();
                assert_eq!(caret, margin + error.column as usize - 1, "{report}");
                shown += 1;
            }
        }
    }
    assert!(shown >= 140, "only {shown}");
}
