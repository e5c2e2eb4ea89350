//! Operators' overrides: which of them apply to a request, what they change, and what they do not.

use std::fs;
use std::sync::Arc;

use tidegate::algorithm;
use tidegate::domain::{
    Charge, Descriptor, Entry, Hits, Limit, Micros, OnStoreFailure, Op, Request, Role, RuleId, Unit,
};
use tidegate::policy::{
    DescriptorMatch, Fit, Options, OverrideEntry, PATTERN_COMBINATIONS_MAX, PATTERN_TARGETS_MAX,
    Policy, Secret, Source, compile,
};

use super::checks_of;
use crate::envoy::bootstrap::repository;
use crate::support::policy_cases;
use crate::support::policy_specs as specs;
use crate::support::random::Random;

/// Parses an override in the domain `d`, from the fields of its JSON object.
fn set(fields: &str) -> Arc<OverrideEntry> {
    let domain = if fields.contains("\"domain\"") { "" } else { r#""domain":"d","# };
    Arc::new(OverrideEntry::from_json(&format!("{{{domain}{fields}}}")).unwrap())
}

fn read(text: &str) -> Policy {
    let source = Source { name: "p.yaml".into(), text: text.into() };
    Policy::build(compile(&[source], &Options::default()).unwrap().domains, Secret::default())
}

fn with(policy: &Policy, each: &[&str]) -> Policy {
    let entries: Vec<_> = each.iter().map(|fields| set(fields)).collect();
    for entry in &entries {
        policy.check_override(entry).unwrap();
    }
    policy.with_overrides(&entries)
}

/// What the checks of a descriptor such as `user=ann` are: capacities, with `~` in shadow mode; `-` for
/// none, because the call is allowed without counting, and `?` without a rule.
fn checks(policy: &Policy, descriptor: &str) -> String {
    checks_in("d", policy, descriptor)
}

fn checks_in(domain: &str, policy: &Policy, descriptor: &str) -> String {
    let pairs = tidegate::domain::parse_descriptor(descriptor).unwrap();
    let entries: Vec<Entry<'_>> = pairs.iter().map(|(k, v)| specs::entry(k, v)).collect();
    let descriptors = [specs::descriptor(&entries)];
    let request = Request { domain, descriptors: &descriptors };
    match policy.find(&request).found[0] {
        DescriptorMatch::NoRule => return "?".into(),
        DescriptorMatch::Unlimited(_) => return "-".into(),
        _ => {}
    }
    let read = |check: &tidegate::domain::Check<'_>| {
        let shadow = if check.role == Role::Shadow { "~" } else { "" };
        format!("{shadow}{}", check.limit.capacity())
    };
    checks_of(policy, &request, read).join(" ")
}

fn error(policy: &Policy, fields: &str) -> String {
    policy.check_override(&set(fields)).unwrap_err().to_string()
}

/// A rule of one key with any value, one of two keys, one with several limits, and an unlimited one.
fn written() -> Policy {
    read(
        "domain: d
descriptors:
  - {key: user, rate_limit: {unit: minute, requests_per_unit: 100}}
  - key: tenant
    descriptors:
      - {key: user, rate_limit: {unit: minute, requests_per_unit: 10}}
  - key: ip
    rate_limits:
      - {name: fast, unit: second, requests_per_unit: 5}
      - {name: slow, unit: hour, requests_per_unit: 1000}
  - {key: free, rate_limit: {unlimited: true}}
",
    )
}

/// Overrides, and what descriptors meet under them.
type Case = (&'static [&'static str], &'static [(&'static str, &'static str)]);

