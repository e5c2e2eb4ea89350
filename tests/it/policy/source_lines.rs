//! Reports of diagnostics: the message, the position, and the source line with the wrong part
//! underlined.

use tidegate::policy::{Diagnostic, DiagnosticKind};

use super::compile_helpers::{bad, many, rate_limit};

fn report(text: &str) -> String {
    reports(&bad(text)).remove(0)
}

fn reports(errors: &[Diagnostic]) -> Vec<String> {
    errors.iter().map(|error| error.report("error")).collect()
}

#[test]
fn the_wrong_key_is_underlined_and_the_right_one_stands_beside_it() {
    let text = "\
domain: edge
descriptors:
  - key: remote_address
    rate_limit:
      unit: second
      # as in the other file
      requests_per_units: 5
";
    let expected = r#"
error: unknown key "requests_per_units"
 --> p.yaml:7:7
  |
7 |       requests_per_units: 5
  |       ^^^^^^^^^^^^^^^^^^ did you mean `requests_per_unit`?
  = at descriptors[0].rate_limit.requests_per_units
"#;
    assert_eq!(report(text), &expected[1..]);
}

#[test]
fn the_wrong_value_is_underlined_with_its_quotes() {
    let expected = r#"
error: `unit` must be one of: second, minute, hour, day, week, month, year
 --> p.yaml:2:43
  |
2 | descriptors: [{key: a, rate_limit: {unit: "fortnight"}}]
  |                                           ^^^^^^^^^^^ not "fortnight"
  = at descriptors[0].rate_limit.unit
"#;
    assert_eq!(report(&rate_limit("unit: \"fortnight\"")), &expected[1..]);
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
fn a_file_that_is_wrong_as_a_whole_has_no_source_line() {
    let expected = "
error: the file has no content (comments do not count)
 --> p.yaml:1:1
  = begin with `domain: edge` and `descriptors: [{key: remote_address, rate_limit: {unit: minute, requests_per_unit: 100}}]`
";
    assert_eq!(report("# nothing\n"), &expected[1..]);
}

#[test]
fn a_repeated_key_names_the_line_of_the_first() {
    let expected = r#"
error: duplicate key "domain", the first is on line 1
 --> p.yaml:2:1
  |
2 | domain: other
  | ^^^^^^ remove one of the two
  = at domain
"#;
    assert_eq!(report("domain: edge\ndomain: other\n"), &expected[1..]);
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
fn a_file_of_another_program_is_recognized_and_gets_one_error() {
    let config_map = "\
apiVersion: v1
kind: ConfigMap
metadata:
  name: limits
data:
  edge.yaml: |
    domain: edge
";
    let actions = "\
rate_limits:
  - actions:
      - remote_address: {}
";
    let limitador = "\
- namespace: edge
  max_value: 10
  seconds: 60
  conditions: []
  variables: [user_id]
";
    let files = [
        (config_map, "a Kubernetes ConfigMap", "`data`"),
        ("apiVersion: apps/v1\nkind: Deployment\n", "a Kubernetes manifest", "`domain: NAME`"),
        (actions, "Envoy's rate limit actions", "Envoy's route"),
        ("- actions:\n    - remote_address: {}\n", "Envoy's rate limit actions", "Envoy's route"),
        ("static_resources:\n  listeners: []\n", "Envoy's configuration", "`domain`"),
        (limitador, "a limits file of Limitador", "`namespace: edge` becomes `domain: edge`"),
    ];
    for (text, what, help) in files {
        let errors = bad(text);
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert_eq!(errors[0].kind, DiagnosticKind::ForeignFile);
        let message = &errors[0].message;
        assert!(message.contains(what) && message.contains(help), "{message}");
        assert!(errors[0].excerpt.is_some());
    }
}

#[test]
fn a_policy_with_a_key_of_another_program_is_still_a_policy() {
    let kinds: Vec<DiagnosticKind> =
        bad("domain: edge\napiVersion: v1\nactions: []\n").iter().map(|e| e.kind).collect();
    assert_eq!(kinds, [DiagnosticKind::UnknownKey, DiagnosticKind::UnknownKey]);
}
