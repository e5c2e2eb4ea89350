//! Reports of diagnostics: the message, the position, and the source line with the wrong part
//! underlined. `tests/mistakes/policy.txt` has whole reports of each kind.

use tidegate::policy::{Diagnostic, DiagnosticKind};

use super::compile_helpers::{bad, many};

fn report(text: &str) -> String {
    reports(&bad(text)).remove(0)
}

fn reports(errors: &[Diagnostic]) -> Vec<String> {
    errors.iter().map(|error| error.report("error")).collect()
}

#[test]
fn a_syntax_error_shows_where_the_parser_stopped() {
    let expected = "
error: this is not YAML: this line is neither in the list entry above nor a new one
  --> p.yaml:10:4
   |
10 |    value: b
   |    ^ indent it like the entry's other keys, or begin it with `- `
";
    let text = "domain: edge\n\n\n\n\n\n\ndescriptors:\n  - key: a\n   value: b\n";
    assert_eq!(report(text), &expected[1..]);
}

#[test]
fn a_long_line_is_cut_around_the_wrong_part() {
    let text = format!(
        "domain: edge\ndescriptors: [{}{{key: b, valu: c}}, {}]\n",
        "{key: a, value: x}, ".repeat(50),
        "{key: c}, ".repeat(50)
    );
    let found = bad(text).into_iter().find(|e| e.kind == DiagnosticKind::UnknownKey).unwrap();
    let report = found.report("error");
    let lines: Vec<&str> = report.lines().collect();
    assert!(lines.iter().all(|line| line.chars().count() < 140), "{report}");
    assert!(lines[3].starts_with("2 | …") && lines[3].ends_with('…'), "{report}");
    let caret = lines[4].find('^').unwrap();
    let shown: String = lines[3].chars().skip(caret).take(4).collect();
    assert_eq!(shown, "valu", "{report}");
}

#[test]
fn a_value_of_several_lines_is_underlined_to_the_end_of_its_first_line() {
    let text = "domain: edge\ndescriptors: a list\n  that is none\n";
    let report = report(text);
    assert!(report.contains("2 | descriptors: a list\n  |              ^^^^^^ begin"), "{report}");
}

#[test]
fn text_from_the_file_can_neither_add_lines_nor_steer_the_terminal() {
    let text = "domain: edge\n\"a\\e[31m\\n\u{202e}x\": 1\n";
    let errors = many(&[("p\u{1b}[2J.yaml", text.as_bytes())], false).unwrap_err().0;
    let report = reports(&errors).remove(0);
    assert_eq!(report.lines().count(), 6, "{report}");
    let is_plain = |c: char| c == '\n' || !(c.is_control() || c == '\u{202e}');
    assert!(report.chars().all(is_plain), "{report:?}");
    assert!(report.contains("2 | \"a\\e[31m\\n\\u{202e}x\": 1\n"), "{report}");
}

#[test]
fn all_line_endings_count_alike() {
    for end in ["\n", "\r\n", "\r"] {
        let text = ["domain: edge", "# é", "x: 1", ""].join(end);
        assert!(report(&text).contains("p.yaml:3:1\n  |\n3 | x: 1\n  | ^ "), "{end:?}");
    }
}

#[test]
fn a_policy_with_a_key_of_another_program_is_still_a_policy() {
    let kinds: Vec<DiagnosticKind> =
        bad("domain: edge\napiVersion: v1\nactions: []\n").iter().map(|e| e.kind).collect();
    assert_eq!(kinds, [DiagnosticKind::UnknownKey, DiagnosticKind::UnknownKey]);
}
