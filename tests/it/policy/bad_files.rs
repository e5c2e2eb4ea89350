//! One file per fault: `bad/NAME.yaml` begins with `# expect: LINE:COL: path: message` (or has it
//! in `NAME.txt`), `bad/NAME/` holds several files and `expect.txt`. Each has exactly that fault.

use std::path::Path;

use tidegate::policy::{DiagnosticKind, Options, Source, compile};

use super::compile_helpers::{dir, entries, source, stem};

/// What a case must print: its faults, one a line, each with its file's name.
fn expected(path: &Path) -> String {
    if path.is_dir() {
        return std::fs::read_to_string(path.join("expect.txt")).unwrap().trim_end().to_owned();
    }
    let name = path.file_name().unwrap().to_string_lossy().into_owned();
    let told = std::fs::read(path.with_extension("txt")).unwrap_or_else(|_| {
        let text = std::fs::read(path).unwrap();
        let first = text.split(|byte| *byte == b'\n').next().unwrap().to_vec();
        first.strip_prefix(b"# expect: ").expect("the file begins with `# expect: `").to_vec()
    });
    format!("{name}:{}", String::from_utf8(told).unwrap().trim_end())
}

fn sources(path: &Path) -> Vec<Source> {
    if path.is_dir() {
        let files = entries(path);
        files.iter().filter(|file| file.extension().unwrap() == "yaml").map(|f| source(f)).collect()
    } else {
        vec![source(path)]
    }
}

fn cases() -> Vec<std::path::PathBuf> {
    let is_case = |path: &std::path::PathBuf| path.is_dir() || path.extension().unwrap() == "yaml";
    entries(&dir("bad")).into_iter().filter(is_case).collect()
}

#[test]
fn every_bad_file_has_exactly_its_fault_at_its_place() {
    let mut wrong = Vec::new();
    let cases = cases();
    assert!(cases.len() >= 45, "only {} cases", cases.len());
    for path in &cases {
        let merge_domains = stem(path).starts_with("merged_");
        let options = Options { merge_domains, ..Options::default() };
        let found = match compile(&sources(path), &options) {
            Ok(_) => "no fault".to_owned(),
            Err(faults) => faults.to_string(),
        };
        let expected = expected(path);
        if found != expected {
            wrong.push(format!("{}\n  expected {expected}\n  found    {found}", stem(path)));
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// Below the source line a caret stands in the column of the position, unless the line is cut.
#[test]
fn every_bad_file_is_shown_with_a_caret_at_its_place() {
    let mut shown = 0;
    for path in &cases() {
        let sources = sources(path);
        let merge_domains = stem(path).starts_with("merged_");
        let options = Options { merge_domains, ..Options::default() };
        for error in compile(&sources, &options).unwrap_err().0 {
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
