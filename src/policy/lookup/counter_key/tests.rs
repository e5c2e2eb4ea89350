//! Tests that the encoding of counter identities is injective: a decoder recovers every part of an
//! identity.

use std::collections::HashSet;
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::domain::{
    Bucket, Charge, Concurrency, FixedWindow, Hits, Hybrid, Micros, OnStoreFailure, Rate, Refill,
    SlidingLog, SlidingWindow, Unit,
};

/// Parts of a counter identity, before encoding or after decoding.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct IdentityParts {
    kind: u8,
    domain: Option<Vec<u8>>,
    name: Option<Vec<u8>>,
    window: Option<u64>,
    class: Option<Vec<u8>>,
    entries: Vec<(Vec<u8>, bool, Vec<u8>)>,
}

fn limit(window: Option<u64>) -> Arc<Limit> {
    let hits = Hits(7);
    let algorithm = match window {
        Some(length) => Algorithm::FixedWindow(FixedWindow {
            hits,
            window: Window::Epoch { length: Micros(length) },
        }),
        None => Algorithm::Bucket(Bucket {
            burst: hits,
            debt_burst: hits,
            refill: Refill::Arrival { emission: Micros(5) },
            floor: Hits::ZERO,
            leaky: false,
        }),
    };
    Arc::new(Limit {
        algorithm,
        rate: Rate { requests_per_unit: 7, unit: Some(Unit::Second), unit_multiplier: 1 },
        charge: Charge::Admitted,
        on_store_failure: OnStoreFailure::Local,
        prepay: false,
        block_seconds: None,
        reserve: None,
        limit_id: 0,
    })
}

fn encode_parts(parts: &IdentityParts) -> Identity {
    let mut identity = Identity::default();
    let domain = String::from_utf8(parts.domain.clone().unwrap_or_default()).unwrap();
    match parts.kind {
        LIMIT_KIND => {
            let text =
                |part: &Option<Vec<u8>>| part.clone().map(|part| String::from_utf8(part).unwrap());
            let (name, class) = (text(&parts.name), text(&parts.class));
            identity.begin(&identity_prefix(
                &domain,
                name.as_deref(),
                class.as_deref(),
                &limit(parts.window),
            ));
        }
        OVERRIDE_KIND => identity.begin_override(&domain, &limit(parts.window)),
        _ => identity.begin_tag(),
    }
    for (key, shared, value) in &parts.entries {
        identity.push_entry(
            key,
            if *shared { EntryValue::Pattern(value) } else { EntryValue::Request(value) },
        );
    }
    identity
}

/// Decoder of an encoded counter identity. Contains the bytes that are not decoded yet.
struct IdentityDecoder<'a>(&'a [u8]);

impl IdentityDecoder<'_> {
    fn read_byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap();
        self.0 = rest;
        *first
    }

    fn read_varint(&mut self) -> u64 {
        let mut number = 0;
        for shift in (0..).step_by(7) {
            let byte = self.read_byte();
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return number;
            }
        }
        unreachable!()
    }

    fn read_part(&mut self) -> Vec<u8> {
        let length = usize::try_from(self.read_varint()).unwrap();
        let (part, rest) = self.0.split_at(length);
        self.0 = rest;
        part.to_vec()
    }

    fn decode(mut self) -> IdentityParts {
        let kind = self.read_byte();
        let domain = (kind != TAG_KIND).then(|| self.read_part());
        let name =
            (kind == LIMIT_KIND && self.read_byte() == PRESENT_MARKER).then(|| self.read_part());
        let window = (kind != TAG_KIND && self.read_byte() == FIXED_WINDOW_MARKER)
            .then(|| self.read_varint());
        let class =
            (kind == LIMIT_KIND && self.read_byte() == PRESENT_MARKER).then(|| self.read_part());
        let mut entries = Vec::new();
        while !self.0.is_empty() {
            let key = self.read_part();
            let shared = self.read_byte() == PATTERN_MARKER;
            entries.push((key, shared, self.read_part()));
        }
        IdentityParts { kind, domain, name, window, class, entries }
    }
}

/// Generates byte strings from common separators, invalid UTF-8, and arbitrary bytes.
fn hostile_bytes() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        Just(b"_".to_vec()),
        Just(b":".to_vec()),
        Just(b"|".to_vec()),
        Just(b"{".to_vec()),
        Just(b"}".to_vec()),
        Just(b"%".to_vec()),
        Just(b"\n".to_vec()),
        Just(vec![0]),
        Just(vec![0xff]),
        Just("\u{430}".as_bytes().to_vec()),
        vec(any::<u8>(), 0..200),
    ];
    vec(piece, 0..4).prop_map(|pieces| pieces.concat())
}

