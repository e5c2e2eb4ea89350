//! Interface of the HTTP ports to the running service, which `app` implements. The routes of the
//! debug port are a list of their own ([`DebugRoutes`](super::DebugRoutes)).

use axum::http::HeaderMap;

use crate::domain::HttpReply;

/// Response body, or an error message that is sent with status 400.
pub type TextResult = Result<String, String>;

/// Running service behind the HTTP ports.
pub trait Backend: Send + Sync + 'static {
    /// Returns whether the process accepts requests: a policy is loaded and no shutdown has begun.
    fn is_ready(&self) -> bool;

    /// Returns why requests are currently decided without Redis, or `None` if Redis decides them.
    fn outage(&self) -> Option<String>;

    /// Decides the rate limit request in the body of a `/json` request.
    fn decide_json(&self, body: Vec<u8>) -> impl Future<Output = HttpReply> + Send;

    /// Decides a forward-auth request, in which a proxy asks whether to admit an HTTP request.
    /// `headers` are those of the HTTP request, and `x-forwarded-*` headers that describe it.
    /// `denied_status` is the status of the response if the HTTP request is denied: 429 or 403.
    fn authorize(
        &self,
        domain: &str,
        headers: &HeaderMap,
        denied_status: u16,
    ) -> impl Future<Output = HttpReply> + Send;

    /// Returns a random number of the process.
    fn instance(&self) -> u64;

    /// Returns the operator token. Called for each request that changes the service, so that a
    /// rotated token takes effect without a restart.
    fn token(&self) -> OperatorToken;
}

/// Replicas for which a page answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All replicas that `--peers` names, and this one.
    All,
    /// This replica alone, which asks no other.
    Replica,
}

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
