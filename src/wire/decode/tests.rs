//! What the wire may say, row by row, and prost as the judge of the reader.

use proptest::prelude::*;
use prost::Message as _;
use tonic::Code;

use super::*;
use crate::wire::messages::rate_limit_descriptor::{Entry as WireEntry, RateLimitOverride};
use crate::wire::messages::{RateLimitDescriptor, RateLimitRequest};

fn entry(key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> WireEntry {
    WireEntry { key: key.into(), value: value.into() }
}

fn descriptor(entries: Vec<WireEntry>) -> RateLimitDescriptor {
    RateLimitDescriptor { entries, ..RateLimitDescriptor::default() }
}

fn request(descriptors: Vec<RateLimitDescriptor>) -> RateLimitRequest {
    RateLimitRequest { domain: "edge".to_owned(), descriptors, hits_addend: 0 }
}

fn one() -> RateLimitDescriptor {
    descriptor(vec![entry("ip", "192.0.2.1")])
}

fn fault(request: &RateLimitRequest) -> DecodeError {
    DecodedRequest::read(&request.encode_to_vec()).unwrap_err()
}

#[test]
fn an_empty_domain_or_no_descriptor_is_invalid() {
    let nameless = RateLimitRequest { domain: String::new(), ..request(vec![one()]) };
    assert_eq!(fault(&nameless), DecodeError::DomainEmpty);
    assert_eq!(fault(&request(vec![])), DecodeError::NoDescriptors);
    assert_eq!(DecodedRequest::read(b"").unwrap_err(), DecodeError::DomainEmpty);
    assert_eq!(DecodedRequest::read(b"\x0a\x01\xff").unwrap_err(), DecodeError::DomainNotText);
    let status = Status::from(DecodeError::NoDescriptors);
    assert_eq!(status.code(), Code::InvalidArgument);
    assert_eq!(status.message(), "descriptors must not be empty");
}

#[test]
fn more_descriptors_or_entries_than_the_bound_are_invalid_and_the_bound_is_told() {
    let many = |n| request(vec![one(); n]).encode_to_vec();
    assert_eq!(DecodedRequest::read(&many(64)).unwrap().descriptors().len(), 64);
    assert_eq!(DecodedRequest::read(&many(65)).unwrap_err(), DecodeError::TooManyDescriptors);
    assert_eq!(
        DecodeError::TooManyDescriptors.to_string(),
        "descriptors: at most 64 in one request"
    );

    let deep = |n| request(vec![one(), descriptor(vec![entry("k", "v"); n])]);
    assert_eq!(
        DecodedRequest::read(&deep(16).encode_to_vec()).unwrap().descriptors()[1].entries.len(),
        16
    );
    assert_eq!(fault(&deep(17)), DecodeError::TooManyEntries { descriptor: 1 });
    assert_eq!(fault(&deep(17)).to_string(), "descriptors[1].entries: at most 16");
}

#[test]
fn a_message_beyond_its_bound_is_invalid_and_one_of_it_is_not() {
    let sized = |n| request(vec![descriptor(vec![entry("k", vec![b'v'; n])])]).encode_to_vec();
    let around = sized(0).len() + 12;
    assert!(DecodedRequest::read(&sized(MESSAGE_BYTES_MAX - around)).is_ok());
    assert_eq!(
        DecodedRequest::read(&sized(MESSAGE_BYTES_MAX)).unwrap_err(),
        DecodeError::MessageTooLong
    );
}

#[test]
fn an_empty_key_is_invalid_an_empty_value_and_an_empty_descriptor_are_not() {
    let keyless = request(vec![one(), descriptor(vec![entry("", "v")])]);
    assert_eq!(fault(&keyless), DecodeError::KeyEmpty { descriptor: 1 });
    let message = request(vec![descriptor(vec![entry("k", "")]), descriptor(vec![])]);
    let bytes = message.encode_to_vec();
    let asked = DecodedRequest::read(&bytes).unwrap();
    let descriptors = asked.descriptors();
    assert_eq!(descriptors[0].entries, [Entry { key: b"k", value: b"" }]);
    assert_eq!(descriptors[1].entries, []);
}

#[test]
fn a_value_of_any_bytes_and_length_is_kept_as_it_is() {
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
        let asked = DecodedRequest::read(&bytes).unwrap();
        assert_eq!(asked.descriptors()[0].entries[0].value, value);
    }
}

fn hits(of_request: u32, of_descriptor: Option<u64>) -> u64 {
    let descriptor = RateLimitDescriptor { hits_addend: of_descriptor, ..one() };
    let message = RateLimitRequest { hits_addend: of_request, ..request(vec![descriptor]) };
    DecodedRequest::read(&message.encode_to_vec()).unwrap().descriptors()[0].hits.0
}

#[test]
fn no_hits_of_the_request_mean_one_and_no_hits_of_a_descriptor_mean_a_peek() {
    assert_eq!(hits(0, None), 1);
    assert_eq!(hits(7, None), 7);
    assert_eq!(hits(u32::MAX, None), u64::from(u32::MAX));
    assert_eq!(hits(0, Some(0)), 0);
    assert_eq!(hits(7, Some(0)), 0);
    assert_eq!(hits(7, Some(3)), 3);
    assert_eq!(hits(7, Some(u64::MAX)), u64::MAX);
}

#[test]
fn the_requests_hits_hold_for_every_descriptor_wherever_they_stand_in_the_message() {
    let mut bytes = RateLimitRequest { hits_addend: 5, ..RateLimitRequest::default() };
    let late = [request(vec![one(), one()]).encode_to_vec(), bytes.encode_to_vec()].concat();
    bytes.domain = "edge".to_owned();
    let asked = DecodedRequest::read(&late).unwrap();
    assert!(asked.descriptors().iter().all(|descriptor| descriptor.hits.0 == 5));
}

