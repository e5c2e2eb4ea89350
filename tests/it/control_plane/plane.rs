//! A control plane that answers as go-control-plane's snapshot cache does: silent until it has a
//! snapshot for the node, at once if the client's version differs, deaf to stale nonces.

#![allow(clippy::disallowed_methods, reason = "records when requests arrived")]

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::Stream;
use prost_types::Any;
use socket2::{Domain, Socket, Type};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{mpsc, watch};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::transport::{Certificate, Identity, Server, ServerTlsConfig};
use tonic::{Request, Response, Status, Streaming};

use super::messages::{
    AggregatedDiscoveryService, AggregatedDiscoveryServiceServer, DiscoveryRequest,
    DiscoveryResponse, TYPE_URL,
};
use crate::support::certificate_authority::{Authority, Identity as Signed};
use crate::support::wait::until;

/// What the control plane sends to a node.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshot {
    pub(crate) version: String,
    pub(crate) resources: Vec<Any>,
}

/// A request as it arrived.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) at: Instant,
    pub(crate) request: DiscoveryRequest,
    /// Whether its nonce was stale, so that it was ignored.
    pub(crate) stale: bool,
    /// The value of the header `x-tenant`.
    pub(crate) tenant: Option<String>,
}

impl Seen {
    pub(crate) fn rejection(&self) -> Option<&str> {
        self.request.error_detail.as_ref().map(|status| &*status.message)
    }
}

struct Shared {
    node: String,
    snapshot: watch::Sender<Option<Snapshot>>,
    /// Number of responses of another type to send.
    of_another_type: watch::Sender<u32>,
    /// How often each response is sent.
    copies: AtomicUsize,
    seen: Mutex<Vec<Seen>>,
}

/// The control plane; it ends when dropped.
pub(crate) struct ControlPlane {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
    runtime: Option<Runtime>,
    /// While it is killed, its port, on which nothing listens: another test would take it otherwise.
    port: Option<Socket>,
    tls: Option<ServerTlsConfig>,
}

/// TLS as Envoy Gateway has it: a client certificate is required.
pub(crate) fn mutual_tls(server: &Signed, clients: &Authority) -> ServerTlsConfig {
    ServerTlsConfig::new()
        .identity(Identity::from_pem(&server.certificate, &server.key))
        .client_ca_root(Certificate::from_pem(&clients.certificate))
}

impl ControlPlane {
    /// Starts without a snapshot, for one node.
    pub(crate) fn start(node: &str, tls: Option<ServerTlsConfig>) -> ControlPlane {
        let shared = Arc::new(Shared {
            node: node.to_owned(),
            snapshot: watch::Sender::new(None),
            of_another_type: watch::Sender::new(0),
            copies: AtomicUsize::new(1),
            seen: Mutex::default(),
        });
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut plane = ControlPlane { address, shared, runtime: None, port: None, tls };
        plane.restart();
        plane
    }

    /// Listens again on the same port, with what it knew before.
    pub(crate) fn restart(&mut self) {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let address = self.address;
        let listener = until("the port of the control plane", || {
            runtime.block_on(TcpListener::bind(address)).ok()
        });
        self.address = listener.local_addr().unwrap();
        self.port = None;
        let mut server = Server::builder();
        if let Some(tls) = &self.tls {
            server = server.tls_config(tls.clone()).unwrap();
        }
        let service = AggregatedDiscoveryServiceServer::new(Service(Arc::clone(&self.shared)));
        let serving =
            server.add_service(service).serve_with_incoming(TcpListenerStream::new(listener));
        runtime.spawn(serving);
        self.runtime = Some(runtime);
    }

