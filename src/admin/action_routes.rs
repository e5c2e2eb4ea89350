//! The routes of the debug port that change something: switches, resets, rehearsals. Each needs the
//! operators' token; without one configured they answer 403. Beside them what shows their effect.
//!
//! Not here: what they do (functions are handed in).

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::RawQuery;
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};

use super::query_string::Query;
use super::{Page, plain};

/// The longest that a switch can be set for; what shall last longer belongs into the policy.
const FOR_SECONDS_MAX: u64 = 30 * 86_400;

/// How long a profile takes where nobody says, and at most: the sampling is cheap, but nobody should
/// forget one.
const PROFILE_SECONDS: u64 = 5;
const PROFILE_SECONDS_MAX: u64 = 30;

/// The longest that a request of the debug port may take: a profile, and finding its names.
pub(super) const DEBUG_REQUEST_MAX: Duration = Duration::from_secs(PROFILE_SECONDS_MAX + 30);

/// What an operator wants changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// Set a switch on a domain or a rule's path: `shadow`, `allow`, `deny`, `20%`.
    Switch {
        /// A domain, or a rule's path as `/rlconfig` lists it.
        target: String,
        /// What to make of it.
        to: String,
        /// For how long; `None`: until it is refunded.
        lasts: Option<Duration>,
    },
    /// Undo the switch on a target; `None`: every switch.
    Undo {
        /// A domain or a rule's path.
        target: Option<String>,
    },
    /// Act as if the store were away.
    LeaveStore {
        /// For how long; `None`: until it is refunded.
        lasts: Option<Duration>,
    },
    /// Ask the store again.
    ReturnToStore,
    /// Write logs from another level on.
    LogLevel {
        /// `off`, `error`, `warn`, `info`, `debug`.
        to: String,
        /// For how long; `None`: until it is set again.
        lasts: Option<Duration>,
    },
}

/// What was done, or why it was not.
pub type Done = Result<String, String>;

/// Carries out an order.
pub type Orders = Arc<dyn Fn(Order) -> Done + Send + Sync>;

/// Does something with the counters of a domain's descriptor (`k=v,k2=v2`).
pub type Counters =
    Arc<dyn Fn(String, String) -> Pin<Box<dyn Future<Output = Done> + Send>> + Send + Sync>;

/// Profiles the process for so long, in the format of pprof.
pub type Profiles =
    Arc<dyn Fn(Duration) -> Pin<Box<dyn Future<Output = Profiled> + Send>> + Send + Sync>;

/// A profile, or why there is none.
pub type Profiled = Result<Vec<u8>, String>;

/// The operators' token, if there is one.
pub type Token = Arc<dyn Fn() -> Option<String> + Send + Sync>;

/// What operators can do.
#[derive(Clone)]
pub struct Operate {
    /// The token, read anew for each write, so that it can be rotated; `None`: nobody may write.
    pub token: Token,
    /// Carries out orders.
    pub orders: Orders,
    /// The switches that are set.
    pub switches: Page,
    /// From which level on logs are written, and for how long.
    pub log_level: Page,
    /// Profiles the process.
    pub profile: Profiles,
    /// Shows counters, charges nothing.
    pub counter: Counters,
    /// Makes counters as good as new.
    pub reset: Counters,
}

impl std::fmt::Debug for Operate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Operate { .. }")
    }
}

/// The routes.
pub(super) fn operate_routes(operate: Operate) -> Router {
    let Operate { token, orders, switches, log_level: level, profile, counter, reset } = operate;
    let order = |read: Reads| {
        let (token, orders) = (Arc::clone(&token), Arc::clone(&orders));
        post(move |headers: HeaderMap, RawQuery(query): RawQuery| {
            let allowed = may(&headers, token().as_deref());
            let done = allowed.map(|()| {
                Query::read(query.as_deref()).and_then(|q| read(&q)).and_then(|o| orders(o))
            });
            async move { answered(done) }
        })
    };
    let page = |page: Page| {
        get(move || {
            let text = page();
            async move { plain(text) }
        })
    };
    Router::new()
        .route("/switches", page(switches))
        .route("/log-level", page(level).merge(order(log_level)))
        .route("/switch", order(switch))
        .route("/undo", order(undo))
        .route("/leave-store", order(leave_store))
        .route("/return-to-store", order(|_| Ok(Order::ReturnToStore)))
        .route(
            "/counter",
            get(move |RawQuery(query): RawQuery| async move {
                answered(Ok(counted(&counter, query).await))
            }),
        )
        .route("/pprof", profiled(Arc::clone(&token), profile))
        .route(
            "/reset",
            post(move |headers: HeaderMap, RawQuery(query): RawQuery| async move {
                match may(&headers, token().as_deref()) {
                    Ok(()) => answered(Ok(counted(&reset, query).await)),
                    Err(refused) => answered(Err(refused)),
                }
            }),
        )
}

/// It needs the token as writes do: it costs CPU, and tells what the process does.
fn profiled(token: Token, profile: Profiles) -> MethodRouter {
    get(move |headers: HeaderMap, RawQuery(query): RawQuery| async move {
        if let Err(refused) = may(&headers, token().as_deref()) {
            return refused.into_response();
        }
        let profiled = match profile_lasts(query.as_deref()) {
            Ok(lasts) => profile(lasts).await,
            Err(wrong) => Err(wrong),
        };
        match profiled {
            Ok(bytes) => ([(CONTENT_TYPE, "application/octet-stream")], bytes).into_response(),
            Err(wrong) => answered(Ok(Err(wrong))),
        }
    })
}

