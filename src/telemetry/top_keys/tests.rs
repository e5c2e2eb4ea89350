//! Tests of the reports of keys, through their public API.

use super::*;
use crate::domain::fixtures::check_event;
use crate::domain::{CounterKey, Entry, Outcome, truncate_utf8};

const NOW: Micros = Micros::from_secs(1_000_000);

fn limit_name(rule: RuleId, limit: usize) -> Option<LimitName> {
    let known = rule.0 < 1_000 && limit == 0;
    let name = format!("d.rule{}", rule.0);
    known.then(|| LimitName { domain: "d".into(), rule: name.into(), limit: "".into() })
}

/// Records a rejection of a descriptor with this value by `rule`. The identity of the counter is a
/// hash of the rule and the value.
fn record_rejection(top: &TopKeys, rule: u32, value: &str) {
    let hash = blake3::hash(format!("{rule} {value}").as_bytes());
    let mut identity = [0; 16];
    identity.copy_from_slice(&hash.as_bytes()[..16]);
    let entries = [Entry { key: b"token", value: value.as_bytes() }];
    let counter = CounterKey { identity: u128::from_be_bytes(identity), tag: None };
    top.record_refusal(&KeyEvent {
        rule: Some(RuleId(rule)),
        limit: 0,
        counter,
        entries: &entries,
        shadow: false,
    });
}

fn seconds_later(seconds: u64) -> Micros {
    NOW.saturating_add(Micros::from_secs(seconds))
}

#[test]
fn a_rejected_key_is_listed_with_its_count() {
    let top = TopKeys::new(ValueDisplay::Shortened, 0.8);
    for _ in 0..3 {
        record_rejection(&top, 1, "ann");
    }
    record_rejection(&top, 1, "bob");
    let report = top.report(TopBy::Rejected, NOW, &limit_name);
    let [limit] = &report.now.limits[..] else { panic!("{report:?}") };
    assert_eq!((&*limit.rule, limit.count, &limit.limit), ("d.rule1", 4, &None));
    let keys: Vec<_> = limit.keys.iter().map(|key| (&*key.key, key.count)).collect();
    assert_eq!(keys, [("token=ann", 3), ("token=bob", 1)]);
    assert_eq!(limit.keys[0].count_at_most, 3);
    assert_eq!(report.last_hour.limits, report.now.limits);
    assert_eq!(report.last_day.limits, report.now.limits);
    assert_eq!((report.now.seconds, report.last_hour.seconds), (10, 3_600));
}

#[test]
fn a_key_leaves_each_window_when_it_is_too_old() {
    let top = TopKeys::new(ValueDisplay::Shortened, 0.8);
    record_rejection(&top, 1, "ann");
    let windows = |now| {
        let report = top.report(TopBy::Rejected, now, &limit_name);
        [report.now, report.last_hour, report.last_day].map(|window| window.limits.len())
    };
    assert_eq!(windows(NOW), [1, 1, 1]);
    assert_eq!(windows(seconds_later(11)), [0, 1, 1]);
    assert_eq!(windows(seconds_later(3_601)), [0, 0, 1]);
    assert_eq!(windows(seconds_later(86_401)), [0, 0, 0]);
}

#[test]
fn a_heavy_key_is_found_in_a_flood_of_new_keys_and_its_bounds_hold() {
    let top = TopKeys::new(ValueDisplay::Shortened, 0.8);
    let mut heavy = 0;
    for round in 0..20 {
        for at in 0..200 {
            record_rejection(&top, 1, &format!("fresh-{round}-{at}"));
            if at % 10 == 0 {
                record_rejection(&top, 1, "heavy");
                heavy += 1;
            }
        }
        top.drain(seconds_later(round), &limit_name);
    }
    let report = top.report(TopBy::Rejected, seconds_later(20), &limit_name);
    let limit = &report.last_hour.limits[0];
    assert_eq!(limit.count, 20 * 200 + heavy);
    let first = &limit.keys[0];
    assert_eq!(first.key, "token=heavy");
    assert!(first.count <= heavy && heavy <= first.count_at_most, "{first:?}");
    assert!(limit.keys.len() <= BUCKET_KEYS_MAX[0] * 12);
}

