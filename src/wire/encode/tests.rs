//! Tests of encoding responses with each response setting.

use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::domain::{
    Accounting, Bounds, Charge, Hits, HolderToken, Limit, LimitedBy, Mark, OnStoreFailure, Rate,
    ResetFormat, RetryAfterFormat, RuleId, Source, WaitPrecision, fixtures::fixed_window,
};
use crate::policy::compiled_policy::{
    DomainSpec, LimitSpec, NodeSpec, RejectionBody, RuleSpec, ValueSpec,
};
use crate::policy::{Policy, Secret};
use crate::wire::messages::rate_limit_descriptor::Entry as WireEntry;
use crate::wire::messages::{RateLimitDescriptor, RateLimitRequest};
use crate::wire::response_config::{LimitHeaderNames, ResponseSettings};
use crate::wire::struct_json::struct_to_json;

mod answer_bound;

const NOW: Micros = Micros(1_000_000_500_000);

/// Builds a policy with these rules, which get consecutive ids in the given order.
fn build_policy(rules: Vec<RuleSpec>) -> Policy {
    let node = |(at, rule): (usize, RuleSpec)| NodeSpec {
        key: format!("key{at}").into(),
        value: ValueSpec::Any,
        share_threshold: false,
        value_to_metric: false,
        rule: Some(rule),
        children: Vec::new(),
    };
    let domain = DomainSpec {
        name: "edge".into(),
        accounting: Accounting::AllOrNothing,
        charge: Charge::Admitted,
        hash_tag: Box::default(),
        quota_group: Box::default(),
        http: None,
        body: None,
        nodes: rules.into_iter().enumerate().map(node).collect(),
    };
    Policy::build(vec![domain], Secret::default())
}

fn rule(metadata: Option<Value>, body: Option<(&str, &str)>) -> RuleSpec {
    RuleSpec {
        limits: Arc::default(),
        replaces: Box::default(),
        name: None,
        shadow_mode: false,
        quota_mode: false,
        detailed_metric: false,
        metadata: metadata.map(|value| Arc::new(value.as_object().unwrap().clone())),
        body: body.map(|(content_type, text)| {
            Arc::new(RejectionBody { content_type: content_type.into(), text: text.into() })
        }),
        location: None,
    }
}

fn minute_limit(requests_per_unit: u32, capacity: u64) -> StatusLimit<'static> {
    let rate = Rate { requests_per_unit, unit: Some(Unit::Minute), unit_multiplier: 1 };
    StatusLimit { rate, name: "per-ip", capacity: Hits(capacity) }
}

fn ok_status(limit: u32, remaining: u32, reset: u64) -> Status<'static> {
    Status {
        code: Code::Ok,
        shown: Some(minute_limit(limit, u64::from(limit))),
        remaining,
        reset: Some(Micros(reset)),
        rule: Some(RuleId(0)),
        quota: false,
        group_refused: false,
    }
}

fn over_limit_status(limit: u32, wait: Option<u64>) -> Status<'static> {
    let reset = wait.map(Micros);
    Status { code: Code::OverLimit, remaining: 0, reset, ..ok_status(limit, 0, 0) }
}

fn unmatched_status() -> Status<'static> {
    Status { shown: None, rule: None, reset: None, ..ok_status(0, 0, 0) }
}