#[test]
fn negative_hits_are_refunded() {
    let back = RateLimitDescriptor { is_negative_hits: true, hits_addend: Some(2), ..one() };
    let bytes = request(vec![back, one()]).encode_to_vec();
    let asked = DecodedRequest::read(&bytes).unwrap();
    let descriptors = asked.descriptors();
    assert!(descriptors[0].refund && descriptors[0].hits.0 == 2);
    assert!(!descriptors[1].refund);
}

#[test]
fn the_slot_entry_names_the_holder_and_is_no_step_of_the_path() {
    let held = descriptor(vec![entry("a", "1"), entry("tidegate.slot", "me"), entry("b", "2")]);
    let anonymous = descriptor(vec![entry("a", "1"), entry("tidegate.slot", "")]);
    let bytes = request(vec![held, anonymous]).encode_to_vec();
    let asked = DecodedRequest::read(&bytes).unwrap();
    let descriptors = asked.descriptors();
    assert_eq!(descriptors[0].holder, Some(b"me".as_slice()));
    assert_eq!(descriptors[0].entries.len(), 2);
    assert_eq!(descriptors[0].entries[1].key, b"b");
    assert_eq!(descriptors[1].holder, None);
    assert_eq!(descriptors[1].entries.len(), 1);
}

fn limited(limit: RateLimitOverride) -> RateLimitRequest {
    request(vec![RateLimitDescriptor { limit: Some(limit), ..one() }])
}

#[test]
fn an_override_is_taken_as_it_is_and_a_multiplier_of_nothing_is_one() {
    let read = |limit| {
        let bytes = limited(limit).encode_to_vec();
        DecodedRequest::read(&bytes).unwrap().descriptors()[0].limit.unwrap()
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
fn an_override_of_an_unknown_unit_is_invalid() {
    for unit in [0, 7, 8, -1, i32::MAX] {
        let limit = RateLimitOverride { requests_per_unit: 1, unit, unit_multiplier: None };
        assert_eq!(fault(&limited(limit)), DecodeError::OverrideUnit { descriptor: 0, unit });
    }
}

/// What prost reads, in the words of this room; `None` where it refuses.
fn by_prost(message: &[u8]) -> Option<RateLimitRequest> {
    RateLimitRequest::decode(message).ok()
}

fn agree(message: &[u8]) {
    let ours = DecodedRequest::read(message);
    let Some(theirs) = by_prost(message) else {
        assert!(ours.is_err(), "prost refuses {message:02x?}");
        return;
    };
    match ours {
        Err(DecodeError::Malformed | DecodeError::DomainNotText) => {
            panic!("prost reads {message:02x?}")
        }
        // Well-formed, and beyond a bound.
        Err(_) => {}
        Ok(asked) => {
            assert_eq!(asked.domain, theirs.domain);
            assert_eq!(asked.hits_addend, theirs.hits_addend);
            let descriptors = asked.descriptors();
            assert_eq!(descriptors.len(), theirs.descriptors.len());
            for (ours, theirs) in descriptors.iter().zip(&theirs.descriptors) {
                let path = theirs.entries.iter().filter(|entry| entry.key != SLOT_KEY);
                let path: Vec<_> =
                    path.map(|entry| Entry { key: &entry.key, value: &entry.value }).collect();
                assert_eq!(ours.entries, path);
                assert_eq!(ours.refund, theirs.is_negative_hits);
                let limit = theirs.limit.as_ref().map(|limit| limit.requests_per_unit);
                assert_eq!(ours.limit.map(|limit| limit.requests_per_unit), limit);
            }
            for (ours, theirs) in asked.heads.iter().zip(&theirs.descriptors) {
                assert_eq!(ours.hits_addend, theirs.hits_addend);
            }
        }
    }
}

fn any_request() -> impl Strategy<Value = RateLimitRequest> {
    let entry =
        (prop::collection::vec(any::<u8>(), 0..4), prop::collection::vec(any::<u8>(), 0..6))
            .prop_map(|(key, value)| WireEntry { key, value });
    let limit = (any::<u32>(), -1..9_i32, any::<Option<u32>>()).prop_map(
        |(requests_per_unit, unit, unit_multiplier)| RateLimitOverride {
            requests_per_unit,
            unit,
            unit_multiplier,
        },
    );
    let descriptor =
        (
            prop::collection::vec(entry, 0..18),
            prop::option::of(limit),
            any::<Option<u64>>(),
            any::<bool>(),
        )
            .prop_map(|(entries, limit, hits_addend, is_negative_hits)| {
                RateLimitDescriptor { entries, limit, hits_addend, is_negative_hits }
            });
    (".{0,5}", prop::collection::vec(descriptor, 0..4), any::<u32>()).prop_map(
        |(domain, descriptors, hits_addend)| RateLimitRequest { domain, descriptors, hits_addend },
    )
}

proptest! {
    #[test]
    fn prost_and_the_reader_agree_on_every_request(request in any_request()) {
        agree(&request.encode_to_vec());
    }

    #[test]
    fn prost_and_the_reader_agree_on_damaged_requests(
        request in any_request(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = request.encode_to_vec();
        prop_assume!(!bytes.is_empty());
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        agree(&bytes);
        agree(&bytes[..cut.index(bytes.len())]);
    }

    #[test]
    fn prost_and_the_reader_agree_on_random_bytes(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        agree(&bytes);
    }

    #[test]
    fn two_requests_in_a_row_are_merged_as_prost_merges_them(
        first in any_request(),
        second in any_request(),
    ) {
        agree(&[first.encode_to_vec(), second.encode_to_vec()].concat());
    }
}
