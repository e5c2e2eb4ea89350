//! `grpc.health.v1`: may callers come here? The truth for every name this server is asked under.
//!
//! tonic-health's own reporter says SERVING for the empty name whatever happens, and its watchers
//! keep a connection alive through a drain; hence these few lines. Not here: when the server is
//! ready (`app`).

use std::pin::Pin;

use futures_util::{Stream, stream};
use tokio::sync::watch;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::{self, HealthServer};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use super::rls_service::SERVICE_NAME;

/// The names it knows: the server as a whole, envoyproxy/ratelimit's name, and the full one.
pub const HEALTH_NAMES: [&str; 3] = ["", "ratelimit", SERVICE_NAME];

/// What the server says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    NotServing,
    Serving,
    /// Not serving, for good: watchers are sent away.
    Leaving,
}

/// Says whether callers may come. All clones are one switch.
#[derive(Clone, Debug)]
pub struct Health {
    standing: watch::Sender<Standing>,
}

impl Health {
    /// A switch that stands at NOT_SERVING.
    pub fn new() -> Self {
        Health { standing: watch::Sender::new(Standing::NotServing) }
    }

    /// Tells everybody SERVING or NOT_SERVING, until [`Health::leave`].
    pub fn set_serving(&self, serving: bool) {
        let next = if serving { Standing::Serving } else { Standing::NotServing };
        self.standing.send_if_modified(|standing| {
            let changes = *standing != Standing::Leaving && *standing != next;
            if changes {
                *standing = next;
            }
            changes
        });
    }

    /// Tells everybody NOT_SERVING for good, and ends the watchers' streams: a drain need not wait
    /// for them.
    pub fn leave(&self) {
        self.standing.send_replace(Standing::Leaving);
    }

    /// Whether it says SERVING.
    pub fn is_serving(&self) -> bool {
        *self.standing.borrow() == Standing::Serving
    }

    /// The gRPC service.
    pub(crate) fn service(&self) -> HealthServer<Health> {
        HealthServer::new(self.clone())
    }
}

impl Default for Health {
    fn default() -> Self {
        Health::new()
    }
}

fn told(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}

fn truth(standing: Standing) -> HealthCheckResponse {
    told(match standing {
        Standing::Serving => ServingStatus::Serving,
        Standing::NotServing | Standing::Leaving => ServingStatus::NotServing,
    })
}

/// Where a watcher stands: before its first message, or behind the last one.
enum Watching {
    Known { standing: watch::Receiver<Standing>, told: Option<Standing> },
    Unknown { standing: watch::Receiver<Standing>, told: bool },
}

async fn next(watching: Watching) -> Option<(Result<HealthCheckResponse, Status>, Watching)> {
    match watching {
        Watching::Known { told: Some(Standing::Leaving), .. } => None,
        Watching::Known { mut standing, told } => {
            let now = *standing.wait_for(|now| Some(*now) != told).await.ok()?;
            // Whoever was told NOT_SERVING already learns nothing from Leaving but the end.
            if (now, told) == (Standing::Leaving, Some(Standing::NotServing)) {
                return None;
            }
            Some((Ok(truth(now)), Watching::Known { standing, told: Some(now) }))
        }
        Watching::Unknown { standing, told: false } => {
            let unknown = told(ServingStatus::ServiceUnknown);
            Some((Ok(unknown), Watching::Unknown { standing, told: true }))
        }
        Watching::Unknown { mut standing, told: true } => {
            // No name becomes known later; the stream stays open until the server leaves.
            let _ = standing.wait_for(|now| *now == Standing::Leaving).await;
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
            Ok(Response::new(truth(*self.standing.borrow())))
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
        let standing = self.standing.subscribe();
        let watching = if HEALTH_NAMES.contains(&request.get_ref().service.as_str()) {
            Watching::Known { standing, told: None }
        } else {
            Watching::Unknown { standing, told: false }
        };
        Ok(Response::new(Box::pin(stream::unfold(watching, next))))
    }
}