#[test]
fn recording_a_rejection_allocates_nothing_even_if_the_channel_is_full() {
    let top = TopKeys::new(ValueDisplay::Shortened, 0.8);
    let entries = [Entry { key: b"token", value: &[b'x'; 300] }; 16];
    let counter = CounterKey { identity: 1, tag: None };
    let refused =
        KeyEvent { rule: Some(RuleId(1)), limit: 0, counter, entries: &entries, shadow: false };
    for _ in 0..2 {
        let noted = allocation_counter::measure(|| {
            (0..CHANNEL_CAPACITY).for_each(|_| top.record_refusal(&refused));
        });
        assert_eq!(noted.count_total, 0);
    }
}

#[test]
fn a_full_channel_drops_and_counts_records_without_waiting() {
    let top = TopKeys::new(ValueDisplay::Shortened, 0.8);
    for _ in 0..CHANNEL_CAPACITY + 5 {
        record_rejection(&top, 1, "ann");
    }
    let report = top.report(TopBy::Rejected, NOW, &limit_name);
    assert_eq!(report.unrecorded, 5);
    assert_eq!(report.now.limits[0].count, CHANNEL_CAPACITY as u64);
}

#[test]
fn a_new_limit_replaces_only_an_idle_limit() {
    let top = TopKeys::new(ValueDisplay::Shortened, 0.8);
    for rule in 0..=TRACKED_LIMITS_MAX as u32 {
        record_rejection(&top, rule, "ann");
    }
    let report = top.report(TopBy::Rejected, NOW, &limit_name);
    assert_eq!((report.now.limits.len(), report.unrecorded), (TRACKED_LIMITS_MAX, 1));
    record_rejection(&top, 500, "ann");
    let report = top.report(TopBy::Rejected, seconds_later(60), &limit_name);
    assert_eq!(report.now.limits.len(), 1);
    assert_eq!((report.last_hour.limits.len(), report.unrecorded), (TRACKED_LIMITS_MAX, 1));
}

#[test]
fn a_limit_keeps_its_keys_over_a_reload_that_changes_its_id() {
    let top = TopKeys::new(ValueDisplay::Shortened, 0.8);
    record_rejection(&top, 1, "ann");
    top.drain(NOW, &limit_name);
    let after = |rule: RuleId, limit| limit_name(RuleId(rule.0 - 100), limit);
    record_rejection(&top, 101, "ann");
    let report = top.report(TopBy::Rejected, NOW, &after);
    assert_eq!(report.now.limits.len(), 1);
    assert_eq!(report.now.limits[0].count, 2);
    record_rejection(&top, 5_000, "ann");
    assert_eq!(top.report(TopBy::Rejected, NOW, &limit_name).unrecorded, 1, "a rule that is gone");
}

#[test]
fn values_are_shortened_or_hidden() {
    let secret = "a-secret-token-of-some-length";
    let shown = |values| {
        let top = TopKeys::new(values, 0.8);
        record_rejection(&top, 1, secret);
        let report = top.report(TopBy::Rejected, NOW, &limit_name);
        let key = &report.now.limits[0].keys[0];
        (key.key.clone(), key.counter.len(), report.values.clone())
    };
    let cut = format!("token={}…", &secret[..24]);
    assert_eq!(shown(ValueDisplay::Shortened), (cut, 32, "shortened".to_owned()));
    assert_eq!(shown(ValueDisplay::Hashed), ("token".to_owned(), 32, "hashed".to_owned()));
}

#[test]
fn any_bytes_of_a_value_are_displayed_as_printable_bounded_text() {
    let values: [&[u8]; 4] = [b"a\nb\x1b[31m", b"\xff\xfe", "gr\u{fc}n".as_bytes(), &[0; 500]];
    let expected = [r"k=a\nb\u{1b}[31m", r"k=\xff\xfe", "k=gr\u{fc}n"];
    for (at, value) in values.into_iter().enumerate() {
        let entries = [Entry { key: b"k", value }; 16];
        let counter = CounterKey { identity: 1, tag: None };
        let of = |entries: &[Entry<'_>]| {
            let refused = KeyEvent { rule: None, limit: 0, counter, entries, shadow: false };
            KeyRecord::new(&refused, KeyResult::Refused, ValueDisplay::Shortened).display()
        };
        if let Some(expected) = expected.get(at) {
            assert_eq!(of(&entries[..1]), *expected);
        }
        let all = of(&entries);
        assert!(all.len() <= 256 && !all.contains(char::is_control), "{all}");
    }
}

#[test]
fn text_is_truncated_between_characters() {
    let text = "xxxxxxxxxxxxxxxxxxxxxxx\u{20ac}".as_bytes();
    assert_eq!(truncate_utf8(text, 24), &text[..23]);
    assert_eq!(truncate_utf8(text, 26), text);
    assert_eq!(truncate_utf8(&[0x80; 40], 24).len(), 21);
}

