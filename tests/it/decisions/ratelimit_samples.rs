//! The sample configurations of envoyproxy/ratelimit, each rebuilt as a policy of ours: it loads
//! and decides as that service does, except where Tidegate differs on purpose (a refused request
//! charges nothing).
//!
//! Not here: the keys of the language one by one (`policy`), matching in detail (`matcher`).

use tidegate::domain::{Code, Entry, Micros};
use tidegate::policy::{MatchEnd, Policy};

use super::test_decider::{Bench, NOON, compiled, d};

/// A key without a value, and the same key with one.
const BASIC: &str = "
domain: t
descriptors:
  - key: table
    value: orders
    rate_limit: {unit: second, requests_per_unit: 3}
  - key: table
    rate_limit: {unit: second, requests_per_unit: 1}
";

#[test]
fn basic_a_value_has_its_own_limit_and_every_other_value_the_keys() {
    let bench = Bench::new(BASIC);
    assert_eq!(bench.passes("table=orders", 5), 3);
    assert_eq!(bench.passes("table=users", 5), 1);
    assert_eq!(bench.passes("table=stock", 5), 1, "each value is counted by itself");
    bench.advance(Micros::from_secs(1));
    assert_eq!(bench.passes("table=orders", 5), 3);
}

/// Messages: so many to one number, and fewer of one kind.
const NESTED: &str = "
domain: t
descriptors:
  - key: kind
    value: advert
    descriptors:
      - key: recipient
        rate_limit: {unit: day, requests_per_unit: 2}
  - key: recipient
    rate_limit: {unit: day, requests_per_unit: 4}
  - key: client
    value: 198.51.100.7
    rate_limit: {unit: second, requests_per_unit: 0}
  - key: client
    value: 198.51.100.8
";

#[test]
fn nested_each_descriptor_meets_the_rule_of_its_whole_path() {
    let bench = Bench::new(NESTED);
    let advert = [d("kind=advert > recipient=555"), d("recipient=555")];
    assert!(bench.ask(&advert).passes());
    assert!(bench.ask(&advert).passes());
    let third = bench.ask(&advert);
    assert_eq!([third.rows[0].code, third.rows[1].code], [Code::OverLimit, Code::Ok]);
    assert_eq!(bench.passes("recipient=555", 5), 2, "two are left of four");
    assert_eq!(bench.passes("kind=notice > recipient=555", 9), 9, "no rule for that kind");
    assert_eq!(bench.passes("kind=advert", 9), 9, "nor for the kind alone");
}

#[test]
fn nested_a_limit_of_nothing_blocks_and_a_node_without_limit_lets_all_pass() {
    let bench = Bench::new(NESTED);
    assert_eq!(bench.passes("client=198.51.100.7", 3), 0);
    assert_eq!(bench.passes("client=198.51.100.8", 3), 3);
    assert_eq!(bench.one("client=198.51.100.8").rows[0].limit, None);
}

