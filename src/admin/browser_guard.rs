//! What every answer of the debug port says to browsers, and which host names it answers to.
//!
//! A page of somebody else's cannot read the answers (other origin), change anything (the token) or
//! show them in a frame. But the owner of a name can let it stand for 127.0.0.1, and then the pages
//! of that name are of our origin: so a port of this machine answers only to names that nobody can
//! own. Not here: the token (`operate`).

use std::net::IpAddr;

use axum::body::Body;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HOST, HeaderName, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::{HeaderValue, Request, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::plain;

/// Which host names a port answers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hosts {
    /// Addresses, `localhost`, and names without a dot: the port is this machine's alone.
    Local,
    /// Any: the operator has opened the port to others, and knows by which names.
    Any,
}

/// What answers say where they do not say otherwise. Nothing in them is to be run or framed.
const SAID: [(HeaderName, &str); 6] = [
    (CACHE_CONTROL, "no-store"),
    (CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (REFERRER_POLICY, "no-referrer"),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (X_FRAME_OPTIONS, "DENY"),
];

pub(super) async fn guarded(hosts: Hosts, request: Request<Body>, next: Next) -> Response {
    let host = request.headers().get(HOST).map(HeaderValue::as_bytes);
    let mut response = if hosts == Hosts::Local && !host.is_none_or(is_nobodys) {
        let why = "this port answers to localhost and to addresses only; to reach it by a name, \
                   set --debug-host to the address that it shall listen on\n";
        (StatusCode::FORBIDDEN, plain(why.to_owned())).into_response()
    } else {
        next.run(request).await
    };
    for (name, value) in SAID {
        response.headers_mut().entry(name).or_insert(HeaderValue::from_static(value));
    }
    response
}

/// Whether a `Host` names what nobody can own.
fn is_nobodys(host: &[u8]) -> bool {
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
    fn a_name_that_somebody_can_own_is_not_answered() {
        for host in ["localhost:6070", "127.0.0.1", "[::1]:6070", "a.localhost", "tidegate", ""] {
            assert!(is_nobodys(host.as_bytes()), "{host}");
        }
        for host in ["evil.example:6070", "127.0.0.1.evil.example", "localhost.", "a.b"] {
            assert!(!is_nobodys(host.as_bytes()), "{host}");
        }
        assert!(!is_nobodys(b"\xff"));
    }
}
