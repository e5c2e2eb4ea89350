//! Tests that check which domains are active after a response with valid and invalid resources.

use bytes::Bytes;
use prost::Message as _;

use super::*;
use crate::control_plane::messages::{
    RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitReplace, RateLimitUnit,
};
use crate::control_plane::resource::TYPE_URL;
use crate::policy::Source;
use crate::policy::compiled_policy::NodeSpec;

fn limit(requests_per_unit: u32) -> Option<RateLimitPolicy> {
    let unit = RateLimitUnit::Hour.into();
    Some(RateLimitPolicy { unit, requests_per_unit, ..RateLimitPolicy::default() })
}

fn descriptor(key: &str, below: &[RateLimitDescriptor]) -> RateLimitDescriptor {
    RateLimitDescriptor {
        key: key.to_owned(),
        descriptors: encode_all(below),
        ..RateLimitDescriptor::default()
    }
}

fn limited_descriptor(key: &str, requests_per_unit: u32) -> RateLimitDescriptor {
    RateLimitDescriptor { rate_limit: limit(requests_per_unit), ..descriptor(key, &[]) }
}

fn encode_all(descriptors: &[RateLimitDescriptor]) -> Vec<Bytes> {
    descriptors.iter().map(|descriptor| descriptor.encode_to_vec().into()).collect()
}

fn resource(name: &str, domain: &str, descriptors: &[RateLimitDescriptor]) -> RawResource {
    let (name, domain) = (name.to_owned(), domain.to_owned());
    let message = RateLimitConfig { name, domain, descriptors: encode_all(descriptors) };
    RawResource { type_url: TYPE_URL.to_owned(), value: message.encode_to_vec().into() }
}

fn valid_resource(name: &str, requests_per_unit: u32) -> RawResource {
    resource(name, name, &[limited_descriptor("client", requests_per_unit)])
}

/// Returns a resource with an error: two sibling descriptors with the same key.
fn invalid_resource(name: &str) -> RawResource {
    resource(name, name, &[limited_descriptor("client", 1), limited_descriptor("client", 2)])
}

/// Returns the name of each active domain with the `requests_per_unit` of its first limit.
fn active_domains(last_good: &LastGood) -> Vec<(String, u32)> {
    let number =
        |node: &NodeSpec| node.rule.as_ref().unwrap().limits[0].limit.rate.requests_per_unit;
    let domains = last_good.domains();
    domains.iter().map(|domain| (domain.name.to_string(), number(&domain.nodes[0]))).collect()
}

fn to_owned_pairs(domains: &[(&str, u32)]) -> Vec<(String, u32)> {
    domains.iter().map(|(name, number)| ((*name).to_owned(), *number)).collect()
}

fn rejection_messages(update: &DomainUpdate) -> Vec<String> {
    update.rejections.iter().map(ToString::to_string).collect()
}

#[test]
fn a_response_is_the_state_of_the_world() {
    let mut last_good = LastGood::default();
    let update = last_good.apply(vec![valid_resource("b", 2), valid_resource("a", 1)]);
    assert!(update.changed && update.rejections.is_empty(), "{update:?}");
    assert_eq!(active_domains(&last_good), to_owned_pairs(&[("a", 1), ("b", 2)]));
    last_good.apply(vec![valid_resource("b", 3)]);
    assert_eq!(active_domains(&last_good), to_owned_pairs(&[("b", 3)]), "a was not sent again");
    let update = last_good.apply(Vec::new());
    assert!(
        update.changed && update.rejections.is_empty() && active_domains(&last_good).is_empty()
    );
}

#[test]
fn a_resource_with_the_same_bytes_is_not_compiled_again_in_any_order() {
    let mut last_good = LastGood::default();
    last_good.apply(vec![valid_resource("a", 1), valid_resource("b", 2), valid_resource("c", 3)]);
    let (before, hash) = (last_good.domains(), last_good.fingerprint());
    let update = last_good.apply(vec![
        valid_resource("c", 3),
        valid_resource("a", 1),
        valid_resource("b", 2),
    ]);
    assert!(!update.changed && update.compiled == 0, "{update:?}");
    assert_eq!(last_good.fingerprint(), hash);
    let update = last_good.apply(vec![
        valid_resource("c", 3),
        valid_resource("b", 9),
        valid_resource("a", 1),
    ]);
    assert_eq!((update.changed, update.compiled), (true, 1));
    let after = last_good.domains();
    let same = |at: usize| Arc::ptr_eq(&before[at], &after[at]);
    assert_eq!([same(0), same(1), same(2)], [true, false, true]);
}

