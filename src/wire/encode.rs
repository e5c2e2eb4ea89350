//! Encodes a [`Decision`] as the `RateLimitResponse` that Envoy reads.
//!
//! Envoy matches statuses to descriptors by position, so there is one status per descriptor, in
//! order.
//!
//! Not here: making the decision (`decide`), the settings of headers and bodies
//! (`response_config`).

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use prost::Message as _;
use prost::encoding::{WireType, encode_varint, encoded_len_varint};
use prost_types::Struct;

use super::decode::DecodedRequest;
use super::messages::{RateLimitResponse, rate_limit_response as wire};
use super::response_config::ResponseConfig;
use super::response_headers;
use super::response_headers::RetryWait;
use super::{dynamic_metadata, refusal_body};
use crate::domain::{Code, Decision, Descriptor, Mark, Micros, Status, StatusLimit, Unit};
use crate::policy::Policy;

/// Maximum size of the optional parts of an answer, in bytes: headers, bodies, dynamic metadata, and
/// names of limits, over all results of a batch together. The rest of an answer has
/// at most 40 bytes for each of the 65,536 fields of the request, so an answer stays below 4 MiB,
/// which is the largest message that gRPC clients accept by default.
pub(crate) const ANSWER_OPTIONAL_BYTES_MAX: usize = 1024 * 1024;

/// Bytes that are left for the optional parts of an answer. Atomic only because the futures of a
/// batch share it; they run in one task.
#[derive(Debug)]
pub(crate) struct OptionalParts {
    bytes_left: AtomicUsize,
    /// Whether the request metadata of all results so far had room.
    request_metadata_fits: AtomicBool,
}

impl OptionalParts {
    pub(crate) fn new() -> Self {
        OptionalParts {
            bytes_left: AtomicUsize::new(ANSWER_OPTIONAL_BYTES_MAX),
            request_metadata_fits: AtomicBool::new(true),
        }
    }

    /// Takes `bytes` from what is left. Returns `false` and changes nothing if less is left.
    fn take(&self, bytes: usize) -> bool {
        let left = self.bytes_left.load(Ordering::Relaxed).checked_sub(bytes);
        left.inspect(|left| self.bytes_left.store(*left, Ordering::Relaxed)).is_some()
    }
}

/// Where to append an encoded response, and the room for the optional parts of its answer.
pub(crate) struct ResponseBuffer<'a> {
    pub(crate) bytes: &'a mut Vec<u8>,
    pub(crate) parts: &'a OptionalParts,
}

/// Decision on a request, and the context that is needed to encode the response.
pub(crate) struct ResponseInput<'a, 'b> {
    pub(crate) request: &'a DecodedRequest<'b>,
    pub(crate) descriptors: &'a [Descriptor<'a>],
    pub(crate) decision: &'a Decision<'a>,
    pub(crate) rules: &'a Policy,
    pub(crate) response_config: &'a ResponseConfig,
    pub(crate) now: Micros,
    /// Uniformly distributed random number, from which the jitter of `Retry-After` is computed.
    pub(crate) random: u64,
}

impl ResponseInput<'_, '_> {
    /// Appends the encoded response to `out`. Leaves out the optional parts for which the answer
    /// has no room: first the request metadata, then the rest. Codes, numbers, the holder of
    /// concurrency slots, and the id of a hold are never left out.
    pub(crate) fn encode(&self, buffer: ResponseBuffer<'_>) {
        let ResponseBuffer { bytes: out, parts } = buffer;
        let statuses = &self.decision.statuses;
        out.reserve((1 + statuses.len()) * TYPICAL_STATUS_BYTES);
        encode_integer(OVERALL_CODE_FIELD, code_to_wire(self.decision.code), out);
        for status in statuses {
            encode_message(STATUSES_FIELD, out, |out| encode_status(status, parts, out));
        }
        for mark in &self.decision.marks {
            encode_mark(mark, parts, out);
        }
        let fits = &parts.request_metadata_fits;
        let request_metadata =
            self.response_config.settings.request_metadata && fits.load(Ordering::Relaxed);
        if self.append_trailing_fields(request_metadata, parts, out) {
            return;
        }
        if request_metadata {
            fits.store(false, Ordering::Relaxed);
            if self.append_trailing_fields(false, parts, out) {
                return;
            }
        }
        // From the first result without room on, no result of a batch builds any of these parts.
        parts.bytes_left.store(0, Ordering::Relaxed);
        if self.decision.slot.is_some() || self.decision.hold.is_some() {
            let mut metadata = Struct::default();
            dynamic_metadata::add_holders(self.decision, self.descriptors, &mut metadata);
            let dynamic_metadata = Some(metadata);
            RateLimitResponse { dynamic_metadata, ..Default::default() }.encode_raw(out);
        }
    }

