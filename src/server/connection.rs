//! Serves one connection: TLS handshake, HTTP/2 preface, HTTP/2, and graceful shutdown.
//!
//! Not here: accepting sockets (`listener`), processing calls (`router`).

use std::future::Future;
use std::net;
use std::os::unix;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::{Request, Response};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::{task, time};
use tonic::body::Body;
use tonic::{Code, Status};

use super::answer_body::AnswerBody;
use super::authz::Caller;
use super::call_queue::QueuedCall;
use super::call_tasks::CallTasks;
use super::connection_registry::{Activity, Registration};
use super::connection_stats::ConnectionStats;
use super::filtered_reads::FilteredReads;
use super::framing;
use super::overload::Overload;
use super::preface::{self, PrefaceStream};
use super::rls_service::Decide;
use super::router::{RouteMatch, Router};
use super::server_bounds::{
    CALL_WINDOW_BYTES, DECIDED_CALL_BYTES, REFLECTION_CALL_BYTES, ROOM_YIELDS_MAX,
    STREAMS_ACCEPTED_MIN, ServerLimits, WAITING_CALL_BYTES,
};
use super::tls::{Tls, classify_failure};
use crate::domain::{
    CallerMemory, HeldMemory, Hold, PREFACE_BYTES, PortProtocol, UnreadableCallers, UnreadableKind,
    escaped,
};
use crate::store::owned_tasks::box_in_place;

/// Number of bytes that are read from a connection before its calls are accepted: about 250 calls.
/// h2 reads all that it is given before it passes on a call, and closes a connection on which more
/// than [`ServerLimits::pending_resets_max`] calls were reset meanwhile. Without this limit, the
/// connections of callers that give up would be closed after a stall, with all of their calls.
const READ_BYTES_MAX: usize = 32 * 1024;

/// Number of reads of [`READ_BYTES_MAX`] bytes before the accepted calls are started. If callers
/// give up after 20 ms, the reset of a call is among the next 1,000 calls at 50,000 calls per second
/// and connection. It is read before the call is decided.
const READS_MAX: usize = 4;

/// Phase of the server's lifecycle. The variants are in chronological order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// The server accepts connections and calls.
    Serving,
    /// The server sends GOAWAY on every connection and waits for the calls in flight to finish.
    Draining,
    /// The server drops every connection that is still open.
    Stopped,
}

/// Accepted socket that is not registered with a tokio runtime yet. The worker that serves it
/// registers it with its own runtime, not with the acceptor's.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(net::TcpStream),
    Unix(unix::net::UnixStream),
}

/// Accepted connection that the acceptor sends to a worker.
#[derive(Debug)]
pub(crate) struct AcceptedSocket {
    pub(crate) socket: Socket,
    pub(crate) registration: Registration,
    /// Age at which the server sends GOAWAY on the connection, including jitter; `None` means
    /// never.
    pub(crate) age_max: Option<Duration>,
}

/// State of one worker thread, shared by all its connections.
#[derive(Debug)]
pub(crate) struct Worker<D> {
    pub(crate) router: Arc<Router<D>>,
    pub(crate) limits: ServerLimits,
    pub(crate) tls: Option<Tls>,
    pub(crate) stats: Arc<ConnectionStats>,
    /// Memory held for the callers of all connections.
    pub(crate) held_memory: Arc<HeldMemory>,
    pub(crate) unreadable: Arc<UnreadableCallers>,
    /// Calls of the worker.
    pub(crate) overload: Arc<Overload>,
    pub(crate) phase: watch::Receiver<Phase>,
}

/// Start of the paths of the reflection service, of either version.
const REFLECTION_PATH_PREFIX: &str = "/grpc.reflection.";

/// Address of a caller; `None` on a Unix socket.
type Peer = Option<net::SocketAddr>;

/// Value of the header `grpc-status` for an unknown method: UNIMPLEMENTED.
const UNIMPLEMENTED_STATUS: &str = "12";
/// Starts of the paths of version 2 of the rate limit service, and of its predecessor.
const RLS_V2_PATHS: [&str; 2] = ["/envoy.service.ratelimit.v2.", "/pb.lyft.ratelimit."];

/// Maximum length of a method in a log line, in characters: a caller may name one of 8 KiB.
const CALLED_CHARS_MAX: usize = 64;

/// Counts a caller that cannot be understood. Logs at most one line a minute for each kind. `called`
/// is the path of the method; empty if there is none.
fn record_unreadable(
    unreadable: &UnreadableCallers,
    kind: UnreadableKind,
    peer: Peer,
    called: &str,
) {
    let Some(callers) = unreadable.record(kind) else { return };
    let (kind, meaning, advice) = kind.describe();
    let (peer, called) = (shown(peer), called.chars().take(CALLED_CHARS_MAX).collect::<String>());
    let called = (!called.is_empty()).then(|| escaped(&called));
    let called = called.as_deref();
    tracing::warn!(kind, meaning, called, peer, callers, advice, "callers cannot be understood");
}

