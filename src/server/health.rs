//! Health service (`grpc.health.v1`), which reports the same status for every name in
//! [`HEALTH_NAMES`].
//!
//! Uses only the generated types of tonic-health, because its reporter always reports SERVING for
//! the empty name, and its watch streams would keep connections open through a drain.
//!
//! Not here: deciding whether the server is ready (`app`).

use std::pin::Pin;

use futures_util::{Stream, stream};
use tokio::sync::watch;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::{self, HealthServer};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use super::rls_service::SERVICE_NAME;

/// Service names for which clients can query the health status: the empty name for the whole
/// server, the name that envoyproxy/ratelimit uses, and the full name of the rate limit service.
pub const HEALTH_NAMES: [&str; 3] = ["", "ratelimit", SERVICE_NAME];

/// Health status that the server reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum HealthState {
    #[default]
    NotServing,
    Serving,
    /// NOT_SERVING, permanently, because the server is shutting down. Watch streams end.
    ShutDown,
}

/// Health service, with the server status that it reports, at first NOT_SERVING. Clones share the
/// status.
#[derive(Clone, Debug, Default)]
pub struct Health {
    state: watch::Sender<HealthState>,
}

impl Health {
    /// Sets the status to SERVING or NOT_SERVING. Does nothing after [`Health::shut_down`].
    pub fn set_serving(&self, serving: bool) {
        let next = if serving { HealthState::Serving } else { HealthState::NotServing };
        self.state.send_if_modified(|state| {
            let changes = *state != HealthState::ShutDown && *state != next;
            if changes {
                *state = next;
            }
            changes
        });
    }

    /// Sets the status to NOT_SERVING permanently and ends all watch streams, so that a drain does
    /// not wait for them.
    pub fn shut_down(&self) {
        self.state.send_replace(HealthState::ShutDown);
    }

    /// Returns whether the status is SERVING.
    pub fn is_serving(&self) -> bool {
        *self.state.borrow() == HealthState::Serving
    }

    /// Returns the gRPC health service. It rejects requests of more than `message_bytes_max` bytes.
    pub(crate) fn service(&self, message_bytes_max: usize) -> HealthServer<Health> {
        HealthServer::new(self.clone()).max_decoding_message_size(message_bytes_max)
    }
}

fn response(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}

/// Returns the status of a service, which is known or not, in this state of the server.
fn status_of(is_known: bool, state: HealthState) -> ServingStatus {
    match state {
        _ if !is_known => ServingStatus::ServiceUnknown,
        HealthState::Serving => ServingStatus::Serving,
        HealthState::NotServing | HealthState::ShutDown => ServingStatus::NotServing,
    }
}

/// State of a watch stream: whether the watched service is known, and the status that was sent last.
struct WatchState {
    state: watch::Receiver<HealthState>,
    is_known: bool,
    sent: Option<ServingStatus>,
}

/// Waits for another status than the one sent last. The stream ends when the server shuts down and
/// the client knows the status. An unknown name never becomes known, but the protocol asks to keep
/// its stream open.
async fn next_message(
    WatchState { mut state, is_known, sent }: WatchState,
) -> Option<(Result<HealthCheckResponse, Status>, WatchState)> {
    let is_next = |now: &HealthState| {
        *now == HealthState::ShutDown || Some(status_of(is_known, *now)) != sent
    };
    let now = *state.wait_for(is_next).await.ok()?;
    let next = Some(status_of(is_known, now)).filter(|next| Some(*next) != sent)?;
    Some((Ok(response(next)), WatchState { state, is_known, sent: Some(next) }))
}

#[tonic::async_trait]
impl health_server::Health for Health {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        if HEALTH_NAMES.contains(&request.get_ref().service.as_str()) {
            Ok(Response::new(response(status_of(true, *self.state.borrow()))))
        } else {
            Err(Status::not_found("no service of that name"))
        }
    }

    type WatchStream =
        Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send + 'static>>;

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let is_known = HEALTH_NAMES.contains(&request.get_ref().service.as_str());
        let watch = WatchState { state: self.state.subscribe(), is_known, sent: None };
        Ok(Response::new(Box::pin(stream::unfold(watch, next_message))))
    }
}