const WILDCARD: &str = "
domain: t
descriptors:
  - key: path
    value: /static/*
    rate_limit: {unit: hour, requests_per_unit: 3}
  - key: path
    value: '*.html'
    rate_limit: {unit: hour, requests_per_unit: 2}
  - key: path
    value: /static/logo.html
    rate_limit: {unit: hour, requests_per_unit: 1}
";

#[test]
fn wildcard_patterns_follow_exact_values_in_file_order_and_count_each_value() {
    let bench = Bench::new(WILDCARD);
    assert_eq!(bench.passes("path=/static/logo.html", 9), 1);
    assert_eq!(bench.passes("path=/static/a.html", 9), 3, "the first pattern, not the second");
    assert_eq!(bench.passes("path=/static/b.html", 9), 3);
    assert_eq!(bench.passes("path=/index.html", 9), 2);
    assert_eq!(bench.passes("path=/other", 9), 9);
}

const SHARED: &str = "
domain: t
descriptors:
  - key: file
    value: reports/*
    share_threshold: true
    rate_limit: {unit: hour, requests_per_unit: 3}
  - key: file
    value: drafts/*
    rate_limit: {unit: hour, requests_per_unit: 3}
";

#[test]
fn share_threshold_values_of_a_pattern_share_one_counter() {
    let bench = Bench::new(SHARED);
    assert_eq!(bench.passes("file=reports/a", 2), 2);
    assert_eq!(bench.passes("file=reports/b", 9), 1);
    assert_eq!(bench.passes("file=drafts/a", 9), 3);
    assert_eq!(bench.passes("file=drafts/b", 9), 3);
}

const REPLACES: &str = "
domain: t
descriptors:
  - key: account
    rate_limit: {name: standard, unit: hour, requests_per_unit: 1}
  - key: plan
    value: premium
    rate_limit:
      name: premium
      unit: hour
      requests_per_unit: 3
      replaces: [{name: standard}]
  - key: plan
    value: internal
    rate_limit:
      unlimited: true
      replaces: [{name: standard}]
";

#[test]
fn replaces_a_more_special_limit_takes_the_place_of_the_general_one() {
    let bench = Bench::new(REPLACES);
    let premium = [d("account=7"), d("plan=premium")];
    let codes: Vec<bool> = (0..4).map(|_| bench.ask(&premium).passes()).collect();
    assert_eq!(codes, [true, true, true, false]);
    assert_eq!(bench.passes("account=7", 9), 1, "the replaced limit was not charged");
}

#[test]
fn unlimited_has_no_counter_and_may_replace_too() {
    let bench = Bench::new(REPLACES);
    let internal = [d("account=7"), d("plan=internal")];
    for _ in 0..20 {
        let answer = bench.ask(&internal);
        assert!(answer.passes());
        assert_eq!(answer.rows[0].limit, None, "replaced");
        assert_eq!((answer.rows[1].limit, answer.rows[1].remaining), (None, u32::MAX));
    }
}

const MODES: &str = "
domain: t
descriptors:
  - key: trial
    shadow_mode: true
    rate_limit: {unit: hour, requests_per_unit: 1}
  - key: firm
    rate_limit: {unit: hour, requests_per_unit: 5}
  - key: region
    quota_mode: true
    rate_limit: {unit: hour, requests_per_unit: 1}
  - key: zone
    quota_mode: true
    rate_limit: {unit: hour, requests_per_unit: 3}
";

#[test]
fn shadow_mode_refuses_nobody_and_shows_that_it_would() {
    let bench = Bench::new(MODES);
    let both = [d("trial=a"), d("firm=a")];
    assert!(bench.ask(&both).passes());
    let second = bench.ask(&both);
    assert_eq!((second.code, second.rows[0].code), (Code::Ok, Code::Ok));
    assert_eq!(second.rows[0].remaining, 0);
}

#[test]
fn quota_mode_refuses_only_when_every_quota_is_used_up() {
    let bench = Bench::new(MODES);
    let both = [d("region=a"), d("zone=a")];
    let codes: Vec<Code> = (0..4).map(|_| bench.ask(&both).code).collect();
    assert_eq!(codes, [Code::Ok, Code::Ok, Code::Ok, Code::OverLimit]);
}

const METRICS: &str = "
domain: t
descriptors:
  - key: tenant
    value_to_metric: true
    descriptors:
      - key: route
        value: /v1/*
        value_to_metric: true
        rate_limit: {unit: minute, requests_per_unit: 2}
  - key: caller
    descriptors:
      - key: verb
        detailed_metric: true
        metadata: {team: core, contact: {channel: ops}}
        rate_limit: {unit: minute, requests_per_unit: 2}
";

fn printed(policy: &Policy, path: &[(&str, &str)]) -> String {
    let entries: Vec<Entry<'_>> = path
        .iter()
        .map(|(key, value)| Entry { key: key.as_bytes(), value: value.as_bytes() })
        .collect();
    match policy.explain("t", &entries).ending {
        MatchEnd::Rule(rule) => rule.printed_path,
        other => panic!("no rule: {other:?}"),
    }
}

#[test]
fn detailed_metric_and_value_to_metric_name_values_and_count_as_without() {
    let policy = compiled(METRICS);
    assert_eq!(
        printed(&policy, &[("tenant", "acme"), ("route", "/v1/pay")]),
        "t.tenant_acme.route_/v1/pay"
    );
    assert_eq!(printed(&policy, &[("caller", "bot"), ("verb", "GET")]), "t.caller_bot.verb_GET");
    let bench = Bench::new(METRICS);
    assert_eq!(bench.passes("tenant=acme > route=/v1/pay", 5), 2);
    assert_eq!(bench.passes("tenant=acme > route=/v1/list", 5), 2);
    assert_eq!(bench.passes("caller=bot > verb=GET", 5), 2);
}

#[test]
fn metadata_is_kept_for_answers_also_under_detailed_metric() {
    let policy = compiled(METRICS);
    let with = policy.rules().iter().find_map(|rule| rule.metadata.as_ref()).expect("metadata");
    assert_eq!(with["team"], "core");
    assert_eq!(with["contact"]["channel"], "ops");
}

/// Every unit, in any case, and the scalars of YAML 1.1.
const UNITS: &str = "
domain: t
descriptors:
  - {key: a, rate_limit: {unit: Second, requests_per_unit: 010}}
  - {key: b, rate_limit: {unit: MINUTE, requests_per_unit: 1_000}}
  - {key: c, rate_limit: {unit: hour, requests_per_unit: 0x10}}
  - {key: d, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: e, rate_limit: {unit: week, requests_per_unit: 1}}
  - {key: f, rate_limit: {unit: month, requests_per_unit: 1}}
  - {key: g, rate_limit: {unit: year, requests_per_unit: 1}}
";

#[test]
fn units_are_windows_that_end_where_theirs_do() {
    let bench = Bench::new(UNITS);
    for (key, unit_s) in [
        ("a", 1),
        ("b", 60),
        ("c", 3_600),
        ("d", 86_400),
        ("e", 604_800),
        ("f", 2_592_000),
        ("g", 31_536_000),
    ] {
        let row = bench.one(&format!("{key}=x")).rows[0].clone();
        // Within a second of the clock: what is left of it counts as a whole one.
        assert_eq!(row.reset_s, Some(unit_s - NOON.0 / 1_000_000 % unit_s), "{key}");
    }
    assert_eq!(bench.one("a=y").rows[0].limit, Some(8));
    assert_eq!(bench.one("b=y").rows[0].limit, Some(1_000));
    assert_eq!(bench.one("c=y").rows[0].limit, Some(16));
}
