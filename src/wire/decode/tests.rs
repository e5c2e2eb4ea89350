//! Tests of decoding requests and of their bounds.

use proptest::prelude::*;
use tonic::Code;

use super::*;
use crate::wire::messages::rate_limit_descriptor::{Entry as WireEntry, RateLimitOverride};
use crate::wire::messages::{RateLimitDescriptor, RateLimitRequest};

fn entry(key: &'static str, value: impl Into<Bytes>) -> WireEntry {
    WireEntry { key: key.into(), value: value.into() }
}

fn descriptor(entries: Vec<WireEntry>) -> RateLimitDescriptor {
    RateLimitDescriptor { entries, ..RateLimitDescriptor::default() }
}

fn request(descriptors: Vec<RateLimitDescriptor>) -> RateLimitRequest {
    RateLimitRequest { domain: "edge".into(), descriptors, hits_addend: 0 }
}

fn ip_descriptor() -> RateLimitDescriptor {
    descriptor(vec![entry("ip", "192.0.2.1")])
}

/// Bounds that are low enough for a small request to exceed them.
const SMALL_BOUNDS: Bounds = Bounds { descriptors_max: 2, entries_max: 2, ..Bounds::DEFAULT };

fn decode(encoded: Vec<u8>) -> Result<RateLimitRequest, DecodeError> {
    decode_within(encoded, &Bounds::DEFAULT)
}

/// Decodes a request, and asserts that prost decodes it to the same values.
fn decode_within(encoded: Vec<u8>, bounds: &Bounds) -> Result<RateLimitRequest, DecodeError> {
    let decoded = DecodedRequest::decode(&encoded, bounds)?;
    let message = RateLimitRequest::decode(&*encoded).expect("prost decodes the request, too");
    assert_eq!(
        (decoded.domain.as_bytes(), decoded.hits_addend),
        (&*message.domain, message.hits_addend)
    );
    assert_eq!(decoded.decoded_descriptors.len(), message.descriptors.len());
    for (at, (got, sent)) in decoded.descriptors().iter().zip(&message.descriptors).enumerate() {
        let is_slot = |entry: &&WireEntry| entry.key == SLOT_KEY;
        let is_hold = |entry: &&WireEntry| entry.key == HOLD_KEY || entry.key == SETTLE_KEY;
        let path = sent.entries.iter().filter(|entry| !is_slot(entry) && !is_hold(entry));
        let path: Vec<_> =
            path.map(|entry| Entry { key: &entry.key, value: &entry.value }).collect();
        assert_eq!(got.entries, path);
        let holder = sent.entries.iter().rfind(is_slot).map(|entry| &*entry.value);
        assert_eq!(got.holder, holder.filter(|holder| !holder.is_empty()));
        assert_eq!(
            (decoded.decoded_descriptors[at].hits_addend, got.refund),
            (sent.hits_addend, sent.is_negative_hits)
        );
        assert_eq!(got.limit, sent.limit.map(|limit| decode_override(limit, at).unwrap()));
    }
    Ok(message)
}

fn decode_error(request: &RateLimitRequest) -> DecodeError {
    decode(request.encode_to_vec()).unwrap_err()
}

#[test]
fn an_empty_domain_or_no_descriptor_is_invalid() {
    let nameless = RateLimitRequest { domain: Bytes::new(), ..request(vec![ip_descriptor()]) };
    assert_eq!(decode_error(&nameless), DecodeError::DomainEmpty);
    assert_eq!(decode_error(&request(vec![])), DecodeError::NoDescriptors);
    assert_eq!(decode(vec![]).unwrap_err(), DecodeError::DomainEmpty);
    assert_eq!(decode(b"\x0a\x01\xff".to_vec()).unwrap_err(), DecodeError::DomainNotUtf8);
    let status = Status::from(DecodeError::NoDescriptors);
    assert_eq!(status.code(), Code::InvalidArgument);
    assert_eq!(status.message(), "descriptors must not be empty");
}

