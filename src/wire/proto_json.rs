//! Conversion of requests from proto-JSON and of responses to proto-JSON, for `/json` and
//! `tidegate ask`.
//!
//! Accepts field names in camelCase and snake_case; writes camelCase. Enums are written as names,
//! bytes as base64, and protobuf wrapper types as plain values. Fields with default values are
//! left out.
//!
//! Not here: HTTP (`admin`), bounds (`decode`).

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use prost::Message as _;
use serde_json::{Map, Number, Value, json};

use super::decode::FIELDS_MAX;
use super::messages::rate_limit_descriptor::{Entry, RateLimitOverride};
use super::messages::{
    HeaderValue, RateLimitDescriptor, RateLimitRequest, RateLimitResponse, RateLimitUnit,
    rate_limit_response as wire,
};
use super::struct_json::struct_to_json;
use crate::domain::InvalidReason;

/// Reason why a JSON body is not a `RateLimitRequest`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum JsonError {
    /// The body is longer than `bytes_max`.
    TooLong { bytes_max: usize },
    /// The body has more values than [`FIELDS_MAX`].
    TooManyValues,
    /// The body is not JSON. Contains the parser's message.
    NotJson(String),
    /// The body contains a field with this name, which the protobuf message does not define.
    UnknownField(String),
    /// A value has the wrong type or is out of range.
    InvalidValue { field: &'static str, wanted: &'static str },
}

impl JsonError {
    /// Returns the reason that metrics report for the invalid request.
    pub(crate) fn reason(&self) -> InvalidReason {
        match self {
            JsonError::TooLong { .. } => InvalidReason::MessageSize,
            JsonError::TooManyValues => InvalidReason::Fields,
            JsonError::NotJson(_) | JsonError::UnknownField(_) | JsonError::InvalidValue { .. } => {
                InvalidReason::Malformed
            }
        }
    }
}

impl fmt::Display for JsonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JsonError::TooLong { bytes_max } => {
                write!(f, "the body is longer than {bytes_max} bytes")
            }
            JsonError::TooManyValues => write!(f, "the body has more than {FIELDS_MAX} values"),
            JsonError::NotJson(error) => write!(f, "the body is not JSON: {error}"),
            JsonError::UnknownField(field) => write!(f, "unknown field {field:?}"),
            JsonError::InvalidValue { field, wanted } => write!(f, "{field} must be {wanted}"),
        }
    }
}

/// Converts a `RateLimitRequest` of at most `bytes_max` bytes from proto-JSON to its protobuf
/// encoding. Returns an error if the body is longer, has too many values, is not JSON, or has
/// unknown fields or invalid values.
pub(crate) fn parse_request(body: &[u8], bytes_max: usize) -> Result<Bytes, JsonError> {
    if body.len() > bytes_max {
        return Err(JsonError::TooLong { bytes_max });
    }
    // Before parsing, which takes 32 bytes and more for a value of two bytes.
    if count_values(body) > FIELDS_MAX {
        return Err(JsonError::TooManyValues);
    }
    let value: Value =
        serde_json::from_slice(body).map_err(|error| JsonError::NotJson(error.to_string()))?;
    let mut request = RateLimitRequest::default();
    for (name, value) in parse_members(&value, "the body")? {
        match name.as_str() {
            "domain" => request.domain = parse_text(value, "domain")?.into(),
            "descriptors" => {
                let descriptors = parse_list(value, "descriptors")?.iter().map(parse_descriptor);
                request.descriptors = descriptors.collect::<Result<_, _>>()?;
            }
            "hitsAddend" | "hits_addend" => {
                request.hits_addend = parse_u32(value, "hitsAddend")?;
            }
            _ => return Err(JsonError::UnknownField(name.clone())),
        }
    }
    Ok(request.encode_to_vec().into())
}

/// Returns an upper bound of the number of values in a JSON text without parsing it: 1 plus the
/// number of opening brackets, opening braces and commas outside strings.
fn count_values(body: &[u8]) -> usize {
    let mut count = 1;
    let mut in_string = false;
    let mut escaped = false;
    for byte in body {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'[' | b'{' | b',' if !in_string => count += 1,
            _ => {}
        }
    }
    count
}

fn parse_descriptor(value: &Value) -> Result<RateLimitDescriptor, JsonError> {
    let mut descriptor = RateLimitDescriptor::default();
    for (name, value) in parse_members(value, "descriptors")? {
        match name.as_str() {
            "entries" => {
                let entries = parse_list(value, "entries")?.iter().map(parse_entry);
                descriptor.entries = entries.collect::<Result<_, _>>()?;
            }
            "limit" => descriptor.limit = Some(parse_limit(value)?),
            "hitsAddend" | "hits_addend" => {
                descriptor.hits_addend = Some(parse_u64(value, "hitsAddend")?);
            }
            "isNegativeHits" | "is_negative_hits" => {
                let wanted =
                    JsonError::InvalidValue { field: "isNegativeHits", wanted: "true or false" };
                descriptor.is_negative_hits = value.as_bool().ok_or(wanted)?;
            }
            _ => return Err(JsonError::UnknownField(name.clone())),
        }
    }
    Ok(descriptor)
}