#[test]
fn the_limit_that_was_idle_longest_loses_its_place_after_ten_seconds() {
    let top = TopKeys::new(ValueDisplay::Shortened, 0.8);
    let rules = 0..TRACKED_LIMITS_MAX as u32;
    rules.clone().for_each(|rule| record_rejection(&top, rule, "ann"));
    top.drain(NOW, &limit_name);
    rules.filter(|rule| *rule != 7).for_each(|rule| record_rejection(&top, rule, "ann"));
    top.drain(seconds_later(9), &limit_name);
    record_rejection(&top, 500, "ann");
    let just_before = Micros(seconds_later(10).0 - 1);
    assert_eq!(
        top.report(TopBy::Rejected, just_before, &limit_name).unrecorded,
        1,
        "no limit is idle yet"
    );
    record_rejection(&top, 500, "ann");
    record_rejection(&top, 7, "ann");
    let report = top.report(TopBy::Rejected, seconds_later(10), &limit_name);
    assert_eq!(report.unrecorded, 2, "rule 7 has no place");
    let refused = |rule: &str| {
        let limit = report.last_hour.limits.iter().find(|limit| limit.rule == rule);
        limit.map(|limit| limit.count)
    };
    assert_eq!(["d.rule500", "d.rule7", "d.rule8"].map(refused), [Some(1), None, Some(2)]);
}

#[test]
fn a_key_that_took_the_place_of_another_has_bounds_that_differ_by_its_error() {
    let top = TopKeys::new(ValueDisplay::Shortened, 0.8);
    for at in 0..BUCKET_KEYS_MAX[0] {
        record_rejection(&top, 1, &format!("early-{at}"));
    }
    record_rejection(&top, 1, "late");
    let report = top.report(TopBy::Rejected, NOW, &limit_name);
    let mut keys = report.now.limits[0].keys.iter();
    let late = keys.find(|key| key.key == "token=late").expect("it has the highest upper bound");
    assert_eq!((late.count, late.count_at_most), (1, 2));
}

#[test]
fn limits_are_listed_by_rejections_and_those_in_shadow_mode_apart() {
    let top = TopKeys::new(ValueDisplay::Shortened, 0.8);
    let entries = [Entry { key: b"token", value: b"ann" }];
    let counter = CounterKey { identity: 1, tag: None };
    let record = |rule, limit, shadow| {
        top.record_refusal(&KeyEvent { rule, limit, counter, entries: &entries, shadow });
    };
    record(None, 0, false);
    for shadow in [false, true] {
        record(Some(RuleId(1)), 1, shadow);
    }
    for shadow in [true, true, false] {
        record(Some(RuleId(1)), 0, shadow);
    }
    let name = |_: RuleId, limit: usize| {
        let limit = ["hourly", "daily"][limit].into();
        Some(LimitName { domain: "d".into(), rule: "d.a".into(), limit })
    };
    let limits = top.report(TopBy::Rejected, NOW, &name).now.limits;
    let listed: Vec<_> = limits
        .iter()
        .map(|each| (&*each.rule, each.limit.as_deref(), each.count, each.shadow))
        .collect();
    let expected = [
        ("d.a", Some("hourly"), 2, true),
        ("(override)", None, 1, false),
        ("d.a", Some("daily"), 1, false),
        ("d.a", Some("daily"), 1, true),
        ("d.a", Some("hourly"), 1, false),
    ];
    assert_eq!(listed, expected);
}

/// Offers a check that charges `hits` and leaves `available` of 10 hits, as the request path does.
fn pass(top: &TopKeys, value: &str, hits: u64, available: u64) {
    let hash = blake3::hash(value.as_bytes());
    let mut identity = [0; 16];
    identity.copy_from_slice(&hash.as_bytes()[..16]);
    let outcome = Outcome { charged: Hits(hits), ..Outcome::pass(Hits(available)) };
    let check = CheckEvent { capacity: Hits(10), ..check_event(1, hits, outcome) };
    let entries = [Entry { key: b"token", value: value.as_bytes() }];
    let counter = CounterKey { identity: u128::from_be_bytes(identity), tag: None };
    let key =
        KeyEvent { rule: Some(RuleId(1)), limit: 0, counter, entries: &entries, shadow: false };
    if let Some(weight) = top.sample(&check) {
        top.record_pass(&key, &check, weight);
    }
}