#[test]
fn an_invalid_resource_keeps_its_last_good_version_and_the_others_are_applied() {
    let mut last_good = LastGood::default();
    last_good.apply(vec![valid_resource("a", 1), valid_resource("b", 2)]);
    let update = last_good.apply(vec![
        invalid_resource("a"),
        valid_resource("b", 3),
        invalid_resource("new"),
    ]);
    assert_eq!(active_domains(&last_good), to_owned_pairs(&[("a", 1), ("b", 3)]));
    let duplicate = "a second descriptor with key \"client\" and no value; merge the two, or remove one; the \
                     first is descriptors[0]";
    let expected =
        [format!("a: descriptors[1]: {duplicate}"), format!("new: descriptors[1]: {duplicate}")];
    assert_eq!(rejection_messages(&update), expected);
    // After a NACK, the same response comes again.
    let again = last_good.apply(vec![
        valid_resource("b", 3),
        invalid_resource("new"),
        invalid_resource("a"),
    ]);
    assert_eq!(
        (again.changed, again.compiled, rejection_messages(&again)),
        (false, 0, expected.into())
    );
    let mended = last_good.apply(vec![valid_resource("a", 4), valid_resource("b", 3)]);
    assert!(mended.changed && mended.rejections.is_empty());
    assert_eq!(active_domains(&last_good), to_owned_pairs(&[("a", 4), ("b", 3)]));
}

#[test]
fn errors_that_ratelimit_rejects_are_reported_with_resource_and_path() {
    let nested = |rate_limit| {
        let inner = RateLimitDescriptor { rate_limit: Some(rate_limit), ..descriptor("b", &[]) };
        resource("r", "d", &[descriptor("a", &[inner])])
    };
    let hourly = || limit(1).unwrap();
    let replaces = |name: &str| {
        let replaced = RateLimitReplace { name: name.to_owned() };
        RateLimitPolicy { name: "x".to_owned(), replaces: vec![replaced], ..hourly() }
    };
    for (faulty, expected) in [
        (resource("r", "", &[limited_descriptor("a", 1)]), "r: domain: `domain` is empty"),
        (resource("r", "d", &[limited_descriptor("", 1)]), "r: descriptors[0].key: `key` is empty"),
        (
            nested(RateLimitPolicy { unit: 0, ..hourly() }),
            "r: descriptors[0].descriptors[0].rate_limit.unit: `unit` must be one of",
        ),
        (
            nested(RateLimitPolicy { unit: 9, ..hourly() }),
            "r: descriptors[0].descriptors[0].rate_limit.unit: `unit` must be one of",
        ),
        (
            nested(RateLimitPolicy { unlimited: true, ..hourly() }),
            "r: descriptors[0].descriptors[0].rate_limit.unit: `unit` and `requests_per_unit` have no effect with",
        ),
        (
            nested(replaces("x")),
            "r: descriptors[0].descriptors[0].rate_limit.replaces[0].name: a limit cannot replace",
        ),
        (nested(replaces("")), "r: descriptors[0].descriptors[0].rate_limit.replaces[0]: an entry"),
    ] {
        let update = LastGood::default().apply(vec![faulty]);
        assert!(
            rejection_messages(&update)[0].starts_with(expected),
            "{:?}: {expected}",
            rejection_messages(&update)
        );
    }
}

#[test]
fn an_unlimited_rule_and_a_limit_of_zero_are_valid() {
    let unlimited = RateLimitPolicy { unlimited: true, ..RateLimitPolicy::default() };
    let unlimited = RateLimitDescriptor { rate_limit: Some(unlimited), ..descriptor("u", &[]) };
    let mut last_good = LastGood::default();
    let update =
        last_good.apply(vec![resource("d", "d", &[limited_descriptor("a", 0), unlimited])]);
    assert_eq!(rejection_messages(&update), Vec::<String>::new());
    let domains = last_good.domains();
    assert!(domains[0].nodes[1].rule.as_ref().unwrap().limits.is_empty());
    assert_eq!(active_domains(&last_good), to_owned_pairs(&[("d", 0)]));
}