    /// Ends with all connections, as if killed.
    pub(crate) fn kill(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_secs(5));
            let address = self.address.into();
            self.port = Some(until("the port of the killed control plane", || {
                let port = Socket::new(Domain::IPV4, Type::STREAM, None).ok()?;
                port.set_reuse_address(true).ok()?;
                port.bind(&address).ok().map(|()| port)
            }));
        }
    }

    pub(crate) fn set(&self, version: &str, resources: Vec<Any>) {
        let version = version.to_owned();
        self.shared.snapshot.send_replace(Some(Snapshot { version, resources }));
    }

    /// Sends a response of a type that the client has not asked for.
    pub(crate) fn send_another_type(&self) {
        self.shared.of_another_type.send_modify(|count| *count += 1);
    }

    /// Sends each response this often from now on, without waiting for an answer.
    pub(crate) fn send_copies(&self, copies: usize) {
        self.shared.copies.store(copies, Ordering::Relaxed);
    }

    pub(crate) fn set_tls(&mut self, tls: ServerTlsConfig) {
        self.tls = Some(tls);
    }

    /// All requests so far.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.shared.seen.lock().unwrap().clone()
    }

    /// Waits for a request that `is_wanted`.
    pub(crate) fn sees(&self, what: &str, is_wanted: impl Fn(&Seen) -> bool) -> Seen {
        until(what, || self.seen().into_iter().find(|seen| !seen.stale && is_wanted(seen)))
    }

    /// Waits for the ACK of a version.
    pub(crate) fn acknowledged(&self, version: &str) -> Seen {
        self.sees(&format!("the ACK of {version:?}"), |seen| {
            let request = &seen.request;
            request.version_info == version
                && !request.response_nonce.is_empty()
                && request.error_detail.is_none()
        })
    }

    /// Waits for a NACK.
    pub(crate) fn rejected(&self) -> Seen {
        self.sees("a NACK", |seen| seen.request.error_detail.is_some())
    }

    pub(crate) fn nacks(&self) -> Vec<Seen> {
        self.seen().into_iter().filter(|seen| seen.request.error_detail.is_some()).collect()
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

struct Service(Arc<Shared>);

#[tonic::async_trait]
impl AggregatedDiscoveryService for Service {
    type StreamAggregatedResourcesStream =
        Pin<Box<dyn Stream<Item = Result<DiscoveryResponse, Status>> + Send>>;

    async fn stream_aggregated_resources(
        &self,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamAggregatedResourcesStream>, Status> {
        let (responses, outgoing) = mpsc::channel(16);
        let tenant = request.metadata().get("x-tenant").and_then(|it| it.to_str().ok());
        let tenant = tenant.map(str::to_owned);
        let exchange = Exchange { shared: Arc::clone(&self.0), tenant, responses };
        tokio::spawn(exchange.run(request.into_inner()));
        Ok(Response::new(Box::pin(ReceiverStream::new(outgoing))))
    }
}

/// One stream.
struct Exchange {
    shared: Arc<Shared>,
    tenant: Option<String>,
    responses: mpsc::Sender<Result<DiscoveryResponse, Status>>,
}

impl Exchange {
    async fn run(self, mut requests: Streaming<DiscoveryRequest>) {
        let mut snapshots = self.shared.snapshot.subscribe();
        let mut of_another_type = self.shared.of_another_type.subscribe();
        let (mut nonce, mut sent) = (String::new(), 0);
        // The version that an open watch waits to change; `None` without an open watch.
        let mut watched: Option<String> = None;
        let mut is_ours = false;
        loop {
            tokio::select! {
                request = requests.next() => {
                    let Some(Ok(request)) = request else { return };
                    let stale = !nonce.is_empty() && request.response_nonce != nonce;
                    is_ours |= request.node.as_ref().is_some_and(|it| it.id == self.shared.node);
                    let version = request.version_info.clone();
                    self.note(request, stale);
                    if stale {
                        continue;
                    }
                    watched = Some(version);
                }
                changed = snapshots.changed() => if changed.is_err() { return },
                changed = of_another_type.changed() => {
                    let type_url = "type.googleapis.com/of.another.Type".to_owned();
                    let response = DiscoveryResponse { type_url, ..DiscoveryResponse::default() };
                    if changed.is_err() || self.responses.send(Ok(response)).await.is_err() {
                        return;
                    }
                    continue;
                }
            }
            let snapshot = snapshots.borrow_and_update().clone().filter(|_| is_ours);
            if let (Some(snapshot), Some(version)) = (snapshot, &watched)
                && snapshot.version != *version
            {
                watched = None;
                sent += 1;
                nonce = sent.to_string();
                let response = DiscoveryResponse {
                    version_info: snapshot.version,
                    resources: snapshot.resources,
                    type_url: TYPE_URL.to_owned(),
                    nonce: nonce.clone(),
                };
                for _ in 0..self.shared.copies.load(Ordering::Relaxed) {
                    if self.responses.send(Ok(response.clone())).await.is_err() {
                        return;
                    }
                }
            }
        }
    }

    fn note(&self, request: DiscoveryRequest, stale: bool) {
        let (at, tenant) = (Instant::now(), self.tenant.clone());
        self.shared.seen.lock().unwrap().push(Seen { at, request, stale, tenant });
    }
}
