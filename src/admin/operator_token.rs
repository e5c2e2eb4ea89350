//! Operator token: requests that change the service must carry it as their bearer token.

use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, StatusCode};

use super::backend::OperatorToken;

/// Status and text of the response to a request that may not change the service.
pub(super) type AuthError = (StatusCode, &'static str);

/// Checks that the request carries the operator token as its bearer token.
pub(super) fn authorize(headers: &HeaderMap, token: &OperatorToken) -> Result<(), AuthError> {
    let token = match token {
        OperatorToken::Text(token) if !token.is_empty() => token,
        OperatorToken::Text(_) => {
            let reason = "this port is read-only: the file of --debug-token-file is empty\n";
            return Err((StatusCode::FORBIDDEN, reason));
        }
        OperatorToken::NotConfigured => {
            let reason = "this port is read-only: start the service with --debug-token-file\n";
            return Err((StatusCode::FORBIDDEN, reason));
        }
        OperatorToken::Unreadable => {
            let reason = "the file of --debug-token-file cannot be read, see the log\n";
            return Err((StatusCode::SERVICE_UNAVAILABLE, reason));
        }
    };
    // Compare hashes, so that the time of the comparison reveals nothing about the token.
    match bearer_token(headers).map(blake3::hash) == Some(blake3::hash(token.as_bytes())) {
        true => Ok(()),
        false => Err((
            StatusCode::UNAUTHORIZED,
            "send `Authorization: Bearer TOKEN` with the token of --debug-token-file\n",
        )),
    }
}

/// Returns the bearer token from the `Authorization` header. The scheme name is case-insensitive
/// (RFC 9110).
fn bearer_token(headers: &HeaderMap) -> Option<&[u8]> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.as_bytes().split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_needs_the_token() {
        let token = |text: &str| OperatorToken::Text(text.to_owned());
        let mut headers = HeaderMap::new();
        let status = |headers: &HeaderMap, token: &OperatorToken| {
            authorize(headers, token).map_err(|(status, _)| status)
        };
        let read_only = Err(StatusCode::FORBIDDEN);
        assert_eq!(status(&headers, &OperatorToken::NotConfigured), read_only);
        assert_eq!(status(&headers, &token("")), read_only);
        assert_eq!(status(&headers, &token("t")), Err(StatusCode::UNAUTHORIZED));
        for wrong in ["Bearer x", "Bearer", "Basic t", "Bearer  t", "é"] {
            let wrong = axum::http::HeaderValue::from_bytes(wrong.as_bytes()).unwrap();
            headers.insert(AUTHORIZATION, wrong);
            assert_eq!(status(&headers, &token("t")), Err(StatusCode::UNAUTHORIZED));
        }
        for right in ["Bearer t", "bearer t"] {
            headers.insert(AUTHORIZATION, right.parse().unwrap());
            assert_eq!(status(&headers, &token("t")), Ok(()));
        }
        let unreadable = status(&headers, &OperatorToken::Unreadable);
        assert_eq!(unreadable, Err(StatusCode::SERVICE_UNAVAILABLE));
    }
}