#[test]
fn undecodable_bytes_remove_no_domain() {
    let mut last_good = LastGood::default();
    last_good.apply(vec![valid_resource("a", 1), valid_resource("b", 2)]);
    let broken = RawResource { type_url: TYPE_URL.to_owned(), value: vec![0xff; 3].into() };
    let update = last_good.apply(vec![valid_resource("a", 5), broken.clone()]);
    assert!(
        rejection_messages(&update)[0].starts_with("resources[1]: the message cannot be decoded")
    );
    assert_eq!(
        active_domains(&last_good),
        to_owned_pairs(&[("a", 5), ("b", 2)]),
        "it may have been b"
    );
    let other =
        RawResource { type_url: "type.googleapis.com/x".to_owned(), ..valid_resource("a", 1) };
    let update = last_good.apply(vec![other]);
    assert!(rejection_messages(&update)[0].contains("its type is \"type.googleapis.com/x\""));
    assert_eq!(active_domains(&last_good).len(), 2);
    // A descriptor that cannot be decoded spoils its resource only.
    let mut message = RateLimitConfig { name: "b".into(), domain: "b".into(), descriptors: vec![] };
    message.descriptors =
        vec![limited_descriptor("x", 1).encode_to_vec().into(), Bytes::from_static(b"\xff")];
    let value = message.encode_to_vec().into();
    let update = last_good.apply(vec![valid_resource("a", 6), RawResource { value, ..broken }]);
    assert!(
        rejection_messages(&update)[0]
            .starts_with("b: descriptors[1]: the descriptor cannot be decoded")
    );
    assert_eq!(active_domains(&last_good), to_owned_pairs(&[("a", 6), ("b", 2)]));
}

#[test]
fn a_resource_without_a_domain_keeps_its_last_good_domain() {
    let mut last_good = LastGood::default();
    last_good.apply(vec![valid_resource("a", 1), valid_resource("b", 2)]);
    let update = last_good.apply(vec![resource("a", "", &[limited_descriptor("client", 9)])]);
    assert_eq!(update.rejections.len(), 1, "{update:?}");
    assert_eq!(active_domains(&last_good), to_owned_pairs(&[("a", 1)]), "and b was removed");
}

#[test]
fn a_domain_of_two_resources_belongs_to_the_active_one() {
    let second = resource("a-second", "edge", &[limited_descriptor("client", 9)]);
    let first = resource("first", "edge", &[limited_descriptor("client", 1)]);
    let mut last_good = LastGood::default();
    last_good.apply(vec![first.clone()]);
    let update = last_good.apply(vec![second.clone(), first.clone(), valid_resource("other", 3)]);
    assert!(
        rejection_messages(&update)[0]
            .starts_with("a-second: domain: the resource \"first\" has this")
    );
    assert_eq!(active_domains(&last_good), to_owned_pairs(&[("edge", 1), ("other", 3)]));
    let update = last_good.apply(vec![second.clone()]);
    assert!(update.rejections.is_empty());
    assert_eq!(active_domains(&last_good), to_owned_pairs(&[("edge", 9)]));
    // Merged, both count.
    let options = Options { merge_domains: true, ..Options::default() };
    let mut merged = LastGood::new(options, PolicyDefaults::default());
    let more = resource("more", "edge", &[limited_descriptor("tenant", 2)]);
    assert!(merged.apply(vec![more.clone(), first.clone()]).rejections.is_empty());
    assert_eq!(merged.domains()[0].nodes.len(), 2);
    let update = merged.apply(vec![second, first, more]);
    assert!(
        rejection_messages(&update)[0].contains("the first is in \"a-second\": descriptors[0]"),
        "{update:?}"
    );
    assert_eq!(merged.domains()[0].nodes.len(), 2, "the last good version");
}

#[test]
fn a_duplicate_resource_name_is_rejected_in_any_order() {
    let (one, other) =
        (valid_resource("a", 1), resource("a", "b", &[limited_descriptor("client", 2)]));
    let rejected = |resources| {
        let mut last_good = LastGood::default();
        let update = last_good.apply(resources);
        (rejection_messages(&update), active_domains(&last_good))
    };
    let either = rejected(vec![one.clone(), other.clone()]);
    assert_eq!(either.0, ["a: name: a second resource of this name; rename it"]);
    assert_eq!(either, rejected(vec![other, one.clone()]));
    assert!(rejected(vec![one.clone(), one]).0.is_empty(), "twice the same");
}