#[test]
fn too_many_descriptors_or_entries_are_rejected_with_the_bound() {
    let many = |n| request(vec![ip_descriptor(); n]).encode_to_vec();
    assert_eq!(decode(many(2_048)).unwrap().descriptors.len(), 2_048);
    let too_many = decode(many(2_049)).unwrap_err();
    assert_eq!(too_many, DecodeError::TooManyDescriptors { descriptors_max: 2_048 });
    assert_eq!(too_many.to_string(), "descriptors: at most 2048 in one request");

    let deep = |n| request(vec![ip_descriptor(), descriptor(vec![entry("k", "v"); n])]);
    assert_eq!(decode(deep(160).encode_to_vec()).unwrap().descriptors[1].entries.len(), 160);
    let too_deep = decode_error(&deep(161));
    assert_eq!(too_deep, DecodeError::TooManyEntries { descriptor: 1, entries_max: 160 });
    assert_eq!(too_deep.to_string(), "descriptors[1].entries: at most 160");
    assert_eq!(
        decode_within(many(3), &SMALL_BOUNDS).unwrap_err().reason(),
        InvalidReason::Descriptors
    );
    let deep = deep(3).encode_to_vec();
    assert_eq!(decode_within(deep, &SMALL_BOUNDS).unwrap_err().reason(), InvalidReason::Entries);
}

#[test]
fn a_message_larger_than_the_maximum_size_is_rejected() {
    let sized = |n| request(vec![descriptor(vec![entry("k", vec![b'v'; n])])]).encode_to_vec();
    let around = sized(0).len() + 12;
    assert!(decode(sized(MESSAGE_BYTES_MAX - around)).is_ok());
    let too_long = DecodeError::MessageTooLong { bytes_max: MESSAGE_BYTES_MAX };
    assert_eq!(decode(sized(MESSAGE_BYTES_MAX)).unwrap_err(), too_long);
}

#[test]
fn an_empty_key_is_invalid_an_empty_value_and_an_empty_descriptor_are_not() {
    let keyless = request(vec![ip_descriptor(), descriptor(vec![entry("", "v")])]);
    assert_eq!(decode_error(&keyless), DecodeError::KeyEmpty { descriptor: 1 });
    let message = request(vec![descriptor(vec![entry("k", "")]), descriptor(vec![])]);
    let message = message.encode_to_vec();
    let asked = DecodedRequest::decode(&message, &Bounds::DEFAULT).unwrap();
    let descriptors = asked.descriptors();
    assert_eq!(descriptors[0].entries, [Entry { key: b"k", value: b"" }]);
    assert_eq!(descriptors[1].entries, []);
}

#[test]
fn a_value_of_any_bytes_and_length_is_unchanged() {
    let odd: [&[u8]; 8] = [
        b"\xff\xfe",
        b"a_b:c|d{e}%f\n\0g",
        b"\r\nx: y",
        "ü\u{202e}".as_bytes(),
        b"*",
        b" ",
        b"\xed\xa0\x80",
        &[b'x'; 40_000],
    ];
    for value in odd {
        let bytes = request(vec![descriptor(vec![entry("k", value)])]).encode_to_vec();
        let asked = DecodedRequest::decode(&bytes, &Bounds::DEFAULT).unwrap();
        assert_eq!(asked.descriptors()[0].entries[0].value, value);
    }
}

fn decode_hits(of_request: u32, of_descriptor: Option<u64>) -> u64 {
    let descriptor = RateLimitDescriptor { hits_addend: of_descriptor, ..ip_descriptor() };
    let message = RateLimitRequest { hits_addend: of_request, ..request(vec![descriptor]) };
    let message = message.encode_to_vec();
    DecodedRequest::decode(&message, &Bounds::DEFAULT).unwrap().descriptors()[0].hits.0
}

#[test]
fn no_hits_of_the_request_mean_one_and_no_hits_of_a_descriptor_mean_a_peek() {
    assert_eq!(decode_hits(0, None), 1);
    assert_eq!(decode_hits(7, None), 7);
    assert_eq!(decode_hits(u32::MAX, None), u64::from(u32::MAX));
    assert_eq!(decode_hits(0, Some(0)), 0);
    assert_eq!(decode_hits(7, Some(0)), 0);
    assert_eq!(decode_hits(7, Some(3)), 3);
    assert_eq!(decode_hits(7, Some(u64::MAX)), u64::MAX);
}

