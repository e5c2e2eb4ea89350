//! How rules are printed.

use std::sync::Arc;

use tidegate::domain::{Charge, Unit};
use tidegate::policy::{DescriptorMatch, Policy};

use crate::support::policy_specs::{
    bucket, descriptor, entry, key, listed, pair, policy, request, spec, window,
};

/// The written and the printed path of the rule that these entries meet.
fn paths(policy: &Policy, entries: &[(&str, &str)]) -> (String, String) {
    let entries: Vec<_> = entries.iter().map(|(key, value)| entry(*key, *value)).collect();
    let descriptors = [descriptor(&entries)];
    match policy.find(&request(&descriptors)).found[0] {
        DescriptorMatch::Limited(rule) => {
            (rule.path.to_string(), policy.printed_path(rule, &entries))
        }
        other => panic!("{other:?}"),
    }
}

fn both(written: &str, printed: &str) -> (String, String) {
    (written.to_owned(), printed.to_owned())
}

#[test]
fn a_path_has_values_where_exact_patterns_where_matched_and_bare_keys_for_defaults() {
    let policy = policy([pair("a", "x").over([pair("b", "y*").over([key("c").limit(1)])])]);
    assert_eq!(
        paths(&policy, &[("a", "x"), ("b", "yes"), ("c", "secret")]),
        both("d.a_x.b_y*.c", "d.a_x.b_y*.c")
    );
}

#[test]
fn value_to_metric_prints_the_value_sent_for_its_own_node_only() {
    let policy = policy([key("a").value_to_metric().over([pair("b", "y*")
        .value_to_metric()
        .over([key("c").limit(1), pair("c", "1").value_to_metric().limit(2)])])]);
    assert_eq!(
        paths(&policy, &[("a", "1"), ("b", "yes"), ("c", "z")]),
        both("d.a.b_y*.c", "d.a_1.b_yes.c")
    );
    assert_eq!(
        paths(&policy, &[("a", "1"), ("b", "yes"), ("c", "1")]),
        both("d.a.b_y*.c_1", "d.a_1.b_yes.c_1")
    );
}

#[test]
fn value_to_metric_of_an_empty_value_is_just_the_key() {
    let policy = policy([key("a").value_to_metric().limit(1)]);
    assert_eq!(paths(&policy, &[("a", "")]), both("d.a", "d.a"));
}

#[test]
fn share_threshold_prints_the_pattern_whatever_else_is_asked_for() {
    let shared = || pair("a", "x*").shared().value_to_metric();
    let policy = policy([shared()
        .limit(1)
        .over([key("b").limit(1).ruled(|rule| rule.detailed_metric = true)])]);
    assert_eq!(paths(&policy, &[("a", "x1")]), both("d.a_x*", "d.a_x*"));
    assert_eq!(paths(&policy, &[("a", "x1"), ("b", "2")]), both("d.a_x*.b", "d.a_x*.b_2"));
}

#[test]
fn detailed_metric_of_the_leaf_prints_every_value_sent() {
    let leaf = || key("c").limit(1).ruled(|rule| rule.detailed_metric = true);
    let policy = policy([key("a").over([pair("b", "y*").value_to_metric().over([leaf()])])]);
    assert_eq!(
        paths(&policy, &[("a", "1"), ("b", "yes"), ("c", "z")]),
        both("d.a.b_y*.c", "d.a_1.b_yes.c_z")
    );
}

#[test]
fn metadata_is_kept_whatever_the_metrics_of_the_rule() {
    let metadata: serde_json::Map<_, _> =
        [("team".to_owned(), serde_json::Value::from("edge"))].into_iter().collect();
    let policy = policy([key("a").value_to_metric().limit(1).ruled(|rule| {
        rule.detailed_metric = true;
        rule.metadata = Some(Arc::new(metadata.clone()));
    })]);
    assert_eq!(policy.rules()[0].metadata.as_deref(), Some(&metadata));
}

#[test]
fn a_rule_without_a_body_has_its_domains() {
    let body = |text: &str| {
        let content_type = "text/plain".into();
        Arc::new(tidegate::policy::compiled_policy::RejectionBody {
            content_type,
            text: text.into(),
        })
    };
    let mut spec = crate::support::policy_specs::domain(
        "d",
        [key("a").limit(1), key("b").limit(1).ruled(|rule| rule.body = Some(body("own")))],
    );
    spec.body = Some(body("domain's"));
    let policy = Policy::build(vec![spec], tidegate::policy::Secret::default());
    let texts: Vec<_> = policy.rules().iter().map(|r| &*r.body.as_ref().unwrap().text).collect();
    assert_eq!(texts, ["domain's", "own"]);
}

#[test]
fn the_listing_has_one_line_per_limit_in_file_order() {
    let mut always = bucket(10, 20);
    Arc::make_mut(&mut always).charge = Charge::Always;
    let mut costly = listed("burst", None, always);
    costly.cost = 5;
    let mut quarter = window(5, Unit::Minute);
    Arc::make_mut(&mut quarter).rate.unit_multiplier = 15;
    let policy = policy([
        pair("b", "x*").with(spec(None, window(3, Unit::Minute))),
        key("a")
            .ruled(|rule| rule.shadow_mode = true)
            .with(costly)
            .with(listed("q", None, quarter)),
        key("c").unlimited().ruled(|rule| rule.quota_mode = true),
    ]);
    let lines: Vec<String> = policy.listing().collect();
    assert_eq!(
        lines,
        [
            "d.b_x*: unit=MINUTE requests_per_unit=3, shadow_mode: false, quota_mode: false",
            "d.a: unit=SECOND requests_per_unit=10, shadow_mode: true, quota_mode: false, \
         name: burst, algorithm: token_bucket, burst: 20, cost: 5, charge: always",
            "d.a: unit=MINUTE requests_per_unit=5, shadow_mode: true, quota_mode: false, \
         unit_multiplier: 15, name: q",
            "d.c: unit=UNKNOWN requests_per_unit=0, shadow_mode: false, quota_mode: true",
        ]
    );
}