#[test]
fn a_response_with_too_many_resources_is_rejected_as_a_whole() {
    let mut last_good = LastGood::default();
    last_good.apply(vec![valid_resource("a", 1)]);
    let many = (0..=RESOURCES_MAX).map(|_| RawResource::default()).collect();
    let update = last_good.apply(many);
    assert_eq!(rejection_messages(&update), ["the response has 10001 resources, more than 10000"]);
    assert_eq!(active_domains(&last_good), to_owned_pairs(&[("a", 1)]));
    let most = (0..RESOURCES_MAX).map(|_| RawResource::default()).collect();
    let rejections = last_good.apply(most).rejections;
    let last = rejections.last().unwrap().to_string();
    assert_eq!((rejections.len(), &*last), (REJECTIONS_MAX + 1, "and 9000 more errors"));
}

#[test]
fn nesting_depth_is_limited_as_in_policy_files() {
    let nested = |levels| {
        let leaf = limited_descriptor("leaf", 1);
        (1..levels).fold(leaf, |inner, _| descriptor("a", &[inner]))
    };
    let mut last_good = LastGood::default();
    // The file, `rate_limit`, and the rest are descriptors.
    let deepest = crate::policy::NESTING_MAX - 2;
    let update = last_good.apply(vec![resource("d", "d", &[nested(deepest)])]);
    assert_eq!(rejection_messages(&update), Vec::<String>::new());
    let update = last_good.apply(vec![resource("d", "d", &[nested(deepest + 1)])]);
    assert!(rejection_messages(&update)[0].contains("nested deeper than"), "{update:?}");
    let update = last_good.apply(vec![resource("d", "d", &[nested(5_000)])]);
    assert!(rejection_messages(&update)[0].contains("nested deeper than"), "{update:?}");
}

#[test]
fn a_long_name_or_reason_is_cut_and_escaped() {
    let name = "x\n".repeat(1_000);
    let update = LastGood::default().apply(vec![resource(&name, "", &[])]);
    let shown = &update.rejections[0].resource;
    assert!(shown.len() <= TEXT_BYTES_MAX + 3 && !shown.contains('\n'), "{shown}");
}

#[test]
fn new_defaults_may_make_a_rejected_resource_valid() {
    let text = b"domains: [{domain: '*', algorithm: sliding_log}]".to_vec();
    let source = Source { name: "defaults.yaml".to_owned(), text };
    let defaults = PolicyDefaults::read(&source, &Options::default()).unwrap();
    let mut last_good = LastGood::new(Options::default(), defaults);
    let update = last_good.apply(vec![valid_resource("a", 10_001)]);
    assert_eq!(update.rejections.len(), 1, "a log has at most 10,000 entries: {update:?}");
    last_good.set_defaults(PolicyDefaults::default());
    let update = last_good.apply(vec![valid_resource("a", 10_001)]);
    assert!(update.changed && update.rejections.is_empty(), "{update:?}");
    assert_eq!(active_domains(&last_good), to_owned_pairs(&[("a", 10_001)]));
}

#[test]
fn the_fingerprint_is_that_of_the_active_resources() {
    let mut last_good = LastGood::default();
    let mut fingerprint_after = |resource| {
        last_good.apply(vec![resource]);
        last_good.fingerprint()
    };
    let first = fingerprint_after(valid_resource("a", 1));
    assert_eq!(fingerprint_after(invalid_resource("a")), first, "the last good version is active");
    assert_ne!(fingerprint_after(valid_resource("a", 2)), first);
    assert_eq!(fingerprint_after(valid_resource("a", 1)), first);
}

const MIB: usize = 1 << 20;

/// Encodes a field with this number that contains `bytes`.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut encoded = vec![number << 3 | 2];
    prost::encoding::encode_varint(bytes.len() as u64, &mut encoded);
    [encoded, bytes.to_vec()].concat()
}

/// Returns a resource for the domain `d` that begins with `descriptors`, and then repeats `more` up
/// to 16 MiB.
fn raw_resource(name: &str, descriptors: &[u8], more: &[u8]) -> RawResource {
    let mut value =
        [&field(1, name.as_bytes())[..], &field(2, name.as_bytes()), descriptors].concat();
    value.extend_from_slice(&more.repeat((16 * MIB - value.len()) / more.len().max(1)));
    RawResource { type_url: TYPE_URL.to_owned(), value: value.into() }
}

