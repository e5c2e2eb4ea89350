//! What the HTTP ports show and change: the interface to the running service, which `app`
//! implements.

use std::time::Duration;

use axum::http::HeaderMap;

use crate::domain::HttpReply;
use crate::telemetry::TopBy;

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

    /// Lists all limits, one per line, in the format that envoyproxy/ratelimit uses.
    fn rlconfig(&self) -> String;

    /// Lists statistics per limit, under the statsd names of envoyproxy/ratelimit.
    fn stats(&self) -> String;

    /// Lists all settings with their values and sources. Secrets are hidden.
    fn config(&self) -> String;

    /// Explains which rules a request matches, and lists the Redis keys of the counters.
    fn explain(&self, query: &SampleQuery) -> TextResult;

    /// Lists the rules of the active policy that match a search, as JSON.
    fn policy(&self, query: &PolicyQuery) -> String;

    /// Lists the keys with the most rejections or hits, or near their limits, as JSON.
    fn top(&self, by: TopBy, scope: Scope) -> impl Future<Output = String> + Send;

    /// Reports the current rates, the latency percentiles and the state of Redis or of the memory, as JSON.
    fn now(&self, scope: Scope) -> impl Future<Output = String> + Send;

    /// Reports the rates of the last hour, with at most `rules_max` rules, as JSON.
    fn history(&self, rules_max: usize, scope: Scope) -> impl Future<Output = String> + Send;

    /// Predicts the decision on a request without charging any counter, as JSON.
    fn try_request(&self, query: SampleQuery) -> impl Future<Output = TextResult> + Send;

    /// Lists overrides in force after the one with the id `after`, as JSON.
    fn overrides(&self, after: &str) -> String;

    /// Reports the current log level and, if an operator changed it, when the change expires.
    fn log_level(&self) -> String;

    /// Reads the counters of a descriptor, given as `k=v,k2=v2`, without charging them, or resets
    /// them.
    fn counters(
        &self,
        domain: &str,
        descriptor: &str,
        reset: bool,
    ) -> impl Future<Output = TextResult> + Send;

    /// Carries out an operator's change and returns a message for the operator.
    fn run_action(&self, action: AdminAction) -> impl Future<Output = TextResult> + Send;

    /// Returns a random number of the process.
    fn instance(&self) -> u64;

    /// Returns the operator token. Called for each request that changes the service, so that a
    /// rotated token takes effect without a restart.
    fn token(&self) -> OperatorToken;
}

/// Query parameters of `/explain` and `/try`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SampleQuery {
    /// Domain of the request.
    pub domain: String,
    /// Descriptors of the request, each as `k=v,k2=v2`.
    pub descriptors: Vec<String>,
    /// Hits that each descriptor would charge; 0 only checks the limits.
    pub hits: u64,
}

/// Replicas for which a page answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All replicas that `--peers` names, and this one.
    All,
    /// This replica alone, which asks no other.
    Replica,
}

/// Query parameters of `/policy`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyQuery {
    /// Text to search for in the paths, file names and limit names of rules, ignoring case.
    pub search: Option<String>,
    /// Maximum number of rules to list.
    pub rules_max: usize,
}

/// Override as an operator describes it. Its end is one of `lifetime`, the field `until`, and
/// `is_permanent`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OverrideParameters {
    /// Target of the override: a domain, or the path of a rule as listed by `/rlconfig`.
    pub target: String,
    /// Values of the other parameters by name, such as `descriptor`, `limit`, or `reason`.
    pub fields: Vec<(String, String)>,
    /// Time until the override ends.
    pub lifetime: Option<Duration>,
    /// Whether the override has no end.
    pub is_permanent: bool,
}

/// Overrides to delete: those that fit every value that is given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OverrideSelector {
    /// Domain, or path of a rule. `None` selects those of every domain and rule.
    pub target: Option<String>,
    /// Descriptor, as `k=v,k2=v2`. `None` selects those that apply to whole domains and rules.
    pub descriptor: Option<String>,
    /// Name of the limit.
    pub limit_name: Option<String>,
    /// Kind of the change: `numbers`, `scale`, or `mode`.
    pub kind: Option<String>,
}

/// Change requested by an operator. A change without a `lifetime` lasts until an operator ends it
/// or the process ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdminAction {
    /// Overrides the limits of a domain, a rule, or values.
    SetOverride(OverrideParameters),
    /// Deletes the overrides that the selector selects.
    DeleteOverrides(OverrideSelector),
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
