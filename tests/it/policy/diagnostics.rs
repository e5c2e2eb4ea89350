//! All diagnostics of all files are reported in one run, in order.

use tidegate::domain::Bounds;
use tidegate::policy::{DiagnosticKind, FILE_BYTES_CEILING, Options, Source, compile};

use super::compile_helpers::{bad, many, one};

#[test]
fn ten_faults_in_one_file_come_in_one_run() {
    let text = "\
domain: ''
accounting: some
descriptorz: []
descriptors:
  - value: a
  - key: a
    shadow_mode: maybe
    rate_limit: {unit: fortnight, requests_per_unit: -1}
  - key: b
    key: c
    rate_limit: {unit: second, quota_mode: true, requests_per_unit: 5, burst: 3}
  - key: ${KEY}
  - key: d
    share_threshold: true
  - key: d
";
    let places: Vec<(u32, u32, DiagnosticKind)> =
        bad(text).iter().map(|fault| (fault.line, fault.column, fault.kind)).collect();
    let expected = [
        (1, 9, DiagnosticKind::Missing),
        (2, 13, DiagnosticKind::BadValue),
        (3, 1, DiagnosticKind::UnknownKey),
        (5, 5, DiagnosticKind::Missing),
        (7, 18, DiagnosticKind::WrongType),
        (8, 24, DiagnosticKind::BadValue),
        (8, 54, DiagnosticKind::OutOfRange),
        (10, 5, DiagnosticKind::DuplicateKey),
        (11, 32, DiagnosticKind::MisplacedKey),
        (11, 79, DiagnosticKind::Conflict),
        (12, 10, DiagnosticKind::BadValue),
        (14, 22, DiagnosticKind::Conflict),
        (15, 5, DiagnosticKind::Duplicate),
    ];
    assert_eq!(places, expected);
}

#[test]
fn faults_of_all_files_come_in_one_run_sorted_by_file_and_place() {
    let faults = many(
        &[
            ("z.yaml", b"domain: a\nx: 1\ny: 2\n"),
            ("b.yaml", b"domain: [\n"),
            ("a.yaml", b"domain: a\ndescriptors: 5\n"),
        ],
        false,
    )
    .unwrap_err();
    let places: Vec<String> =
        faults.0.iter().map(|f| format!("{}:{}:{}", f.file, f.line, f.column)).collect();
    assert_eq!(
        places,
        ["a.yaml:2:14", "b.yaml:2:1", "z.yaml:1:9", "z.yaml:2:1", "z.yaml:3:1"],
        "{faults}"
    );
}

#[test]
fn a_second_document_does_not_hide_the_faults_of_the_first() {
    let kinds: Vec<DiagnosticKind> =
        bad("domain: a\nx: 1\n---\ndomain: b\n").iter().map(|fault| fault.kind).collect();
    assert_eq!(kinds, [DiagnosticKind::UnknownKey, DiagnosticKind::SecondDocument]);
}

#[test]
fn a_fault_below_an_alias_points_at_what_the_alias_means() {
    let text = "\
domain: a
descriptors:
  - key: a
    metadata:
      limit: &limit {unit: second, requests_per_unit: -5}
    rate_limit: *limit
  - key: b
    rate_limit:
      <<: *limit
";
    let faults = bad(text);
    let places: Vec<(u32, u32, &str)> =
        faults.iter().map(|f| (f.line, f.column, f.path.as_str())).collect();
    assert_eq!(
        places,
        [
            (5, 55, "descriptors[0].rate_limit.requests_per_unit"),
            (5, 55, "descriptors[1].rate_limit.requests_per_unit"),
        ]
    );
}

#[test]
fn columns_count_characters_and_a_byte_order_mark_is_none() {
    let faults = bad("\u{feff}domain: a\ndescriptors: [{key: 'ключ', valeu: 1}]\n");
    assert_eq!((faults[0].line, faults[0].column), (2, 29));
    let faults = bad("\u{feff}domian: a\n");
    assert_eq!((faults[0].line, faults[0].column), (1, 1));
}

#[test]
fn no_file_at_all_is_a_fault() {
    let faults = compile(&[] as &[Source], &Options::default()).unwrap_err();
    assert_eq!(faults.0[0].kind, DiagnosticKind::Empty);
}