fn parse_entry(value: &Value) -> Result<Entry, JsonError> {
    let mut entry = Entry::default();
    for (name, value) in parse_members(value, "entries")? {
        match name.as_str() {
            "key" => entry.key = parse_text(value, "key")?.into(),
            "value" => entry.value = parse_text(value, "value")?.into(),
            _ => return Err(JsonError::UnknownField(name.clone())),
        }
    }
    Ok(entry)
}

fn parse_limit(value: &Value) -> Result<RateLimitOverride, JsonError> {
    let mut limit = RateLimitOverride::default();
    for (name, value) in parse_members(value, "limit")? {
        match name.as_str() {
            "requestsPerUnit" | "requests_per_unit" => {
                limit.requests_per_unit = parse_u32(value, "requestsPerUnit")?;
            }
            "unit" => limit.unit = parse_unit(value)?,
            "unitMultiplier" | "unit_multiplier" => {
                limit.unit_multiplier = Some(parse_u32(value, "unitMultiplier")?);
            }
            _ => return Err(JsonError::UnknownField(name.clone())),
        }
    }
    Ok(limit)
}

fn parse_unit(value: &Value) -> Result<i32, JsonError> {
    let by_name = value.as_str().and_then(RateLimitUnit::from_str_name).map(i32::from);
    let number = || value.as_number().and_then(to_integer);
    let by_number = || number().and_then(|number| i32::try_from(number).ok());
    let wanted = JsonError::InvalidValue { field: "unit", wanted: "the name or number of a unit" };
    by_name.or_else(by_number).ok_or(wanted)
}

/// Returns the members of a JSON object, except those that are `null`, which proto-JSON treats as
/// absent. Returns an error if `value` is not an object.
fn parse_members<'v>(
    value: &'v Value,
    field: &'static str,
) -> Result<impl Iterator<Item = (&'v String, &'v Value)>, JsonError> {
    let object = value.as_object().ok_or(JsonError::InvalidValue { field, wanted: "an object" })?;
    Ok(object.iter().filter(|(_, value)| !value.is_null()))
}

fn parse_list<'v>(value: &'v Value, field: &'static str) -> Result<&'v Vec<Value>, JsonError> {
    value.as_array().ok_or(JsonError::InvalidValue { field, wanted: "a list" })
}

fn parse_text(value: &Value, field: &'static str) -> Result<String, JsonError> {
    let text = value.as_str().ok_or(JsonError::InvalidValue { field, wanted: "a string" })?;
    Ok(text.to_owned())
}

/// Parses the value of a `uint64` field, with or without quotes.
fn parse_u64(value: &Value, field: &'static str) -> Result<u64, JsonError> {
    parse_unsigned(value, field, "at most 18446744073709551615")
}

/// Parses the value of a `uint32` field, with or without quotes.
fn parse_u32(value: &Value, field: &'static str) -> Result<u32, JsonError> {
    parse_unsigned(value, field, "at most 4294967295")
}

/// Parses an integer with or without quotes. proto-JSON quotes 64-bit integers, because JavaScript
/// cannot represent all of them.
fn parse_unsigned<T: TryFrom<i128>>(
    value: &Value,
    field: &'static str,
    at_most: &'static str,
) -> Result<T, JsonError> {
    let number = match value {
        Value::Number(number) => to_integer(number),
        Value::String(text) => parse_quoted_number(text).as_ref().and_then(to_integer),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    };
    let wanted = JsonError::InvalidValue { field, wanted: "a whole number that is not negative" };
    let number = number.filter(|number| *number >= 0).ok_or(wanted)?;
    T::try_from(number).map_err(|_| JsonError::InvalidValue { field, wanted: at_most })
}

/// Parses the content of a JSON string as a number. Returns `None` if it is not a number or if it
/// starts or ends with whitespace.
fn parse_quoted_number(text: &str) -> Option<Number> {
    let bare = !text.starts_with(char::is_whitespace) && !text.ends_with(char::is_whitespace);
    serde_json::from_str(text).ok().filter(|_| bare)
}

/// Converts a JSON number such as `7`, `7.0` or `0.7e1` to an integer; returns `None` if it has a
/// fractional part. A number with a decimal point or an exponent was parsed as a double, so it is
/// inexact above 2^53. A number outside the range of `i128` becomes the nearest `i128`, which no
/// field accepts.
fn to_integer(number: &Number) -> Option<i128> {
    let float = || number.as_f64().filter(|float| float.fract() == 0.0).map(|float| float as i128);
    number.as_i128().or_else(float)
}

