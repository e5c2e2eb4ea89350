//! Tests of the YAML parser: values, source positions, and bounds.

use super::*;

/// Returns the start of the error message for `text`: one of three known messages, or `None` if
/// parsing succeeds or fails with another message.
fn error_prefix(text: &str) -> Option<&'static str> {
    let message = parse(text, usize::MAX).err()?.remove(0).message;
    ["nested", "aliases", "the file has no content"]
        .into_iter()
        .find(|start| message.starts_with(start))
}

fn problems(text: &str) -> Vec<(String, String, u32, u32)> {
    let problems = parse(text, usize::MAX).unwrap().problems.into_iter();
    let first = |p: &YamlError| p.message.split("; ").next().unwrap().to_owned();
    problems.map(|p| (first(&p), p.path.to_string(), p.span.line, p.span.column)).collect()
}

fn problem(message: &str, path: &str, line: u32, column: u32) -> (String, String, u32, u32) {
    (message.to_owned(), path.to_owned(), line, column)
}

/// Formats the tree in YAML's flow style.
fn format_flow(node: Node<'_>) -> String {
    match node.value() {
        Value::Scalar(text, Style::Plain) => text.to_owned(),
        Value::Scalar(text, Style::Quoted) => format!("{text:?}"),
        Value::Scalar(text, Style::Float) => format!("!!float {text}"),
        Value::List(list) => {
            format!("[{}]", list.nodes().map(format_flow).collect::<Vec<_>>().join(", "))
        }
        Value::Map(map) => {
            let entry = |(key, value)| format!("{}: {}", format_flow(key), format_flow(value));
            format!("{{{}}}", map.entries().map(entry).collect::<Vec<_>>().join(", "))
        }
    }
}

fn parse_and_format(text: &str) -> String {
    format_flow(parse(text, usize::MAX).unwrap().root())
}

#[test]
fn the_deepest_nesting_passes_and_one_level_more_does_not() {
    let nested = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
    // A single list does not count by itself: lists count where they stand in lists.
    assert_eq!(error_prefix(&nested(DEPTH_MAX + 1)), None);
    assert_eq!(error_prefix(&nested(DEPTH_MAX + 2)), Some("nested"));
    let maps = |n: usize| format!("{}1{}", "{a: ".repeat(n), "}".repeat(n));
    assert_eq!(error_prefix(&maps(DEPTH_MAX)), None);
    assert_eq!(error_prefix(&maps(DEPTH_MAX + 1)), Some("nested"));
}

#[test]
fn too_many_open_brackets_are_rejected_immediately() {
    assert_eq!(error_prefix(&"[".repeat(1 << 20)), Some("nested"));
    assert_eq!(error_prefix(&"{a: ".repeat(1 << 20)), Some("nested"));
    assert_eq!(error_prefix(&"- ".repeat(1 << 16)), Some("nested"));
}

#[test]
fn aliases_of_aliases_and_self_reference_are_refused() {
    let mut text = "a: &a [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for (name, of) in [("b", "a"), ("c", "b"), ("d", "c"), ("e", "d"), ("f", "e"), ("g", "f")] {
        let list = vec![format!("*{of}"); 10].join(", ");
        text.push_str(&format!("{name}: &{name} [{list}]\n"));
    }
    assert_eq!(error_prefix(&text), Some("aliases"));
    assert_eq!(error_prefix("a: &a [*a]\n"), Some("aliases"));
    assert_eq!(error_prefix("a: &a\n  <<: *a\n"), Some("aliases"));
    assert_eq!(error_prefix("a: &a {b: 1}\nc: *a\nd: *a\n"), None);
}

#[test]
fn second_document_is_reported_at_its_position_and_not_parsed() {
    let message = "a second YAML document begins here, and a policy file must have exactly one";
    assert_eq!(problems("---\na: 1\n---\nb: [2\n"), [problem(message, "", 3, 1)]);
    assert_eq!(problems("---\na: 1\n...\n"), []);
    assert_eq!(parse_and_format("---\na: 1\n---\nb: 2\n"), "{a: 1}");
}

#[test]
fn a_file_without_a_value_is_empty() {
    for text in ["", "# nothing\n", "---\n", "~\n", "null", "--- # nothing\n...\n"] {
        assert_eq!(error_prefix(text), Some("the file has no content"), "{text:?}");
    }
}

