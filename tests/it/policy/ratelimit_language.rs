//! The language of existing envoyproxy/ratelimit files: its keys, how they are read, what is
//! refused. One test per behaviour.

use tidegate::domain::{Hits, Unit};
use tidegate::policy::compiled_policy::{NodeSpec, RuleSpec, ValueSpec};
use tidegate::policy::{CompiledPolicy, DiagnosticKind};

use super::compile_helpers::{bad, good, many, one, rate_limit};

fn nodes(text: &str) -> Vec<NodeSpec> {
    good(text).domains.remove(0).nodes
}

fn node(text: &str) -> NodeSpec {
    nodes(&format!("domain: edge\ndescriptors: [{{{text}}}]\n")).remove(0)
}

fn rule(text: &str) -> RuleSpec {
    let limit = "rate_limit: {unit: second, requests_per_unit: 5}";
    node(&format!("key: a, {text}, {limit}")).rule.unwrap()
}

fn limited(text: &str) -> RuleSpec {
    nodes(&rate_limit(text)).remove(0).rule.unwrap()
}

fn kinds(text: &str) -> Vec<DiagnosticKind> {
    bad(text).iter().map(|fault| fault.kind).collect()
}

fn value(text: &str) -> ValueSpec {
    node(&format!("key: a, value: {text}")).value
}

fn exact(text: &str) -> ValueSpec {
    ValueSpec::Exact(text.into())
}

fn requests(text: &str) -> u32 {
    limited(&format!("unit: second, requests_per_unit: {text}")).limits[0]
        .limit
        .rate
        .requests_per_unit
}

// The keys.

#[test]
fn the_domain_is_required_and_not_empty() {
    assert_eq!(kinds("descriptors: []\n"), [DiagnosticKind::Missing]);
    assert_eq!(kinds("domain: ''\n"), [DiagnosticKind::Missing]);
    assert_eq!(&*good("domain: edge\n").domains[0].name, "edge");
}

#[test]
fn a_domain_in_two_files_is_refused_unless_domains_merge() {
    let files: &[(&str, &[u8])] = &[
        ("b.yaml", b"domain: edge\ndescriptors: [{key: b}]\n"),
        ("a.yaml", b"domain: edge\ndescriptors: [{key: a}]\n"),
        ("c.yaml", b"domain: other\n"),
    ];
    assert_eq!(many(files, false).unwrap_err().0[0].kind, DiagnosticKind::Duplicate);
    let CompiledPolicy { domains, .. } = many(files, true).unwrap();
    assert_eq!(domains.len(), 2);
    let keys: Vec<&str> = domains[0].nodes.iter().map(|node| &*node.key).collect();
    assert_eq!(keys, ["a", "b"], "in the order of the files' names");
}

#[test]
fn a_composite_key_is_refused_twice_on_one_level_also_across_merged_files() {
    let twice = "domain: edge\ndescriptors: [{key: a, value: b}, {key: a, value: b}]\n";
    assert_eq!(kinds(twice), [DiagnosticKind::Duplicate]);
    let file: &[u8] = b"domain: edge\ndescriptors: [{key: a}]\n";
    let faults = many(&[("a", file), ("b", file)], true).unwrap_err().0;
    assert_eq!(faults.len(), 1);
    assert_eq!((faults[0].file.as_str(), faults[0].kind), ("b", DiagnosticKind::Duplicate));
    let levels = "domain: edge\ndescriptors: [{key: a, descriptors: [{key: a}]}]\n";
    assert!(one(levels).is_ok(), "on two levels they are two");
}

#[test]
fn an_underscore_in_a_key_is_no_separator() {
    let nodes = nodes("domain: edge\ndescriptors: [{key: a, value: b}, {key: a_b}]\n");
    assert_eq!(nodes.len(), 2);
}

#[test]
fn merged_files_agree_where_only_one_of_them_says_something() {
    let files: &[(&str, &[u8])] = &[
        ("a", b"domain: edge\n"),
        ("b", b"domain: edge\non_store_failure: deny\nhash_tag: [t]\n"),
        ("c", b"domain: edge\nhash_tag: [t]\ndescriptors:\n  - key: a\n    rate_limit: {unit: day, requests_per_unit: 1}\n"),
    ];
    let domain = many(files, true).unwrap().domains.remove(0);
    assert_eq!(domain.hash_tag.len(), 1);
    let limit = &domain.nodes[0].rule.as_ref().unwrap().limits[0].limit;
    assert_eq!(limit.on_store_failure, tidegate::domain::OnStoreFailure::Deny);
}