const CASES: &[Case] = &[
    // One customer, one rule, one domain.
    (
        &[r#""descriptor":"user=ann","limit":500"#],
        &[("user=ann", "500"), ("user=bob", "100"), ("tenant=a,user=ann", "10")],
    ),
    (&[r#""rule":"d.user","limit":7"#], &[("user=ann", "7"), ("tenant=a,user=b", "10")]),
    (
        &[r#""scale":"50%""#],
        &[("user=ann", "50"), ("tenant=a,user=b", "5"), ("ip=x", "3 500"), ("free=x", "-")],
    ),
    // Exact over prefix over catch-all, in any order.
    (
        &[
            r#""descriptor":"user=*","limit":1"#,
            r#""descriptor":"user=acme-1","limit":3"#,
            r#""descriptor":"user=acme-*","limit":2"#,
        ],
        &[("user=acme-1", "3"), ("user=acme-2", "2"), ("user=other", "1")],
    ),
    // Fewer stars, then the longer text before the first one, entry by entry.
    (
        &[
            r#""descriptor":"tenant=a,user=*","limit":1"#,
            r#""descriptor":"tenant=*,user=ann","limit":2"#,
            r#""descriptor":"tenant=*,user=*","limit":3"#,
        ],
        &[("tenant=a,user=ann", "1"), ("tenant=b,user=ann", "2"), ("tenant=b,user=bob", "3")],
    ),
    (
        &[
            r#""descriptor":"user=abc*x*","limit":1"#,
            r#""descriptor":"user=a*","limit":2"#,
            r#""descriptor":"user=ab*","limit":3"#,
        ],
        &[("user=abcx", "3"), ("user=acx", "2"), ("user=bbx", "100")],
    ),
    // The later of two of the same specificity; then the greater id.
    (
        &[
            r#""descriptor":"user=*x","limit":1,"set_at":"2026-01-02T00:00:00Z""#,
            r#""descriptor":"user=*xx","limit":2,"set_at":"2026-01-01T00:00:00Z""#,
        ],
        &[("user=xx", "1")],
    ),
    (
        &[r#""descriptor":"user=*x","limit":1"#, r#""descriptor":"user=*xx","limit":2"#],
        &[("user=xx", "2")],
    ),
    // Values before the rule before the domain; kinds are independent.
    (
        &[
            r#""descriptor":"user=ann","limit":500"#,
            r#""rule":"d.user","limit":40"#,
            r#""scale":"20%""#,
        ],
        &[("user=ann", "100"), ("user=bob", "8"), ("tenant=a,user=ann", "2")],
    ),
    (
        &[
            r#""descriptor":"user=ann","scale":"10%""#,
            r#""descriptor":"user=a*","limit":501"#,
            r#""scale":"50%""#,
        ],
        &[("user=ann", "51"), ("user=abe", "251"), ("user=bob", "50")],
    ),
    (
        &[r#""descriptor":"user=ann","mode":"unlimited""#, r#""mode":"shadow""#],
        &[("user=ann", "-"), ("user=bob", "~100"), ("ip=x", "~5 ~1000")],
    ),
    // `deny` wins at any level.
    (
        &[r#""descriptor":"user=ann","mode":"unlimited""#, r#""mode":"deny""#],
        &[("user=ann", "0"), ("user=bob", "0"), ("ip=x", "0 0"), ("free=x", "-")],
    ),
    (
        &[
            r#""descriptor":"user=ann","mode":"shadow""#,
            r#""descriptor":"user=*","mode":"deny""#,
            r#""descriptor":"user=b*","mode":"unlimited""#,
        ],
        &[("user=ann", "0"), ("user=bob", "0")],
    ),
    // Restricted to a rule, whose values match.
    (
        &[
            r#""rule":"d.user","descriptor":"user=ann","limit":3"#,
            r#""rule":"d.other","descriptor":"user=bob","limit":4"#,
            r#""rule":"d.other","descriptor":"user=b*","mode":"deny""#,
        ],
        &[("user=ann", "3"), ("user=bob", "100"), ("user=bill", "100")],
    ),
    // Exactly these keys.
    (
        &[r#""descriptor":"user=*","mode":"deny""#],
        &[("user=ann", "0"), ("tenant=a,user=ann", "10"), ("ip=x", "5 1000")],
    ),
    // On several limits, numbers name one.
    (
        &[
            r#""descriptor":"ip=x","limit_name":"fast","limit":50"#,
            r#""descriptor":"ip=*","limit_name":"slow","limit":2000"#,
        ],
        &[("ip=x", "50 2000"), ("ip=y", "5 2000")],
    ),
    (&[r#""rule":"d.user","limit":0"#], &[("user=ann", "0")]),
    (&[r#""domain":"other","mode":"deny""#], &[("user=ann", "100")]),
    // An empty value is one value.
    (&[r#""descriptor":"user=","limit":1"#], &[("user=", "1"), ("user=x", "100")]),
];

#[test]
fn the_most_specific_override_of_each_kind_applies() {
    let written = written();
    for (overrides, expected) in CASES {
        let policy = with(&written, overrides);
        for (descriptor, shown) in *expected {
            assert_eq!(checks(&policy, descriptor), *shown, "{descriptor} under {overrides:?}");
        }
    }
}

#[test]
fn the_override_in_force_is_found_and_explained() {
    let overrides = [
        r#""descriptor":"user=ann","limit":500,"until":"2026-12-01T00:00:00Z","by":"eve","reason":"T-42""#,
        r#""scale":"20%""#,
    ];
    let policy = with(&written(), &overrides);
    let ann = [specs::entry("user", "ann")];
    let descriptors = [specs::descriptor(&ann)];
    let matches = policy.find(&specs::request(&descriptors));
    let found = matches.found[0].rule().unwrap().overrides();
    let texts: Vec<String> = found.iter().map(|entry| entry.to_string()).collect();
    let line = "d user=ann: limit 500, until 2026-12-01T00:00:00Z, set by eve: T-42";
    assert_eq!(texts, [line, "d: scale 20%, permanent"]);
    let explained = policy.explain("d", &ann).to_string();
    assert!(explained.contains(&format!("\n  override {line}\n")), "{explained}");
    assert!(explained.contains("requests_per_unit=100"), "{explained}");
}

#[test]
fn an_override_changes_neither_counters_nor_ids_except_by_an_anchor() {
    let written = read(
        "domain: d
hash_tag: [user]
descriptors:
  - key: user
    rate_limit: {algorithm: token_bucket, unit: minute, requests_per_unit: 60}
  - key: org
    rate_limit: {unit: month, requests_per_unit: 60, align: calendar, time_zone: Europe/Berlin}
  - key: tenant
    descriptors:
      - key: user
        rate_limits:
          - {name: all, per: [tenant], unit: month, requests_per_unit: 9, align: calendar}
",
    );
    let key = |policy: &Policy, text: &str| {
        let pairs = tidegate::domain::parse_descriptor(text).unwrap();
        let entries: Vec<Entry<'_>> = pairs.iter().map(|(k, v)| specs::entry(k, v)).collect();
        let descriptors = [specs::descriptor(&entries)];
        checks_of(policy, &specs::request(&descriptors), |check| check.key)
    };
    for each in [
        &[r#""mode":"shadow""#][..],
        &[r#""mode":"deny""#],
        &[r#""scale":"1%""#],
        &[r#""rule":"d.user","limit":7"#, r#""descriptor":"user=ann","limit":7,"burst":100"#],
        &[r#""descriptor":"org=ann","limit":0"#, r#""descriptor":"tenant=a,user=*","limit":3"#],
    ] {
        let changed = with(&written, each);
        for text in ["user=ann", "org=ann", "tenant=a,user=ann"] {
            assert_eq!(key(&changed, text), key(&written, text), "{text} under {each:?}");
        }
        assert_eq!(changed.rule(RuleId(1)).unwrap().path, written.rule(RuleId(1)).unwrap().path);
    }
    let changed = with(
        &written,
        &[
            r#""descriptor":"org=ann","anchor":"15""#,
            r#""descriptor":"tenant=a,user=ann","anchor":"15","limit_name":"all""#,
        ],
    );
    assert_eq!(key(&changed, "org=bob"), key(&written, "org=bob"));
    assert_eq!(checks(&changed, "org=ann"), "60");
    for text in ["org=ann", "tenant=a,user=ann"] {
        assert_ne!(key(&changed, text), key(&written, text), "{text}");
    }
    // The counter is that of a policy with the anchor.
    let anchored = read(
        "domain: d
hash_tag: [user]
descriptors:
  - key: org
    rate_limit: {unit: month, requests_per_unit: 1, align: calendar, time_zone: Europe/Berlin, anchor: 15}
  - key: tenant
    descriptors:
      - key: user
        rate_limits:
          - {name: all, per: [tenant], unit: month, requests_per_unit: 9, align: calendar, anchor: 15}
",
    );
    for text in ["org=ann", "tenant=a,user=ann"] {
        assert_eq!(key(&changed, text), key(&anchored, text), "{text}");
    }
}

/// The limit of the only check of `user=ann`.
fn limit_of(policy: &Policy) -> Limit {
    let ann = [specs::entry("user", "ann")];
    let descriptors = [specs::descriptor(&ann)];
    let limits =
        checks_of(policy, &specs::request(&descriptors), |check| Limit::clone(check.limit));
    limits.into_iter().next().unwrap()
}

fn bucket(rate_limit: &str) -> Policy {
    read(&format!("domain: d\ndescriptors: [{{key: user, rate_limit: {{{rate_limit}}}}}]\n"))
}

#[test]
fn numbers_are_those_that_a_policy_with_them_would_have() {
    for (rate_limit, numbers, same) in [
        (
            "unit: minute, requests_per_unit: 60, algorithm: token_bucket, burst: 90",
            r#""limit":20"#,
            "unit: minute, requests_per_unit: 20, algorithm: token_bucket, burst: 30",
        ),
        (
            "unit: minute, requests_per_unit: 60, algorithm: token_bucket",
            r#""burst":7"#,
            "unit: minute, requests_per_unit: 60, algorithm: token_bucket, burst: 7",
        ),
        (
            "unit: minute, requests_per_unit: 0, algorithm: leaky_bucket",
            r#""limit":7"#,
            "unit: minute, requests_per_unit: 7, algorithm: leaky_bucket",
        ),
        (
            "unit: day, requests_per_unit: 5, algorithm: sliding_window, charge: billed",
            r#""limit":6"#,
            "unit: day, requests_per_unit: 6, algorithm: sliding_window, charge: billed",
        ),
        (
            "unit: day, requests_per_unit: 5, algorithm: sliding_log, block: 60",
            r#""limit":6"#,
            "unit: day, requests_per_unit: 6, algorithm: sliding_log, block: 60",
        ),
        (
            "requests_per_unit: 5, algorithm: concurrency",
            r#""limit":6"#,
            "requests_per_unit: 6, algorithm: concurrency",
        ),
        (
            "unit: month, requests_per_unit: 5, align: calendar, reserve: {ttl: 9}",
            r#""limit":6"#,
            "unit: month, requests_per_unit: 6, align: calendar, reserve: {ttl: 9}",
        ),
        (
            "unit: second, requests_per_unit: 10, algorithm: token_bucket, prepay: auto",
            r#""limit":6"#,
            "unit: second, requests_per_unit: 6, algorithm: token_bucket, prepay: auto",
        ),
    ] {
        let (written, same) = (bucket(rate_limit), limit_of(&bucket(same)));
        let at_once = with(&written, &[&format!(r#""rule":"d.user",{numbers}"#)]);
        let of_values = with(&written, &[&format!(r#""descriptor":"user=ann",{numbers}"#)]);
        for policy in [at_once, of_values] {
            let changed = limit_of(&policy);
            assert_eq!((changed.capacity(), changed.rate), (same.capacity(), same.rate));
            let rest = |limit: &Limit| {
                (limit.charge, limit.prepay, limit.block_seconds, limit.reserve, limit.limit_id)
            };
            assert_eq!(rest(&changed), rest(&limit_of(&written)), "{rate_limit}");
            let (now, cost) = (Micros(1_763_668_800_000_000), same.capacity());
            let after = |limit: &Limit| algorithm::apply(None, limit, Op::Take { cost }, now);
            assert_eq!(after(&changed).outcome, after(&same).outcome, "{rate_limit}");
        }
    }
}

#[test]
fn the_debt_of_a_bucket_survives_a_lower_limit() {
    let written = bucket("algorithm: token_bucket, unit: minute, requests_per_unit: 60, burst: 60");
    let lowered = limit_of(&with(&written, &[r#""descriptor":"user=ann","limit":6"#]));
    let own = limit_of(&written);
    let now = Micros(1_763_668_800_000_000);
    let full = algorithm::apply(None, &own, Op::Take { cost: Hits(60) }, now);
    let under = algorithm::apply(full.write.as_ref(), &lowered, Op::PEEK, now);
    assert_eq!(under.outcome.available, Hits(0));
    let state = under.write.as_ref().or(full.write.as_ref());
    let after = algorithm::apply(state, &own, Op::PEEK, Micros(now.0 + 30_000_000));
    assert_eq!(after.outcome.available, Hits(30), "30 s refill 30 of 60 hits");
}

#[test]
fn a_denied_limit_refuses_without_the_store_and_blocks_nobody() {
    let written = bucket("unit: minute, requests_per_unit: 5, block: 60, charge: always");
    let (denied, own) = (limit_of(&with(&written, &[r#""mode":"deny""#])), limit_of(&written));
    assert_eq!((denied.capacity(), denied.on_store_failure), (Hits(0), OnStoreFailure::Deny));
    assert_eq!(denied.block_seconds, None, "a block would outlast the override");
    let end = |limit: &Limit| limit.window_end(Micros::ZERO);
    assert_eq!(end(&denied), end(&own), "clients are told the end of the limit's own window");
    for op in [Op::Take { cost: Hits(7) }, Op::PEEK, Op::Refund { cost: Hits(7) }] {
        let step = algorithm::apply(None, &denied, op, Micros(1_763_668_800_000_000));
        assert_eq!((step.outcome.charged, step.write), (Hits(0), None), "{op:?}");
    }
}

#[test]
fn the_counters_of_a_rule_that_is_decided_without_them_are_found() {
    for mode in ["deny", "unlimited"] {
        let policy =
            with(&written(), &[r#""rule":"d.user","limit":7"#, &format!(r#""mode":"{mode}""#)]);
        let ann = [specs::entry("user", "ann")];
        let descriptors = [specs::descriptor(&ann)];
        let request = specs::request(&descriptors);
        let matches = policy.find_counted(&request);
        let checks = policy.checks(&request, &matches);
        assert_eq!(checks.each[0].limit.capacity(), Hits(7), "{mode}");
    }
}

#[test]
fn consumer_classes_are_scaled_and_denied_with_their_limit() {
    let written = read(&policy_cases::text("good", "tiers"));
    let gold = [specs::entry("shared", "gold")];
    let capacity = |policy: &Policy| {
        let descriptors = [specs::descriptor(&gold)];
        let request = Request { domain: "edge", descriptors: &descriptors };
        checks_of(policy, &request, |check| check.limit.capacity().0)
    };
    assert_eq!(capacity(&written), [200]);
    for (fields, left) in [
        (r#""domain":"edge","rule":"edge.shared","mode":"deny""#, 0),
        (r#""domain":"edge","rule":"edge.shared","scale":"10%""#, 20),
        (r#""domain":"edge","descriptor":"shared=gold","scale":"10%""#, 20),
        (r#""domain":"edge","descriptor":"shared=g*","scale":"1%""#, 2),
    ] {
        assert_eq!(capacity(&with(&written, &[fields])), [left], "{fields}");
    }
}

#[test]
fn a_bill_is_charged_to_the_limit_in_force() {
    let mut billed = specs::window(100, Unit::Second);
    Arc::make_mut(&mut billed).charge = Charge::Billed;
    let written = specs::policy([specs::key("client").with(specs::spec(None, billed))]);
    let client = [specs::entry("client", "a")];
    let descriptors = [Descriptor { has_hits_addend: true, ..specs::descriptor(&client) }];
    let charged = |policy: &Policy| {
        let read =
            |check: &tidegate::domain::Check<'_>| (check.limit.capacity().0, check.limit.charge);
        checks_of(policy, &specs::request(&descriptors), read)
    };
    assert_eq!(charged(&written), [(100, Charge::Always)]);
    for (fields, hits, charge) in [
        (r#""scale":"20%""#, 20, Charge::Always),
        (r#""descriptor":"client=a","limit":500"#, 500, Charge::Always),
        (r#""descriptor":"client=*","limit":500"#, 500, Charge::Always),
        (r#""mode":"deny""#, 0, Charge::Admitted),
    ] {
        assert_eq!(charged(&with(&written, &[fields])), [(hits, charge)], "{fields}");
    }
}

#[test]
fn an_override_beats_the_limit_of_a_request() {
    let written = written();
    let ann = [specs::entry("user", "ann")];
    let shown = |overrides: &[&str], per_unit: u32, unit: Unit| {
        let policy = with(&written, overrides);
        let descriptors = [specs::bringing(&ann, per_unit, unit)];
        let read = |check: &tidegate::domain::Check<'_>| (check.limit.capacity().0, check.role);
        checks_of(&policy, &specs::request(&descriptors), read)
    };
    use Role::{Required, Shadow};
    // A limit with the rule's period counts on its counter, one with another period apart.
    for unit in [Unit::Minute, Unit::Day] {
        assert_eq!(shown(&[], 7, unit), [(7, Required)]);
        assert_eq!(shown(&[r#""descriptor":"user=ann","limit":500"#], 7, unit), [(500, Required)]);
        assert_eq!(shown(&[r#""rule":"d.user","limit":500"#], 7, unit), [(500, Required)]);
        assert_eq!(shown(&[r#""scale":"50%""#], 7, unit), [(4, Required)]);
        assert_eq!(shown(&[r#""descriptor":"user=ann","mode":"shadow""#], 7, unit), [(7, Shadow)]);
        assert_eq!(shown(&[r#""mode":"deny""#], 7, unit), [(0, Required)]);
        assert_eq!(shown(&[r#""descriptor":"user=*","mode":"unlimited""#], 7, unit), []);
    }
}

#[test]
fn an_override_keeps_the_secret_the_bound_on_checks_and_the_replaced_names() {
    let nodes = [specs::key("client").limit(100).replaces(["base"])];
    let written =
        Policy::build(vec![specs::domain("d", nodes)], Secret::derive("s")).with_checks_max(7);
    let client = [specs::entry("client", "a")];
    let descriptors = [specs::descriptor(&client)];
    let key = |policy: &Policy| checks_of(policy, &specs::request(&descriptors), |check| check.key);
    for fields in [r#""scale":"50%""#, r#""descriptor":"client=a","limit":5"#] {
        let changed = with(&written, &[fields]);
        assert_eq!(key(&changed), key(&written));
        assert_eq!(changed.checks_max(), 7);
        assert!(changed.explain("d", &client).to_string().ends_with("replaces base"));
    }
}

#[test]
fn an_override_that_the_policy_cannot_have_is_refused() {
    let policy = read(
        "domain: d
descriptors:
  - key: log
    rate_limit: {unit: hour, requests_per_unit: 5, algorithm: sliding_log}
  - key: bucket
    rate_limit: {unit: hour, requests_per_unit: 5, algorithm: token_bucket, cost: 3}
  - key: plan
    rate_limit: {algorithm: token_bucket, unit: second, requests_per_unit: 9,
                 tiers: {method: shared, classes: {gold: {floor: 0%}, free: {floor: 50%}}}}
  - key: two
    rate_limits:
      - {name: fast, unit: second, requests_per_unit: 5}
      - {name: slow, unit: hour, requests_per_unit: 1000}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: month, rate_limit: {unit: month, requests_per_unit: 1, align: calendar}}
",
    );
    for (fields, expected) in [
        (r#""rule":"d.log","limit":10001"#, "must be at most 10000"),
        (r#""descriptor":"log=*","limit":10001"#, "d.log: `limit` must be at most"),
        (r#""rule":"d.log","burst":5"#, "`burst` is only allowed on a token_bucket"),
        (r#""rule":"d.bucket","burst":9000000000000000000"#, "cannot be counted exactly"),
        (r#""rule":"d.bucket","limit":1,"burst":0"#, "`burst` must be at least 1"),
        (r#""rule":"d.bucket","limit":0,"burst":1"#, "remove `burst`"),
        (r#""rule":"d.bucket","limit":2"#, "one request costs 3 hits"),
        (r#""rule":"d.plan","limit":2"#, "numbers cannot override `tiers`; use `scale`"),
        (r#""descriptor":"plan=gold","limit":2"#, "numbers cannot override `tiers`"),
        (r#""rule":"d.two","limit":2"#, "name one of them as `limit_name`: fast, slow"),
        (r#""rule":"d.two","limit":2,"limit_name":"x""#, "it has: fast, slow"),
        (r#""limit":9"#, "d.plan: numbers cannot override `tiers`"),
        (r#""rule":"d.free","mode":"deny""#, "is unlimited"),
        (r#""descriptor":"free=x","limit":2"#, "is unlimited"),
        (r#""rule":"d.log","anchor":"15""#, "`anchor` is only allowed on a limit with `align: cal"),
        (r#""rule":"d.month","anchor":"32""#, "`anchor` must be a day (1 to 31)"),
    ] {
        let error = error(&policy, fields);
        assert!(error.contains(expected), "{fields}: {error}");
    }
    for (fields, fit) in [
        (r#""mode":"deny""#, Fit::Matched),
        (r#""rule":"d.free","mode":"unlimited""#, Fit::Matched),
        (r#""descriptor":"free=*","mode":"shadow""#, Fit::Matched),
        (r#""rule":"d.nobody","mode":"deny""#, Fit::Unmatched),
        (r#""domain":"nobody","mode":"deny""#, Fit::Unmatched),
        (r#""descriptor":"nobody=x","limit":5"#, Fit::Unmatched),
        (r#""rule":"d.free","descriptor":"log=x","limit":5"#, Fit::Unmatched),
        (r#""descriptor":"two=x","limit":5,"limit_name":"fast""#, Fit::Matched),
    ] {
        assert_eq!(policy.check_override(&set(fields)), Ok(fit), "{fields}");
    }
}

#[test]
fn an_override_of_a_value_that_no_rule_matches_is_unmatched() {
    let policy =
        specs::policy([specs::pair("user", "ann").limit(5), specs::pair("path", "/a*").limit(5)]);
    for (descriptor, fit) in [
        ("user=ann", Fit::Matched),
        ("user=bob", Fit::Unmatched),
        ("user=a*", Fit::Matched),
        ("user=b*", Fit::Unmatched),
        ("path=/ab", Fit::Matched),
        ("path=*b", Fit::Matched),
        ("path=/b", Fit::Unmatched),
    ] {
        let entry = set(&format!(r#""descriptor":"{descriptor}","limit":5"#));
        assert_eq!(policy.check_override(&entry), Ok(fit), "{descriptor}");
    }
}

#[test]
fn overrides_with_stars_are_bounded_and_the_most_specific_ones_apply() {
    let written = written();
    let of = |n: usize, change: &str| set(&format!(r#""descriptor":"user={n:04}*",{change}"#));
    let all: Vec<_> = (0..PATTERN_TARGETS_MAX).map(|n| of(n, r#""limit":1"#)).collect();
    let full = written.with_overrides(&all);
    assert_eq!(checks(&full, "user=0999x"), "1");
    assert_eq!(full.check_override(&all[0]), Ok(Fit::Matched), "one that is set may be replaced");
    let one_more = of(PATTERN_TARGETS_MAX, r#""limit":1"#);
    let refused = full.check_override(&one_more).unwrap_err().to_string();
    assert!(refused.starts_with("there are too many overrides with `*`"), "{refused}");
    // After a reload, a policy may have more of them than fit.
    let catch_all = set(r#""descriptor":"user=*","limit":2"#);
    let beyond = written.with_overrides(all.iter().chain([&catch_all]));
    assert_eq!(checks(&beyond, "user=0999x"), "1");
    assert_eq!(checks(&beyond, "user=x"), "100");

    let combined: Vec<_> = (0..PATTERN_TARGETS_MAX / 2)
        .map(|n| of(n, r#""limit":1"#))
        .chain((0..PATTERN_TARGETS_MAX / 2).map(|n| of(n, r#""scale":"50%""#)))
        .collect();
    let fits = PATTERN_COMBINATIONS_MAX / (PATTERN_TARGETS_MAX / 2 + 1);
    let policy = written.with_overrides(&combined[..PATTERN_TARGETS_MAX / 2 + fits - 1]);
    assert!(policy.check_override(&combined[PATTERN_TARGETS_MAX - 1]).is_err());
    assert_eq!(checks(&policy, "user=0000x"), "1");
}

/// A random override of the rules of `written`.
fn random_override(random: &mut Random) -> Arc<OverrideEntry> {
    let targets = [
        "",
        r#""rule":"d.user","#,
        r#""descriptor":"user=a","#,
        r#""descriptor":"user=b","#,
        r#""descriptor":"user=ab","#,
        r#""descriptor":"user=a*","#,
        r#""descriptor":"user=*b","#,
        r#""descriptor":"user=*","#,
        r#""rule":"d.user","descriptor":"user=a","#,
        r#""descriptor":"tenant=a,user=*","#,
        r#""descriptor":"tenant=*,user=a","#,
        r#""descriptor":"tenant=a,user=a","#,
        r#""descriptor":"tenant=*a,user=*b","#,
        r#""descriptor":"ip=a","#,
        r#""descriptor":"ip=*","#,
    ];
    let target = targets[random.below(targets.len() as u64) as usize];
    let number = random.below(5);
    let change = match random.below(7) {
        0..3 if target.contains("ip=") => format!(r#""limit_name":"slow","limit":{number}"#),
        0..3 if !target.is_empty() => format!(r#""limit":{number}"#),
        3 => r#""mode":"shadow""#.to_owned(),
        4 => r#""mode":"unlimited""#.to_owned(),
        5 if random.one_in(3) => r#""mode":"deny""#.to_owned(),
        _ => format!(r#""scale":"{}%""#, 10 * (number + 1)),
    };
    set(&format!(r#"{target}{change},"set_at":"2026-01-01T00:00:0{}Z""#, random.below(3)))
}

fn outcomes(policy: &Policy) -> Vec<String> {
    let values = ["a", "b", "ab", "ba", "c"];
    let one = ["user", "ip"].into_iter();
    let one = one.flat_map(|key| values.map(|value| format!("{key}={value}")));
    let two = values.into_iter().flat_map(|a| values.map(|b| format!("tenant={a},user={b}")));
    one.chain(two).map(|text| checks(policy, &text)).collect()
}

#[test]
fn neither_the_order_of_overrides_nor_the_way_to_them_changes_what_is_in_force() {
    let written = written();
    for seed in 0..30 {
        let mut random = Random::seeded(seed);
        let mut active: Vec<Arc<OverrideEntry>> = Vec::new();
        let mut policy = written.with_overrides(&active);
        for step in 0..30 {
            let entry = random_override(&mut random);
            let ends = !active.is_empty() && random.one_in(3);
            let ended = match ends {
                true => Some(active.swap_remove(random.below(active.len() as u64) as usize)),
                false => None,
            };
            active.retain(|other| other.id() != entry.id());
            active.push(Arc::clone(&entry));
            let changed =
                policy.with_changed_overrides(&ended.iter().collect::<Vec<_>>(), &[&entry]);
            let whole = written.with_overrides(&active);
            let expected = outcomes(&whole);
            policy = changed.unwrap_or_else(|| policy.with_overrides(&active));
            assert_eq!(outcomes(&policy), expected, "seed {seed}, step {step}: {active:?}");
            // In another order, and met in another order.
            active.reverse();
            let reversed = written.with_overrides(&active);
            for value in ["ba", "ab"] {
                checks(&reversed, &format!("user={value}"));
            }
            assert_eq!(outcomes(&reversed), expected, "seed {seed}, step {step}: {active:?}");
        }
    }
}

#[test]
fn requests_that_meet_overrides_again_allocate_nothing() {
    let policy = with(
        &written(),
        &[
            r#""descriptor":"user=ann","limit":500"#,
            r#""descriptor":"user=b*","limit":5"#,
            r#""descriptor":"user=*b","scale":"50%""#,
        ],
    );
    for (user, capacity) in [("ann", 500), ("bob", 3), ("bill", 5), ("eve", 100)] {
        let entries = [specs::entry("user", user)];
        let descriptors = [specs::descriptor(&entries)];
        let request = specs::request(&descriptors);
        let read = || {
            let matches = policy.find(&request);
            policy.checks(&request, &matches).each[0].limit.capacity().0
        };
        assert_eq!(read(), capacity, "{user}");
        let allocated = allocation_counter::measure(|| assert_eq!(read(), capacity)).count_total;
        assert_eq!(allocated, 0, "{user}");
    }
}

/// The example of the page: a policy, overrides, and a table of what is in force.
#[test]
fn the_example_in_the_documentation_does_what_the_page_says() {
    let page = fs::read_to_string(repository("docs/POLICY.md")).expect("the page");
    let (_, section) = page.split_once("\n## Overrides at run time\n").expect("the section");
    let (section, _) = section.split_once("\n## ").expect("its end");
    let block = |kind: &str| {
        let (_, block) = section.split_once(&format!("```{kind}\n")).expect("a block");
        block.split_once("```").expect("its end").0
    };
    let entries: Vec<_> = block("text")
        .lines()
        .map(|line| Arc::new(OverrideEntry::from_json(line).expect("an override")))
        .collect();
    let policy = read(block("yaml policy")).with_overrides(&entries);
    let rows: Vec<&str> =
        section.lines().filter(|line| line.starts_with("| `") && line.contains("=")).collect();
    assert_eq!(rows.len(), 6);
    for row in rows {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let number = match cells[2] {
            "no limit" => "-",
            number => number,
        };
        let descriptor = cells[1].trim_matches('`');
        assert_eq!(checks_in("edge", &policy, descriptor), number, "{row}");
    }
}