#[test]
fn hits_of_the_request_apply_to_all_descriptors_regardless_of_field_order() {
    let mut bytes = RateLimitRequest { hits_addend: 5, ..RateLimitRequest::default() };
    let late =
        [request(vec![ip_descriptor(), ip_descriptor()]).encode_to_vec(), bytes.encode_to_vec()]
            .concat();
    bytes.domain = "edge".into();
    let asked = DecodedRequest::decode(&late, &Bounds::DEFAULT).unwrap();
    assert!(asked.descriptors().iter().all(|descriptor| descriptor.hits.0 == 5));
}

#[test]
fn negative_hits_are_refunded() {
    let back =
        RateLimitDescriptor { is_negative_hits: true, hits_addend: Some(2), ..ip_descriptor() };
    let bytes = request(vec![back, ip_descriptor()]).encode_to_vec();
    let asked = DecodedRequest::decode(&bytes, &Bounds::DEFAULT).unwrap();
    let descriptors = asked.descriptors();
    assert!(descriptors[0].refund && descriptors[0].hits.0 == 2);
    assert!(!descriptors[1].refund);
}

#[test]
fn the_slot_entry_names_the_holder_and_is_not_part_of_the_path() {
    let held = descriptor(vec![entry("a", "1"), entry("tidegate.slot", "me"), entry("b", "2")]);
    let anonymous = descriptor(vec![entry("a", "1"), entry("tidegate.slot", "")]);
    let bytes = request(vec![held, anonymous]).encode_to_vec();
    let asked = DecodedRequest::decode(&bytes, &Bounds::DEFAULT).unwrap();
    let descriptors = asked.descriptors();
    assert_eq!(descriptors[0].holder, Some(b"me".as_slice()));
    assert_eq!(descriptors[0].entries.len(), 2);
    assert_eq!(descriptors[0].entries[1].key, b"b");
    assert_eq!(descriptors[1].holder, None);
    assert_eq!(descriptors[1].entries.len(), 1);
}

#[test]
fn a_hold_or_settle_entry_has_the_id_and_is_not_part_of_the_path() {
    let hold = descriptor(vec![entry("tidegate.hold", "h1"), entry("a", "1")]);
    let unnamed = descriptor(vec![entry("a", "1"), entry("tidegate.hold", "")]);
    let settle = descriptor(vec![entry("a", "1"), entry("tidegate.settle", "h1")]);
    let other = descriptor(vec![entry("tidegate.holder", "1"), entry("tidegate.", "2")]);
    let bytes = request(vec![hold.clone(), unnamed, settle.clone(), other]).encode_to_vec();
    let asked = DecodedRequest::decode(&bytes, &Bounds::DEFAULT).unwrap();
    let descriptors = asked.descriptors();
    let ttl_secs_max = u32::MAX;
    assert_eq!(
        [0, 1, 2, 3].map(|at: usize| (descriptors[at].hold, descriptors[at].entries.len())),
        [
            (Some(HoldRequest::Hold { id: b"h1", ttl_secs_max }), 1),
            (Some(HoldRequest::Hold { id: b"", ttl_secs_max }), 1),
            (Some(HoldRequest::Settle { id: b"h1" }), 1),
            (None, 2),
        ]
    );
    let mut both = hold.clone();
    both.entries.extend(settle.entries.clone());
    for mut wrong in [both, hold, settle] {
        wrong.is_negative_hits = wrong.entries.len() == 2;
        let error = decode_error(&request(vec![ip_descriptor(), wrong]));
        assert_eq!(error, DecodeError::HoldConflict { descriptor: 1 });
    }
}

