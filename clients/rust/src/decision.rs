//! Decisions: whether the request passes, why, and what to tell the caller.

use std::fmt;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{self, HeaderName, HeaderValue};
use tonic::{Code, Status};

use crate::messages::{CheckResult, HeaderValue as Header, OVER_LIMIT, RateLimitResponse};

/// Maximum number of response headers that are taken from a response.
pub(crate) const HEADERS_MAX: usize = 32;
/// Maximum length in bytes of such a header's value; a longer one is left out.
pub(crate) const HEADER_BYTES_MAX: usize = 1_024;
/// Maximum wait, a hundred years. A longer one is cut, because arithmetic with time could overflow.
const RETRY_AFTER_SECONDS_MAX: u64 = 100 * 365 * 86_400;

/// Headers of the connection or of the response's framing, which a rate limiter must not set.
const FORBIDDEN: [HeaderName; 9] = [
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::HOST,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The limits let the request pass.
    Allowed,
    /// A limit rejected the request.
    Rejected,
    /// There was no decision. [`crate::OnFailure`] says whether the request passes.
    Failed,
}

/// Why there was no decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// As many calls as allowed were already waiting for a decision. None was sent.
    Busy,
    /// No response within the timeout.
    Timeout,
    /// A gRPC status other than OK, for example because the server cannot be reached.
    Status(Code, String),
}

impl Failure {
    pub(crate) fn of(status: &Status) -> Failure {
        // tonic reports its own timer as Cancelled.
        match status.code() {
            Code::DeadlineExceeded | Code::Cancelled => Failure::Timeout,
            // The text of the status alone is often only "transport error".
            code => {
                let cause = std::error::Error::source(status).map(error_text).unwrap_or_default();
                let message = status.message();
                let message = if cause.is_empty() {
                    message.to_owned()
                } else {
                    format!("{message}: {cause}")
                };
                Failure::Status(code, message)
            }
        }
    }

    /// A batch has another number of results than calls, or an empty one.
    pub(crate) fn malformed() -> Failure {
        Failure::Status(Code::Internal, "a batch with missing results".to_owned())
    }

    /// The response to one call of a batch.
    pub(crate) fn of_result(result: CheckResult) -> Result<RateLimitResponse, Failure> {
        match (result.response, result.error) {
            (Some(response), _) => Ok(response),
            (None, Some(error)) => Err(Failure::of(&Status::new(error.code.into(), error.message))),
            (None, None) => Err(Failure::malformed()),
        }
    }

    /// Whether the same call can succeed later.
    pub fn may_pass_later(&self) -> bool {
        match self {
            Failure::Busy | Failure::Timeout => true,
            Failure::Status(code, _) => !matches!(
                code,
                Code::InvalidArgument
                    | Code::PermissionDenied
                    | Code::Unauthenticated
                    | Code::Unimplemented
            ),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Busy => f.write_str("too many calls are waiting for a decision"),
            Failure::Timeout => f.write_str("no decision within the timeout"),
            Failure::Status(code, message) => write!(f, "{}: {message}", code_name(*code)),
        }
    }
}

impl std::error::Error for Failure {}

/// The name of a code as in gRPC's documentation.
pub(crate) fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

/// Result of a call.
#[derive(Clone, Debug)]
pub struct Decision {
    pub(crate) outcome: Outcome,
    pub(crate) passes: bool,
    pub(crate) failure: Option<Failure>,
    pub(crate) retry_after: Option<Duration>,
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    pub(crate) marks: Vec<(HeaderName, HeaderValue)>,
    pub(crate) body: Bytes,
}

impl Decision {
    /// Whether the request passes: it was allowed, or there was no decision and the client lets requests
    /// pass on failure.
    pub fn passes(&self) -> bool {
        self.passes
    }

    /// How the call ended.
    pub fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// Why there was no decision; `None` if there was one.
    pub fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }

    /// Time until a retry may pass, from `Retry-After`. `None` on a rejection means that waiting does not
    /// help.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// Headers for the response, such as `Retry-After` and `X-RateLimit-Limit`.
    pub fn headers(&self) -> &[(HeaderName, HeaderValue)] {
        &self.headers
    }

    /// Headers for the service behind this one, near a limit and over it (`mark` in the policy). Before
    /// adding them to a request, remove those of the same names that a client has sent.
    pub fn marks(&self) -> &[(HeaderName, HeaderValue)] {
        &self.marks
    }

    /// Body for the response to a rejected request; empty if the policy has none.
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    pub(crate) fn allowed() -> Decision {
        Decision {
            outcome: Outcome::Allowed,
            passes: true,
            failure: None,
            retry_after: None,
            headers: Vec::new(),
            marks: Vec::new(),
            body: Bytes::new(),
        }
    }

    pub(crate) fn failed(failure: Failure, passes: bool) -> Decision {
        let failure = Some(failure);
        Decision { outcome: Outcome::Failed, passes, failure, ..Decision::allowed() }
    }

    /// Decides by `overall_code` only. `now` turns a date in `Retry-After` into a wait.
    pub(crate) fn of_response(response: RateLimitResponse, now: SystemTime) -> Decision {
        let rejected = response.overall_code == OVER_LIMIT;
        let mut decision = Decision::allowed();
        for (name, value) in valid_headers(response.response_headers_to_add) {
            // Envoy takes the type of a body from here, which only a rejection has.
            if name == header::CONTENT_TYPE && !rejected {
                continue;
            }
            if rejected && name == header::RETRY_AFTER && decision.retry_after.is_none() {
                decision.retry_after = value.to_str().ok().and_then(|it| retry_after(it, now));
            }
            decision.headers.push((name, value));
        }
        decision.marks = valid_headers(response.request_headers_to_add).collect();
        if rejected {
            decision.outcome = Outcome::Rejected;
            decision.passes = false;
            decision.body = response.raw_body;
        }
        decision
    }
}

