//! Encoding and decoding of the messages of `tidegate.v1.Limits`: the results of a batch, and
//! counters.
//!
//! Not here: splitting a batch (`decode`), the service (`server::limits_service`).

use prost::encoding;
use prost_types::Duration;
use tonic::Status;

use super::decode::{DecodeError, DecodedRequest};
use super::encode::encode_message;
use super::messages::{CheckResult, Counter, ErrorStatus, check_result};
use crate::domain::{Bounds, Hits, Micros, Outcome};

/// Encoded results of a batch. Each result is encoded as soon as it is known, in any order.
/// Encoding a whole `CheckResponse` with prost would cost 9 % more instructions, because
/// prost computes the length of each nested message four times.
#[derive(Default)]
pub(crate) struct EncodedResults {
    bytes: Vec<u8>,
    /// Position of each result in the batch, and the offset in `bytes` at which it ends.
    result_ends: Vec<(usize, usize)>,
}

impl EncodedResults {
    /// Appends the result of the request at this position in the batch.
    pub(crate) fn push(&mut self, position: usize, result: Result<&[u8], Status>) {
        encode_result(RESULTS_FIELD, result, &mut self.bytes);
        self.result_ends.push((position, self.bytes.len()));
    }

    /// Returns the encoded `CheckResponse`, with the results in the order of the requests.
    pub(crate) fn into_response(self) -> Vec<u8> {
        let EncodedResults { bytes, result_ends } = self;
        if result_ends.is_sorted() {
            return bytes;
        }
        let mut begin = 0;
        let mut results = Vec::with_capacity(result_ends.len());
        for (position, end) in result_ends {
            results.push((position, &bytes[begin..end]));
            begin = end;
        }
        results.sort_unstable_by_key(|(position, _)| *position);
        let mut response = Vec::with_capacity(bytes.len());
        results.iter().for_each(|(_, result)| response.extend_from_slice(result));
        response
    }
}

/// Number of the protobuf field `CheckResponse.results`.
const RESULTS_FIELD: u8 = 1;
/// Number of the protobuf field `CheckResult.response`.
const RESPONSE_FIELD: u8 = 1;

/// Appends a `CheckResult` field that contains an encoded response or an error.
fn encode_result(field: u8, result: Result<&[u8], Status>, out: &mut Vec<u8>) {
    match result {
        Ok(response) => encode_message(field, out, |out| {
            encode_message(RESPONSE_FIELD, out, |out| out.extend_from_slice(response));
        }),
        Err(status) => {
            let (code, message) = (status.code().into(), status.message().to_owned());
            let result = check_result::Result::Error(ErrorStatus { code, message });
            encoding::message::encode(field.into(), &CheckResult { result: Some(result) }, out);
        }
    }
}

/// Encodes a `ReserveResponse` with the id of the hold, empty if there is none, and an encoded response.
pub(crate) fn encode_reserved(id: &[u8], response: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(id.len() + response.len() + 8);
    encode_message(RESERVED_ID_FIELD, &mut out, |out| out.extend_from_slice(id));
    encode_message(RESERVED_RESPONSE_FIELD, &mut out, |out| out.extend_from_slice(response));
    out
}

const RESERVED_ID_FIELD: u8 = 1;
const RESERVED_RESPONSE_FIELD: u8 = 2;

/// Decodes an encoded `CountersRequest` as a rate limit request with one descriptor. This works
/// because its fields have the same numbers as the domain and descriptors of a `RateLimitRequest`.
///
/// # Errors
///
/// Returns [`DecodeError::MalformedMessage`] if the message is not a `CountersRequest`, and
/// otherwise the errors of [`DecodedRequest::decode`].
pub(crate) fn decode_counters_request<'b>(
    message: &'b [u8],
    bounds: &Bounds,
) -> Result<DecodedRequest<'b>, DecodeError> {
    let bounds = Bounds { descriptors_max: 1, ..*bounds };
    DecodedRequest::decode(message, &bounds).map_err(|error| match error {
        DecodeError::Malformed => DecodeError::MalformedMessage("CountersRequest"),
        error => error,
    })
}

/// Builds the message that describes one counter. `outcome` is that of peeking at it or resetting it;
/// `None` if the store did not answer.
pub(crate) fn build_counter(
    rule: &str,
    limit: &str,
    capacity: Hits,
    outcome: Option<&Outcome>,
) -> Counter {
    Counter {
        rule: rule.to_owned(),
        limit: limit.to_owned(),
        capacity: capacity.0,
        available: outcome.map(|outcome| outcome.available.0),
        reset_after: outcome.map(|outcome| to_proto_duration(outcome.reset_after)),
        held: outcome.map_or(0, |outcome| outcome.held.0),
    }
}

fn to_proto_duration(micros: Micros) -> Duration {
    let second = Micros::SECOND.0;
    Duration {
        seconds: i64::try_from(micros.0 / second).unwrap_or(i64::MAX),
        nanos: i32::try_from(micros.0 % second * 1_000).unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;
    use crate::wire::messages::RateLimitResponse;

    /// Returns an empty response, an encoded response or an error, depending on the position.
    fn sample_result(position: usize) -> Result<Vec<u8>, Status> {
        let raw_body = vec![7; position * 20];
        let response = RateLimitResponse { overall_code: 2, raw_body, ..Default::default() };
        match position % 3 {
            0 => Ok(Vec::new()),
            1 => Ok(response.encode_to_vec()),
            _ => Err(Status::unavailable("away")),
        }
    }

    fn sample_message(position: usize) -> CheckResult {
        let result = match sample_result(position) {
            Ok(response) => {
                check_result::Result::Response(RateLimitResponse::decode(&*response).unwrap())
            }
            Err(status) => check_result::Result::Error(ErrorStatus {
                code: status.code().into(),
                message: status.message().to_owned(),
            }),
        };
        CheckResult { result: Some(result) }
    }

    #[test]
    fn results_are_encoded_like_a_check_response_in_whatever_order_they_come() {
        let mut expected = Vec::new();
        for position in 0..20 {
            encoding::message::encode(
                RESULTS_FIELD.into(),
                &sample_message(position),
                &mut expected,
            );
        }
        let encode = |positions: &[usize]| {
            let mut results = EncodedResults::default();
            for position in positions {
                results.push(*position, sample_result(*position).as_deref().map_err(Status::clone));
            }
            results.into_response()
        };
        let all: Vec<usize> = (0..20).collect();
        assert_eq!(encode(&all), expected);
        let (even, odd): (Vec<_>, Vec<_>) = all.iter().partition(|position| *position % 2 == 0);
        assert_eq!(encode(&[odd, even].concat()), expected);
        assert!(encode(&[]).is_empty());
    }

    #[test]
    fn a_counter_has_its_reset_in_seconds_and_nanoseconds() {
        let counter = |outcome| build_counter("edge.client", "daily", Hits(5), outcome);
        let reset_after = Micros(61_500_001);
        let outcome = Outcome { held: Hits(1), reset_after, ..Outcome::pass(Hits(2)) };
        let expected = Counter {
            rule: "edge.client".to_owned(),
            limit: "daily".to_owned(),
            capacity: 5,
            available: Some(2),
            reset_after: Some(Duration { seconds: 61, nanos: 500_001_000 }),
            held: 1,
        };
        assert_eq!(counter(Some(&outcome)), expected);
        let unanswered = Counter { available: None, reset_after: None, held: 0, ..expected };
        assert_eq!(counter(None), unanswered);
    }
}