fn decision(statuses: Vec<Status<'static>>) -> Decision<'static> {
    let refused = statuses.iter().find(|status| status.code == Code::OverLimit);
    Decision {
        code: if refused.is_some() { Code::OverLimit } else { Code::Ok },
        limited_by: refused.map(|status| LimitedBy {
            name: "per-ip",
            rule: status.rule,
            retry_after: status.reset,
            precision: WaitPrecision::Exact,
        }),
        statuses,
        source: Source::Memory,
        shadowed: false,
        domain_known: true,
        slot: None,
        marks: Vec::new(),
        hold: None,
    }
}

fn encode_response(
    settings: ResponseSettings,
    decision: &Decision<'_>,
    rules: Vec<RuleSpec>,
    random: u64,
) -> RateLimitResponse {
    encode_within(&OptionalParts::new(), settings, decision, rules, random)
}

fn encode_within(
    parts: &OptionalParts,
    settings: ResponseSettings,
    decision: &Decision<'_>,
    rules: Vec<RuleSpec>,
    random: u64,
) -> RateLimitResponse {
    let entries =
        vec![WireEntry { key: b"ip".as_slice().into(), value: b"a\xffb".as_slice().into() }];
    let descriptor = RateLimitDescriptor { entries, ..RateLimitDescriptor::default() };
    let request = RateLimitRequest {
        domain: "edge".into(),
        descriptors: vec![descriptor; decision.statuses.len()],
        hits_addend: 2,
    };
    let encoded = request.encode_to_vec();
    let request = DecodedRequest::decode(&encoded, &Bounds::DEFAULT).unwrap();
    let descriptors = request.descriptors();
    let response_config = &ResponseConfig::new(settings).unwrap();
    let (request, rules) = (&request, &build_policy(rules));
    let descriptors = &*descriptors;
    let mut encoded = Vec::new();
    ResponseInput { request, descriptors, decision, rules, response_config, now: NOW, random }
        .encode(ResponseBuffer { bytes: &mut encoded, parts });
    let response = RateLimitResponse::decode(&*encoded).unwrap();
    assert_eq!(response.encode_to_vec(), encoded, "prost encodes a response like this");
    response
}

fn headers(settings: ResponseSettings, decision: &Decision<'_>) -> Vec<(String, String)> {
    let answer = encode_response(settings, decision, vec![], 0);
    answer.response_headers_to_add.into_iter().map(|header| (header.key, header.value)).collect()
}

fn header_pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn x_rate_limit_settings() -> ResponseSettings {
    ResponseSettings { x_rate_limit: true, ..ResponseSettings::default() }
}

#[test]
fn there_is_one_status_per_descriptor_in_order() {
    let decision = decision(vec![
        unmatched_status(),
        ok_status(5, 4, 1),
        over_limit_status(9, Some(30_000_001)),
    ]);
    let answer = encode_response(ResponseSettings::default(), &decision, vec![], 0);
    assert_eq!(answer.overall_code(), wire::Code::OverLimit);
    let codes: Vec<_> = answer.statuses.iter().map(wire::DescriptorStatus::code).collect();
    assert_eq!(codes, [wire::Code::Ok, wire::Code::Ok, wire::Code::OverLimit]);
    assert_eq!(answer.statuses[0], wire::DescriptorStatus { code: 1, ..Default::default() });
    let limit = answer.statuses[1].current_limit.clone().unwrap();
    assert_eq!(
        (limit.requests_per_unit, limit.unit(), &*limit.name),
        (5, wire::rate_limit::Unit::Minute, "per-ip")
    );
    assert_eq!(answer.statuses[1].limit_remaining, 4);
}

#[test]
fn a_reset_is_whole_seconds_rounded_up_and_at_least_one() {
    let statuses = vec![
        ok_status(5, 5, 0),
        ok_status(5, 4, 1_000_001),
        over_limit_status(5, Some(1)),
        over_limit_status(5, None),
    ];
    let answer = encode_response(ResponseSettings::default(), &decision(statuses), vec![], 0);
    let seconds = |status: &wire::DescriptorStatus| status.duration_until_reset.map(|d| d.seconds);
    let seconds: Vec<_> = answer.statuses.iter().map(seconds).collect();
    assert_eq!(seconds, [Some(1), Some(2), Some(1), None]);
}

#[test]
fn a_unit_multiplier_is_sent_only_if_it_is_not_one() {
    let mut status = ok_status(5, 4, 1);
    status.shown.as_mut().unwrap().rate.unit_multiplier = 15;
    let answer = encode_response(
        ResponseSettings::default(),
        &decision(vec![status, ok_status(5, 4, 1)]),
        vec![],
        0,
    );
    let many = |at: usize| answer.statuses[at].current_limit.as_ref().unwrap().unit_multiplier;
    assert_eq!((many(0), many(1)), (Some(15), None));
}

#[test]
fn a_week_is_seven_and_a_rate_without_a_unit_is_unknown() {
    let mut week = ok_status(5, 4, 1);
    week.shown.as_mut().unwrap().rate.unit = Some(Unit::Week);
    let mut slots = ok_status(5, 4, 1);
    slots.shown.as_mut().unwrap().rate.unit = None;
    let answer =
        encode_response(ResponseSettings::default(), &decision(vec![week, slots]), vec![], 0);
    let unit = |at: usize| answer.statuses[at].current_limit.as_ref().unwrap().unit;
    assert_eq!((unit(0), unit(1)), (7, 0));
}

#[test]
fn the_name_of_a_limit_may_have_any_length() {
    for length in [1, 90, 110, 127, 128, 300, 20_000] {
        let mut status = ok_status(5, 4, 1);
        let name: &'static str = "n".repeat(length).leak();
        status.shown.as_mut().unwrap().name = name;
        let statuses = vec![status, ok_status(5, 3, 1)];
        let answer = encode_response(ResponseSettings::default(), &decision(statuses), vec![], 0);
        assert_eq!(answer.statuses[0].current_limit.as_ref().unwrap().name, name);
        assert_eq!(answer.statuses[1].limit_remaining, 3);
    }
}

#[test]
fn refusal_metadata_names_the_limit() {
    let refused = decision(vec![over_limit_status(5, Some(1_500_001))]);
    let metadata = |decision: &Decision<'_>| {
        let answer = encode_response(ResponseSettings::default(), decision, vec![], 0);
        answer.dynamic_metadata.as_ref().map(struct_to_json)
    };
    let expected =
        json!({"tidegate": {"limited_by": "per-ip", "retry_after_ms": 1501, "source": "memory"}});
    assert_eq!(metadata(&refused), Some(expected));
    let never = decision(vec![over_limit_status(5, None)]);
    let expected = json!({"tidegate": {"limited_by": "per-ip", "source": "memory"}});
    assert_eq!(metadata(&never), Some(expected));
    assert_eq!(metadata(&decision(vec![ok_status(5, 4, 1)])), None);
    let mut brought_along = refused.clone();
    brought_along.limited_by.as_mut().unwrap().name = "";
    assert_eq!(metadata(&brought_along).unwrap()["tidegate"]["limited_by"], "override");
    let mut at_least = refused.clone();
    at_least.limited_by.as_mut().unwrap().precision = WaitPrecision::AtLeast;
    assert_eq!(metadata(&at_least).unwrap()["tidegate"]["retry_after_is"], "at_least");
}