fn listed(top: &TopKeys, by: TopBy, now: Micros) -> Vec<(String, u64, u32)> {
    let limits = top.report(by, now, &limit_name).now.limits;
    let keys = limits.into_iter().flat_map(|limit| limit.keys);
    keys.map(|key| (key.key, key.count, key.used_percent)).collect()
}

#[test]
fn used_hits_of_admitted_calls_are_counted_exactly_while_calls_are_few() {
    let top = TopKeys::new(ValueDisplay::Shortened, 0.8);
    (0..5).for_each(|_| pass(&top, "ann", 3, 4));
    pass(&top, "bob", 1, 9);
    pass(&top, "peek", 0, 9);
    let expected = [("token=ann".to_owned(), 15, 60), ("token=bob".to_owned(), 1, 10)];
    assert_eq!(listed(&top, TopBy::Used, NOW), expected);
    assert_eq!(listed(&top, TopBy::Rejected, NOW), []);
}

#[test]
fn a_key_is_near_while_its_latest_check_left_it_near_and_the_fullest_is_first() {
    let top = TopKeys::new(ValueDisplay::Shortened, 0.8);
    for (value, available) in [("ann", 3), ("ann", 2), ("bob", 0), ("cid", 0), ("cid", 9)] {
        pass(&top, value, 1, available);
    }
    let expected = [("token=bob".to_owned(), 1, 100), ("token=ann".to_owned(), 1, 80)];
    assert_eq!(listed(&top, TopBy::Near, NOW), expected);
    let limit = &top.report(TopBy::Near, NOW, &limit_name).now.limits[0];
    assert_eq!((limit.count, limit.absent_at_most), (3, 1), "cid was near once");
}

#[test]
fn many_calls_are_sampled_and_a_key_that_comes_near_is_recorded_all_the_same() {
    let top = TopKeys::new(ValueDisplay::Shortened, 0.8);
    // At 16 keys in turn, every sixteenth call is of the same key.
    let round = |now| {
        (0..8_000).for_each(|at| pass(&top, &format!("key-{}", at % 16), 1, 5));
        top.drain(now, &limit_name);
    };
    round(NOW);
    assert_eq!(top.one_in(), 512);
    let later = seconds_later(20);
    (0..20).for_each(|_| round(later));
    pass(&top, "near", 1, 2);
    let used = listed(&top, TopBy::Used, later);
    assert_eq!(used.len(), 16);
    for (key, hits, _) in used {
        // Two standard deviations, √(10,000 × 512) each.
        assert!(hits.abs_diff(10_000) <= 4_525, "{key}: {hits} of 10,000");
    }
    assert_eq!(listed(&top, TopBy::Near, later), [("token=near".to_owned(), 1, 80)]);
}

/// Three replicas, keys by Zipf's law, and more keys than a sketch has: every bound of the sum contains
/// the exact number, and no key that is left out has more than `absent_at_most`.
#[test]
fn the_sum_over_replicas_contains_the_exact_numbers() {
    let replicas: [TopKeys; 3] =
        std::array::from_fn(|_| TopKeys::new(ValueDisplay::Shortened, 0.8));
    let mut exact = std::collections::HashMap::new();
    let mut random = 1_u64;
    for at in 0..60_000 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695);
        let uniform = (random >> 33) as f64 / (1_u64 << 31) as f64;
        let key = format!("{}", 2_000_f64.powf(uniform) as u64);
        let replica = &replicas[(random >> 20) as usize % 3];
        record_rejection(replica, 1, &key);
        *exact.entry(format!("token={key}")).or_insert(0_u64) += 1;
        if at % 1_000 == 0 {
            replicas.iter().for_each(|top| top.drain(NOW, &limit_name));
        }
    }
    let mut reports = replicas.iter().map(|top| top.report(TopBy::Rejected, NOW, &limit_name));
    let mut merged = reports.next().unwrap();
    reports.for_each(|report| merged.merge(report));
    merged.keep_first(20);
    let limit = &merged.now.limits[0];
    assert_eq!((limit.count, limit.keys.len()), (60_000, 20));
    for key in &limit.keys {
        let exact = exact.remove(&key.key).unwrap();
        assert!((key.count..=key.count_at_most).contains(&exact), "{exact} {key:?}");
    }
    assert!(exact.values().all(|count| *count <= limit.absent_at_most));
    // A twelfth of all events is more than 1/32 on any replica.
    assert_eq!(limit.keys[0].key, "token=1");
}
