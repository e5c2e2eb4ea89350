//! Debug-port routes for operator actions: overrides, counter resets, simulated Redis outages, and
//! the log level.
//!
//! POST requests need the operator token, and fail with status 403 if no token is configured. GET
//! requests, which only show state, need no token.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::RawQuery;
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use futures_util::future::BoxFuture;

use super::query::Query;
use super::{PageHandler, TextResult, page_route, text_or_bad_request, text_response};

/// Maximum lifetime of an operator's change, in seconds: 30 days. A change that must last longer
/// belongs in the policy.
const LIFETIME_SECONDS_MAX: u64 = 30 * 86_400;

/// Change requested by an operator. A change without a `lifetime` lasts until an operator undoes it
/// or the process ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdminAction {
    /// Overrides the limits of a rule, or of all rules in a domain.
    SetOverride {
        /// Target of the override: a domain, or the path of a rule as listed by `/rlconfig`.
        target: String,
        /// Override to set: `shadow`, `allow`, `deny`, or a percentage of the limit such as `20%`.
        to: String,
        /// Time until the override expires, or `None` if it never does.
        lifetime: Option<Duration>,
    },
    /// Removes the override of one target, or removes all overrides.
    RemoveOverrides {
        /// Target of the override to remove: a domain or the path of a rule. `None` removes all
        /// overrides.
        target: Option<String>,
    },
    /// Makes the service act as if Redis were unavailable, to simulate an outage.
    DisableStore {
        /// Time until the simulated outage ends, or `None` if it lasts until
        /// [`AdminAction::EnableStore`].
        lifetime: Option<Duration>,
    },
    /// Ends a simulated outage, so that the service uses Redis again.
    EnableStore,
    /// Changes the log level of the service.
    SetLogLevel {
        /// New log level: `off`, `error`, `warn`, `info` or `debug`.
        level: String,
        /// Time until the configured level is restored, or `None` if the change never expires.
        lifetime: Option<Duration>,
    },
}

/// Function that carries out an operator's change and returns a message for the operator.
pub type ActionHandler = Arc<dyn Fn(AdminAction) -> TextResult + Send + Sync>;

/// Function that reads or resets the counters of one descriptor. Its arguments are the domain and
/// the descriptor as `k=v,k2=v2`.
pub type CounterHandler =
    Arc<dyn Fn(String, String) -> BoxFuture<'static, TextResult> + Send + Sync>;

/// State of the token that an operator must present to change the service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperatorToken {
    /// No token file is configured, so the debug port is read-only.
    NotConfigured,
    /// The token file cannot be read, so every change is rejected.
    Unreadable,
    /// Token from the token file. If the token is empty, the debug port is read-only.
    Text(String),
}

/// Function that returns the current state of the operator token.
pub type TokenSource = Arc<dyn Fn() -> OperatorToken + Send + Sync>;

/// Handlers for the routes that operators use to inspect and change the service.
#[derive(Clone)]
pub struct AdminHandlers {
    /// Returns the operator token. Called for each request that changes the service, so that a
    /// rotated token takes effect without a restart.
    pub token: TokenSource,
    /// Carries out an operator's change and returns a message for the operator.
    pub run_action: ActionHandler,
    /// Lists the active overrides.
    pub overrides: PageHandler,
    /// Reports the current log level and, if an operator changed it, when the change expires.
    pub log_level: PageHandler,
    /// Reads the counters of a descriptor without charging them.
    pub inspect_counters: CounterHandler,
    /// Resets the counters of a descriptor.
    pub reset_counters: CounterHandler,
}

impl std::fmt::Debug for AdminHandlers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AdminHandlers { .. }")
    }
}

/// Builds the routes for operator actions. Only POST requests require the operator token.
pub(super) fn action_routes(handlers: AdminHandlers) -> Router {
    let AdminHandlers { token, run_action, overrides, log_level, inspect_counters, reset_counters } =
        handlers;
    let action = |parse| action_route(parse, Arc::clone(&token), Arc::clone(&run_action));
    Router::new()
        .route("/switches", page_route(overrides, text_response))
        .route("/log-level", page_route(log_level, text_response).merge(action(parse_log_level)))
        .route("/switch", action(parse_set_override))
        .route("/undo", action(parse_remove_overrides))
        .route("/leave-store", action(parse_disable_store))
        .route("/return-to-store", action(|_| Ok(AdminAction::EnableStore)))
        .route(
            "/counter",
            get(move |RawQuery(query): RawQuery| async move {
                text_or_bad_request(handle_counters(&inspect_counters, query.as_deref()).await)
            }),
        )
        .route(
            "/reset",
            post(move |headers: HeaderMap, RawQuery(query): RawQuery| async move {
                authorize(&headers, &token())?;
                let result = handle_counters(&reset_counters, query.as_deref()).await;
                Ok::<_, AuthError>(text_or_bad_request(result))
            }),
        )
}

type ParseAction = fn(Option<&str>) -> Result<AdminAction, String>;

fn action_route(parse: ParseAction, token: TokenSource, run: ActionHandler) -> MethodRouter {
    post(move |headers: HeaderMap, RawQuery(query): RawQuery| async move {
        authorize(&headers, &token())?;
        Ok::<_, AuthError>(text_or_bad_request(
            parse(query.as_deref()).and_then(|action| run(action)),
        ))
    })
}

/// Reason for rejecting a request to change the service.
enum AuthError {
    ReadOnly,
    TokenUnreadable,
    WrongToken,
}