#[test]
fn a_file_or_a_sum_beyond_its_bound_is_a_fault() {
    let file = |name: &str, comment: usize| Source {
        name: name.to_owned(),
        text: format!("domain: {name}\n#{}\n", "x".repeat(comment)).into_bytes(),
    };
    let options = Options { file_bytes_max: 200, total_bytes_max: 300, ..Options::default() };
    assert!(compile(&[file("a", 100), file("b", 100)], &options).is_ok());
    let of_sum = |total_bytes_max| {
        let options = Options { total_bytes_max, ..options };
        compile(&[file("a", 100), file("b", 100)], &options).is_ok()
    };
    assert_eq!((of_sum(224), of_sum(223)), (true, false), "each has 112 bytes");
    let faults = compile(&[file("a", 300)], &options).unwrap_err().0;
    assert!(faults.iter().all(|fault| fault.kind == DiagnosticKind::TooLarge), "{faults:?}");
    let faults = compile(&[file("a", 150), file("c", 100), file("b", 150)], &options).unwrap_err();
    assert_eq!(faults.0.len(), 1);
    assert_eq!(faults.0[0].file, "b");
}

#[test]
fn no_setting_raises_the_size_of_a_file_beyond_its_ceiling() {
    let file = Source { name: "a".to_owned(), text: vec![b'#'; FILE_BYTES_CEILING + 1] };
    let options =
        Options { file_bytes_max: usize::MAX, total_bytes_max: usize::MAX, ..Options::default() };
    let faults = compile(&[file], &options).unwrap_err().0;
    assert_eq!((faults.len(), faults[0].kind), (1, DiagnosticKind::TooLarge));
}

/// A request meets at most one rule for each sequence of keys, and has a bounded number of
/// descriptors.
#[test]
fn the_checks_of_a_call_are_those_of_the_costliest_rules_that_it_can_meet() {
    let text = b"
domain: a
descriptors:
  - key: b
    rate_limit: {unit: day, requests_per_unit: 1}
  - key: c
    value: x
    rate_limits:
      - {name: one, unit: day, requests_per_unit: 1}
      - {name: two, unit: day, requests_per_unit: 1}
  - key: c
    rate_limit: {unit: day, requests_per_unit: 1}
";
    let fits = |descriptors_max, checks_max| {
        let source = Source { name: "p.yaml".to_owned(), text: text.to_vec() };
        let bounds = Bounds { descriptors_max, checks_max, ..Bounds::DEFAULT };
        let compiled = compile(&[source], &Options { bounds, ..Options::default() });
        compiled.map(drop).map_err(|faults| faults.0[0].kind)
    };
    assert_eq!(fits(2, 3), Ok(()));
    assert_eq!(fits(2, 2), Err(DiagnosticKind::TooLarge));
    assert_eq!(fits(1, 2), Ok(()));
    assert_eq!(fits(1, 1), Err(DiagnosticKind::TooLarge));
}

#[test]
fn a_value_beyond_sixty_kibibytes_is_a_fault() {
    let text =
        |bytes| format!("domain: a\ndescriptors: [{{key: a, value: {}}}]\n", "x".repeat(bytes));
    assert!(one(text(61_440)).is_ok());
    assert_eq!(bad(text(61_441))[0].kind, DiagnosticKind::TooLarge);
}

#[test]
fn reading_stops_after_a_thousand_errors_and_says_so() {
    let lines: String = (0..1_500).map(|at| format!("line_{at}: x\n")).collect();
    let faults = bad(format!("domain: a\n{lines}"));
    assert_eq!(faults.len(), 1_001);
    let stopped =
        |fault: &&tidegate::policy::Diagnostic| fault.message.starts_with("reading stopped here");
    assert_eq!(faults.iter().filter(stopped).count(), 1);
    // Duplicate keys are found while parsing.
    let faults = bad(format!("domain: a\n{}", "x: 1\n".repeat(1_500)));
    assert_eq!(faults.len(), 1_001);
    assert_eq!(faults.iter().filter(stopped).count(), 1);
    let tagged = "- !t x\n".repeat(1_500);
    let faults = bad(format!("domain: a\ndescriptors:\n{tagged}"));
    assert_eq!(faults.len(), 1_001);
    assert_eq!(faults.last().unwrap().line, 1_002, "reading stopped there");
}