#[test]
fn a_reserve_request_is_one_whose_descriptors_hold_the_amount() {
    use super::super::messages::tidegate::v1::{ReleaseRequest, ReserveRequest, SettleRequest};
    let descriptors = vec![ip_descriptor(), ip_descriptor()];
    let decoded = |bytes: &[u8], is_settle| {
        let asked = DecodedRequest::decode_hold(bytes, &Bounds::DEFAULT, is_settle).unwrap();
        let each = asked.descriptors().iter().map(|one| (one.hits.0, one.hold)).collect::<Vec<_>>();
        assert_eq!((asked.domain, asked.hits_addend, each.len()), ("edge", 0, 2));
        assert_eq!(each[0], each[1]);
        let (hits, hold) = each[0];
        let ttl = match hold.unwrap() {
            HoldRequest::Hold { ttl_secs_max, .. } => Some(ttl_secs_max),
            HoldRequest::Settle { .. } => None,
        };
        (hits, hold.unwrap().id().to_vec(), ttl)
    };
    let domain = "edge".to_owned();
    for (ttl, expected) in [
        (None, u32::MAX),
        (Some((0, 0)), u32::MAX),
        (Some((0, 1)), 1),
        (Some((30, 0)), 30),
        (Some((30, 5)), 31),
        (Some((-3, 0)), u32::MAX),
        (Some((i64::MAX, 5)), u32::MAX),
    ] {
        let ttl = ttl.map(|(seconds, nanos)| prost_types::Duration { seconds, nanos });
        let (descriptors, domain, id) = (descriptors.clone(), domain.clone(), "h".to_owned());
        let amount = 1 << 40;
        let asked = ReserveRequest { domain, descriptors, amount, ttl, id };
        let got = decoded(&asked.encode_to_vec(), false);
        assert_eq!(got, (1 << 40, b"h".to_vec(), Some(expected)), "{ttl:?}");
    }
    let (id, amount) = ("h".to_owned(), 25);
    let settle = SettleRequest {
        domain: domain.clone(),
        descriptors: descriptors.clone(),
        amount,
        id: id.clone(),
    };
    assert_eq!(decoded(&settle.encode_to_vec(), true), (25, b"h".to_vec(), None));
    let release = ReleaseRequest { domain, descriptors, id };
    assert_eq!(decoded(&release.encode_to_vec(), true), (0, b"h".to_vec(), None));
    let error = |bytes: &[u8], is_settle| {
        DecodedRequest::decode_hold(bytes, &Bounds::DEFAULT, is_settle).unwrap_err()
    };
    // A length without bytes, and the amount, the ttl, and the id as other types.
    for wrong in [&b"\x0a"[..], b"\x1a\x00", b"\x20\x01", b"\x28\x01"] {
        let bytes = [&settle.encode_to_vec(), wrong].concat();
        assert_eq!(
            error(&bytes, false),
            DecodeError::MalformedMessage("ReserveRequest"),
            "{wrong:?}"
        );
    }
    assert_eq!(error(b"\x0a", true), DecodeError::MalformedMessage("SettleRequest"));
}

fn request_with_override(limit: RateLimitOverride) -> RateLimitRequest {
    request(vec![RateLimitDescriptor { limit: Some(limit), ..ip_descriptor() }])
}

#[test]
fn request_override_is_unchanged_except_that_a_zero_multiplier_becomes_one() {
    let read = |limit| {
        let message = request_with_override(limit).encode_to_vec();
        let asked = DecodedRequest::decode(&message, &Bounds::DEFAULT).unwrap();
        asked.descriptors()[0].limit.unwrap()
    };
    let plain = RateLimitOverride { requests_per_unit: 7, unit: 3, unit_multiplier: None };
    let hourly = Override { requests_per_unit: 7, unit: Unit::Hour, unit_multiplier: 1 };
    assert_eq!(read(plain), hourly);
    assert_eq!(read(RateLimitOverride { unit_multiplier: Some(0), ..plain }), hourly);
    assert_eq!(read(RateLimitOverride { unit_multiplier: Some(15), ..plain }).unit_multiplier, 15);
    let nothing = RateLimitOverride { requests_per_unit: 0, unit: 6, unit_multiplier: None };
    assert_eq!(read(nothing).requests_per_unit, 0);
    let most = RateLimitOverride { requests_per_unit: u32::MAX, ..plain };
    assert_eq!(read(most).requests_per_unit, u32::MAX);
}

#[test]
fn each_unit_of_an_override_has_the_number_of_envoys_enum() {
    let units = [Unit::Second, Unit::Minute, Unit::Hour, Unit::Day, Unit::Month, Unit::Year];
    for (number, unit) in (1..).zip(units) {
        let limit = RateLimitOverride { requests_per_unit: 1, unit: number, unit_multiplier: None };
        assert_eq!(decode_override(limit, 0).unwrap().unit, unit, "{number}");
    }
}

