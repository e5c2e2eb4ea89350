//! The counters that a request charges.

use std::collections::HashSet;
use std::sync::Arc;

use tidegate::domain::{Charge, Check, CounterKey, Descriptor, Entry, Unit};
use tidegate::policy::compiled_policy::DomainSpec;
use tidegate::policy::{Options, Policy, Secret, Source, compile, key_text};

use super::checks_of;
use crate::support::policy_specs::{
    bringing, bucket, descriptor, domain, entry, key, listed, pair, policy, request, spec, window,
};

fn keys(policy: &Policy, descriptor: Descriptor<'_>) -> Vec<CounterKey> {
    checks_of(policy, &request(&[descriptor]), |check| check.key)
}

fn key_of(policy: &Policy, entries: &[Entry<'_>]) -> CounterKey {
    keys(policy, descriptor(entries))[0]
}

#[test]
fn every_value_has_its_own_counter() {
    let policy = policy([key("a").limit(1), pair("a", "p*").limit(1)]);
    let values: [&[u8]; 12] =
        [b"", b"x", b"X", b"p1", b"p2", b"x_y", b"x:y", b"x|y", b"{x}", b"%78", b"x\n", b"x\0"];
    let distinct: HashSet<CounterKey> =
        values.iter().map(|value| key_of(&policy, &[entry("a", *value)])).collect();
    assert_eq!(distinct.len(), values.len());
    assert_eq!(key_of(&policy, &[entry("a", "x")]), key_of(&policy, &[entry("a", "x")]));
}

#[test]
fn joins_by_underscore_do_not_meet() {
    let policy = policy([key("a").limit(1).over([key("c").limit(1)]), key("a_b").limit(1)]);
    let one = key_of(&policy, &[entry("a", "b_c_d")]);
    let two = key_of(&policy, &[entry("a", "b"), entry("c", "d")]);
    let three = key_of(&policy, &[entry("a_b", "c_d")]);
    assert!(one != two && two != three && one != three);
}

#[test]
fn domains_windows_and_secrets_have_counters_of_their_own() {
    let make = |name: &str, unit, secret: &str| {
        let node = key("a").with(spec(None, window(5, unit)));
        let policy = Policy::build(vec![domain(name, [node])], Secret::derive(secret));
        let entries = [entry("a", "x")];
        let descriptors = [descriptor(&entries)];
        let request = tidegate::domain::Request { domain: name, descriptors: &descriptors };
        checks_of(&policy, &request, |check| check.key)[0]
    };
    let base = make("d", Unit::Second, "s");
    assert_eq!(base, make("d", Unit::Second, "s"), "a rebuilt policy meets its counters");
    assert_ne!(base, make("e", Unit::Second, "s"));
    assert_ne!(base, make("d", Unit::Minute, "s"));
    assert_ne!(base, make("d", Unit::Second, "t"));
}

#[test]
fn a_changed_number_keeps_the_counter() {
    let entries = [entry("a", "x")];
    let with = |limit| key_of(&policy([key("a").with(spec(None, limit))]), &entries);
    assert_eq!(with(window(5, Unit::Hour)), with(window(500, Unit::Hour)));
    assert_eq!(with(bucket(5, 10)), with(bucket(50, 7)));
    assert_ne!(with(window(5, Unit::Second)), with(bucket(5, 5)), "another algorithm");
}

#[test]
fn a_changed_anchor_starts_the_counter_anew_and_the_default_keeps_it() {
    let with = |unit: &str, anchor: &str| {
        let text = format!(
            "domain: d\ndescriptors:\n- key: a\n  rate_limit: {{unit: {unit}, requests_per_unit: 5, \
             align: calendar{anchor}}}\n"
        );
        let source = Source { name: "p.yaml".to_owned(), text: text.into_bytes() };
        let compiled = compile(&[source], &Options::default()).unwrap();
        key_of(&Policy::build(compiled.domains, Secret::default()), &[entry("a", "x")])
    };
    let (month, year) = (with("month", ""), with("year", ""));
    assert_eq!(month, with("month", ", anchor: 1"));
    assert_eq!(year, with("year", ", anchor: 01-01"));
    let anchored = [with("month", ", anchor: 15"), with("month", ", anchor: 31")];
    let years = [with("year", ", anchor: 04-01"), with("year", ", anchor: 01-31")];
    let all: HashSet<CounterKey> = anchored.into_iter().chain(years).chain([month, year]).collect();
    assert_eq!(all.len(), 6);
}

#[test]
fn a_name_is_part_of_the_key_in_a_list_only() {
    let entries = [entry("a", "x")];
    let with = |limit| key_of(&policy([key("a").with(limit)]), &entries);
    let plain = with(spec(None, bucket(1, 1)));
    assert_eq!(plain, with(spec(Some("n"), bucket(1, 1))));
    assert_ne!(plain, with(listed("n", None, bucket(1, 1))));
    assert_ne!(with(listed("m", None, bucket(1, 1))), with(listed("n", None, bucket(1, 1))));
}

#[test]
fn values_of_a_pattern_with_share_threshold_share_one_counter() {
    let policy = policy([
        pair("a", "own*").limit(1),
        pair("a", "all*").shared().limit(1).over([key("b").limit(2)]),
    ]);
    let key = |value| key_of(&policy, &[entry("a", value)]);
    assert_eq!(key("all1"), key("all2"));
    assert_eq!(key("all1"), key("all*"));
    assert_ne!(key("own1"), key("own2"));
    let below = |one, two| key_of(&policy, &[entry("a", one), entry("b", two)]);
    assert_eq!(below("all1", "x"), below("all2", "x"));
    assert_ne!(below("all1", "x"), below("all1", "y"));
}

#[test]
fn a_value_that_spells_a_shared_pattern_does_not_meet_its_counter() {
    let per_a = |name: &str| listed(name, Some(&[1]), bucket(1, 1));
    let policy = policy([
        pair("r", "1").over([pair("a", "all*").shared().with(per_a("n"))]),
        pair("r", "2").over([key("a").with(per_a("n"))]),
    ]);
    let shared = key_of(&policy, &[entry("r", "1"), entry("a", "all2")]);
    let spelled = key_of(&policy, &[entry("r", "2"), entry("a", "all*")]);
    assert_ne!(shared, spelled);
}

#[test]
fn per_names_the_entries_that_make_the_counter() {
    let policy = policy([key("token").over([key("ip")
        .with(listed("by-token", Some(&[0]), bucket(1, 1)))
        .with(listed("by-ip", Some(&[1]), bucket(1, 1)))
        .with(listed("by-both", None, bucket(1, 1)))
        .with(listed("reversed", Some(&[1, 0]), bucket(1, 1)))
        .with(listed("straight", Some(&[0, 1]), bucket(1, 1)))])]);
    let keys = |token, ip| keys(&policy, descriptor(&[entry("token", token), entry("ip", ip)]));
    let (base, other_ip, other_token) = (keys("t", "i"), keys("t", "j"), keys("u", "i"));
    let same = |a: &[CounterKey], b: &[CounterKey]| {
        a.iter().zip(b).map(|(a, b)| a == b).collect::<Vec<_>>()
    };
    assert_eq!(same(&base, &other_ip), [true, false, false, false, false]);
    assert_eq!(same(&base, &other_token), [false, true, false, false, false]);
    assert_eq!(base.iter().collect::<HashSet<_>>().len(), 5);
}

#[test]
fn per_is_a_set_and_its_order_does_not_split_the_counter() {
    let entries = [entry("a", "1"), entry("b", "2")];
    let with = |per: &[usize]| {
        let limit = listed("n", Some(per), bucket(1, 1));
        key_of(&policy([key("a").over([key("b").with(limit)])]), &entries)
    };
    assert_eq!(with(&[0, 1]), with(&[1, 0]));
}

#[test]
fn a_brought_limit_has_the_rules_counter_if_its_period_is_the_same() {
    let policy = policy([
        key("a").limit(5),
        key("b").with(spec(None, bucket(1, 5))),
        key("l").with(listed("n", None, window(5, Unit::Second))),
    ]);
    let entries = [entry("a", "x")];
    let own = key_of(&policy, &entries);
    let brought = |per_unit, unit| keys(&policy, bringing(&entries, per_unit, unit))[0];
    assert_eq!(own, brought(5, Unit::Second));
    assert_ne!(own, brought(5, Unit::Minute));
    let of_bucket = [entry("b", "x")];
    let of_bucket_per = |unit| keys(&policy, bringing(&of_bucket, 5, unit))[0];
    assert_eq!(of_bucket_per(Unit::Second), key_of(&policy, &of_bucket));
    assert_ne!(of_bucket_per(Unit::Minute), key_of(&policy, &of_bucket));
    let entries_of_list = [entry("l", "x")];
    let listed = keys(&policy, bringing(&entries_of_list, 5, Unit::Second))[0];
    assert_eq!(listed, key_of(&policy, &entries_of_list));
    assert_eq!(brought(5, Unit::Second), brought(50, Unit::Second), "the limit may change");
    assert_ne!(brought(5, Unit::Second), brought(5, Unit::Minute));
    let other = [entry("a", "y")];
    assert_ne!(brought(5, Unit::Second), keys(&policy, bringing(&other, 5, Unit::Second))[0]);
}

fn tagged<const N: usize>(tag: &[&str], nodes: [crate::support::policy_specs::Node; N]) -> Policy {
    let hash_tag = tag.iter().copied().map(Box::from).collect();
    Policy::build(vec![DomainSpec { hash_tag, ..domain("d", nodes) }], Secret::default())
}

#[test]
fn a_counter_with_every_hash_tag_entry_is_placed_by_their_values() {
    let policy = tagged(
        &["tenant"],
        [
            key("tenant").limit(1).over([key("token").limit(1)]),
            key("token").limit(1).over([key("tenant").limit(1)]),
        ],
    );
    let one = key_of(&policy, &[entry("tenant", "t")]);
    let two = key_of(&policy, &[entry("tenant", "t"), entry("token", "x")]);
    let three = key_of(&policy, &[entry("token", "x"), entry("tenant", "t")]);
    let other = key_of(&policy, &[entry("tenant", "u")]);
    assert!(one.tag.is_some());
    assert_eq!(one.tag, two.tag);
    assert_eq!(two.tag, three.tag);
    assert_ne!(one.tag, other.tag);
    assert_eq!(key_of(&policy, &[entry("token", "x")]).tag, None);
}

#[test]
fn every_hash_tag_entry_must_be_among_the_counters_own() {
    let policy = tagged(
        &["tenant", "region"],
        [key("region").over([key("tenant")
            .with(listed("both", None, bucket(1, 1)))
            .with(listed("one", Some(&[1]), bucket(1, 1)))])],
    );
    let entries = [entry("region", "r"), entry("tenant", "t")];
    let tags: Vec<bool> =
        keys(&policy, descriptor(&entries)).iter().map(|key| key.tag.is_some()).collect();
    assert_eq!(tags, [true, false]);
}

#[test]
fn a_hash_tag_places_counters_and_never_splits_them() {
    let nodes = || [pair("tenant", "small*").shared().limit(1)];
    let (tagged, plain) = (tagged(&["tenant"], nodes()), policy(nodes()));
    let (one, two) = ([entry("tenant", "small1")], [entry("tenant", "small2")]);
    assert_eq!(key_of(&tagged, &one), key_of(&tagged, &two));
    assert!(key_of(&tagged, &one).tag.is_some());
    assert_eq!(key_of(&tagged, &one).identity, key_of(&plain, &one).identity);
}

#[test]
fn brought_limits_are_placed_by_the_hash_tag_too() {
    let policy = tagged(&["tenant"], [key("tenant").limit(1)]);
    let (with, without) = ([entry("tenant", "t"), entry("x", "y")], [entry("x", "y")]);
    let own = key_of(&policy, &[entry("tenant", "t")]);
    assert_eq!(keys(&policy, bringing(&with, 1, Unit::Second))[0].tag, own.tag);
    assert_eq!(keys(&policy, bringing(&without, 1, Unit::Second))[0].tag, None);
}

#[test]
fn without_hash_tag_no_counter_has_a_tag() {
    let policy = policy([key("a").limit(1)]);
    let entries = [entry("a", "x")];
    assert_eq!(key_of(&policy, &entries).tag, None);
    let with_own_counter = bringing(&entries, 1, Unit::Minute);
    assert_eq!(keys(&policy, with_own_counter)[0].tag, None);
}

#[test]
fn an_override_without_every_hash_tag_entry_has_no_tag() {
    let policy = tagged(&["tenant", "region"], [key("tenant").limit(1)]);
    let tag = |entries: &[Entry<'_>]| keys(&policy, bringing(entries, 1, Unit::Minute))[0].tag;
    assert_eq!(tag(&[entry("tenant", "t")]), None);
    assert!(tag(&[entry("tenant", "t"), entry("region", "r")]).is_some());
}

#[test]
fn overrides_in_different_domains_have_different_counters() {
    let policy = Policy::build(vec![domain("d", []), domain("e", [])], Secret::default());
    let entries = [entry("a", "x")];
    let descriptors = [bringing(&entries, 5, Unit::Second)];
    let key = |domain| {
        let request = tidegate::domain::Request { domain, descriptors: &descriptors };
        checks_of(&policy, &request, |check| check.key)[0]
    };
    assert_ne!(key("d"), key("e"));
}

#[test]
fn an_override_of_several_limits_has_its_own_counter_and_the_charge_of_the_domain() {
    let mut always = window(5, Unit::Second);
    Arc::make_mut(&mut always).charge = Charge::Always;
    let policy = policy([key("a").with(listed("one", None, always)).with(listed(
        "two",
        None,
        window(9, Unit::Second),
    ))]);
    let entries = [entry("a", "x")];
    let descriptors = [bringing(&entries, 5, Unit::Second)];
    let read = |check: &Check<'_>| (check.key, check.limit.charge);
    let [(own, charge)] = checks_of(&policy, &request(&descriptors), read)[..] else {
        panic!("one check")
    };
    assert!(!keys(&policy, descriptor(&entries)).contains(&own));
    assert_eq!(charge, Charge::Admitted);
}

#[test]
fn the_entries_of_a_counter_are_those_of_per_with_the_text_of_shared_patterns() {
    let policy = policy([pair("a", "x*").shared().over([key("b")
        .with(listed("all", None, bucket(1, 1)))
        .with(listed("by-b", Some(&[1]), bucket(1, 1)))])]);
    let rule = &policy.rules()[0];
    let entries = [entry("a", "x1"), entry("b", "2")];
    let of = |name| rule.counter_entries(rule.limit_position(name), &entries).to_vec();
    assert_eq!(of("all"), [entry("a", "x*"), entry("b", "2")]);
    assert_eq!(of("by-b"), [entry("b", "2")]);
}

#[test]
fn a_changed_path_starts_counters_of_a_part_of_the_path_anew_and_keeps_the_others() {
    let entries = [entry("route", "x"), entry("ip", "1")];
    let keys = |value: &str| {
        let ip = key("ip")
            .with(listed("part", Some(&[1]), window(5, Unit::Hour)))
            .with(listed("whole", None, window(5, Unit::Hour)))
            .with(listed("all", Some(&[0, 1]), window(5, Unit::Hour)));
        keys(&policy([pair("route", value).over([ip])]), descriptor(&entries))
    };
    let same = |one: &str, other: &str| {
        keys(one).iter().zip(keys(other)).map(|(one, other)| *one == other).collect::<Vec<_>>()
    };
    assert_eq!(same("", "x"), [false, true, true]);
    assert_eq!(same("x", "x*"), [false, true, true]);
    assert_eq!(same("x", "x"), [true; 3]);
}

/// Keys of limits whose counter key is the whole path. A change of one of these texts makes every
/// installation start its counters anew.
#[test]
fn keys_of_whole_paths_stay_byte_for_byte() {
    let policy = policy([
        key("a").limit(1).over([pair("b", "x").with(spec(Some("n"), bucket(1, 1)))]),
        key("l").with(listed("n", None, window(5, Unit::Hour))),
        key("p").over([key("q").with(listed("n", Some(&[0, 1]), window(5, Unit::Hour)))]),
        pair("s", "all*").shared().limit(1),
    ]);
    let text = |entries: &[Entry<'_>]| key_text(key_of(&policy, entries));
    let own = [entry("a", "x")];
    let texts = [
        text(&own),
        text(&[entry("a", "x"), entry("b", "x")]),
        text(&[entry("l", "x")]),
        text(&[entry("p", "x"), entry("q", "y")]),
        text(&[entry("s", "all1")]),
        key_text(keys(&policy, bringing(&own, 5, Unit::Hour))[0]),
    ];
    assert_eq!(
        texts,
        [
            "{MD8zxQ-RLfu6MWU22Oo2Vg}",
            "{Fvek_lRKzf2jKNnbcSmqnA}",
            "{AaTIN-AokBaPHArVWkf6dA}",
            "{dJDhlSKmx1E1K7ogkLhcdQ}",
            "{-uenL-hreV9AOFxTJIE_QA}",
            "{S9f1so_yQBczWyuum0noVg}",
        ]
    );
}