#[test]
fn holder_of_acquired_slots_is_in_the_metadata_with_any_settings() {
    let taken =
        || Decision { slot: Some(HolderToken::new(7)), ..decision(vec![ok_status(5, 4, 1)]) };
    let slot = format!("{:032x}", 7);
    let metadata = |settings| {
        let answer = encode_response(settings, &taken(), vec![], 0);
        struct_to_json(&answer.dynamic_metadata.unwrap())
    };
    assert_eq!(metadata(ResponseSettings::default()), json!({"slot": slot}));
    let all = ResponseSettings { request_metadata: true, ..ResponseSettings::default() };
    let all = metadata(all);
    assert_eq!((&all["slot"], &all["domain"]), (&json!(slot), &json!("edge")));
}

#[test]
fn request_metadata_matches_envoyproxy_ratelimit_and_is_not_shared_between_requests() {
    let settings = || ResponseSettings { request_metadata: true, ..ResponseSettings::default() };
    let rules = vec![
        rule(Some(json!({"a": 1, "m": {"x": 1}})), None),
        rule(Some(json!({"a": 2, "m": {"x": 2, "y": [true, null]}})), None),
    ];
    let second = Status { rule: Some(RuleId(1)), ..ok_status(5, 4, 1) };
    let both = decision(vec![ok_status(5, 4, 1), second]);
    let answer = encode_response(settings(), &both, rules, 0);
    let metadata = struct_to_json(&answer.dynamic_metadata.unwrap());
    assert_eq!(
        metadata,
        json!({
            "domain": "edge",
            "hitsAddend": 2,
            "descriptors": [{"entries": ["ip=a\u{fffd}b"]}, {"entries": ["ip=a\u{fffd}b"]}],
            "metadata": {"a": 1, "m": {"x": 1, "y": [true, null]}},
        })
    );
    let rules = vec![rule(Some(json!({"a": 1, "m": {"x": 1}})), None)];
    let answer = encode_response(settings(), &decision(vec![ok_status(5, 4, 1)]), rules, 0);
    let metadata = struct_to_json(&answer.dynamic_metadata.unwrap());
    assert_eq!(metadata["metadata"], json!({"a": 1, "m": {"x": 1}}));
    let rules = vec![rule(Some(json!({"a": 1})), None)];
    let answer = encode_response(settings(), &decision(vec![over_limit_status(5, None)]), rules, 0);
    let metadata = struct_to_json(&answer.dynamic_metadata.unwrap());
    assert_eq!(metadata.get("metadata"), None);
    assert_eq!(metadata["tidegate"]["limited_by"], "per-ip");
}

