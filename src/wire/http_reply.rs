//! HTTP response to a request for a rate limit decision.
//!
//! Not here: the HTTP server (`admin`).

use prost::Message as _;

use super::messages::{HeaderValue, RateLimitResponse, rate_limit_response as wire};
use super::proto_json;
use crate::domain::HttpReply;

const CONTENT_TYPE: &str = "content-type";

impl HttpReply {
    /// Converts an encoded `RateLimitResponse` to proto-JSON. The HTTP status is 200 for OK and 429
    /// for OVER_LIMIT. The headers are those that Envoy would add, except for the content type of
    /// the rejection's body, because that body is a field of the JSON.
    pub(crate) fn json(encoded: &[u8]) -> Self {
        let response = decode_response(encoded);
        let mut headers =
            collect_headers(&response, |name| !name.eq_ignore_ascii_case(CONTENT_TYPE));
        headers.push((CONTENT_TYPE.to_owned(), "application/json".to_owned()));
        let body = proto_json::response_to_json(&response).to_string();
        HttpReply { status: http_status(&response, 429), headers, body }
    }

    /// Converts an encoded `RateLimitResponse` to the HTTP response that a proxy passes on to its
    /// client: status 200 for OK, `denied_status` for OVER_LIMIT, and headers and body as Envoy
    /// would send them. Headers for the upstream are among the headers.
    pub(crate) fn forward_auth(encoded: &[u8], denied_status: u16) -> Self {
        let mut response = decode_response(encoded);
        // The proxy copies those that it is configured to copy to the client's request.
        response.response_headers_to_add.append(&mut response.request_headers_to_add);
        let headers = collect_headers(&response, |_| true);
        let status = http_status(&response, denied_status);
        // The body of a policy is text.
        let body = String::from_utf8(response.raw_body).unwrap_or_default();
        HttpReply { status, headers, body }
    }

    /// Creates a response with this status and body, and no headers.
    pub(crate) fn text(status: u16, body: &str) -> Self {
        HttpReply { status, headers: Vec::new(), body: body.to_owned() }
    }
}

/// Decodes an encoded `RateLimitResponse`. Bytes that cannot be decoded yield an empty response,
/// which results in status 500; `ResponseInput` never produces such bytes.
fn decode_response(encoded: &[u8]) -> RateLimitResponse {
    RateLimitResponse::decode(encoded).unwrap_or_default()
}

fn http_status(response: &RateLimitResponse, denied_status: u16) -> u16 {
    match response.overall_code() {
        wire::Code::Ok => 200,
        wire::Code::OverLimit => denied_status,
        wire::Code::Unknown => 500,
    }
}

fn collect_headers(
    response: &RateLimitResponse,
    wanted: impl Fn(&str) -> bool,
) -> Vec<(String, String)> {
    let added = response.response_headers_to_add.iter().filter(|header| wanted(&header.key));
    added.map(|HeaderValue { key, value, .. }| (key.clone(), value.clone())).collect()
}