fn profile_lasts(query: Option<&str>) -> Result<Duration, String> {
    let query = Query::read(query)?;
    query.only(&["seconds"], &[], "ask with seconds=NUMBER, or nothing")?;
    match query.number("seconds", PROFILE_SECONDS, PROFILE_SECONDS_MAX)? {
        0 => Err("seconds= is at least 1".to_owned()),
        seconds => Ok(Duration::from_secs(seconds)),
    }
}

/// Makes an order out of a query.
type Reads = fn(&Query) -> Result<Order, String>;

/// Why a write is refused.
pub(super) enum Refused {
    NoToken,
    WrongToken,
}

/// Whether these headers carry the token.
pub(super) fn may(headers: &HeaderMap, token: Option<&str>) -> Result<(), Refused> {
    let token = token.filter(|token| !token.is_empty()).ok_or(Refused::NoToken)?;
    let shown =
        headers.get(AUTHORIZATION).and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
    // Compared by their hashes: how long that takes says nothing of the token.
    let same = shown.is_some_and(|shown| blake3::hash(shown) == blake3::hash(token.as_bytes()));
    if same { Ok(()) } else { Err(Refused::WrongToken) }
}

fn answered(done: Result<Done, Refused>) -> Response {
    match done {
        Ok(Ok(text)) => plain(text),
        Ok(Err(wrong)) => (StatusCode::BAD_REQUEST, plain(format!("{wrong}\n"))).into_response(),
        Err(refused) => refused.into_response(),
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let (status, why) = match self {
            Refused::NoToken => (
                StatusCode::FORBIDDEN,
                "this port is read-only: start the service with --debug-token-file\n",
            ),
            Refused::WrongToken => (
                StatusCode::UNAUTHORIZED,
                "send `Authorization: Bearer TOKEN` with the token of --debug-token-file\n",
            ),
        };
        (status, plain(why.to_owned())).into_response()
    }
}

async fn counted(counters: &Counters, query: Option<String>) -> Done {
    let query = Query::read(query.as_deref())?;
    let how = "ask with domain=D and descriptor=k=v,k2=v2";
    query.only(&["domain", "descriptor"], &[], how)?;
    match (query.value("domain"), query.value("descriptor")) {
        (Some(domain), Some(descriptor)) => counters(domain, descriptor).await,
        _ => Err(how.to_owned()),
    }
}

fn switch(query: &Query) -> Result<Order, String> {
    let how = "say target=DOMAIN_OR_PATH, to=shadow|allow|deny|20% and, if you like, for=SECONDS";
    query.only(&["target", "to", "for"], &[], how)?;
    match (query.value("target"), query.value("to")) {
        (Some(target), Some(to)) => Ok(Order::Switch { target, to, lasts: lasts(query)? }),
        _ => Err(how.to_owned()),
    }
}

fn undo(query: &Query) -> Result<Order, String> {
    query.only(&["target"], &[], "say target=DOMAIN_OR_PATH, or nothing for all")?;
    Ok(Order::Undo { target: query.value("target") })
}

fn leave_store(query: &Query) -> Result<Order, String> {
    query.only(&["for"], &[], "say for=SECONDS, or nothing until /return-to-store")?;
    Ok(Order::LeaveStore { lasts: lasts(query)? })
}

fn log_level(query: &Query) -> Result<Order, String> {
    let how = "say to=off|error|warn|info|debug and, if you like, for=SECONDS";
    query.only(&["to", "for"], &[], how)?;
    let to = query.value("to").ok_or(how)?;
    Ok(Order::LogLevel { to, lasts: lasts(query)? })
}

fn lasts(query: &Query) -> Result<Option<Duration>, String> {
    let Some(text) = query.value("for") else { return Ok(None) };
    match text.trim_end_matches('s').parse() {
        Ok(seconds @ 1..=FOR_SECONDS_MAX) => Ok(Some(Duration::from_secs(seconds))),
        Ok(_) | Err(_) => Err(format!("for= is 1 to {FOR_SECONDS_MAX} seconds")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(query: &str) -> Query {
        Query::read(Some(query)).unwrap()
    }

    #[test]
    fn a_switch_is_read_with_its_target_and_time() {
        let order = switch(&asked("target=edge.client&to=20%25&for=60s")).unwrap();
        let lasts = Some(Duration::from_secs(60));
        assert_eq!(order, Order::Switch { target: "edge.client".into(), to: "20%".into(), lasts });
        for bad in ["", "target=a", "target=a&to=deny&fro=1", "target=a&to=deny&for=0", "to=x&to=y"]
        {
            assert!(switch(&asked(bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn without_the_token_nothing_is_written() {
        let mut headers = HeaderMap::new();
        assert!(matches!(may(&headers, None), Err(Refused::NoToken)));
        assert!(matches!(may(&headers, Some("")), Err(Refused::NoToken)));
        assert!(matches!(may(&headers, Some("t")), Err(Refused::WrongToken)));
        headers.insert(AUTHORIZATION, "Bearer x".parse().unwrap());
        assert!(matches!(may(&headers, Some("t")), Err(Refused::WrongToken)));
        headers.insert(AUTHORIZATION, "Bearer t".parse().unwrap());
        assert!(may(&headers, Some("t")).is_ok());
    }
}