#[test]
fn descriptors_may_be_null_or_absent_at_the_top_and_below() {
    assert!(good("domain: edge\ndescriptors:\n").domains[0].nodes.is_empty());
    assert!(good("domain: edge\n").domains[0].nodes.is_empty());
    assert!(node("key: a, descriptors: ~").children.is_empty());
}

#[test]
fn a_descriptor_needs_a_key_that_is_not_empty() {
    for text in ["{value: a}", "{key: ''}", "{key: ~}"] {
        let text = format!("domain: edge\ndescriptors: [{text}]\n");
        assert_eq!(kinds(&text), [DiagnosticKind::Missing], "{text}");
    }
}

#[test]
fn an_absent_or_empty_value_is_the_default_node() {
    assert_eq!(node("key: a").value, ValueSpec::Any);
    assert_eq!(value("''"), ValueSpec::Any);
    assert_eq!(value("~"), ValueSpec::Any);
    assert_eq!(value("b"), exact("b"));
}

#[test]
fn a_star_anywhere_in_a_value_makes_a_pattern() {
    for text in ["*", "a*", "*a", "a*b", "a*b*c*"] {
        assert_eq!(value(&format!("'{text}'")), ValueSpec::Pattern(text.into()));
    }
}

#[test]
fn a_node_without_limit_and_children_is_an_explicit_allow() {
    assert!(node("key: a, value: friend").rule.is_none());
    assert!(node("key: a, value: friend, rate_limit: ~").rule.is_none());
}

#[test]
fn shadow_quota_and_metric_flags_are_read_and_default_to_false() {
    let plain = rule("value: x");
    assert!(!plain.shadow_mode && !plain.quota_mode && !plain.detailed_metric);
    assert!(rule("shadow_mode: true").shadow_mode);
    assert!(rule("quota_mode: true").quota_mode);
    assert!(rule("detailed_metric: true").detailed_metric);
    assert!(node("key: a, value_to_metric: true").value_to_metric);
}

#[test]
fn share_threshold_stands_only_with_a_pattern() {
    assert!(node("key: a, value: 'x*', share_threshold: true").share_threshold);
    for text in ["value: x, share_threshold: true", "share_threshold: true"] {
        let text = format!("domain: edge\ndescriptors: [{{key: a, {text}}}]\n");
        assert_eq!(kinds(&text), [DiagnosticKind::Conflict], "{text}");
    }
    assert!(!node("key: a, value: x, share_threshold: false").share_threshold);
}