#[test]
fn a_refused_quota_group_returns_no_metadata() {
    let settings = ResponseSettings { request_metadata: true, ..ResponseSettings::default() };
    let rules = [json!({"over": 1}), json!({"of_that_group": 1}), json!({"passes": 1})];
    let rules = rules.map(|metadata| rule(Some(metadata), None));
    let of_group = |status| Status { quota: true, group_refused: true, ..status };
    let decision = Decision {
        code: Code::Ok,
        limited_by: None,
        ..decision(vec![
            of_group(over_limit_status(5, None)),
            of_group(Status { rule: Some(RuleId(1)), ..ok_status(5, 4, 1) }),
            Status { rule: Some(RuleId(2)), quota: true, ..ok_status(5, 4, 1) },
        ])
    };
    let answer = encode_response(settings, &decision, rules.to_vec(), 0);
    let metadata = struct_to_json(&answer.dynamic_metadata.unwrap());
    assert_eq!(metadata["metadata"], json!({"passes": 1}));
}

#[test]
fn a_response_merges_up_to_64_kib_of_metadata_and_omits_values_that_do_not_fit() {
    let settings = ResponseSettings { request_metadata: true, ..ResponseSettings::default() };
    let large = "x".repeat(30_000);
    let rules = [
        json!({"a": large, "m": {"k": 1}}),
        json!({"b": large, "m": {"k": 2}}),
        json!({"c": large, "m": {"l": 3}}),
    ];
    let rules = rules.map(|metadata| rule(Some(metadata), None));
    let statuses = (0..3).map(|at| Status { rule: Some(RuleId(at)), ..ok_status(5, 4, 1) });
    let answer = encode_response(settings, &decision(statuses.collect()), rules.to_vec(), 0);
    let metadata = struct_to_json(&answer.dynamic_metadata.unwrap());
    assert_eq!(metadata["metadata"], json!({"a": large, "b": large, "m": {"k": 1, "l": 3}}));
}

