//! The runbook has an entry for every warning and error of the log.

use std::fs;
use std::path::Path;

use crate::architecture::none;
use crate::architecture::source_reader::all_files;

#[test]
fn every_warning_and_error_in_the_log_has_a_row_in_the_runbook() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("charts/tidegate/RUNBOOK.md");
    let runbook = fs::read_to_string(page).expect("the runbook");
    let (mut broken, mut found) = (Vec::new(), 0);
    for file in all_files("src") {
        for (level, text) in [("WARN", "tracing::warn!("), ("ERROR", "tracing::error!(")] {
            for rest in file.text.split(text).skip(1) {
                let message = last_text(rest);
                found += 1;
                let row = |mark: &str| format!("| {mark}{message}{mark} | {level} |");
                if !runbook.contains(&row("`")) && !runbook.contains(&row("``")) {
                    broken.push(format!("{}: no row with {}", file.path, row("`")));
                }
            }
        }
    }
    assert!(found > 20, "{found}");
    none(broken);
}

/// The last text among a macro's arguments: the message.
fn last_text(rest: &str) -> String {
    let (mut depth, mut text, mut last) = (1, None::<String>, String::new());
    let mut letters = rest.chars();
    while let Some(letter) = letters.next() {
        match (&mut text, letter) {
            (Some(open), '\\') => open.extend(letters.next()),
            (Some(_), '"') => last = text.take().unwrap_or_default(),
            (Some(open), letter) => open.push(letter),
            (None, '"') => text = Some(String::new()),
            (None, '(') => depth += 1,
            (None, ')') if depth == 1 => return last,
            (None, ')') => depth -= 1,
            (None, _) => {}
        }
    }
    last
}