fn any_parts() -> impl Strategy<Value = IdentityParts> {
    let text = || "[a-b_:.{}\u{0}-\u{3}\u{430}]{0,5}".prop_map(String::into_bytes);
    let entries = vec((hostile_bytes(), any::<bool>(), hostile_bytes()), 0..5);
    let kind = prop_oneof![Just(LIMIT_KIND), Just(OVERRIDE_KIND), Just(TAG_KIND)];
    let window = proptest::option::of(prop_oneof![0..300u64, any::<u64>()]);
    let optional = || proptest::option::of(text());
    (kind, text(), optional(), window, optional(), entries).prop_map(
        |(kind, domain, name, window, class, entries)| IdentityParts {
            kind,
            domain: (kind != TAG_KIND).then_some(domain),
            name: name.filter(|_| kind == LIMIT_KIND),
            window: window.filter(|_| kind != TAG_KIND),
            class: class.filter(|_| kind == LIMIT_KIND),
            entries,
        },
    )
}

proptest! {
    #[test]
    fn decoding_recovers_every_encoded_part(parts in any_parts()) {
        prop_assert_eq!(IdentityDecoder(encode_parts(&parts).as_bytes()).decode(), parts);
    }

    #[test]
    fn different_parts_make_different_keys(one in any_parts(), other in any_parts()) {
        let secret = Secret::default();
        prop_assert_eq!(encode_parts(&one).hash(&secret) == encode_parts(&other).hash(&secret), one == other);
    }
}

#[test]
fn similar_values_get_different_counters() {
    let secret = Secret::default();
    let mut seen = HashSet::new();
    let lookalikes: [&[(&[u8], &[u8])]; 14] = [
        &[(b"a", b"b_c_d")],
        &[(b"a", b"b"), (b"c", b"d")],
        &[(b"a_b", b"c_d")],
        &[(b"a_b_c", b"d")],
        &[(b"a", b"b_c"), (b"d", b"")],
        &[(b"a", b"")],
        &[(b"a", b"\0")],
        &[(b"a", b"\0\0")],
        &[(b"a", b"{x}")],
        &[(b"a", b"{x}:y")],
        &[(b"a", b"%7Bx%7D")],
        &[(b"a", b"\xff")],
        &[(b"a", "\u{ff}".as_bytes())],
        &[(b"a", "\u{fffd}".as_bytes())],
    ];
    for entries in lookalikes {
        let mut identity = Identity::default();
        identity.begin(&identity_prefix("d", None, None, &limit(Some(1_000_000))));
        for (key, value) in entries {
            identity.push_entry(key, EntryValue::Request(value));
        }
        assert!(seen.insert(identity.hash(&secret)), "{entries:?} collides");
    }
}

#[test]
fn similar_paths_of_rules_have_different_prefixes() {
    let prefix = |name| identity_prefix("d", name, None, &limit(Some(1_000_000)));
    let paths: [&[(&str, &str)]; 8] = [
        &[("a", "")],
        &[("a", ""), ("b", "")],
        &[("a", "b"), ("", "")],
        &[("a", "b")],
        &[("a", "*")],
        &[("ab", "")],
        &[("a", "b"), ("c", "d")],
        &[("a", "bc"), ("", "d")],
    ];
    let mut seen = HashSet::new();
    for path in paths {
        for prefix in [prefix(None), prefix(Some("n"))] {
            let of_rule = rule_identity_prefix(&Secret::default(), &prefix, path.iter().copied());
            assert_eq!((of_rule[0], of_rule.len()), (RULE_LIMIT_KIND, 17));
            assert!(seen.insert(of_rule), "{path:?} collides");
        }
    }
}

#[test]
fn rate_and_limit_id_are_not_part_of_counter_keys() {
    let mut raised = Limit::clone(&limit(Some(1_000_000)));
    raised.algorithm = Algorithm::FixedWindow(FixedWindow {
        hits: Hits(70_000),
        window: Window::Epoch { length: Micros(1_000_000) },
    });
    raised.rate.requests_per_unit = 70_000;
    raised.limit_id = 9;
    assert_eq!(
        identity_prefix("d", None, None, &limit(Some(1_000_000))),
        identity_prefix("d", None, None, &raised)
    );
    assert_ne!(
        identity_prefix("d", None, None, &limit(Some(2_000_000))),
        identity_prefix("d", None, None, &raised)
    );
}

#[test]
fn different_secrets_make_different_keys() {
    let identity = Identity::default();
    assert_ne!(identity.hash(&Secret::derive("a")), identity.hash(&Secret::derive("b")));
    assert_eq!(format!("{:?}", Secret::derive("a")), "Secret(..)");
}