#[test]
fn limit_headers_are_sent_for_each_configured_set_and_only_with_a_limit() {
    let decision = decision(vec![unmatched_status(), ok_status(5, 4, 41_000_001)]);
    assert_eq!(headers(ResponseSettings::default(), &decision), []);
    let x =
        [("X-RateLimit-Limit", "5"), ("X-RateLimit-Remaining", "4"), ("X-RateLimit-Reset", "42")];
    assert_eq!(headers(x_rate_limit_settings(), &decision), header_pairs(&x));
    let ietf = [("RateLimit-Limit", "5"), ("RateLimit-Remaining", "4"), ("RateLimit-Reset", "42")];
    let settings =
        ResponseSettings { rate_limit: Some(LimitHeaderNames::default()), ..Default::default() };
    assert_eq!(headers(settings.clone(), &decision), header_pairs(&ietf));
    let both = ResponseSettings { x_rate_limit: true, ..settings };
    assert_eq!(headers(both, &decision), header_pairs(&[ietf, x].concat()));
    let named = LimitHeaderNames { limit: "l".into(), remaining: "r".into(), reset: "t".into() };
    let named = ResponseSettings { rate_limit: Some(named), ..Default::default() };
    assert_eq!(headers(named, &decision), header_pairs(&[("l", "5"), ("r", "4"), ("t", "42")]));
    assert_eq!(
        headers(x_rate_limit_settings(), &super::tests::decision(vec![unmatched_status()])),
        []
    );
}

#[test]
fn limit_headers_show_the_last_non_quota_refusal_or_the_fewest_remaining_hits() {
    let shown = |statuses| headers(x_rate_limit_settings(), &decision(statuses))[0].1.clone();
    assert_eq!(shown(vec![ok_status(5, 4, 1), ok_status(6, 2, 1), ok_status(7, 2, 1)]), "6");
    assert_eq!(
        shown(vec![
            over_limit_status(5, None),
            ok_status(6, 0, 1),
            over_limit_status(7, None),
            ok_status(8, 0, 1)
        ]),
        "7"
    );
    let quota = Status { quota: true, ..over_limit_status(9, None) };
    assert_eq!(shown(vec![ok_status(6, 1, 1), quota, ok_status(8, 0, 1)]), "9", "it refuses");
    assert_eq!(shown(vec![ok_status(6, 0, 1), quota]), "9", "it refuses");
}

#[test]
fn limit_header_shows_the_burst_if_it_exceeds_the_rate() {
    let burst = Status { shown: Some(minute_limit(10, 20)), ..ok_status(10, 19, 1) };
    assert_eq!(headers(x_rate_limit_settings(), &decision(vec![burst]))[0].1, "20");
    let paced = Status { shown: Some(minute_limit(10, 1)), ..ok_status(10, 1, 1) };
    assert_eq!(headers(x_rate_limit_settings(), &decision(vec![paced]))[0].1, "10");
}

#[test]
fn a_reset_can_be_unix_time_and_is_rounded_up() {
    let settings = ResponseSettings { reset: ResetFormat::UnixTime, ..x_rate_limit_settings() };
    let headers = headers(settings, &decision(vec![ok_status(5, 4, 500_001)]));
    assert_eq!(headers[2], ("X-RateLimit-Reset".to_owned(), "1000002".to_owned()));
    // The IETF draft defines RateLimit-Reset in seconds.
    for reset in ["RateLimit-Reset", "ratelimit-reset"] {
        let names = LimitHeaderNames { reset: reset.to_owned(), ..LimitHeaderNames::default() };
        let standard = ResponseSettings {
            reset: ResetFormat::UnixTime,
            rate_limit: Some(names),
            ..ResponseSettings::default()
        };
        let headers = self::headers(standard, &decision(vec![ok_status(5, 4, 500_001)]));
        assert_eq!(headers[2], (reset.to_owned(), "1".to_owned()));
    }
}

fn retry_after_headers(
    format: RetryAfterFormat,
    percent: u8,
    random: u64,
    status: Status<'static>,
) -> Vec<String> {
    let settings = ResponseSettings {
        retry_after: Some(format),
        retry_jitter_percent: percent,
        ..ResponseSettings::default()
    };
    let answer = encode_response(settings, &decision(vec![status]), vec![], random);
    let headers = answer.response_headers_to_add.into_iter();
    headers.filter(|header| header.key == "Retry-After").map(|header| header.value).collect()
}