#[test]
fn each_error_is_counted_by_its_own_reason() {
    let table = [
        (DecodeError::Malformed, InvalidReason::Malformed),
        (DecodeError::MalformedMessage("CheckRequest"), InvalidReason::Malformed),
        (DecodeError::BatchSize { requests_max: 1 }, InvalidReason::Requests),
        (DecodeError::MessageTooLong { bytes_max: 1 }, InvalidReason::MessageSize),
        (DecodeError::TooManyFields, InvalidReason::Fields),
        (DecodeError::DomainEmpty, InvalidReason::Domain),
        (DecodeError::DomainNotUtf8, InvalidReason::Domain),
        (DecodeError::NoDescriptors, InvalidReason::NoDescriptors),
        (DecodeError::TooManyDescriptors { descriptors_max: 1 }, InvalidReason::Descriptors),
        (DecodeError::TooManyEntries { descriptor: 0, entries_max: 1 }, InvalidReason::Entries),
        (DecodeError::KeyEmpty { descriptor: 0 }, InvalidReason::EmptyKey),
        (DecodeError::UnknownOverrideUnit { descriptor: 0, unit: 7 }, InvalidReason::OverrideUnit),
        (DecodeError::HoldConflict { descriptor: 0 }, InvalidReason::HoldConflict),
    ];
    for (error, reason) in table {
        assert_eq!(error.reason(), reason, "{error:?}");
    }
}

#[test]
fn an_override_of_an_unknown_unit_is_invalid() {
    for unit in [0, 7, 8, -1, i32::MAX] {
        let limit = RateLimitOverride { requests_per_unit: 1, unit, unit_multiplier: None };
        assert_eq!(
            decode_error(&request_with_override(limit)),
            DecodeError::UnknownOverrideUnit { descriptor: 0, unit }
        );
    }
}

/// Returns an encoded unknown field that is long enough for its message to exceed
/// [`SHORT_MESSAGE_BYTES_MAX`]. The fields of such a message are counted before it is decoded.
fn padding() -> Vec<u8> {
    [&[0xfa, 0x01, 0x80, 0x80, 0x01][..], &[0; SHORT_MESSAGE_BYTES_MAX]].concat()
}

#[test]
fn a_long_message_of_tiny_parts_is_rejected_before_they_are_allocated() {
    let allocated = |encoded: Vec<u8>, error: DecodeError| {
        let encoded = Bytes::from(encoded);
        let used = allocation_counter::measure(|| {
            assert_eq!(DecodedRequest::decode(&encoded, &Bounds::DEFAULT).err(), Some(error));
            assert_eq!(decode_message(encoded, &Bounds::DEFAULT), Err(error));
        });
        used.bytes_total
    };
    let descriptors = [0x12, 0].repeat(MESSAGE_BYTES_MAX / 2);
    assert!(
        allocated(descriptors, DecodeError::TooManyDescriptors { descriptors_max: 2_048 })
            < 4 * 1024
    );
    let nested = |tag: u8, inner: &[u8]| {
        let length = u32::try_from(inner.len()).unwrap();
        let varint = [0, 7, 14].map(|shift| (length >> shift) as u8 & 0x7f | 0x80);
        [&[tag], &varint[..2], &[varint[2] & 0x7f], inner].concat()
    };
    let entries = nested(0x12, &[0x0a, 0].repeat(100_000));
    assert!(
        allocated(entries, DecodeError::TooManyEntries { descriptor: 0, entries_max: 160 })
            < 4 * 1024
    );
    let values = nested(0x12, &nested(0x0a, &[0x12, 0].repeat(100_000)));
    assert!(allocated(values, DecodeError::TooManyFields) < 4 * 1024);
    let overrides = nested(0x12, &[0x12, 0].repeat(100_000));
    assert!(allocated(overrides, DecodeError::TooManyFields) < 4 * 1024);
    let domains = [0x0a, 0].repeat(100_000);
    assert!(allocated(domains, DecodeError::TooManyFields) < 4 * 1024);
}

#[test]
fn a_request_of_2_048_descriptors_of_ten_entries_has_fewer_fields_than_the_bound() {
    let full = RateLimitDescriptor {
        entries: vec![entry("k", vec![b'v'; 30]); 10],
        ..RateLimitDescriptor::default()
    };
    let encoded = request(vec![full; 2_048]).encode_to_vec();
    assert!(encoded.len() > SHORT_MESSAGE_BYTES_MAX);
    let mut left = FIELDS_MAX;
    count_fields(&encoded, MessageType::Request, ENTRIES_MAX, &mut left).unwrap();
    assert_eq!(FIELDS_MAX - left, 1 + 2_048 * (1 + 10 * 3));
}

