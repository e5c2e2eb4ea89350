//! Protects the debug port against hostile web pages in an operator's browser.
//!
//! The same-origin policy prevents other sites from reading responses, the operator token prevents
//! them from changing anything, and response headers prevent them from framing pages. The remaining
//! attack is DNS rebinding: an attacker can point a domain of their own at 127.0.0.1, so that their
//! page and the debug port share an origin. A debug port that listens on loopback therefore accepts
//! only host names that nobody can register.

use std::net::IpAddr;

use axum::body::Body;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HOST, HeaderName, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::{HeaderValue, Request, StatusCode};
use axum::middleware::Next;
use axum::response::Response;

use super::error_response;

/// Set of host names that a port accepts in the `Host` header of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllowedHosts {
    /// Accepts IP addresses, names without a dot such as `localhost`, and names that end in
    /// `.localhost`. Used if the port listens on loopback.
    Local,
    /// Accepts every host name. Used if the operator has opened the port to other machines.
    Any,
}

/// Security headers that are added to a response unless it already has them. They prevent browsers
/// from running scripts and from embedding the page in a frame.
const DEFAULT_HEADERS: [(HeaderName, &str); 6] = [
    (CACHE_CONTROL, "no-store"),
    (CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (REFERRER_POLICY, "no-referrer"),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (X_FRAME_OPTIONS, "DENY"),
];

pub(super) async fn protect(hosts: AllowedHosts, request: Request<Body>, next: Next) -> Response {
    let host = request.headers().get(HOST).map(HeaderValue::as_bytes);
    let mut response = if hosts == AllowedHosts::Local && !host.is_none_or(is_unregistrable) {
        let reason = "this port accepts localhost and IP addresses only; to reach it by a name, \
                      set --debug-host to the address that it should listen on";
        error_response(StatusCode::FORBIDDEN, reason)
    } else {
        next.run(request).await
    };
    for (name, value) in DEFAULT_HEADERS {
        response.headers_mut().entry(name).or_insert(HeaderValue::from_static(value));
    }
    response
}

/// Returns whether a `Host` header is an IP address, a name without a dot such as `localhost`, or a
/// name that ends in `.localhost`. Nobody can register such a name, so DNS rebinding cannot use it.
fn is_unregistrable(host: &[u8]) -> bool {
    let Ok(host) = std::str::from_utf8(host) else { return false };
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next(),
        None => host.split(':').next(),
    };
    let name = name.unwrap_or_default().to_ascii_lowercase();
    name.parse::<IpAddr>().is_ok() || name.ends_with(".localhost") || !name.contains('.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_can_be_registered_is_rejected() {
        for host in ["localhost:6070", "127.0.0.1", "[::1]:6070", "a.localhost", "tidegate", ""] {
            assert!(is_unregistrable(host.as_bytes()), "{host}");
        }
        for host in ["evil.example:6070", "127.0.0.1.evil.example", "localhost.", "a.b"] {
            assert!(!is_unregistrable(host.as_bytes()), "{host}");
        }
        assert!(!is_unregistrable(b"\xff"));
    }
}
