//! Messages of `tidegate.v1.Limits`: results of a batch, requests of a stream, and counters.
//!
//! Not here: splitting a batch (`decode`), the service (`server::limits_service`).

use bytes::Bytes;
use prost::Message as _;
use prost_types::Duration;
use tonic::Status;

use super::decode::DecodeError;
use super::messages::{
    CheckResponse, CheckResult, Counter, CountersRequest, CountersResponse, ErrorStatus,
    RateLimitRequest, RateLimitResponse, StreamRequest, StreamResponse, check_result,
};
use crate::domain::{Bounds, Hits, Micros};

/// Encodes the results of a batch.
pub(crate) fn encode_results(results: Vec<Result<RateLimitResponse, Status>>) -> Vec<u8> {
    CheckResponse { results: results.into_iter().map(check_result).collect() }.encode_to_vec()
}

/// Encodes the answer to the stream's request with this id.
pub(crate) fn encode_answer(id: u64, result: Result<RateLimitResponse, Status>) -> Vec<u8> {
    StreamResponse { id, result: Some(check_result(result)) }.encode_to_vec()
}

fn check_result(result: Result<RateLimitResponse, Status>) -> CheckResult {
    let result = match result {
        Ok(response) => check_result::Result::Response(response),
        Err(status) => check_result::Result::Error(ErrorStatus {
            code: status.code().into(),
            message: status.message().to_owned(),
        }),
    };
    CheckResult { result: Some(result) }
}

/// Returns the id of a request on a stream, and the request, which is still encoded.
///
/// # Errors
///
/// Returns [`DecodeError::NotA`] if the message is not a `StreamRequest`.
pub(crate) fn decode_stream_request(message: Bytes) -> Result<(u64, Bytes), DecodeError> {
    let StreamRequest { id, request } =
        StreamRequest::decode(message).map_err(|_| DecodeError::NotA("StreamRequest"))?;
    Ok((id, request))
}

/// Returns the descriptor of an encoded `CountersRequest` as a request with that descriptor only.
///
/// # Errors
///
/// Returns [`DecodeError::NotA`] if the message is not a `CountersRequest`, and an error if the
/// descriptor is missing or has too many entries.
pub(crate) fn decode_counters_request(
    message: Bytes,
    bounds: &Bounds,
) -> Result<RateLimitRequest, DecodeError> {
    let malformed = DecodeError::NotA("CountersRequest");
    super::decode::check_counters_request(&message, bounds).map_err(|error| match error {
        DecodeError::Malformed => malformed,
        error => error,
    })?;
    let CountersRequest { domain, descriptor } =
        CountersRequest::decode(message).map_err(|_| malformed)?;
    let descriptors = descriptor.into_iter().collect();
    Ok(RateLimitRequest { domain: domain.into(), descriptors, hits_addend: 0 })
}

/// State of a counter: the hits available, and the time until all are.
pub(crate) type CounterState = (Hits, Micros);

/// Builds the message of one counter. `state` is `None` if the store did not answer.
pub(crate) fn counter(
    rule: &str,
    limit: &str,
    capacity: Hits,
    state: Option<CounterState>,
) -> Counter {
    Counter {
        rule: rule.to_owned(),
        limit: limit.to_owned(),
        capacity: capacity.0,
        available: state.map(|(available, _)| available.0),
        reset_after: state.map(|(_, reset)| duration(reset)),
    }
}

/// Encodes the counters of a descriptor.
pub(crate) fn encode_counters(counters: Vec<Counter>) -> Vec<u8> {
    CountersResponse { counters }.encode_to_vec()
}

fn duration(micros: Micros) -> Duration {
    let second = Micros::SECOND.0;
    Duration {
        seconds: i64::try_from(micros.0 / second).unwrap_or(i64::MAX),
        nanos: i32::try_from(micros.0 % second * 1_000).unwrap_or(0),
    }
}