/// Returns an encoded descriptor with a limit, as a field with this number.
fn encoded_rule(number: u8, value: &str, below: &[u8]) -> Vec<u8> {
    let limit = RateLimitPolicy { unit: 1, requests_per_unit: 1, ..RateLimitPolicy::default() };
    let (key, value) = (field(1, b"k"), field(2, value.as_bytes()));
    field(number, &[&key, &value, &field(3, &limit.encode_to_vec()), below].concat())
}

#[test]
fn any_response_of_16_mebibytes_takes_at_most_256_mebibytes() {
    const RULES: usize = 120_000;
    let repeat_in = |numbers: &[u8], unit: &[u8]| {
        let inner = unit.repeat(15 * MIB / unit.len());
        numbers.iter().rev().fold(inner, |inner, number| field(*number, &inner))
    };
    let rules: Vec<u8> = (0..RULES).flat_map(|at| encoded_rule(3, &at.to_string(), b"")).collect();
    let padded: Vec<u8> = (0..20_000)
        .flat_map(|at| encoded_rule(4, &format!("{}{at}", "x".repeat(700)), b""))
        .collect();
    let inherited: Vec<u8> =
        (0..10_000).flat_map(|at| encoded_rule(4, &at.to_string(), b"")).collect();
    let long = "x".repeat(60 * 1024);
    let many: Vec<RawResource> = (0..10_000)
        .map(|at| RawResource {
            value: [
                field(1, &[at as u8, b'a']),
                field(2, at.to_string().as_bytes()),
                field(3, b"").repeat(20),
            ]
            .concat()
            .into(),
            type_url: TYPE_URL.to_owned(),
        })
        .collect();
    let one = |descriptors: &[u8], more: &[u8]| vec![raw_resource("d", descriptors, more)];
    for (name, resources) in [
        ("rules", one(&rules, b"")),
        ("rules with long values", one(&encoded_rule(3, "a", &padded), b"")),
        ("rules below a long value", one(&encoded_rule(3, &long, &inherited), b"")),
        ("empty descriptors", one(b"", &field(3, b""))),
        ("as many empty descriptors as nodes", one(&field(3, b"").repeat(249_990), b"")),
        ("replaced limits", one(&repeat_in(&[3, 3], &field(5, b"")), b"")),
        ("values in metadata", one(&repeat_in(&[3, 8, 1, 2, 6], &field(1, b"")), b"")),
        ("names in metadata", one(&repeat_in(&[3, 8], &field(1, b"")), b"")),
        ("a text in metadata", one(&repeat_in(&[3, 8, 1, 2, 3], b"x"), b"")),
        ("a key", one(&repeat_in(&[3, 1], b"\x01"), b"")),
        ("many domains", many),
    ] {
        let mut last_good = LastGood::default();
        let mut update = DomainUpdate::default();
        let measured = allocation_counter::measure(|| update = last_good.apply(resources));
        let (bytes, rejections) = (measured.bytes_max as usize, update.rejections.len());
        println!("{name}: {} MiB, {rejections} rejections", bytes / MIB);
        assert!(bytes <= 256 * MIB, "{name}: {bytes}");
        assert!(rejections <= REJECTIONS_MAX + 1, "{name}: {rejections}");
        assert_eq!(
            rejections == 0,
            name.starts_with("rules") && name != "rules below a long value"
        );
    }
}

#[test]
fn texts_of_a_control_plane_are_cut_at_512_bytes() {
    for text in ["x".repeat(16 * MIB), "\u{1}".repeat(MIB), "é".repeat(MIB), "…".repeat(513)] {
        let cut = escape_and_truncate(&text);
        assert!(cut.len() <= TEXT_BYTES_MAX + '…'.len_utf8(), "{}", cut.len());
        assert!(cut.ends_with('…'));
    }
    assert_eq!(escape_and_truncate(&"x".repeat(512)), "x".repeat(512));
}

#[test]
fn domains_share_one_budget_and_a_removed_domain_frees_its_part() {
    let long = "x".repeat(60 * 1024);
    let below: Vec<_> = (0..600).flat_map(|at| encoded_rule(4, &at.to_string(), b"")).collect();
    let rules = |name: &str| raw_resource(name, &encoded_rule(3, &long, &below), b"");
    let mut last_good = LastGood::default();
    assert!(last_good.apply(vec![rules("a")]).rejections.is_empty());
    assert!(!last_good.apply(vec![rules("a"), rules("b")]).rejections.is_empty());
    assert!(last_good.apply(vec![rules("b")]).rejections.is_empty());
}