#[test]
fn typical_identity_needs_no_heap_allocation() {
    let mut identity = Identity::default();
    identity.begin(&identity_prefix(
        "a-domain-of-ordinary-size",
        Some("per-token"),
        None,
        &limit(None),
    ));
    identity.push_entry(
        b"remote_address",
        EntryValue::Request(b"2001:0db8:85a3:0000:0000:8a2e:0370:7334"),
    );
    identity.push_entry(b"authorization", EntryValue::Request(&[b'x'; 256]));
    assert!(identity.long.is_empty());
}

#[test]
fn an_identity_around_the_inline_size_keeps_all_its_bytes() {
    let mut reused = Identity::default();
    for length in IDENTITY_INLINE_BYTES - 8..IDENTITY_INLINE_BYTES + 4 {
        let value = vec![b'v'; length];
        reused.begin(b"prefix");
        reused.push_entry(b"key", EntryValue::Request(&value));
        reused.push_entry(b"k", EntryValue::Request(b"w"));
        // A length above 127 takes two bytes.
        let value_length = [length as u8 | 0x80, (length >> 7) as u8];
        let expected =
            [b"prefix", &b"\x03key\x00"[..], &value_length, &value, b"\x01k\x00\x01w"].concat();
        assert_eq!(reused.as_bytes(), expected, "{length}");
        reused.begin(b"short");
        assert_eq!(reused.as_bytes(), b"short", "after {length}");
    }
}

#[test]
fn no_two_algorithms_share_a_counter() {
    let window = || (Hits(5), Micros::SECOND);
    let bucket = |leaky| {
        let refill = Refill::Arrival { emission: Micros(5) };
        Algorithm::Bucket(Bucket {
            burst: Hits(5),
            debt_burst: Hits(5),
            refill,
            floor: Hits::ZERO,
            leaky,
        })
    };
    let calendar = |unit, zone: &str| {
        let windows = crate::policy::calendar(unit, zone).unwrap();
        Algorithm::FixedWindow(FixedWindow { hits: Hits(5), window: Window::Calendar(windows) })
    };
    let anchored = |anchor: &str| {
        let anchor = crate::policy::parse_anchor(Unit::Month, anchor).unwrap();
        let windows = crate::policy::anchored_calendar(Unit::Month, "Europe/Berlin", anchor);
        let window = Window::Calendar(windows.unwrap());
        Algorithm::FixedWindow(FixedWindow { hits: Hits(5), window })
    };
    let ((hits, length), slots) = (window(), Concurrency { slots: Hits(5), lease: Micros::SECOND });
    let all = [
        Algorithm::FixedWindow(FixedWindow { hits, window: Window::Epoch { length } }),
        Algorithm::SlidingWindow(SlidingWindow { hits, length }),
        Algorithm::SlidingLog(SlidingLog { hits, length }),
        bucket(false),
        bucket(true),
        Algorithm::Concurrency(slots),
        calendar(Unit::Day, "Europe/Berlin"),
        calendar(Unit::Week, "Europe/Berlin"),
        calendar(Unit::Day, "Europe/Paris"),
        anchored("1"),
        anchored("15"),
        anchored("31"),
    ];
    let prefixes: HashSet<_> = all
        .into_iter()
        .map(|algorithm| {
            let limit = Limit { algorithm, ..Limit::clone(&limit(None)) };
            identity_prefix("d", None, None, &limit)
        })
        .collect();
    assert_eq!(prefixes.len(), 12);
}

#[test]
fn a_changed_window_starts_a_new_counter_under_every_algorithm_whose_state_depends_on_it() {
    let prefix = |algorithm| {
        let limit = Limit { algorithm, ..Limit::clone(&limit(None)) };
        identity_prefix("d", None, None, &limit)
    };
    let (hits, second, minute) = (Hits(5), Micros::SECOND, Micros::from_secs(60));
    let sliding_window = |length| Algorithm::SlidingWindow(SlidingWindow { hits, length });
    assert_ne!(prefix(sliding_window(second)), prefix(sliding_window(minute)));
    let sliding_log = |length| Algorithm::SlidingLog(SlidingLog { hits, length });
    assert_ne!(prefix(sliding_log(second)), prefix(sliding_log(minute)));
    let hybrid = |window| {
        let shares = Arc::from([50, 50]);
        Algorithm::Hybrid(Hybrid {
            burst: hits,
            expiry_burst: hits,
            hits,
            window,
            shares,
            class: 0,
            floor_percent: 0,
        })
    };
    assert_ne!(prefix(hybrid(second)), prefix(hybrid(minute)));
    let slots = |lease| Algorithm::Concurrency(Concurrency { slots: hits, lease });
    assert_eq!(prefix(slots(second)), prefix(slots(minute)), "a lease is not a window");
}