#[test]
fn scalars_keep_their_text_and_quoting() {
    assert_eq!(
        parse_and_format("[a b, 'a', \"\\x41\", 0x1F, ~, !!str 1, !!int '1', !!float 1]"),
        { "[a b, \"a\", \"A\", 0x1F, ~, \"1\", 1, !!float 1]" }
    );
    assert_eq!(parse_and_format("a: |\n  x\n  y\nb: >-\n  x\n  y\nc: x\n  y\n"), {
        "{a: \"x\\ny\\n\", b: \"x y\", c: x y}"
    });
}

#[test]
fn spans_are_lines_and_columns_from_one_in_characters() {
    let tree = parse("é: {schlüssel: [10, 'zwei']}\nb:\n  - c: d\n", usize::MAX).unwrap();
    let span = |node: Node<'_>| (node.span().line, node.span().column, node.span().width);
    let Value::Map(map) = tree.root().value() else { panic!() };
    let (key, value) = map.entry("é").unwrap();
    assert_eq!((span(key), span(value)), ((1, 1, 1), (1, 4, 0)));
    let Value::Map(inner) = value.value() else { panic!() };
    let (key, value) = inner.entry("schlüssel").unwrap();
    assert_eq!((span(key), span(value)), ((1, 5, 9), (1, 16, 0)));
    let Value::List(list) = value.value() else { panic!() };
    assert_eq!(list.nodes().map(span).collect::<Vec<_>>(), [(1, 17, 2), (1, 21, 6)]);
    let (_, value) = map.entry("b").unwrap();
    assert_eq!(span(value), (3, 3, 0));
}

#[test]
fn a_duplicate_key_is_reported_with_both_lines_and_the_first_value_is_kept() {
    let text = "a: 1\nb:\n  - x: 1\n    y: 2\n    'x': 3\na: 2\na: 3\n";
    assert_eq!(parse_and_format(text), "{a: 1, b: [{x: 1, y: 2}]}");
    let expected = [
        problem("duplicate key \"x\", the first is on line 3", "b[0].x", 5, 5),
        problem("duplicate key \"a\", the first is on line 1", "a", 6, 1),
        problem("duplicate key \"a\", the first is on line 1", "a", 7, 1),
    ];
    assert_eq!(problems(text), expected);
}

#[test]
fn own_entries_and_earlier_merged_maps_take_precedence() {
    let text = "a: &a {x: 1, y: 1}\nb: &b {<<: *a, y: 2, z: 2}\nc: {z: 3, <<: [*b, *a], w: 3}\n";
    assert_eq!(parse_and_format(text), {
        "{a: {x: 1, y: 1}, b: {y: 2, z: 2, x: 1}, c: {z: 3, w: 3, y: 2, x: 1}}"
    });
    assert_eq!(problems(text), []);
    let bad = [problem("`<<` merges maps into this one", "a[0].<<", 1, 6)];
    assert_eq!(problems("a: [{<<: [1, {x: 1}], y: 2}]\n"), bad);
    assert_eq!(parse_and_format("a: [{<<: [1, {x: 1}], y: 2}]\n"), "{a: [{y: 2, x: 1}]}");
}

#[test]
fn only_standard_tags_that_fit_their_value_are_accepted() {
    assert_eq!(problems("!!map {a: !!seq [!!str x, !!null ~, !!bool yes, !!int 0x1F]}"), []);
    let unknown = |tag: &str| format!("the tag `{tag}` has no meaning in a policy");
    let wrong = |tag: &str| format!("the tag `{tag}` does not fit its value");
    let text = "a: !x [!!map 1, !!int x]\nb: !!set {!y c: !!float x}\nd: ! e\n";
    let expected = [
        problem(&unknown("!x"), "a", 1, 4),
        problem(&unknown("!!map"), "a[0]", 1, 8),
        problem(&wrong("!!int"), "a[1]", 1, 17),
        problem(&unknown("!!set"), "b", 2, 4),
        problem(&unknown("!y"), "b", 2, 11),
        problem(&wrong("!!float"), "b.c", 2, 17),
        problem(&unknown("!"), "d", 3, 4),
    ];
    assert_eq!(problems(text), expected);
}

#[test]
fn a_node_takes_24_bytes() {
    assert_eq!(size_of::<tree::NodeRecord>(), 24);
}