/// Checks that the request carries the operator token as its bearer token.
fn authorize(headers: &HeaderMap, token: &OperatorToken) -> Result<(), AuthError> {
    let token = match token {
        OperatorToken::Text(token) if !token.is_empty() => token,
        OperatorToken::Text(_) | OperatorToken::NotConfigured => return Err(AuthError::ReadOnly),
        OperatorToken::Unreadable => return Err(AuthError::TokenUnreadable),
    };
    // Compare hashes, so that the time of the comparison reveals nothing about the token.
    match bearer_token(headers).map(blake3::hash) == Some(blake3::hash(token.as_bytes())) {
        true => Ok(()),
        false => Err(AuthError::WrongToken),
    }
}

/// Returns the bearer token from the `Authorization` header. The scheme name is case-insensitive
/// (RFC 9110).
fn bearer_token(headers: &HeaderMap) -> Option<&[u8]> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.as_bytes().split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then_some(token)
}

impl IntoResponse for AuthError {
    fn into_response(self) -> Response {
        let (status, reason) = match self {
            AuthError::ReadOnly => (
                StatusCode::FORBIDDEN,
                "this port is read-only: start the service with --debug-token-file\n",
            ),
            AuthError::TokenUnreadable => (
                StatusCode::SERVICE_UNAVAILABLE,
                "the file of --debug-token-file cannot be read, see the log\n",
            ),
            AuthError::WrongToken => (
                StatusCode::UNAUTHORIZED,
                "send `Authorization: Bearer TOKEN` with the token of --debug-token-file\n",
            ),
        };
        (status, text_response(reason.to_owned())).into_response()
    }
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

async fn handle_counters(handler: &CounterHandler, query: Option<&str>) -> TextResult {
    let usage = "usage: domain=D&descriptor=k=v,k2=v2";
    let query = parse_parameters(query, &["domain", "descriptor"], usage)?;
    match (query.value("domain"), query.value("descriptor")) {
        (Some(domain), Some(descriptor)) => handler(domain.to_owned(), descriptor.to_owned()).await,
        _ => Err(usage.to_owned()),
    }
}

fn parse_set_override(query: Option<&str>) -> Result<AdminAction, String> {
    let usage = "usage: target=DOMAIN_OR_PATH&to=shadow|allow|deny|20%25, optionally &for=SECONDS";
    let query = parse_parameters(query, &["target", "to", "for"], usage)?;
    let (target, to) = query.value("target").zip(query.value("to")).ok_or(usage)?;
    let (target, to) = (target.to_owned(), to.to_owned());
    Ok(AdminAction::SetOverride { target, to, lifetime: parse_lifetime(&query)? })
}

fn parse_remove_overrides(query: Option<&str>) -> Result<AdminAction, String> {
    let usage = "usage: target=DOMAIN_OR_PATH, or no parameter for every override";
    let query = parse_parameters(query, &["target"], usage)?;
    Ok(AdminAction::RemoveOverrides { target: query.value("target").map(str::to_owned) })
}

fn parse_disable_store(query: Option<&str>) -> Result<AdminAction, String> {
    let usage = "usage: for=SECONDS, or no parameter to stay until /return-to-store";
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
    fn an_override_has_a_target_a_value_and_a_lifetime() {
        let action = parse_set_override(Some("target=edge.client&to=20%25&for=60s")).unwrap();
        let lifetime = Some(Duration::from_secs(60));
        let (target, to) = ("edge.client".to_owned(), "20%".to_owned());
        assert_eq!(action, AdminAction::SetOverride { target, to, lifetime });
        for bad in ["", "target=a", "target=a&to=deny&fro=1", "target=a&to=deny&for=0", "to=x&to=y"]
        {
            assert!(parse_set_override(Some(bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_empty_parameter_is_an_error_and_not_an_absent_one() {
        let error = parse_set_override(Some("target=a&to=deny&for=")).unwrap_err();
        assert!(error.starts_with("for= is empty"), "{error}");
        assert!(parse_remove_overrides(Some("target=")).is_err());
        assert!(parse_remove_overrides(None).is_ok());
        assert!(parse_disable_store(Some("for=")).is_err());
        assert!(parse_log_level(Some("to=debug&for=")).is_err());
    }

    #[test]
    fn a_change_needs_the_token() {
        let token = |text: &str| OperatorToken::Text(text.to_owned());
        let mut headers = HeaderMap::new();
        let read_only = authorize(&headers, &OperatorToken::NotConfigured);
        assert!(matches!(read_only, Err(AuthError::ReadOnly)));
        assert!(matches!(authorize(&headers, &token("")), Err(AuthError::ReadOnly)));
        assert!(matches!(authorize(&headers, &token("t")), Err(AuthError::WrongToken)));
        for wrong in ["Bearer x", "Bearer", "Basic t", "Bearer  t", "é"] {
            let wrong = axum::http::HeaderValue::from_bytes(wrong.as_bytes()).unwrap();
            headers.insert(AUTHORIZATION, wrong);
            assert!(matches!(authorize(&headers, &token("t")), Err(AuthError::WrongToken)));
        }
        for right in ["Bearer t", "bearer t"] {
            headers.insert(AUTHORIZATION, right.parse().unwrap());
            assert!(authorize(&headers, &token("t")).is_ok());
        }
        let unreadable = authorize(&headers, &OperatorToken::Unreadable);
        assert!(matches!(unreadable, Err(AuthError::TokenUnreadable)));
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