#[test]
fn metadata_is_kept_for_answers() {
    let metadata = rule("metadata: {a: {b: [1, two]}}").metadata.unwrap();
    assert_eq!(serde_json::to_string(&*metadata).unwrap(), r#"{"a":{"b":[1,"two"]}}"#);
}

#[test]
fn units_are_read_in_any_case_and_have_their_lengths() {
    for (word, unit, seconds) in [
        ("second", Unit::Second, 1),
        ("MINUTE", Unit::Minute, 60),
        ("Hour", Unit::Hour, 3_600),
        ("dAy", Unit::Day, 86_400),
        ("week", Unit::Week, 604_800),
        ("MONTH", Unit::Month, 2_592_000),
        ("year", Unit::Year, 31_536_000),
    ] {
        let rate = limited(&format!("unit: {word}, requests_per_unit: 1")).limits[0].limit.rate;
        assert_eq!(rate.unit, Some(unit));
        assert_eq!(rate.window().ceil_secs(), seconds);
    }
}

#[test]
fn a_missing_requests_per_unit_is_zero_and_denies_all_with_a_warning() {
    let compiled = good(rate_limit("unit: second"));
    let rule = compiled.domains[0].nodes[0].rule.as_ref().unwrap();
    assert_eq!(rule.limits[0].limit.capacity(), Hits::ZERO);
    assert!(compiled.warnings.iter().any(|warning| warning.kind == DiagnosticKind::DeniesAll));
}

#[test]
fn unlimited_has_no_limit_and_keeps_its_name() {
    let rule = limited("unlimited: true, name: vip, requests_per_unit: 5");
    assert!(rule.limits.is_empty());
    assert_eq!(rule.name.as_deref(), Some("vip"));
}

#[test]
fn a_limits_name_and_what_it_replaces_are_read() {
    let rule =
        limited("unit: day, requests_per_unit: 1, name: n, replaces: [{name: a}, {name: b}]");
    assert_eq!(rule.limits[0].name.as_deref(), Some("n"));
    assert_eq!(rule.replaces.iter().map(|name| &**name).collect::<Vec<_>>(), ["a", "b"]);
}

// How files are read.

#[test]
fn an_unknown_key_anywhere_is_refused() {
    for text in [
        "domain: a\nx: 1\n",
        "domain: a\ndescriptors: [{key: a, x: 1}]\n",
        "domain: a\ndescriptors: [{key: a, descriptors: [{key: b, x: 1}]}]\n",
        "domain: a\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1, x: 1}}]\n",
    ] {
        assert_eq!(kinds(text), [DiagnosticKind::UnknownKey], "{text}");
    }
}

#[test]
fn a_known_key_in_the_wrong_place_is_refused_and_the_right_place_named() {
    let text = rate_limit("unit: second, requests_per_unit: 5, shadow_mode: true");
    let faults = bad(text);
    assert_eq!(faults[0].kind, DiagnosticKind::MisplacedKey);
    assert_eq!(
        faults[0].message,
        "`shadow_mode` belongs to the descriptor, not to `rate_limit`; move it there"
    );
    assert_eq!(kinds("domain: a\nunit: second\n"), [DiagnosticKind::MisplacedKey]);
}

#[test]
fn numbers_of_any_size_are_metadata() {
    rule("metadata: {a: 1.5, b: 18446744073709551615, c: 99999999999999999999}");
}

#[test]
fn scalars_that_are_no_text_stand_for_their_source_text() {
    for text in ["123", "-5", "0x1F", "0o17", "1_000", "yes", "True", "FALSE", "2001-01-01", "010"]
    {
        assert_eq!(value(text), exact(text));
    }
    assert_eq!(&*good("domain: 0x10\n").domains[0].name, "0x10");
}

#[test]
fn yes_no_on_off_are_truth_values_where_a_key_takes_one() {
    for (word, truth) in [("yes", true), ("ON", true), ("y", true), ("no", false), ("Off", false)] {
        assert_eq!(rule(&format!("shadow_mode: {word}")).shadow_mode, truth, "{word}");
    }
    assert!(one("domain: a\ndescriptors: [{key: a, shadow_mode: 'yes'}]\n").is_err(), "quoted");
}

#[test]
fn integers_are_read_in_every_notation_of_yaml_1_1() {
    for (text, number) in
        [("010", 8), ("1_000", 1000), ("0x1F", 31), ("0b11", 3), ("0o17", 15), ("+7", 7)]
    {
        assert_eq!(requests(text), number, "{text}");
    }
    assert_eq!(requests("4294967295"), u32::MAX);
}

#[test]
fn duplicate_mapping_keys_are_refused() {
    assert_eq!(kinds("domain: a\ndomain: b\n"), [DiagnosticKind::DuplicateKey]);
    let below = "domain: a\ndescriptors: [{key: a, metadata: {x: 1, x: 2}}]\n";
    assert_eq!(kinds(below), [DiagnosticKind::DuplicateKey], "in metadata, too");
}

#[test]
fn a_second_document_is_refused() {
    assert_eq!(kinds("domain: a\n---\ndomain: b\n"), [DiagnosticKind::SecondDocument]);
    assert!(one("---\ndomain: a\n").is_ok());
}

#[test]
fn anchors_and_merge_keys_work_and_own_keys_win() {
    let text = "\
domain: a
descriptors:
  - key: a
    rate_limit: &base {unit: minute, requests_per_unit: 5}
  - key: b
    rate_limit: &more {<<: *base, unit: hour}
  - key: c
    rate_limit: {requests_per_unit: 7, <<: [*more, *base]}
";
    let nodes = nodes(text);
    let rate = |at: usize| nodes[at].rule.as_ref().unwrap().limits[0].limit.rate;
    assert_eq!((rate(1).unit, rate(1).requests_per_unit), (Some(Unit::Hour), 5));
    assert_eq!((rate(2).unit, rate(2).requests_per_unit), (Some(Unit::Hour), 7));
}

#[test]
fn metadata_is_not_key_checked_and_its_keys_become_text() {
    let metadata = rule("metadata: {anything: {1: a, true: b}, domain: x}").metadata.unwrap();
    let json = serde_json::to_string(&*metadata).unwrap();
    assert_eq!(json, r#"{"anything":{"1":"a","true":"b"},"domain":"x"}"#);
}

#[test]
fn metadata_reads_scalars_as_yaml_1_1_does() {
    let metadata = rule("metadata: {a: yes, b: 'yes', c: 010, d: 1_000, e: ~}").metadata.unwrap();
    let json = serde_json::to_string(&*metadata).unwrap();
    assert_eq!(json, r#"{"a":true,"b":"yes","c":8,"d":1000,"e":null}"#);
}

// What is refused besides.

#[test]
fn text_that_is_not_yaml_is_refused() {
    assert_eq!(kinds("domain: [\n"), [DiagnosticKind::Syntax]);
}

#[test]
fn a_key_that_is_not_text_is_refused() {
    assert_eq!(kinds("domain: a\n1: x\n"), [DiagnosticKind::WrongType]);
    assert_eq!(kinds("domain: a\n[b]: x\n"), [DiagnosticKind::WrongType]);
}

#[test]
fn a_list_that_holds_no_maps_is_refused() {
    assert_eq!(kinds("domain: a\ndescriptors: [a, 5, ~, []]\n"), [DiagnosticKind::WrongType; 4]);
}

#[test]
fn an_invalid_unit_is_refused_unless_unlimited() {
    for unit in ["''", "unknown", "fortnight", "~"] {
        let kinds = kinds(&rate_limit(&format!("unit: {unit}, requests_per_unit: 1")));
        assert!(
            matches!(kinds[..], [DiagnosticKind::BadValue | DiagnosticKind::Missing]),
            "{unit}"
        );
        assert!(limited(&format!("unit: {unit}, unlimited: true")).limits.is_empty());
    }
}

#[test]
fn unlimited_with_a_valid_unit_is_refused() {
    assert_eq!(kinds(&rate_limit("unit: SECOND, unlimited: true")), [DiagnosticKind::Conflict]);
}

#[test]
fn replaces_with_an_empty_name_or_its_own_is_refused() {
    let with = |text: &str| {
        kinds(&rate_limit(&format!("unit: day, name: n, requests_per_unit: 1, {text}")))
    };
    assert_eq!(with("replaces: [{name: ''}]"), [DiagnosticKind::Missing]);
    assert_eq!(with("replaces: [{name: n}]"), [DiagnosticKind::Conflict]);
}

#[test]
fn metadata_that_a_struct_cannot_hold_is_refused() {
    for text in ["[1]", "text", "{a: .nan}", "{a: -.inf}", "{a: !x 1}"] {
        let text = format!("domain: a\ndescriptors: [{{key: a, metadata: {text}}}]\n");
        assert_eq!(kinds(&text).len(), 1, "{text}");
    }
}

// What is not refused.

#[test]
fn replaces_that_names_nobody_is_let_pass_with_a_warning() {
    let text = rate_limit("unit: day, requests_per_unit: 1, replaces: [{name: ghost}]");
    let warnings = good(text).warnings;
    assert!(warnings.iter().any(|warning| warning.kind == DiagnosticKind::UnknownReplaces));
}

#[test]
fn unlimited_with_requests_per_unit_and_no_unit_is_let_pass() {
    assert!(limited("unlimited: true, requests_per_unit: 5").limits.is_empty());
}

#[test]
fn contradictory_flags_and_quota_with_shadow_are_let_pass() {
    let rule = rule("quota_mode: true, shadow_mode: true, detailed_metric: true");
    assert!(rule.quota_mode && rule.shadow_mode);
    node("key: a, value: 'x*', share_threshold: true, value_to_metric: true");
}