fn shown(peer: Peer) -> String {
    peer.map_or_else(|| "unknown".to_owned(), |peer| peer.to_string())
}

/// State of a connection that all its calls share.
#[derive(Debug)]
struct CallContext<D> {
    worker: Arc<Worker<D>>,
    caller: Caller,
    peer: Peer,
    activity: Arc<Activity>,
    memory: Arc<CallerMemory>,
    /// Whether a method other than those of rate limits was called.
    has_other_calls: Arc<AtomicBool>,
}

impl<D: Decide> CallContext<D> {
    async fn answer(
        &self,
        request: RouteMatch,
        queued: QueuedCall,
        mut hold: Hold,
    ) -> Response<AnswerBody> {
        let worker = &*self.worker;
        let mut call = match request {
            RouteMatch::RateLimit(call) => call,
            RouteMatch::Rejected(kind, response) => {
                record_unreadable(&worker.unreadable, kind, self.peer, "");
                return response.map(|body| AnswerBody::unary(body, hold));
            }
            RouteMatch::TonicService(request) => {
                drop(queued);
                self.has_other_calls.store(true, Ordering::Relaxed);
                // Boxed, so that the future of a decision stays small.
                return Box::pin(self.answer_with_tonic(*request, hold)).await;
            }
        };
        match queued.start(call.deadline, worker.router.clock()).await {
            Ok(deadline) => call.deadline = deadline,
            Err(status) => {
                worker.stats.overload_rejections.fetch_add(1, Ordering::Relaxed);
                return status.into_http().map(|body| AnswerBody::unary(body, hold));
            }
        }
        let started = worker.overload.start_call();
        let timeout = worker.limits.receive_timeout;
        let received = worker.router.receive(&mut call.body, call.deadline, timeout, &mut hold);
        let response = match received.await {
            Ok((body, deadline)) => {
                self.activity.record_call();
                hold.resize(DECIDED_CALL_BYTES + body.held_bytes);
                self.wait_for_room().await;
                // Boxed only now: the future of a decision takes several kilobytes, which calls
                // would take while their request is incomplete. Unboxed, it would be copied when
                // the stream starts and when it ends.
                box_in_place(|| {
                    worker.router.respond(call.method, body, deadline, call.trace, &self.caller)
                })
                .await
            }
            Err(status) => self.reject(&status),
        };
        started.record_answer();
        response.map(|body| AnswerBody::unary(body, hold))
    }

    /// Answers a call to the health or the reflection service, or to an unknown method.
    async fn answer_with_tonic(
        &self,
        request: Request<Incoming>,
        mut hold: Hold,
    ) -> Response<AnswerBody> {
        self.activity.record_call();
        if request.uri().path().starts_with(REFLECTION_PATH_PREFIX) {
            hold.resize(REFLECTION_CALL_BYTES);
            self.wait_for_room().await;
        }
        let deadline = framing::parse_grpc_timeout(request.headers());
        let timeout_max = self.worker.limits.receive_timeout;
        let timeout = deadline.unwrap_or(timeout_max).min(timeout_max);
        let (worker, uri) = (Arc::clone(&self.worker), request.uri().clone());
        let request = request.map(|body| Body::new(end_with_draining(body, worker)));
        let response = time::timeout(timeout, self.worker.router.call_tonic_service(request)).await;
        let late = || self.reject(&Status::deadline_exceeded("no request in time"));
        let response = response.unwrap_or_else(|_| late());
        let status = response.headers().get("grpc-status");
        if status.is_some_and(|status| status == UNIMPLEMENTED_STATUS) {
            let is_v2 = RLS_V2_PATHS.iter().any(|start| uri.path().starts_with(start));
            let kind = if is_v2 { UnreadableKind::RlsV2 } else { UnreadableKind::UnknownMethod };
            record_unreadable(&self.worker.unreadable, kind, self.peer, uri.path());
        }
        response.map(|body| AnswerBody::stream(body, hold))
    }

    /// Lets the calls that have to make room end, before this call holds more. Without this, the
    /// calls that are already scheduled would all be answered before any of them ends.
    async fn wait_for_room(&self) {
        for _ in 0..ROOM_YIELDS_MAX {
            if self.memory.has_room() {
                return;
            }
            self.memory.make_room();
            task::yield_now().await;
        }
    }

