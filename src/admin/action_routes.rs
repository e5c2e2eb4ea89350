//! Debug-port routes for operator actions: overrides, counter resets, simulated Redis outages, and
//! the log level.
//!
//! POST requests need the operator token, and fail with status 403 if no token is configured. GET
//! requests, which only show state, need no token.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{RawQuery, State};
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use axum::routing::{MethodRouter, get, post};

use super::backend::{
    AdminAction, Backend, OperatorToken, OverrideParameters, OverrideSelector, TextResult,
};
use super::live_page_routes::json_response;
use super::query::Query;
use super::{page_route, respond, text_response};

/// Maximum lifetime of an operator's change, in seconds: 30 days. A change that must last longer
/// belongs in the policy.
const LIFETIME_SECONDS_MAX: u64 = 30 * 86_400;

/// Builds the routes for operator actions. Only POST requests require the operator token.
pub(super) fn action_routes<B: Backend>() -> Router<Arc<B>> {
    let counter = async |State(backend): State<Arc<B>>, RawQuery(query): RawQuery| {
        respond(handle_counters(&*backend, query.as_deref(), false).await, text_response)
    };
    let reset =
        async |State(backend): State<Arc<B>>, headers: HeaderMap, RawQuery(query): RawQuery| {
            authorize(&headers, &backend.token())?;
            let result = handle_counters(&*backend, query.as_deref(), true).await;
            Ok::<_, AuthError>(respond(result, text_response))
        };
    let overrides = async |State(backend): State<Arc<B>>, RawQuery(query): RawQuery| {
        let usage = "usage: optionally after=ID";
        let query = Query::parse(query.as_deref(), &["after"], &[], usage);
        let list = |query: Query<'_>| backend.overrides(query.value("after").unwrap_or_default());
        respond(query.map(list), json_response)
    };
    Router::new()
        .route("/overrides", get(overrides))
        .route("/log-level", page_route(B::log_level, text_response).merge(action(parse_log_level)))
        .route("/override", action(parse_set_override))
        .route("/override/delete", action(parse_delete_overrides))
        .route("/leave-redis", action(parse_disable_store))
        .route("/return-to-redis", action(|_| Ok(AdminAction::EnableStore)))
        .route("/counter", get(counter))
        .route("/reset", post(reset))
}

/// Builds a POST route for an action that `parse` reads from the query.
fn action<B: Backend>(
    parse: fn(Option<&str>) -> Result<AdminAction, String>,
) -> MethodRouter<Arc<B>> {
    post(
        async move |State(backend): State<Arc<B>>,
                    headers: HeaderMap,
                    RawQuery(query): RawQuery| {
            authorize(&headers, &backend.token())?;
            let result = match parse(query.as_deref()) {
                Ok(action) => backend.run_action(action).await,
                Err(reason) => Err(reason),
            };
            Ok::<Response, AuthError>(respond(result, text_response))
        },
    )
}

/// Status and text of the response to a request that may not change the service.
type AuthError = (StatusCode, &'static str);

/// Checks that the request carries the operator token as its bearer token.
fn authorize(headers: &HeaderMap, token: &OperatorToken) -> Result<(), AuthError> {
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

/// Parses the parameters of an action, none of which may be repeated or empty. If empty values were
/// treated as absent, `for=` would set an override that never expires, and `target=` would remove
/// every override.
fn parse_parameters<'a>(
    query: Option<&'a str>,
    names: &[&str],
    usage: &str,
) -> Result<Query<'a>, String> {
    let query = Query::parse(query, names, &[], usage)?;
    match names.iter().find(|name| query.values(name).any(str::is_empty)) {
        Some(name) => Err(format!("{name}= is empty; {usage}")),
        None => Ok(query),
    }
}

async fn handle_counters(backend: &impl Backend, query: Option<&str>, reset: bool) -> TextResult {
    let usage = "usage: domain=D&descriptor=k=v,k2=v2";
    let query = parse_parameters(query, &["domain", "descriptor"], usage)?;
    match (query.value("domain"), query.value("descriptor")) {
        (Some(domain), Some(descriptor)) => backend.counters(domain, descriptor, reset).await,
        _ => Err(usage.to_owned()),
    }
}

/// Parameters of an override that become fields of its JSON form.
const OVERRIDE_FIELDS: &[&str] = &[
    "descriptor",
    "limit",
    "burst",
    "anchor",
    "limit_name",
    "mode",
    "scale",
    "until",
    "reason",
    "by",
];

fn parse_set_override(query: Option<&str>) -> Result<AdminAction, String> {
    let usage = "usage: target=DOMAIN_OR_RULE, optionally &descriptor=k=v,k2=v2; one of \
                 &limit=N&burst=N&anchor=DAY&limit_name=NAME, &mode=unlimited|deny|shadow, \
                 &scale=20%25; one of &for=SECONDS, &until=TIME, &permanent=true; optionally \
                 &reason=TEXT&by=NAME";
    let names = [&["target", "for", "permanent"], OVERRIDE_FIELDS].concat();
    let query = parse_parameters(query, &names, usage)?;
    let target = query.value("target").ok_or(usage)?.to_owned();
    let field = |name: &&str| Some(((*name).to_owned(), query.value(name)?.to_owned()));
    let fields = OVERRIDE_FIELDS.iter().filter_map(field).collect();
    let is_permanent = match query.value("permanent") {
        None => false,
        Some("true") => true,
        Some(_) => return Err(usage.to_owned()),
    };
    let lifetime = parse_lifetime(&query)?;
    Ok(AdminAction::SetOverride(OverrideParameters { target, fields, lifetime, is_permanent }))
}

