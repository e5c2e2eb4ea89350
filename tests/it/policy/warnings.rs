//! Warnings about configuration that contradicts itself or has no effect, and notes with advice.

use tidegate::policy::DiagnosticKind;

use super::compile_helpers::{good, many};

const LIMIT: &str = "rate_limit: {unit: second, requests_per_unit: 5}";

/// The warnings or notes of that kind, as `line:column`.
fn warned(text: &str, kind: DiagnosticKind) -> Vec<String> {
    let compiled = good(text);
    assert!(compiled.warnings.iter().all(|warning| warning.kind.is_warning()));
    assert!(compiled.notes.iter().all(|note| note.kind.is_note()));
    let all = compiled.warnings.iter().chain(&compiled.notes);
    let of_kind = all.filter(|warning| warning.kind == kind);
    of_kind.map(|warning| format!("{}:{}", warning.line, warning.column)).collect()
}

fn level(nodes: &[&str]) -> String {
    let list: String = nodes.iter().map(|node| format!("  - {{{node}}}\n")).collect();
    format!("domain: edge\ndescriptors:\n{list}")
}

#[test]
fn a_key_whose_absence_leaves_no_limit_is_named_once() {
    let kind = DiagnosticKind::NoLimitWhenAbsent;
    let alone = level(&[
        &format!("key: api_token, {LIMIT}"),
        &format!("key: api_token, value: x, {LIMIT}"),
    ]);
    assert_eq!(warned(&alone, kind), ["3:11"]);
    let beside =
        level(&[&format!("key: api_token, {LIMIT}"), &format!("key: remote_address, {LIMIT}")]);
    assert!(warned(&beside, kind).is_empty());
}

#[test]
fn path_as_a_key_is_warned_of() {
    let text = level(&[&format!("key: ':path', {LIMIT}"), &format!("key: path, {LIMIT}")]);
    assert_eq!(warned(&text, DiagnosticKind::PathAsKey), ["3:11"]);
}

#[test]
fn a_star_in_a_key_is_a_plain_character_and_warned_of() {
    let text = level(&[&format!("key: 'x-*', {LIMIT}")]);
    assert_eq!(warned(&text, DiagnosticKind::StarInKey), ["3:11"]);
}

#[test]
fn replaces_may_name_a_limit_anywhere_in_the_domain_also_in_a_merged_file() {
    let rule = |name: &str, other: &str| {
        format!(
            "domain: edge\ndescriptors: [{{key: {name}, rate_limit: {{name: {name}, unlimited: true, replaces: [{{name: {other}}}]}}}}]\n"
        )
    };
    let (a, b) = (rule("a", "b"), rule("b", "c"));
    let files: &[(&str, &[u8])] = &[("a.yaml", a.as_bytes()), ("b.yaml", b.as_bytes())];
    let warnings = many(files, true).unwrap().warnings;
    assert_eq!(warnings.len(), 1);
    assert_eq!(
        (warnings[0].file.as_str(), warnings[0].kind),
        ("b.yaml", DiagnosticKind::UnknownReplaces)
    );
    assert_eq!(warnings[0].path, "descriptors[0].rate_limit.replaces[0].name");
}

#[test]
fn an_absent_number_is_warned_of() {
    let text = level(&["key: b, rate_limit: {unit: day}"]);
    assert_eq!(warned(&text, DiagnosticKind::DeniesAll), ["3:14"]);
}

#[test]
fn a_policy_as_meant_has_neither_warnings_nor_notes() {
    let compiled = good(level(&[&format!("key: remote_address, {LIMIT}")]));
    assert!(compiled.warnings.is_empty() && compiled.notes.is_empty());
}

#[test]
fn a_leaf_without_a_limit_is_warned_of_unless_it_is_an_exception_to_one() {
    let text = level(&[
        &format!("key: remote_address, {LIMIT}"),
        "key: remote_address, value: 10.0.0.1",
        "key: tenant",
        &format!(
            "key: path, value: /a, descriptors: [{{key: remote_address, {LIMIT}}}, {{key: user}}]"
        ),
        "key: path, value: /b",
    ]);
    assert_eq!(warned(&text, DiagnosticKind::NoLimit), ["5:5", "6:115"]);
}

#[test]
fn a_domain_without_rules_is_warned_of() {
    let kind = DiagnosticKind::NoRules;
    for text in ["domain: edge\n", "domain: edge\ndescriptors: []\n"] {
        assert_eq!(warned(text, kind), ["1:9"], "{text}");
    }
    let leaves = level(&["key: tenant", "key: path, descriptors: [{key: user}]"]);
    assert_eq!(warned(&leaves, kind), ["1:9"]);
    assert_eq!(warned(&leaves, DiagnosticKind::NoLimit).len(), 2, "and each says why");
    let unlimited = level(&["key: tenant, rate_limit: {unlimited: true}"]);
    assert!(warned(&unlimited, kind).is_empty());
}
