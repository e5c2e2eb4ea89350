//! Health service (`grpc.health.v1`), with the same status under every name of this server.
//!
//! The reporter of tonic-health always says SERVING for the empty name, and its watch streams keep
//! connections open through a drain; so only its generated types are used. Not here: when the server
//! is ready (`app`).

use std::pin::Pin;

use futures_util::{Stream, stream};
use tokio::sync::watch;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::{self, HealthServer};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use super::rls_service::SERVICE_NAME;

/// Service names with a health status: the whole server, the name that envoyproxy/ratelimit uses, and
/// the full service name.
pub const HEALTH_NAMES: [&str; 3] = ["", "ratelimit", SERVICE_NAME];

/// Health of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HealthState {
    NotServing,
    Serving,
    /// Not serving, permanently; watch streams end.
    ShutDown,
}

/// The health status. Clones share it.
#[derive(Clone, Debug)]
pub struct Health {
    state: watch::Sender<HealthState>,
}

impl Health {
    /// Returns a status of NOT_SERVING.
    pub fn new() -> Self {
        Health { state: watch::Sender::new(HealthState::NotServing) }
    }

    /// Sets SERVING or NOT_SERVING; no effect after [`Health::shut_down`].
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

    /// Sets NOT_SERVING permanently and ends all watch streams, so that a drain does not wait for them.
    pub fn shut_down(&self) {
        self.state.send_replace(HealthState::ShutDown);
    }

    /// Returns whether the status is SERVING.
    pub fn is_serving(&self) -> bool {
        *self.state.borrow() == HealthState::Serving
    }

    /// Returns the gRPC service.
    pub(crate) fn service(&self) -> HealthServer<Health> {
        HealthServer::new(self.clone())
    }
}

impl Default for Health {
    fn default() -> Self {
        Health::new()
    }
}

fn sent(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}

fn truth(state: HealthState) -> HealthCheckResponse {
    sent(match state {
        HealthState::Serving => ServingStatus::Serving,
        HealthState::NotServing | HealthState::ShutDown => ServingStatus::NotServing,
    })
}

/// State of a watch stream: before its first message, or after the last one sent.
enum Watching {
    Known { state: watch::Receiver<HealthState>, sent: Option<HealthState> },
    Unknown { state: watch::Receiver<HealthState>, sent: bool },
}

async fn next(watching: Watching) -> Option<(Result<HealthCheckResponse, Status>, Watching)> {
    match watching {
        Watching::Known { sent: Some(HealthState::ShutDown), .. } => None,
        Watching::Known { mut state, sent } => {
            let now = *state.wait_for(|now| Some(*now) != sent).await.ok()?;
            // After NOT_SERVING, shutting down sends no further message; the stream just ends.
            if (now, sent) == (HealthState::ShutDown, Some(HealthState::NotServing)) {
                return None;
            }
            Some((Ok(truth(now)), Watching::Known { state, sent: Some(now) }))
        }
        Watching::Unknown { state, sent: false } => {
            let unknown = sent(ServingStatus::ServiceUnknown);
            Some((Ok(unknown), Watching::Unknown { state, sent: true }))
        }
        Watching::Unknown { mut state, sent: true } => {
            // No name becomes known later; the stream stays open until the server shuts down.
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
            Ok(Response::new(truth(*self.state.borrow())))
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
        let watching = if HEALTH_NAMES.contains(&request.get_ref().service.as_str()) {
            Watching::Known { state, sent: None }
        } else {
            Watching::Unknown { state, sent: false }
        };
        Ok(Response::new(Box::pin(stream::unfold(watching, next))))
    }
}