    /// Returns the response as a message, for a caller in this process. It costs more than encoding.
    pub(crate) fn to_message(&self) -> RateLimitResponse {
        let mut bytes = Vec::new();
        self.encode(ResponseBuffer { bytes: &mut bytes, parts: &OptionalParts::new() });
        // What `encode` writes is a message, so the default is never needed.
        RateLimitResponse::decode(&*bytes).unwrap_or_default()
    }

    /// Appends headers, body and dynamic metadata. Returns `false` and appends nothing if the
    /// answer has no room for them.
    fn append_trailing_fields(
        &self,
        request_metadata: bool,
        parts: &OptionalParts,
        out: &mut Vec<u8>,
    ) -> bool {
        if parts.bytes_left.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let length = out.len();
        self.build_trailing_fields(request_metadata).encode_raw(out);
        let fits = parts.take(out.len() - length);
        if !fits {
            out.truncate(length);
        }
        fits
    }

    /// Builds a response that contains only headers, body and dynamic metadata; `encode` writes the
    /// code and the statuses itself. Most responses have none of the three.
    fn build_trailing_fields(&self, request_metadata: bool) -> RateLimitResponse {
        let decision = self.decision;
        let mut response = RateLimitResponse::default();
        let refused = decision.code == Code::OverLimit;
        let wait = if refused {
            let limited_by = decision.limited_by.as_ref();
            RetryWait::for_refusal(limited_by, self.response_config, self.now, self.random)
        } else {
            None
        };
        let headers = &mut response.response_headers_to_add;
        response_headers::append_headers(decision, wait, self.response_config, self.now, headers);
        if refused
            && let Some(limited_by) = &decision.limited_by
            && let rule = limited_by.rule.and_then(|id| self.rules.rule(id))
            && let Some((text, content_type)) =
                refusal_body::build(limited_by, decision.source, rule, wait, self.response_config)
        {
            response.raw_body = text.into_bytes();
            headers.push(content_type);
        }
        if refused || request_metadata || decision.slot.is_some() || decision.hold.is_some() {
            response.dynamic_metadata = Some(self.build_metadata(request_metadata));
        }
        response
    }

    fn build_metadata(&self, request_metadata: bool) -> Struct {
        let mut all = Struct::default();
        if request_metadata {
            let (request, descriptors) = (self.request, self.descriptors);
            dynamic_metadata::add_request(
                request,
                descriptors,
                self.decision,
                self.rules,
                &mut all,
            );
        }
        if self.decision.code == Code::OverLimit {
            dynamic_metadata::add_refusal(self.decision, &mut all);
        }
        dynamic_metadata::add_holders(self.decision, self.descriptors, &mut all);
        all
    }
}

fn code_to_wire(code: Code) -> u64 {
    match code {
        Code::Ok => wire::Code::Ok as u64,
        Code::OverLimit => wire::Code::OverLimit as u64,
    }
}

/// Appends the fields of a `DescriptorStatus`. Encoding with prost would take twice as many
/// instructions, because prost computes the length of each nested message up to four times.
fn encode_status(status: &Status<'_>, parts: &OptionalParts, out: &mut Vec<u8>) {
    encode_integer(1, code_to_wire(status.code), out);
    if let Some(shown) = &status.shown {
        encode_message(2, out, |out| encode_limit(shown, parts, out));
    }
    encode_integer(3, status.remaining.into(), out);
    if let Some(reset) = status.reset {
        // Rounded up to at least 1, because Envoy drops fractions, and 0 would invite an early
        // retry.
        let seconds = reset.ceil_secs().clamp(1, i64::MAX as u64);
        encode_message(4, out, |out| encode_integer(1, seconds, out));
    }
}

