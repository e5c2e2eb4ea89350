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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HealthState {
    NotServing,
    Serving,
    /// NOT_SERVING, permanently, because the server is shutting down. Watch streams end.
    ShutDown,
}

/// Health service, with the server status that it reports. Clones share the status.
#[derive(Clone, Debug)]
pub struct Health {
    state: watch::Sender<HealthState>,
}

impl Health {
    /// Creates a health service that reports NOT_SERVING.
    pub fn new() -> Self {
        Health { state: watch::Sender::new(HealthState::NotServing) }
    }

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

impl Default for Health {
    fn default() -> Self {
        Health::new()
    }
}

fn response(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}

fn response_for_state(state: HealthState) -> HealthCheckResponse {
    response(match state {
        HealthState::Serving => ServingStatus::Serving,
        HealthState::NotServing | HealthState::ShutDown => ServingStatus::NotServing,
    })
}

/// State of a watch stream. Records whether the watched service name is known and which status was
/// sent last.
enum WatchState {
    Known { state: watch::Receiver<HealthState>, sent: Option<HealthState> },
    Unknown { state: watch::Receiver<HealthState>, sent: bool },
}

async fn next_message(
    watch: WatchState,
) -> Option<(Result<HealthCheckResponse, Status>, WatchState)> {
    match watch {
        WatchState::Known { sent: Some(HealthState::ShutDown), .. } => None,
        WatchState::Known { mut state, sent } => {
            let now = *state.wait_for(|now| Some(*now) != sent).await.ok()?;
            // The client already knows NOT_SERVING, so a shutdown ends the stream without a
            // message.
            if (now, sent) == (HealthState::ShutDown, Some(HealthState::NotServing)) {
                return None;
            }
            Some((Ok(response_for_state(now)), WatchState::Known { state, sent: Some(now) }))
        }
        WatchState::Unknown { state, sent: false } => {
            let unknown = response(ServingStatus::ServiceUnknown);
            Some((Ok(unknown), WatchState::Unknown { state, sent: true }))
        }
        WatchState::Unknown { mut state, sent: true } => {
            // An unknown name never becomes known. The protocol asks to keep the stream open
            // anyway, so it stays open until the server shuts down.
            let _ = state.wait_for(|now| *now == HealthState::ShutDown).await;
            None
        }
    }
}

#[tonic::async_trait]
impl health_server::Health for Health {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        if HEALTH_NAMES.contains(&request.get_ref().service.as_str()) {
            Ok(Response::new(response_for_state(*self.state.borrow())))
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
        let state = self.state.subscribe();
        let watch = if HEALTH_NAMES.contains(&request.get_ref().service.as_str()) {
            WatchState::Known { state, sent: None }
        } else {
            WatchState::Unknown { state, sent: false }
        };
        Ok(Response::new(Box::pin(stream::unfold(watch, next_message))))
    }
}