    /// Returns the error response for a request that was not received completely. Also counts the
    /// rejection.
    fn reject(&self, status: &Status) -> Response<Body> {
        if status.code() == Code::DeadlineExceeded {
            self.worker.stats.receive_timeouts.fetch_add(1, Ordering::Relaxed);
        }
        status.clone().into_http()
    }
}

impl<D: Decide> Worker<D> {
    /// Serves a connection until it closes. During a drain, the connection closes after its last
    /// call in flight has finished.
    pub(crate) async fn serve(self: Arc<Self>, accepted: AcceptedSocket) {
        let AcceptedSocket { socket, mut registration, age_max } = accepted;
        let registration = &mut registration;
        match socket {
            Socket::Tcp(socket) => {
                let Ok(socket) = TcpStream::from_std(socket) else { return };
                let peer = socket.peer_addr().ok();
                match &self.tls {
                    None => {
                        let caller = (Caller::Unrestricted, peer);
                        self.serve_io(socket, caller, age_max, registration).await;
                    }
                    Some(tls) => self.serve_tls(tls, socket, peer, age_max, registration).await,
                }
            }
            // No TLS on a Unix socket: its file permissions control who may connect.
            Socket::Unix(socket) => {
                let Ok(socket) = UnixStream::from_std(socket) else { return };
                let caller = (Caller::Unrestricted, None);
                self.serve_io(socket, caller, age_max, registration).await;
            }
        }
    }

    async fn serve_tls(
        self: &Arc<Self>,
        tls: &Tls,
        socket: TcpStream,
        peer: Peer,
        age_max: Option<Duration>,
        registration: &mut Registration,
    ) {
        let mut has_begun = false;
        let handshake = async {
            let mut first = [0; PREFACE_BYTES];
            let length = socket.peek(&mut first).await.unwrap_or(0);
            has_begun = length > 0;
            match UnreadableKind::of_first_bytes(&first[..length], PortProtocol::Tls) {
                None => {
                    let accepted = tls.accept(socket).await;
                    accepted.map_err(|error| (classify_failure(&error), Some(error.to_string())))
                }
                Some(kind) => {
                    // Its alert tells the caller that the port requires TLS.
                    let _ = tls.accept(socket).await;
                    Err((kind, None))
                }
            }
        };
        let handshake = time::timeout(self.limits.handshake_timeout, handshake);
        let Some(accepted) = self.run_until_closed(handshake, registration).await else { return };
        let late = || (UnreadableKind::Handshake, Some("it was not complete in time".to_owned()));
        let (kind, reason) = match accepted.unwrap_or_else(|_| Err(late())) {
            Ok((socket, caller)) => {
                return self.serve_io(socket, (caller, peer), age_max, registration).await;
            }
            Err(failure) => failure,
        };
        self.stats.handshakes_failed.fetch_add(1, Ordering::Relaxed);
        if !has_begun {
            // A probe that only connects is not warned of.
            return;
        }
        let Some(reason) = reason else {
            return record_unreadable(&self.unreadable, kind, peer, "");
        };
        if let Some(failures) = self.unreadable.record(kind) {
            let ((kind, _, advice), peer) = (kind.describe(), shown(peer));
            tracing::warn!(kind, peer, reason, advice, failures, "TLS handshake failed");
        }
    }

    /// Runs a step of the connection setup. Returns `None` if the server starts to drain or the
    /// connection is evicted before the step is complete.
    async fn run_until_closed<T>(
        &self,
        step: impl Future<Output = T>,
        registration: &mut Registration,
    ) -> Option<T> {
        tokio::select! {
            result = step => Some(result),
            () = self.wait_for_phase(Phase::Draining) => None,
            _ = &mut registration.evicted => None,
        }
    }

