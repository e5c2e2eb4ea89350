//! Debug port: routes that `app` lists, protected against hostile web pages, and changes that need the
//! operator token.
//!
//! POST requests need the token, and fail with status 403 if no token is configured. GET requests,
//! which only show state, need no token.

use std::sync::Arc;

use axum::Router;
use axum::extract::{RawQuery, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::{from_fn, map_response};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};

use super::backend::{Backend, TextResult};
use super::browser_guard::{AllowedHosts, protect};
use super::live_page::page_or_text;
use super::metrics_page::{MetricsEndpoint, metrics_routes};
use super::operator_token::{AuthError, authorize};
use super::query::{Parameters, Query};
use super::{error_response, text_response};

/// Header with a random number of the process, by which other replicas tell their peers apart.
pub const INSTANCE_HEADER: &str = "tidegate-instance";

/// Routes of the debug port. `B` is what the functions that answer read and change.
pub struct DebugRoutes<B>(Router<Arc<B>>);

impl<B: Backend> DebugRoutes<B> {
    /// Creates the route `/`: the live page for browsers, and `list`, a list of the routes, for other
    /// clients.
    pub fn new(list: &'static str) -> Self {
        let page = get(async move |headers: HeaderMap| page_or_text(&headers, list));
        DebugRoutes(Router::new().route("/", page))
    }

    /// Adds a page of plain text without parameters.
    #[must_use]
    pub fn page(self, path: &str, page: fn(&B) -> String) -> Self {
        let page = async move |State(backend): State<Arc<B>>| text_response(page(&backend));
        DebugRoutes(self.0.route(path, get(page)))
    }

    /// Adds a GET route that answers with plain text.
    #[must_use]
    pub fn text<F>(self, path: &str, query: Parameters, answer: fn(Arc<B>, Query) -> F) -> Self
    where
        F: Future<Output = TextResult> + Send + 'static,
    {
        DebugRoutes(self.0.route(path, get_route(query, answer, text_response)))
    }

    /// Adds a GET route that answers with JSON.
    #[must_use]
    pub fn json<F>(self, path: &str, query: Parameters, answer: fn(Arc<B>, Query) -> F) -> Self
    where
        F: Future<Output = TextResult> + Send + 'static,
    {
        DebugRoutes(self.0.route(path, get_route(query, answer, json_response)))
    }

    /// Adds a POST route, which needs the operator token and answers with plain text. None of its
    /// parameters may be empty.
    #[must_use]
    pub fn action<F>(self, path: &str, query: Parameters, answer: fn(Arc<B>, Query) -> F) -> Self
    where
        F: Future<Output = TextResult> + Send + 'static,
    {
        let handler = async move |State(backend): State<Arc<B>>,
                                  headers: HeaderMap,
                                  RawQuery(text): RawQuery| {
            authorize(&headers, &backend.token())?;
            let result = match Query::parse(text.as_deref(), query).and_then(Query::without_empty) {
                Ok(query) => answer(backend, query).await,
                Err(reason) => Err(reason),
            };
            Ok::<Response, AuthError>(respond(result, text_response))
        };
        DebugRoutes(self.0.route(path, post(handler)))
    }

    /// Builds the routes, with `metrics` under `/stats/prometheus`.
    pub fn build(
        self,
        backend: Arc<B>,
        metrics: Arc<MetricsEndpoint>,
        hosts: AllowedHosts,
    ) -> Router {
        let instance = HeaderValue::from(backend.instance());
        self.0
            .with_state(backend)
            .merge(metrics_routes(metrics, "/stats/prometheus"))
            .layer(from_fn(move |request, next| protect(hosts, request, next)))
            .layer(map_response(move |mut response: Response| {
                response.headers_mut().insert(INSTANCE_HEADER, instance.clone());
                std::future::ready(response)
            }))
    }
}

fn get_route<B: Backend, F: Future<Output = TextResult> + Send + 'static>(
    query: Parameters,
    answer: fn(Arc<B>, Query) -> F,
    ok: fn(String) -> Response,
) -> MethodRouter<Arc<B>> {
    get(async move |State(backend): State<Arc<B>>, RawQuery(text): RawQuery| {
        let result = match Query::parse(text.as_deref(), query) {
            Ok(query) => answer(backend, query).await,
            Err(reason) => Err(reason),
        };
        respond(result, ok)
    })
}

/// Turns a result into a response: `ok` for a body, status 400 for an error.
fn respond(result: TextResult, ok: fn(String) -> Response) -> Response {
    result.map_or_else(|reason| error_response(StatusCode::BAD_REQUEST, &reason), ok)
}

fn json_response(body: String) -> Response {
    ([(CONTENT_TYPE, "application/json"), (CACHE_CONTROL, "no-store")], body).into_response()
}