/// Bounds that some of the generated requests exceed.
const PROPTEST_BOUNDS: Bounds = Bounds { descriptors_max: 64, entries_max: 16, ..Bounds::DEFAULT };

fn any_entry() -> impl Strategy<Value = WireEntry> {
    let key = prop_oneof![9 => Just(&b"k"[..]), 1 => Just(SLOT_KEY), 1 => Just(&b""[..])];
    let value = prop::collection::vec(any::<u8>(), 0..200);
    (key, value).prop_map(|(key, value)| WireEntry { key: key.into(), value: value.into() })
}

fn any_override() -> impl Strategy<Value = RateLimitOverride> {
    (any::<u32>(), 0..8, any::<Option<u32>>()).prop_map(
        |(requests_per_unit, unit, unit_multiplier)| RateLimitOverride {
            requests_per_unit,
            unit,
            unit_multiplier,
        },
    )
}

prop_compose! {
    fn any_descriptor()(
        entries in prop::collection::vec(any_entry(), 0..4),
        limit in prop::option::weighted(0.1, any_override()),
        hits_addend in any::<Option<u64>>(),
        is_negative_hits in any::<bool>(),
    ) -> RateLimitDescriptor {
        RateLimitDescriptor { entries, limit, hits_addend, is_negative_hits }
    }
}

fn any_request() -> impl Strategy<Value = RateLimitRequest> {
    let many = (0..18_usize).prop_map(|n| descriptor(vec![entry("k", "v"); n]));
    let many = prop::collection::vec(many, 0..70);
    let odd = prop::collection::vec(any_descriptor(), 0..5);
    (prop_oneof![many, odd], any::<u32>()).prop_map(|(descriptors, hits_addend)| RateLimitRequest {
        hits_addend,
        ..request(descriptors)
    })
}

/// Regression test for a request that once failed
/// `a_message_whose_fields_are_counted_is_decoded_like_any_other`.
#[test]
fn too_many_descriptors_are_reported_before_too_many_entries() {
    let mut descriptors = vec![RateLimitDescriptor::default(); DESCRIPTORS_MAX + 1];
    descriptors[1] = descriptor(vec![entry("k", "v"); ENTRIES_MAX + 1]);
    let request = request(descriptors);
    let encoded = request.encode_to_vec();
    let padded = [encoded.clone(), padding()].concat();
    assert_eq!(decode(encoded), decode(padded));
}

proptest! {
    #[test]
    fn a_message_whose_fields_are_counted_is_decoded_like_any_other(request in any_request()) {
        let encoded = request.encode_to_vec();
        let padded = [encoded.clone(), padding()].concat();
        prop_assert_eq!(
            decode_within(encoded, &PROPTEST_BOUNDS),
            decode_within(padded, &PROPTEST_BOUNDS)
        );
    }

    #[test]
    fn any_bytes_are_a_request_or_an_error(
        bytes in prop::collection::vec(any::<u8>(), 0..64),
        pad in any::<bool>(),
    ) {
        let pad = if pad { padding() } else { Vec::new() };
        let _ = decode([bytes, pad].concat());
    }

    /// Compares the decoder with prost. If a field occurs twice, prost merges messages and keeps
    /// the last value of any other field.
    #[test]
    fn duplicate_and_damaged_fields_are_decoded_as_by_prost(
        twice in (any_descriptor(), any_descriptor(), any_request(), any_request()),
        damage in prop::option::of((any::<prop::sample::Index>(), any::<u8>())),
    ) {
        let (first, second, before, after) = twice;
        let merged = [first.encode_to_vec(), second.encode_to_vec()].concat();
        let mut encoded = before.encode_to_vec();
        prost::encoding::bytes::encode(2, &merged, &mut encoded);
        encoded.extend(after.encode_to_vec());
        if let Some((at, byte)) = damage {
            let at = at.index(encoded.len());
            encoded[at] = byte;
        }
        let malformed = RateLimitRequest::decode(&*encoded).is_err();
        match decode_within(encoded, &PROPTEST_BOUNDS) {
            Ok(_) => prop_assert!(!malformed),
            Err(DecodeError::Malformed) => prop_assert!(malformed),
            // Some other fault may come first.
            Err(_) => {}
        }
    }
}