/// Converts a `RateLimitResponse` to proto-JSON.
pub(crate) fn response_to_json(response: &RateLimitResponse) -> Value {
    let mut object = Map::new();
    insert_field(&mut object, "overallCode", json!(response.overall_code().as_str_name()));
    insert_field(&mut object, "statuses", response.statuses.iter().map(status_to_json).collect());
    let headers = |list: &[HeaderValue]| list.iter().map(header_to_json).collect::<Value>();
    insert_field(&mut object, "responseHeadersToAdd", headers(&response.response_headers_to_add));
    insert_field(&mut object, "requestHeadersToAdd", headers(&response.request_headers_to_add));
    insert_field(&mut object, "rawBody", json!(STANDARD.encode(&response.raw_body)));
    if let Some(metadata) = &response.dynamic_metadata {
        insert_field(&mut object, "dynamicMetadata", struct_to_json(metadata));
    }
    Value::Object(object)
}

fn status_to_json(status: &wire::DescriptorStatus) -> Value {
    let mut object = Map::new();
    insert_field(&mut object, "code", json!(status.code().as_str_name()));
    if let Some(limit) = &status.current_limit {
        let mut shown = Map::new();
        insert_field(&mut shown, "requestsPerUnit", json!(limit.requests_per_unit));
        insert_field(&mut shown, "unit", json!(limit.unit().as_str_name()));
        insert_field(&mut shown, "name", json!(limit.name));
        if let Some(many) = limit.unit_multiplier {
            shown.insert("unitMultiplier".to_owned(), json!(many));
        }
        object.insert("currentLimit".to_owned(), Value::Object(shown));
    }
    insert_field(&mut object, "limitRemaining", json!(status.limit_remaining));
    if let Some(reset) = &status.duration_until_reset {
        insert_field(&mut object, "durationUntilReset", json!(format!("{}s", reset.seconds)));
    }
    Value::Object(object)
}

fn header_to_json(header: &HeaderValue) -> Value {
    let mut object = Map::new();
    insert_field(&mut object, "key", json!(header.key));
    insert_field(&mut object, "value", json!(header.value));
    Value::Object(object)
}