    async fn serve_io<I>(
        self: &Arc<Self>,
        io: I,
        caller: (Caller, Peer),
        age_max: Option<Duration>,
        registration: &mut Registration,
    ) where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let reads = FilteredReads::new(Arc::clone(&self.overload), Arc::clone(&self.stats));
        let preface = preface::read(io, self.limits.streams_max, reads);
        let preface = time::timeout(self.limits.preface_timeout, preface);
        let Some(read) = self.run_until_closed(preface, registration).await else { return };
        match read {
            Ok(Ok(io)) => self.serve_http2(io, caller, age_max, registration).await,
            unread => {
                self.stats.prefaces_failed.fetch_add(1, Ordering::Relaxed);
                if let Ok(Err(Some(kind))) = unread {
                    record_unreadable(&self.unreadable, kind, caller.1, "");
                }
            }
        }
    }

    async fn serve_http2<I>(
        self: &Arc<Self>,
        io: PrefaceStream<I>,
        (caller, peer): (Caller, Peer),
        age_max: Option<Duration>,
        registration: &mut Registration,
    ) where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let memory = self.held_memory.add_caller();
        let context = Arc::new(CallContext {
            worker: Arc::clone(self),
            caller,
            peer,
            activity: Arc::clone(&registration.activity),
            memory: Arc::clone(&memory),
            has_other_calls: Arc::clone(&io.reads.has_other_calls),
        });
        let service = service_fn(|request| {
            let context = Arc::clone(&context);
            let Worker { router, overload, .. } = &*context.worker;
            let queued = QueuedCall::new(&overload.call_queue, router.clock());
            // Dispatched here, so that the future of a call does not hold the request's headers.
            let request = router.dispatch(request);
            let hold = Hold::new(&context.memory, WAITING_CALL_BYTES);
            async move { Ok::<_, std::convert::Infallible>(context.answer(request, queued, hold).await) }
        });
        let calls = CallTasks { memory: Arc::clone(&memory), stats: Arc::clone(&self.stats) };
        let protocol = self.http2_builder(calls);
        let read_budget = Arc::clone(&io.read_budget);
        let mut connection = pin!(protocol.serve_connection(TokioIo::new(io), service));
        let mut shutdown_due = pin!(async {
            tokio::select! {
                () = self.wait_for_phase(Phase::Draining) => {}
                () = sleep_or_wait_forever(age_max) => {}
            }
        });
        let (mut watching, mut shutting_down) = (false, false);
        std::future::poll_fn(|cx| {
            if !std::mem::replace(&mut watching, true) {
                memory.set_closer(cx.waker());
            }
            for _ in 0..READS_MAX {
                read_budget.store(READ_BYTES_MAX, Ordering::Relaxed);
                if let Poll::Ready(ended) = connection.as_mut().poll(cx) {
                    return Poll::Ready(ended);
                }
                if read_budget.load(Ordering::Relaxed) > 0 {
                    break;
                }
            }
            let must_close = memory.must_close();
            if must_close {
                self.stats.connections_blocked.fetch_add(1, Ordering::Relaxed);
            }
            if must_close || Pin::new(&mut registration.evicted).poll(cx).is_ready() {
                // Sends GOAWAY, but does not wait for the client.
                connection.as_mut().graceful_shutdown();
                let _ = connection.as_mut().poll(cx);
                return Poll::Ready(Ok(()));
            }
            if !shutting_down && shutdown_due.as_mut().poll(cx).is_ready() {
                shutting_down = true;
                connection.as_mut().graceful_shutdown();
                return connection.as_mut().poll(cx);
            }
            Poll::Pending
        })
        .await
        .unwrap_or_else(|_| {
            self.stats.connections_broken.fetch_add(1, Ordering::Relaxed);
        });
    }

    fn http2_builder(&self, calls: CallTasks) -> http2::Builder<CallTasks> {
        let limits = &self.limits;
        let mut protocol = http2::Builder::new(calls);
        protocol
            .timer(TokioTimer::new())
            .auto_date_header(false)
            .max_concurrent_streams(limits.streams_max.max(STREAMS_ACCEPTED_MIN))
            .initial_stream_window_size(CALL_WINDOW_BYTES)
            .initial_connection_window_size(limits.connection_window_bytes)
            .max_pending_accept_reset_streams(limits.pending_resets_max)
            .max_local_error_reset_streams(limits.local_error_resets_max)
            .max_header_list_size(limits.header_list_bytes_max)
            .keep_alive_interval(limits.keepalive_interval)
            .keep_alive_timeout(limits.keepalive_timeout);
        protocol
    }

    /// Waits until the server is in `phase` or a later one. Returns immediately if the server has
    /// been dropped.
    pub(crate) async fn wait_for_phase(&self, phase: Phase) {
        let _ = self.phase.clone().wait_for(|now| *now >= phase).await;
    }
}

/// Returns the body of a request to the health or the reflection service. It ends when the server
/// drains, so that a client that keeps a stream of reflection open does not delay the shutdown.
fn end_with_draining<D: Decide>(
    body: Incoming,
    worker: Arc<Worker<D>>,
) -> impl hyper::body::Body<Data = Bytes, Error = hyper::Error> + Send + 'static {
    let frames = stream::unfold((body, worker), async |(mut body, worker)| {
        tokio::select! {
            // First the body: what has arrived is answered.
            biased;
            frame = body.frame() => Some((frame?, (body, worker))),
            () = worker.wait_for_phase(Phase::Draining) => None,
        }
    });
    StreamBody::new(frames.fuse())
}

async fn sleep_or_wait_forever(after: Option<Duration>) {
    match after {
        Some(after) => time::sleep(after).await,
        None => std::future::pending().await,
    }
}
