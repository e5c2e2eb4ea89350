//! Reading a policy file of 1 MiB takes at most 64 MiB of memory, whatever its text.
//!
//! Allocations are counted per thread, so that other tests do not disturb the figures.

use std::fmt::Write as _;

use tidegate::policy::{FILE_BYTES_MAX, Options, Source, compile};

const MIB: usize = 1 << 20;

const MEMORY_MAX: u64 = 64 << 20;

/// `head`, then `piece` as often as it fits into 1 MiB.
fn repeated(head: &str, piece: &str) -> String {
    head.to_owned() + &piece.repeat((MIB - head.len()) / piece.len())
}

/// `head`, then pieces with different numbers, as many as fit into 1 MiB.
fn numbered(head: &str, piece: impl Fn(usize) -> String) -> String {
    let mut text = head.to_owned();
    for at in 0.. {
        let piece = piece(at);
        if text.len() + piece.len() > MIB {
            break;
        }
        text.push_str(&piece);
    }
    text
}

/// The most bytes that reading a text holds at once, and how many diagnostics it has.
fn memory(text: String) -> (u64, usize) {
    let sources = [Source { name: "a.yaml".to_owned(), text: text.into_bytes() }];
    let mut diagnostics = 0;
    let measured = allocation_counter::measure(|| {
        diagnostics = compile(&sources, &Options::default()).err().map_or(0, |all| all.0.len());
    });
    (measured.bytes_max, diagnostics)
}

fn json_policy() -> String {
    let rule = |at: usize| {
        let limit = r#""rate_limit": {"unit": "minute", "requests_per_unit": 10}"#;
        format!(r#"{{"key": "k", "value": "v{at}", {limit}}},"#)
    };
    let mut text = numbered(r#"{"domain": "d", "descriptors": ["#, rule);
    text.truncate(text.rfind(',').unwrap());
    text + "]}"
}

fn block_policy() -> String {
    numbered("domain: d\ndescriptors:\n", |at| {
        format!("- key: k\n  value: v{at}\n  rate_limit: {{unit: day, requests_per_unit: 9}}\n")
    })
}

#[test]
fn reading_one_mebibyte_takes_at_most_64_mebibytes() {
    let under = "domain: d\ndescriptors:\n";
    let mut failed = String::new();
    for (name, text) in [
        ("list in brackets", repeated("[", "a,")),
        ("list in brackets after a comment", repeated("# c\n\n  [", "a,")),
        ("list in brackets in a list", repeated("- [", "a,")),
        ("list in brackets in a value", repeated("domain: [", "a,")),
        ("list of quotes", repeated("- [", "\"\"")),
        ("lists in a list", repeated("[", "[a],")),
        ("map in brackets", repeated("{", "a,")),
        ("map of numbered keys", numbered("{", |at| format!("{at},"))),
        ("map of pairs", numbered("{", |at| format!("{at}:,"))),
        ("map in a list", numbered("- {", |at| format!("{at}:,"))),
        ("pairs in a list", repeated("- [", "a:b,")),
        ("block list", repeated("", "- a\n")),
        ("block list of nothing", repeated("", "-\n")),
        ("block map", numbered("", |at| format!("{at}:\n"))),
        ("descriptors of nothing", repeated(under, "-\n")),
        ("descriptors of maps", repeated(under, "- {}\n")),
        ("nested lists", repeated("", "- - - -\n")),
        ("anchors", numbered("", |at| format!("- &{at} a\n"))),
        ("aliases", repeated("- &a x\n", "- *a\n")),
        ("tags", repeated("", "- !t a\n")),
        ("one text", repeated("domain: ", "a")),
        ("escapes", repeated("domain: \"", "\\L")),
        ("one comment", repeated("domain: d\n", "# [,\n")),
        ("duplicate keys", repeated("", "a: b\n")),
        ("unknown keys", numbered("", |at| format!("key{at}: b\n"))),
        ("policy as JSON", json_policy()),
        ("policy in blocks", block_policy()),
    ] {
        assert!(text.len() <= MIB + 2 && text.len() > MIB - 256, "{name}: {}", text.len());
        let (bytes, diagnostics) = memory(text);
        println!("{name}: {:.1} MiB, {diagnostics} diagnostics", bytes as f64 / MIB as f64);
        if bytes > MEMORY_MAX || diagnostics > 1_002 {
            writeln!(failed, "{name}: {bytes} bytes, {diagnostics} diagnostics").unwrap();
        }
    }
    assert!(failed.is_empty(), "\n{failed}");
}

#[test]
fn policies_in_brackets_and_in_blocks_are_read_whatever_their_size() {
    assert_eq!(memory(json_policy()).1, 0);
    assert_eq!(memory(block_policy()).1, 0);
}

#[test]
fn a_file_of_four_mebibytes_is_read_and_a_larger_one_is_not() {
    let fitting = "domain: d\n#".to_owned() + &"c".repeat(FILE_BYTES_MAX - 11);
    assert_eq!(fitting.len(), FILE_BYTES_MAX);
    assert_eq!(memory(fitting.clone()).1, 0);
    assert_eq!(memory(fitting + "c").1, 1);
}

#[test]
fn a_list_in_brackets_without_an_end_is_refused_early() {
    let source = Source { name: "a.yaml".to_owned(), text: repeated("- [", "a,").into_bytes() };
    let errors = compile(&[source], &Options::default()).unwrap_err();
    assert!(errors.to_string().contains("write its entries as a block"), "{errors}");
}