#[test]
fn retry_after_is_rounded_up_to_at_least_one_second() {
    let seconds =
        |wait| retry_after_headers(RetryAfterFormat::Seconds, 0, 0, over_limit_status(5, wait));
    assert_eq!(seconds(Some(1)), ["1"]);
    assert_eq!(seconds(Some(1_000_000)), ["1"]);
    assert_eq!(seconds(Some(1_000_001)), ["2"]);
    assert_eq!(seconds(None), [""; 0]);
    assert_eq!(retry_after_headers(RetryAfterFormat::Seconds, 0, 0, ok_status(5, 4, 1)), [""; 0]);
}

#[test]
fn retry_after_can_be_an_http_date() {
    let date = |wait| {
        retry_after_headers(RetryAfterFormat::HttpDate, 0, 0, over_limit_status(5, Some(wait)))
    };
    assert_eq!(date(500_000), ["Mon, 12 Jan 1970 13:46:41 GMT"]);
    assert_eq!(date(500_001), ["Mon, 12 Jan 1970 13:46:42 GMT"]);
    assert_eq!(date(u64::MAX), [""; 0]);
}

#[test]
fn retry_after_jitter_adds_at_most_the_configured_percentage() {
    let spread = |percent, random| {
        retry_after_headers(
            RetryAfterFormat::Seconds,
            percent,
            random,
            over_limit_status(5, Some(100_000_000)),
        )
    };
    assert_eq!(spread(20, 0), ["100"]);
    assert_eq!(spread(20, u64::MAX / 2), ["110"]);
    assert_eq!(spread(20, u64::MAX), ["120"]);
    assert_eq!(spread(0, u64::MAX), ["100"]);
    let half_a_second = over_limit_status(5, Some(500_000));
    let date = |random| retry_after_headers(RetryAfterFormat::HttpDate, 100, random, half_a_second);
    assert_eq!(date(0), ["Mon, 12 Jan 1970 13:46:41 GMT"]);
    assert_eq!(date(u64::MAX), ["Mon, 12 Jan 1970 13:46:42 GMT"]);
}

#[test]
fn a_header_names_the_limit_of_a_rejection_in_printable_ascii() {
    let settings =
        || ResponseSettings { limited_by: Some("x-limited-by".into()), ..Default::default() };
    let mut refused = decision(vec![over_limit_status(5, None)]);
    assert_eq!(headers(settings(), &refused), header_pairs(&[("x-limited-by", "per-ip")]));
    refused.limited_by.as_mut().unwrap().name = "ü\r\nx";
    assert_eq!(headers(settings(), &refused), header_pairs(&[("x-limited-by", "%C3%BC%0D%0Ax")]));
    let long = "€".repeat(200);
    refused.limited_by.as_mut().unwrap().name = &long;
    assert_eq!(headers(settings(), &refused)[0].1.len(), 255);
    assert_eq!(headers(settings(), &decision(vec![ok_status(5, 4, 1)])), []);
}

fn response_body(
    settings: ResponseSettings,
    decision: &Decision<'_>,
    text: Option<(&str, &str)>,
) -> (String, Option<String>) {
    let answer = encode_response(settings, decision, vec![rule(None, text)], 0);
    let mut headers = answer.response_headers_to_add.into_iter();
    let content_type = headers.find(|header| header.key == "content-type");
    (String::from_utf8(answer.raw_body).unwrap(), content_type.map(|header| header.value))
}