/// Inserts a field into a JSON object, unless it has its default value, which proto-JSON omits.
fn insert_field(object: &mut Map<String, Value>, name: &str, value: Value) {
    let default = match &value {
        Value::String(text) => text.is_empty() || text == "UNKNOWN",
        Value::Number(number) => number.as_u64() == Some(0),
        Value::Array(values) => values.is_empty(),
        Value::Null | Value::Bool(_) | Value::Object(_) => false,
    };
    if !default {
        object.insert(name.to_owned(), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::Bounds;
    use crate::wire::decode::{DecodedRequest, MESSAGE_BYTES_MAX};

    #[test]
    fn a_json_request_decodes_like_the_same_request_in_protobuf() {
        let body = json!({
            "domain": "edge",
            "descriptors": [{
                "entries": [{"key": "ip", "value": "192.0.2.1"}, {"key": "path"}],
                "limit": {"requestsPerUnit": 7, "unit": "HOUR", "unitMultiplier": 2},
                "hitsAddend": "18446744073709551615",
                "is_negative_hits": true,
            }, {"entries": null}],
            "hits_addend": 3,
        });
        let message = parse_request(body.to_string().as_bytes(), MESSAGE_BYTES_MAX).unwrap();
        let asked = DecodedRequest::decode(&message, &Bounds::DEFAULT).unwrap();
        let descriptors = asked.descriptors();
        assert_eq!(asked.domain, "edge");
        assert_eq!(descriptors[0].entries[0].value, b"192.0.2.1");
        assert_eq!(descriptors[0].entries[1].value, b"");
        assert_eq!(descriptors[0].hits.0, u64::MAX);
        assert!(descriptors[0].refund);
        assert_eq!(descriptors[0].limit.unwrap().unit_multiplier, 2);
        assert_eq!(descriptors[1].hits.0, 3);
    }

    #[test]
    fn an_integer_is_read_in_every_proto_json_form() {
        for (text, hits) in [
            ("7", 7),
            ("7.0", 7),
            ("7e0", 7),
            ("0.7E+1", 7),
            ("70e-1", 7),
            ("-0", 0),
            (r#""7""#, 7),
            (r#""7.0""#, 7),
            (r#""7e0""#, 7),
            ("4294967295", u32::MAX),
            ("4294967295.0", u32::MAX),
            (r#""42949672950e-1""#, u32::MAX),
        ] {
            let message =
                parse_request(format!(r#"{{"hitsAddend":{text}}}"#).as_bytes(), MESSAGE_BYTES_MAX);
            let message = message.unwrap_or_else(|fault| panic!("{text}: {fault}"));
            assert_eq!(RateLimitRequest::decode(message).unwrap().hits_addend, hits, "{text}");
        }
        let unit = br#"{"descriptors":[{"hitsAddend":1e19,"limit":{"unit":1e0}}]}"#;
        let message =
            RateLimitRequest::decode(parse_request(unit, MESSAGE_BYTES_MAX).unwrap()).unwrap();
        assert_eq!(message.descriptors[0].hits_addend, Some(10_000_000_000_000_000_000));
        assert_eq!(message.descriptors[0].limit.unwrap().unit, 1);
    }

    #[test]
    fn a_fraction_or_an_out_of_range_number_is_an_error() {
        let fault = |field: &str, text: &str| {
            let descriptor = format!(r#"{{"{field}":{text}}}"#);
            let body = match field {
                "hits_addend" => format!(r#"{{"descriptors":[{descriptor}]}}"#),
                _ => descriptor,
            };
            parse_request(body.as_bytes(), MESSAGE_BYTES_MAX).expect_err(&body).to_string()
        };
        let texts = ["1.5", "1e-1", "-1", "-1e0", "true", "[]", r#""""#, r#""1.5""#, r#"" 1""#];
        for text in [&texts[..], &[r#""1 ""#, r#""+1""#, r#""01""#, r#""0x1""#, r#""-1""#]].concat()
        {
            let wanted = "hitsAddend must be a whole number that is not negative";
            assert_eq!(fault("hitsAddend", text), wanted, "{text}");
            assert_eq!(fault("hits_addend", text), wanted, "{text}");
        }
        for text in ["4294967296", "4294967296.0", "1e10", "1e300", r#""1e10""#] {
            let wanted = "hitsAddend must be at most 4294967295";
            assert_eq!(fault("hitsAddend", text), wanted, "{text}");
        }
        for text in ["18446744073709551616", "2e19", "1e300", r#""18446744073709551616""#] {
            let wanted = "hitsAddend must be at most 18446744073709551615";
            assert_eq!(fault("hits_addend", text), wanted, "{text}");
        }
    }

    #[test]
    fn an_error_names_the_field() {
        let fault =
            |body: &str| parse_request(body.as_bytes(), MESSAGE_BYTES_MAX).unwrap_err().to_string();
        assert!(fault("{").starts_with("the body is not JSON"));
        assert_eq!(fault("[]"), "the body must be an object");
        assert_eq!(fault(r#"{"domian":"a"}"#), "unknown field \"domian\"");
        assert_eq!(fault(r#"{"domain":1}"#), "domain must be a string");
        assert_eq!(
            fault(r#"{"hitsAddend":-1}"#),
            "hitsAddend must be a whole number that is not negative"
        );
        assert_eq!(fault(r#"{"hitsAddend":4294967296}"#), "hitsAddend must be at most 4294967295");
        assert_eq!(
            fault(r#"{"descriptors":[{"limit":{"unit":"WEEK"}}]}"#),
            "unit must be the name or number of a unit"
        );
    }

    #[test]
    fn each_error_of_a_body_is_counted_by_its_own_reason() {
        let reason = |body: &str, bytes_max| {
            parse_request(body.as_bytes(), bytes_max).map_err(|error| error.reason())
        };
        assert!(reason("{}", 2).is_ok());
        assert_eq!(reason("{}", 1), Err(InvalidReason::MessageSize));
        let many = format!("[{}0]", "0,".repeat(FIELDS_MAX));
        assert_eq!(reason(&many, MESSAGE_BYTES_MAX), Err(InvalidReason::Fields));
        for body in ["{", "{\"domian\":\"a\"}", "{\"domain\":1}"] {
            assert_eq!(reason(body, MESSAGE_BYTES_MAX), Err(InvalidReason::Malformed), "{body}");
        }
    }

    #[test]
    fn a_body_with_too_many_values_is_rejected_before_it_is_parsed() {
        let entries = vec![json!({"key": "a,b", "value": "\\\",{["}); 8];
        let full =
            json!({"domain": "edge", "descriptors": vec![json!({"entries": entries}); 2_048]});
        assert!(parse_request(full.to_string().as_bytes(), MESSAGE_BYTES_MAX).is_ok());
        for part in ["0,", "[],", "{},", "\"\","] {
            let list = format!("{{\"descriptors\":[{}0]}}", part.repeat(100_000));
            let used = allocation_counter::measure(|| {
                let error = parse_request(list.as_bytes(), MESSAGE_BYTES_MAX).unwrap_err();
                assert_eq!(error.to_string(), "the body has more than 65536 values");
            });
            assert!(used.bytes_total < 1_024, "{part}: {} bytes", used.bytes_total);
        }
    }
}