/// The first headers of a response, without those that are too long, invalid, or of the connection.
fn valid_headers(given: Vec<Header>) -> impl Iterator<Item = (HeaderName, HeaderValue)> {
    given.into_iter().take(HEADERS_MAX).filter_map(|given| {
        let name = HeaderName::from_bytes(&given.key).ok()?;
        let is_taken = given.value.len() <= HEADER_BYTES_MAX
            && !FORBIDDEN.contains(&name)
            && !name.as_str().starts_with("grpc-");
        let value = HeaderValue::from_maybe_shared(given.value).ok()?;
        is_taken.then_some((name, value))
    })
}

/// An error with its causes. Causes that repeat what was said are left out.
pub(crate) fn error_text(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let said = error.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        cause = error.source();
    }
    text
}

/// Reads `Retry-After`: seconds, or a date of HTTP. A date in the past is 0.
fn retry_after(value: &str, now: SystemTime) -> Option<Duration> {
    if !value.is_empty() && value.bytes().all(|it| it.is_ascii_digit()) {
        let seconds = value.parse().unwrap_or(u64::MAX);
        return Some(Duration::from_secs(seconds.min(RETRY_AFTER_SECONDS_MAX)));
    }
    let date = httpdate::parse_http_date(value).ok()?;
    let wait = date.duration_since(now).unwrap_or_default();
    Some(wait.min(Duration::from_secs(RETRY_AFTER_SECONDS_MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(key: &str, value: &str) -> Header {
        Header {
            key: Bytes::copy_from_slice(key.as_bytes()),
            value: Bytes::copy_from_slice(value.as_bytes()),
        }
    }

    fn decided(code: i32, headers: &[(&str, &str)]) -> Decision {
        let response = RateLimitResponse {
            overall_code: code,
            response_headers_to_add: headers
                .iter()
                .map(|(key, value)| header(key, value))
                .collect(),
            request_headers_to_add: Vec::new(),
            raw_body: Bytes::from_static(b"slow down"),
        };
        Decision::of_response(response, SystemTime::UNIX_EPOCH)
    }

    #[test]
    fn retry_after_is_read_as_in_the_shared_vectors() {
        let text = include_str!("../../vectors/retry_after.json");
        let cases: serde_json::Value = serde_json::from_str(text).unwrap();
        let cases = cases.as_array().unwrap();
        assert!(cases.len() >= 8);
        for case in cases {
            let now = SystemTime::UNIX_EPOCH + Duration::from_secs(case["now"].as_u64().unwrap());
            let wait = retry_after(case["value"].as_str().unwrap(), now);
            assert_eq!(wait.map(|it| it.as_secs()), case["seconds"].as_u64(), "{case}");
        }
    }

    #[test]
    fn marks_are_those_of_the_shared_vectors() {
        let text = include_str!("../../vectors/marks.json");
        let cases: Vec<serde_json::Value> = serde_json::from_str(text).unwrap();
        assert!(cases.len() >= 4);
        for case in cases {
            let pairs = |key: &str| {
                let pairs: Vec<(String, String)> =
                    serde_json::from_value(case[key].clone()).unwrap();
                pairs
            };
            let given = pairs("given").iter().map(|(key, value)| header(key, value)).collect();
            let response =
                RateLimitResponse { request_headers_to_add: given, ..Default::default() };
            let decision = Decision::of_response(response, SystemTime::UNIX_EPOCH);
            let text = |(name, value): &(HeaderName, HeaderValue)| {
                (name.to_string(), value.to_str().unwrap().to_owned())
            };
            assert_eq!(decision.marks().iter().map(text).collect::<Vec<_>>(), pairs("marks"));
        }
    }

    #[test]
    fn only_the_overall_code_decides() {
        for (code, outcome) in [
            (0, Outcome::Allowed),
            (1, Outcome::Allowed),
            (2, Outcome::Rejected),
            (9, Outcome::Allowed),
        ] {
            let decision = decided(code, &[("retry-after", "3")]);
            assert_eq!(decision.outcome(), outcome);
            assert_eq!(decision.passes(), outcome == Outcome::Allowed);
            assert_eq!(decision.retry_after().is_some(), outcome == Outcome::Rejected);
            assert_eq!(decision.body().is_empty(), outcome == Outcome::Allowed);
        }
    }

    #[test]
    fn headers_that_would_break_the_response_are_left_out() {
        let long = "x".repeat(HEADER_BYTES_MAX + 1);
        let decision = decided(
            2,
            &[
                (":status", "200"),
                ("content-length", "5"),
                ("Transfer-Encoding", "chunked"),
                ("grpc-status", "0"),
                ("x-split", "a\r\nset-cookie: b"),
                ("", "empty"),
                ("x-long", &long),
                ("content-type", "application/json"),
                ("X-RateLimit-Limit", "5"),
            ],
        );
        let names: Vec<&str> = decision.headers().iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["content-type", "x-ratelimit-limit"]);
    }

    #[test]
    fn at_most_as_many_headers_as_the_bound_are_taken() {
        let many = vec![("x-many", "1"); HEADERS_MAX + 5];
        assert_eq!(decided(1, &many).headers().len(), HEADERS_MAX);
    }

    #[test]
    fn a_wrong_call_stays_wrong_and_an_absent_server_does_not() {
        assert!(!Failure::Status(Code::InvalidArgument, String::new()).may_pass_later());
        assert!(Failure::Status(Code::Unavailable, String::new()).may_pass_later());
        assert!(Failure::Timeout.may_pass_later());
    }
}