#[test]
fn rejection_has_the_body_of_the_rule_or_the_json_default_if_enabled() {
    let refused = decision(vec![over_limit_status(5, Some(2_500_000))]);
    let with_body = || ResponseSettings { body: true, ..ResponseSettings::default() };
    let (text, content_type) = response_body(with_body(), &refused, None);
    let expected = json!({"error": "too_many_requests", "message": "too many requests", "limit": "per-ip", "retry_after_seconds": 3});
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), expected);
    assert_eq!(content_type.as_deref(), Some("application/json"));
    let own = Some(("text/plain", "slow down: {name}, {retry_after_seconds} {other} {"));
    let expected = ("slow down: per-ip, 3 {other} {".to_owned(), Some("text/plain".to_owned()));
    assert_eq!(response_body(ResponseSettings::default(), &refused, own), expected);
    assert_eq!(response_body(ResponseSettings::default(), &refused, None), (String::new(), None));
    assert_eq!(
        response_body(with_body(), &decision(vec![ok_status(5, 4, 1)]), own),
        (String::new(), None)
    );
}

#[test]
fn a_call_that_only_global_shadow_mode_admits_gets_no_part_of_a_rejection() {
    let settings = ResponseSettings {
        retry_after: Some(RetryAfterFormat::Seconds),
        limited_by: Some("x-limited-by".into()),
        body: true,
        ..ResponseSettings::default()
    };
    let refused = decision(vec![over_limit_status(5, Some(1))]);
    let shadowed = Decision { code: Code::Ok, shadowed: true, ..refused };
    let own_body = rule(None, Some(("text/plain", "slow down")));
    let answer = encode_response(settings, &shadowed, vec![own_body], 0);
    assert_eq!(answer.overall_code(), wire::Code::Ok);
    assert!(answer.response_headers_to_add.is_empty() && answer.raw_body.is_empty());
    assert!(answer.dynamic_metadata.is_none());
}

#[test]
fn marks_are_headers_for_the_upstream_and_left_out_without_room() {
    let mark = |name: &str, value: &str| Mark { name: name.into(), value: value.into() };
    let (short, long) = (mark("x-quota", "near"), mark("x-notice", &"n".repeat(200)));
    let marked = Decision { marks: vec![&short, &long], ..decision(vec![ok_status(5, 1, 1)]) };
    let headers = |parts: &OptionalParts| {
        let answer = encode_within(parts, ResponseSettings::default(), &marked, vec![], 0);
        assert_eq!(answer.statuses.len(), 1);
        let headers = answer.request_headers_to_add.into_iter();
        headers.map(|header| (header.key, header.value)).collect::<Vec<_>>()
    };
    let text = |mark: &Mark| (mark.name.to_string(), mark.value.to_string());
    assert_eq!(headers(&OptionalParts::new()), [text(&short), text(&long)]);
    let parts = OptionalParts::new();
    // For the limit's name and the first mark.
    parts.bytes_left.store("per-ip".len() + 20, Ordering::Relaxed);
    assert_eq!(headers(&parts), [text(&short)]);
}

#[test]
fn unavailable_body_is_sent_only_for_denials_without_the_store() {
    let error = |source, limits: &[(Option<&str>, OnStoreFailure)]| {
        let limit = |(name, on_store_failure): &(Option<&str>, OnStoreFailure)| LimitSpec {
            name: name.map(Into::into),
            in_list: limits.len() > 1,
            per: None,
            limit: Arc::new(Limit {
                on_store_failure: *on_store_failure,
                ..fixed_window(5, Micros::SECOND)
            }),
            bill_limit: None,
            tiers: None,
            soft: None,
            cost: 1,
        };
        let limits = limits.iter().map(limit).collect();
        let rule = RuleSpec { limits, ..rule(None, None) };
        let refused = Decision { source, ..decision(vec![over_limit_status(5, Some(1))]) };
        let settings = ResponseSettings { body: true, ..ResponseSettings::default() };
        let body = encode_response(settings, &refused, vec![rule], 0).raw_body;
        serde_json::from_slice::<Value>(&body).unwrap()["error"].clone()
    };
    let (deny, local) = (OnStoreFailure::Deny, OnStoreFailure::Local);
    let per_ip = |on_store_failure| (Some("per-ip"), on_store_failure);
    let denied = [&[per_ip(deny)][..], &[(None, deny)], &[(Some("other"), local), per_ip(deny)]];
    let refused = [&[per_ip(local)][..], &[(None, local)], &[(Some("other"), deny), per_ip(local)]];
    for source in [Source::Local, Source::Shed] {
        for limits in denied {
            assert_eq!(error(source, limits), "rate_limit_unavailable", "{source:?} {limits:?}");
        }
        for limits in refused {
            assert_eq!(error(source, limits), "too_many_requests", "{source:?} {limits:?}");
        }
    }
    for source in [Source::Memory, Source::Redis, Source::Cached] {
        assert_eq!(error(source, denied[0]), "too_many_requests", "{source:?}");
    }
}