/// Appends the fields of a `RateLimit`, the message that describes the limit of a status.
fn encode_limit(shown: &StatusLimit<'_>, parts: &OptionalParts, out: &mut Vec<u8>) {
    use wire::rate_limit::Unit as Wire;
    let unit = match shown.rate.unit {
        None => Wire::Unknown,
        Some(Unit::Second) => Wire::Second,
        Some(Unit::Minute) => Wire::Minute,
        Some(Unit::Hour) => Wire::Hour,
        Some(Unit::Day) => Wire::Day,
        Some(Unit::Week) => Wire::Week,
        Some(Unit::Month) => Wire::Month,
        Some(Unit::Year) => Wire::Year,
    };
    encode_integer(1, shown.rate.requests_per_unit.into(), out);
    encode_integer(2, unit as u64, out);
    if !shown.name.is_empty() && parts.take(shown.name.len()) {
        encode_message(3, out, |out| out.extend_from_slice(shown.name.as_bytes()));
    }
    // Left out if 1, because older clients do not know the field.
    if shown.rate.unit_multiplier > 1 {
        encode_message(4, out, |out| encode_integer(1, shown.rate.unit_multiplier.into(), out));
    }
}

/// Appends a header for the upstream, a `HeaderValue`, as `request_headers_to_add`. Leaves it out if
/// the answer has no room for it.
fn encode_mark(mark: &Mark, parts: &OptionalParts, out: &mut Vec<u8>) {
    let text = |field, text: &str, out: &mut Vec<u8>| {
        encode_message(field, out, |out| out.extend_from_slice(text.as_bytes()));
    };
    // The tags and lengths of a name and a value of at most 255 bytes take 9 more.
    if parts.take(mark.name.len() + mark.value.len() + 9) {
        encode_message(REQUEST_HEADERS_FIELD, out, |out| {
            text(1, &mark.name, out);
            text(2, &mark.value, out);
        });
    }
}

/// Appends a protobuf integer field. Omits the field if the number is 0, as proto3 does.
fn encode_integer(field: u8, number: u64, out: &mut Vec<u8>) {
    if number > 0 {
        out.push(field << 3 | WireType::Varint as u8);
        // prost's `encode_varint` is a call of 50 instructions.
        let mut rest = number;
        while rest >= 0x80 {
            out.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        out.push(rest as u8);
    }
}

/// Appends a length-delimited protobuf field. `content` appends the bytes of the field's value.
pub(super) fn encode_message(field: u8, out: &mut Vec<u8>, content: impl FnOnce(&mut Vec<u8>)) {
    out.push(field << 3 | WireType::LengthDelimited as u8);
    // Nearly every length takes one byte. A longer one moves the message that follows it.
    let at = out.len();
    out.push(0);
    content(out);
    let length = out.len() - at - 1;
    match u8::try_from(length) {
        Ok(byte @ ..0x80) => out[at] = byte,
        _ => {
            let mut varint = Vec::with_capacity(encoded_len_varint(length as u64));
            encode_varint(length as u64, &mut varint);
            out.splice(at..=at, varint);
        }
    }
}

/// Number of the protobuf field `RateLimitResponse.overall_code`.
const OVERALL_CODE_FIELD: u8 = 1;
/// Number of the protobuf field `RateLimitResponse.statuses`.
const STATUSES_FIELD: u8 = 2;
/// Number of the protobuf field `RateLimitResponse.request_headers_to_add`.
const REQUEST_HEADERS_FIELD: u8 = 4;

/// Typical length of an encoded status, in bytes. Used to reserve memory for the response.
const TYPICAL_STATUS_BYTES: usize = 32;

#[cfg(test)]
mod tests;
