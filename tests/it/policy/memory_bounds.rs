//! Reading a policy file of 1 MiB takes at most 64 MiB of memory, whatever its text.
//!
//! Allocations are counted per thread, so that other tests do not disturb the figures.

use std::fmt::Write as _;

use tidegate::policy::{FILE_BYTES_MAX, Options, Source, compile};

use crate::support::proof::times;

const MIB: usize = 1 << 20;

/// Bytes of memory for each byte of a file.
const MEMORY_FACTOR_MAX: u64 = 64;

/// In a list, the parser holds what is in a bracket up to its own bound, however large the file is.
const BRACKET_MEMORY_MAX: u64 = 64 << 20;

/// The size of a text: 1 MiB, or in `make test`, which is not optimised, a quarter.
fn text_bytes() -> usize {
    MIB / times(4, 1) as usize
}

/// `head`, then `piece` as often as it fits into [`text_bytes`].
fn repeated(head: &str, piece: &str) -> String {
    head.to_owned() + &piece.repeat((text_bytes() - head.len()) / piece.len())
}

/// `head`, then pieces with different numbers, as many as fit into [`text_bytes`].
fn numbered(head: &str, piece: impl Fn(usize) -> String) -> String {
    let (mut text, bytes_max) = (head.to_owned(), text_bytes());
    for at in 0.. {
        let piece = piece(at);
        if text.len() + piece.len() > bytes_max {
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
        let length = text.len();
        assert!(length <= text_bytes() + 2 && length > text_bytes() - 256, "{name}: {length}");
        let (bytes, diagnostics) = memory(text);
        println!("{name}: {:.1} MiB, {diagnostics} diagnostics", bytes as f64 / MIB as f64);
        let bytes_max = match name.ends_with("in a list") {
            true => BRACKET_MEMORY_MAX,
            false => MEMORY_FACTOR_MAX * text_bytes() as u64,
        };
        if bytes > bytes_max || diagnostics > 1_002 {
            writeln!(failed, "{name}: {bytes} bytes, {diagnostics} diagnostics").unwrap();
        }
    }
    assert!(failed.is_empty(), "\n{failed}");
}

/// Repeats `piece` to 3.9 MiB.
fn large(head: &str, piece: &str) -> String {
    head.to_owned() + &piece.repeat((39 * MIB / 10 - head.len()) / piece.len())
}

/// A policy with 40,000 rules below values of 60 KiB, or with a body of 900 bytes in each.
fn large_inherited(domain: usize) -> String {
    let long = "x".repeat(60_000);
    let mut text = format!("domain: d{domain}\ndescriptors:\n- key: {long}\n  descriptors:\n");
    for at in 0..40_000 {
        writeln!(
            text,
            "  - {{key: k, value: v{at}, rate_limit: {{unit: day, requests_per_unit: 9}}}}"
        )
        .unwrap();
    }
    text
}

/// A policy of 40,000 rules that repeat `metadata` of 15 KiB by alias.
fn large_aliased(domain: usize) -> String {
    let long = "x".repeat(15_000);
    let mut text = format!(
        "domain: d{domain}\ndescriptors:\n- {{key: k, metadata: &m {{a: {long}}}, rate_limit: &l {{unit: day, requests_per_unit: 9}}}}\n"
    );
    for at in 0..40_000 {
        writeln!(text, "- {{key: k, value: v{at}, rate_limit: *l, metadata: *m}}").unwrap();
    }
    text
}

#[test]
fn sixteen_files_of_3_9_mebibytes_take_at_most_384_mebibytes() {
    let rules = |domain: usize| {
        let mut text = format!("domain: d{domain}\ndescriptors:\n");
        for at in 0..50_000 {
            writeln!(
                text,
                "- {{key: k, value: v{at}, rate_limit: {{unit: day, requests_per_unit: 9}}}}"
            )
            .unwrap();
        }
        text
    };
    type Kind<'k> = (&'k str, &'k dyn Fn(usize) -> String);
    let kinds: [Kind<'_>; 6] = [
        ("rules", &rules),
        ("rules below a long key", &large_inherited),
        ("rules with aliased metadata", &large_aliased),
        ("block list of nothing", &|_| large("", "-\n")),
        ("descriptors of maps", &|at| large(&format!("domain: d{at}\ndescriptors:\n"), "- {}\n")),
        ("duplicate keys", &|_| large("", "a: b\n")),
    ];
    // The proof tries all kinds and files. In a debug build, a file takes two seconds, and
    // three exceed the bounds, too.
    let files = 16 / times(5, 1) as usize;
    for (name, text) in kinds.into_iter().take(times(1, 60) as usize) {
        let source = |at| Source { name: format!("{at:02}.yaml"), text: text(at).into_bytes() };
        let sources: Vec<Source> = (0..files).map(source).collect();
        let mut errors = 0;
        let measured = allocation_counter::measure(|| {
            errors = compile(&sources, &Options::default()).err().map_or(0, |all| all.0.len());
        });
        println!("{name}: {} MiB, {errors} errors", measured.bytes_max >> 20);
        assert!(errors > 0, "{name} is beyond the bounds");
        assert!(measured.bytes_max <= 384 << 20, "{name}: {}", measured.bytes_max);
    }
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