#[test]
fn placeholders_are_escaped_and_a_missing_wait_is_null_only_where_json_needs_it() {
    const NAME: &str = "a\"b\\{retry_after_seconds}";
    let body = |content_type, text, wait| {
        let mut refused = decision(vec![over_limit_status(5, wait)]);
        let limited_by = refused.limited_by.as_mut().unwrap();
        (limited_by.name, limited_by.retry_after) = (NAME, wait.map(Micros));
        response_body(ResponseSettings::default(), &refused, Some((content_type, text))).0
    };
    let (json, text) = ("application/json", "text/plain");
    for (content_type, template, wait, expected) in [
        (
            text,
            "{name}: wait {retry_after_seconds} s",
            Some(2_500_000),
            format!("{NAME}: wait 3 s"),
        ),
        (text, "{name}: wait {retry_after_seconds} s", None, format!("{NAME}: wait  s")),
        (text, "{retry_after_seconds}", None, String::new()),
        ("text/html; charset=utf-8", "<p>{retry_after_seconds}{name}", None, format!("<p>{NAME}")),
        ("application/xml", "<wait>{retry_after_seconds}</wait>", None, "<wait></wait>".to_owned()),
        (json, r#"{"wait": {retry_after_seconds}}"#, Some(1), r#"{"wait": 1}"#.to_owned()),
        (json, r#"{"wait": {retry_after_seconds}}"#, None, r#"{"wait": null}"#.to_owned()),
        (json, r#"{"wait": "{retry_after_seconds}"}"#, None, r#"{"wait": ""}"#.to_owned()),
        (
            json,
            r#"["\"{retry_after_seconds}\"\\", {retry_after_seconds}]"#,
            None,
            r#"["\"\"\\", null]"#.to_owned(),
        ),
        (
            "application/problem+json",
            r#""{name} {retry_after_seconds}""#,
            None,
            r#""a\"b\\{retry_after_seconds} ""#.to_owned(),
        ),
        (
            "Application/JSON; charset=utf-8",
            r#"["{name}", {retry_after_seconds}]"#,
            None,
            r#"["a\"b\\{retry_after_seconds}", null]"#.to_owned(),
        ),
    ] {
        let filled = body(content_type, template, wait);
        assert_eq!(filled, expected, "{content_type} {template}");
        if content_type.to_ascii_lowercase().contains("json") {
            assert!(serde_json::from_str::<Value>(&filled).is_ok(), "{filled}");
        }
    }
}

#[test]
fn a_body_never_exceeds_its_bound() {
    let long = "\"".repeat(2_000);
    let mut refused = decision(vec![over_limit_status(5, None)]);
    refused.limited_by.as_mut().unwrap().name = &long;
    let settings = || ResponseSettings { body: true, ..ResponseSettings::default() };
    let (text, _) = response_body(settings(), &refused, None);
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap()["limit"], "");
    let huge = "x".repeat(1_025);
    assert_eq!(
        response_body(settings(), &refused, Some(("text/plain", &huge))),
        (String::new(), None)
    );
    let fits = "x".repeat(1_024);
    assert_eq!(response_body(settings(), &refused, Some(("text/plain", &fits))).0.len(), 1_024);
}