fn parse_delete_overrides(query: Option<&str>) -> Result<AdminAction, String> {
    let usage = "usage: target=DOMAIN_OR_RULE, optionally \
                 &descriptor=k=v,k2=v2&limit_name=NAME&kind=numbers|scale|mode; without target, kind= \
                 deletes all of that kind on domains and rules";
    let names = ["target", "descriptor", "limit_name", "kind"];
    let query = parse_parameters(query, &names, usage)?;
    let [target, descriptor, limit_name, kind] =
        names.map(|name| query.value(name).map(str::to_owned));
    if target.is_none() && (kind.is_none() || descriptor.is_some()) {
        return Err(usage.to_owned());
    }
    Ok(AdminAction::DeleteOverrides(OverrideSelector { target, descriptor, limit_name, kind }))
}

fn parse_disable_store(query: Option<&str>) -> Result<AdminAction, String> {
    let usage = "usage: for=SECONDS, or no parameter to stay until /return-to-redis";
    let query = parse_parameters(query, &["for"], usage)?;
    Ok(AdminAction::DisableStore { lifetime: parse_lifetime(&query)? })
}

fn parse_log_level(query: Option<&str>) -> Result<AdminAction, String> {
    let usage = "usage: to=off|error|warn|info|debug, optionally &for=SECONDS";
    let query = parse_parameters(query, &["to", "for"], usage)?;
    let level = query.value("to").ok_or(usage)?.to_owned();
    Ok(AdminAction::SetLogLevel { level, lifetime: parse_lifetime(&query)? })
}

fn parse_lifetime(query: &Query<'_>) -> Result<Option<Duration>, String> {
    let Some(text) = query.value("for") else { return Ok(None) };
    match text.trim_end_matches('s').parse() {
        Ok(seconds @ 1..=LIFETIME_SECONDS_MAX) => Ok(Some(Duration::from_secs(seconds))),
        Ok(_) | Err(_) => Err(format!("for= must be 1 to {LIFETIME_SECONDS_MAX} seconds")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_override_has_a_target_a_change_and_an_end() {
        let query = "target=edge.client&descriptor=client%3Dann&limit=500&for=60s&reason=T-1";
        let fields = [("descriptor", "client=ann"), ("limit", "500"), ("reason", "T-1")];
        let expected = OverrideParameters {
            target: "edge.client".to_owned(),
            fields: fields.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec(),
            lifetime: Some(Duration::from_secs(60)),
            is_permanent: false,
        };
        let action = parse_set_override(Some(query));
        assert_eq!(action, Ok(AdminAction::SetOverride(expected)));
        for bad in ["", "mode=deny", "target=a&mode=deny&fro=1", "target=a&mode=deny&for=0"] {
            assert!(parse_set_override(Some(bad)).is_err(), "{bad}");
        }
        for bad in ["target=a&mode=deny&permanent=yes", "target=a&limit=1&limit=2"] {
            assert!(parse_set_override(Some(bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_deletion_without_a_target_needs_a_kind() {
        for bad in [None, Some(""), Some("descriptor=a=b"), Some("kind=mode&descriptor=a=b")] {
            assert!(parse_delete_overrides(bad).is_err(), "{bad:?}");
        }
        for good in ["target=edge", "kind=mode", "target=edge&descriptor=a=b&kind=numbers"] {
            assert!(parse_delete_overrides(Some(good)).is_ok(), "{good}");
        }
    }

    #[test]
    fn an_empty_parameter_is_an_error_and_not_an_absent_one() {
        let error = parse_set_override(Some("target=a&mode=deny&for=")).unwrap_err();
        assert!(error.starts_with("for= is empty"), "{error}");
        assert!(parse_delete_overrides(Some("target=&kind=mode")).is_err());
        assert!(parse_disable_store(Some("for=")).is_err());
        assert!(parse_log_level(Some("to=debug&for=")).is_err());
    }

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

    #[test]
    fn a_change_lasts_as_long_as_requested_and_at_most_thirty_days() {
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        let disable = |lifetime| Ok(AdminAction::DisableStore { lifetime });
        assert_eq!(parse_disable_store(Some("for=2592000")), disable(seconds(2_592_000)));
        assert_eq!(parse_disable_store(None), disable(None));
        for bad in ["for=2592001", "for=0", "for=-1", "to=1"] {
            assert!(parse_disable_store(Some(bad)).is_err(), "{bad}");
        }
        let (level, lifetime) = ("debug".to_owned(), seconds(1));
        let action = AdminAction::SetLogLevel { level, lifetime };
        assert_eq!(parse_log_level(Some("to=debug&for=1")), Ok(action));
    }
}
