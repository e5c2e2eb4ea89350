//! The layout of keys: no two counters share one, and slots are those that Redis computes.

use std::collections::HashSet;

use proptest::prelude::*;
use tidegate::domain::{Algorithm, CounterKey};
use tidegate::store::redis::script::keys::{Prefix, counter_slot, key_slot};

use crate::support::limits::*;
use crate::support::redis_server::Server;

fn text(prefix: &str, key: &CounterKey, algorithm: &Algorithm) -> String {
    let key = Prefix::new(prefix).unwrap().key(key, algorithm);
    String::from_utf8(key.to_vec()).unwrap()
}

#[test]
fn a_key_is_prefix_version_and_tag() {
    let (window, bucket) = (window(1, SECOND), bucket(1, 1));
    let key = CounterKey { identity: u128::MAX, tag: None };
    let plain = text("", &key, &window.algorithm);
    assert_eq!(plain, "tg1w:{_____________________w}");
    assert_eq!(plain.len(), 29, "so that Redis spends 134 bytes on it");
    assert_eq!(text("p:", &key, &bucket.algorithm), "p:tg1b:{_____________________w}");
    let key = CounterKey { identity: 1, tag: Some(0) };
    assert_eq!(
        text("", &key, &bucket.algorithm),
        "tg1b:{AAAAAAAAAAAAAAAAAAAAAA}:AAAAAAAAAAAAAAAAAAAAAQ"
    );
}

#[test]
fn both_forms_of_a_bucket_share_a_key() {
    let (arrival, credits) = (bucket(1, 1), credits(1, 3, SECOND));
    assert_eq!(text("", &key(1), &arrival.algorithm), text("", &key(1), &credits.algorithm));
}

proptest! {
    #[test]
    fn different_counters_have_different_keys(
        a in (any::<u128>(), any::<Option<u128>>(), any::<bool>()),
        b in (any::<u128>(), any::<Option<u128>>(), any::<bool>()),
    ) {
        let (window, bucket) = (window(1, SECOND), bucket(1, 1));
        let text = |(identity, tag, is_window): (u128, Option<u128>, bool)| {
            let algorithm = if is_window { &window.algorithm } else { &bucket.algorithm };
            text("x", &CounterKey { identity, tag }, algorithm)
        };
        prop_assert_eq!(text(a) == text(b), a == b);
    }

    #[test]
    fn a_single_bit_makes_another_key(identity in any::<u128>(), tag in any::<u128>()) {
        let limit = window(1, SECOND);
        let mut seen = HashSet::new();
        seen.insert(text("", &CounterKey { identity, tag: Some(tag) }, &limit.algorithm));
        for bit in 0..128 {
            let other = CounterKey { identity: identity ^ (1 << bit), tag: Some(tag) };
            prop_assert!(seen.insert(text("", &other, &limit.algorithm)));
            let other = CounterKey { identity, tag: Some(tag ^ (1 << bit)) };
            prop_assert!(seen.insert(text("", &other, &limit.algorithm)));
        }
    }
}

#[tokio::test]
async fn slots_are_those_the_server_computes() {
    let server = Server::start(&["cluster-enabled yes"]);
    let mut connection = server.connect().await;
    let limit = window(1, SECOND);
    for n in 0..200 {
        let key = if n % 2 == 0 { key(n) } else { tagged(n, n / 8) };
        let text = text("edge:", &key, &limit.algorithm);
        let theirs: u16 = redis::cmd("CLUSTER")
            .arg("KEYSLOT")
            .arg(&text)
            .query_async(&mut connection)
            .await
            .unwrap();
        assert_eq!(counter_slot(&key), theirs, "{text}");
        assert_eq!(key_slot(text.as_bytes()), theirs, "{text}");
    }
    for odd in ["", "{}a", "a{}b{c}", "{{a}}", "}{a", "{a", "a}b", "{a}{b}"] {
        let theirs: u16 = redis::cmd("CLUSTER")
            .arg("KEYSLOT")
            .arg(odd)
            .query_async(&mut connection)
            .await
            .unwrap();
        assert_eq!(key_slot(odd.as_bytes()), theirs, "{odd:?}");
    }
}

#[test]
fn a_tag_places_counters_and_never_splits_or_joins_them() {
    let limit = window(1, SECOND);
    let (a, b) = (tagged(1, 9), tagged(2, 9));
    assert_eq!(counter_slot(&a), counter_slot(&b));
    assert_ne!(text("", &a, &limit.algorithm), text("", &b, &limit.algorithm));
}
