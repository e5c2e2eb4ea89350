//! Warnings about configuration that contradicts itself or has no effect, and notes with advice.

use tidegate::domain::Bounds;
use tidegate::policy::{DiagnosticKind, Options, Source, compile};

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
fn a_limit_that_no_entry_ties_to_a_client_is_one_counter_for_all() {
    let kind = DiagnosticKind::OneCounterForAll;
    let text = level(&[
        &format!("key: generic_key, value: search, {LIMIT}"),
        &format!("key: remote_address, {LIMIT}"),
        &format!("key: tenant, value: big, {LIMIT}"),
        &format!("key: agent, value: 'bot*', {LIMIT}"),
        &format!("key: agent, value: 'spider*', share_threshold: true, {LIMIT}"),
        &format!("key: generic_key, value: login, descriptors: [{{key: remote_address, {LIMIT}}}]"),
        "key: generic_key, value: off, rate_limit: {unit: day, requests_per_unit: 0}",
    ]);
    assert_eq!(warned(&text, kind), ["3:51", "5:43", "7:71"]);
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
fn a_pattern_that_an_earlier_one_covers_never_matches() {
    let text = level(&[
        &format!("key: a, value: 'x*', {LIMIT}"),
        &format!("key: a, value: 'xy*', {LIMIT}"),
        &format!("key: b, value: 'xy*', {LIMIT}"),
        &format!("key: a, value: '*y', {LIMIT}"),
        &format!("key: a, value: xyz, {LIMIT}"),
        &format!("key: a, {LIMIT}"),
    ]);
    assert_eq!(warned(&text, DiagnosticKind::NeverMatches), ["4:5"]);
}

#[test]
fn a_default_node_beside_a_star_never_matches_wherever_it_stands() {
    let text = level(&[
        &format!("key: a, {LIMIT}"),
        &format!("key: a, value: '*', {LIMIT}"),
        &format!("key: b, {LIMIT}"),
        "key: c, descriptors: [{key: d, value: '**'}, {key: d}]",
    ]);
    assert_eq!(warned(&text, DiagnosticKind::NeverMatches), ["3:5", "6:51"]);
}

#[test]
fn a_rule_deeper_than_a_request_can_be_never_matches() {
    let nested = |levels: usize| {
        let mut text = format!("{{key: k, {LIMIT}}}");
        for _ in 1..levels {
            text = format!("{{key: k, descriptors: [{text}]}}");
        }
        format!("domain: edge\ndescriptors: [{text}]\n")
    };
    let never_match = |text: &str| {
        let source = Source { name: "edge.yaml".into(), text: text.as_bytes().to_vec() };
        let bounds = Bounds { entries_max: 16, ..Bounds::DEFAULT };
        let compiled = compile(&[source], &Options { bounds, ..Options::default() }).unwrap();
        let warnings = compiled.warnings.iter();
        warnings.filter(|warning| warning.kind == DiagnosticKind::NeverMatches).count()
    };
    assert_eq!(never_match(&nested(16)), 0);
    assert_eq!(never_match(&nested(17)), 1);
    // As deep as flow style may be nested; reading it must not exhaust the stack.
    assert!(warned(&nested(126), DiagnosticKind::NeverMatches).is_empty());
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
fn a_unit_without_effect_and_an_absent_number_are_warned_of() {
    let text = level(&[
        "key: a, rate_limit: {unlimited: true, unit: fortnight}",
        "key: b, rate_limit: {unit: day}",
    ]);
    assert_eq!(warned(&text, DiagnosticKind::NeverMatches), ["3:50"]);
    assert_eq!(warned(&text, DiagnosticKind::DeniesAll), ["4:14"]);
}

#[test]
fn a_listed_limit_and_classes_without_a_client_are_one_counter_for_all() {
    let text = "
domain: edge
descriptors:
  - key: remote_address
    descriptors:
      - key: plan
        rate_limits:
          - {name: each, per: [remote_address], unit: second, requests_per_unit: 5}
          - {name: all, per: [], unit: second, requests_per_unit: 5}
  - key: tier
    rate_limit:
      algorithm: token_bucket
      unit: second
      requests_per_unit: 5
      tiers: {method: shared, classes: {gold: {floor: 0%}}}
";
    let notes = good(text).notes;
    let of_kind = notes.iter().filter(|note| note.kind == DiagnosticKind::OneCounterForAll);
    let paths: Vec<&str> = of_kind.map(|warning| warning.path.as_str()).collect();
    assert_eq!(
        paths,
        ["descriptors[0].descriptors[0].rate_limits[1]", "descriptors[1].rate_limit"]
    );
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
