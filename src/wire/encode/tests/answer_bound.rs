//! Tests of the bound on the optional parts of an answer.

use super::*;

#[test]
fn an_answer_without_room_keeps_codes_numbers_and_the_holder() {
    let settings = || ResponseSettings {
        body: true,
        request_metadata: true,
        rate_limit: Some(LimitHeaderNames::default()),
        ..ResponseSettings::default()
    };
    let slot = Some(HolderToken::new(7));
    let refused = Decision { slot, ..decision(vec![over_limit_status(5, Some(1)); 3]) };
    let parts = OptionalParts::new();
    let encode = || encode_within(&parts, settings(), &refused, vec![], 0);
    let whole = encode();
    assert!(!whole.raw_body.is_empty() && !whole.response_headers_to_add.is_empty());
    let metadata =
        |response: &RateLimitResponse| struct_to_json(response.dynamic_metadata.as_ref().unwrap());
    // The request metadata goes first.
    let length = optional_bytes(&whole);
    parts.bytes_left.store(length - 1, Ordering::Relaxed);
    let shorter = encode();
    assert_eq!(shorter.raw_body, whole.raw_body);
    assert!(metadata(&shorter)["tidegate"].is_object() && metadata(&shorter)["domain"].is_null());
    assert_eq!(parts.bytes_left.load(Ordering::Relaxed), length - 1 - optional_bytes(&shorter));
    // Then all the rest.
    parts.bytes_left.store(10, Ordering::Relaxed);
    for names in [1, 0] {
        let bare = encode();
        assert!(bare.raw_body.is_empty() && bare.response_headers_to_add.is_empty());
        assert_eq!(metadata(&bare), json!({"slot": HolderToken::new(7).as_str()}));
        assert_eq!(bare.overall_code(), wire::Code::OverLimit);
        assert_eq!(bare.statuses.len(), 3);
        let limits = bare.statuses.iter().map(|status| status.current_limit.as_ref().unwrap());
        assert_eq!(limits.filter(|limit| !limit.name.is_empty()).count(), names);
        assert_eq!(parts.bytes_left.load(Ordering::Relaxed), 0);
    }
}

/// Bytes of what a response may leave out.
fn optional_bytes(response: &RateLimitResponse) -> usize {
    let bare = RateLimitResponse {
        overall_code: response.overall_code,
        statuses: response.statuses.clone(),
        ..RateLimitResponse::default()
    };
    let limits = response.statuses.iter().filter_map(|status| status.current_limit.as_ref());
    response.encoded_len() - bare.encoded_len()
        + limits.map(|limit| limit.name.len()).sum::<usize>()
}
