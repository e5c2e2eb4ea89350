//! One vocabulary: what users read uses one word for one thing, and none of the words that it replaced.
//!
//! Each metric, setting, policy key, and warning is on a page that is read here: tests hold
//! METRICS.md, SETTINGS.md, POLICY.md, and RUNBOOK.md equal to the program.

use std::fs;
use std::path::Path;

use crate::architecture::none;
use crate::architecture::source_reader::all_files;
use crate::envoy::bootstrap::repository;
use crate::support::http;
use crate::support::tidegate_process::{FIVE_A_DAY, Tidegate, directory, run};

/// Old words and phrases, or how they start, and what to write.
const OLD_WORDS: [(&str, &str); 9] = [
    ("refus…", "reject: a call or request is rejected"),
    ("switch…", "override"),
    ("undo…", "delete an override, end a rehearsal"),
    ("question…", "peek (a check with 0 hits), request"),
    ("trial", "dry run"),
    ("the store", "Redis, the memory"),
    ("a store", "Redis, a database"),
    ("is away", "is down, is unreachable"),
    ("Redis away", "Redis down"),
];

/// Phrases in which the word is right, and why.
const EXCEPTIONS: [(&str, &str); 10] = [
    ("tidegate switch", "a subcommand"),
    ("tidegate-switch", "its manual page"),
    ("tidegate\\-switch", "the same, in the other manual pages"),
    ("\"switch ", "the head of its manual page"),
    ("_refuse.tpl", "a file"),
    ("tidegate.refuse", "a template"),
    ("_are_refused", "names of tests"),
    ("refused flood, one key", "a row of a recorded run"),
    ("onnection refused", "the error of the operating system"),
    ("REFUSED_STREAM", "the error of HTTP/2"),
];

/// Files and directories that users read. Not load/results, which records what was printed.
const READ_BY_USERS: &str = "README.md CHANGELOG.md SECURITY.md charts/tidegate clients/README.md \
    config docs proto/tidegate src/admin/live_page.html tests/mistakes";
const EXTENSIONS: [&str; 9] = ["conf", "html", "json", "lua", "md", "proto", "txt", "yaml", "yml"];

/// Calls `read` with each text that users read, and its place.
fn read_files(path: &Path, read: &mut dyn FnMut(&str, &str)) {
    if path.is_dir() {
        for entry in fs::read_dir(path).expect("a directory") {
            read_files(&entry.expect("an entry").path(), read);
        }
        return;
    }
    let extension = path.extension().map_or("", |extension| extension.to_str().expect("UTF-8"));
    if EXTENSIONS.contains(&extension) || path.ends_with("message") {
        read(&path.display().to_string(), &fs::read_to_string(path).expect("a text"));
    }
}

/// The string literals of a Rust file without its tests and comments, in their lines.
fn literals(text: &str) -> String {
    let text = text.split("\nmod tests {").next().expect("a part");
    let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    let code: String =
        code.map(|line| line.replace("\\\"", "").replace("'\"'", "") + "\n").collect();
    code.split('"').skip(1).step_by(2).map(|literal| format!("\"{literal}\"\n")).collect()
}

/// Every old word in a text, with the words around it and what to write. Marks the exceptions that the
/// text needs.
fn old_words(place: &str, text: &str, needed: &mut [bool]) -> Vec<String> {
    let mut text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for ((phrase, _), needed) in EXCEPTIONS.iter().zip(needed) {
        *needed |= text.contains(phrase);
        text = text.replace(phrase, "");
    }
    let text = text.to_ascii_lowercase();
    let is_letter = |c: char| c.is_ascii_alphanumeric();
    let mut found = Vec::new();
    for (old, word) in OLD_WORDS {
        let start = old.trim_end_matches('…');
        for (at, _) in text.match_indices(&start.to_ascii_lowercase()) {
            let (before, after) = (&text[..at], &text[at + start.len()..]);
            if !before.ends_with(is_letter) && (start != old || !after.starts_with(is_letter)) {
                let from = before.char_indices().rev().nth(50).map_or(0, |(at, _)| at);
                let around: String = text[from..].chars().take(100).collect();
                found.push(format!("{place}: {old:?} in: {around}\n  write: {word}"));
            }
        }
    }
    found
}

#[test]
fn what_users_read_has_none_of_the_old_words() {
    let (mut broken, mut needed, mut texts) = (Vec::new(), [false; EXCEPTIONS.len()], 0);
    let mut read = |place: &str, text: &str| {
        broken.extend(old_words(place, text, &mut needed));
        texts += 1;
    };
    for path in READ_BY_USERS.split_whitespace() {
        read_files(&repository(path), &mut read);
    }
    for file in all_files("src").into_iter().chain(all_files("load/simulate")) {
        if !file.path.ends_with("/tests.rs") {
            read(&file.path, &literals(&file.text));
        }
    }
    // The help of every subcommand.
    let pages = directory(&[]);
    run(&["man", &pages.path().display().to_string()]).with_code(0);
    for page in fs::read_dir(pages.path()).expect("the manual") {
        let page = page.expect("an entry").path();
        read(&page.display().to_string(), &fs::read_to_string(&page).expect("a page"));
    }
    let serving = Tidegate::policy(FIVE_A_DAY, &[]);
    (0..5).for_each(|_| drop(serving.ask("ann")));
    let paths = "/ /rlconfig /stats /stats/prometheus /config /policy /top /now /history /overrides \
        /explain?domain=edge&descriptor=client=ann /try?domain=edge&descriptor=client=ann";
    for path in paths.split_whitespace() {
        let reply = http::get(serving.port("debug"), path);
        assert_eq!(reply.status, 200, "{path}: {}", reply.body);
        read(path, &reply.body);
    }
    assert!(texts > 400, "{texts}");
    let unneeded = EXCEPTIONS.iter().zip(needed).filter(|(_, needed)| !needed);
    broken
        .extend(unneeded.map(|((phrase, _), _)| format!("no text needs the exception {phrase:?}")));
    none(broken);
}

#[test]
fn an_old_word_is_found_where_a_word_begins_and_not_in_an_exception() {
    let found = |text: &str| old_words("here", text, &mut [false; EXCEPTIONS.len()]).len();
    assert_eq!(found("A call was Refused; tidegate_calls_refused_total; Redis is away."), 3);
    assert_eq!(found("REFUSED_STREAM, connection refused, `tidegate switch`, throwaway"), 0);
    assert_eq!(literals("let refused = \"a \\\"b\\\" c\"; // \n// \"d\"\n"), "\"a b c\"\n");
}
