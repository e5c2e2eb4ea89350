//! xDS client of a control plane. Keeps one stream open, applies each response, and acknowledges or
//! rejects it.
//!
//! While the control plane is unavailable, the active domains remain active. The client runs on its
//! own thread, so that decoding and compiling a large policy delays neither calls nor probes.

use std::collections::BTreeMap;
use std::future::pending;
use std::hash::{BuildHasher, RandomState};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::{StreamExt as _, TryFutureExt as _, stream};
use prost_types::value::Kind;
use prost_types::{Struct, Value};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until};
use tonic::metadata::{MetadataKey, MetadataValue};
use tonic::{Request, Response};

use super::acknowledgement::{AckOrNack, Exchange};
use super::backoff::{Backoff, BackoffConfig};
use super::client_status::ControlPlaneStatus;
use super::connection::ConnectionConfig;
use super::discovery_response::DiscoveryResponse;
use super::last_good::{LastGood, Rejection, escape_and_truncate};
use super::messages::{AggregatedDiscoveryServiceClient, DiscoveryRequest, Node};
use super::resource::TYPE_URL;
use crate::clock::Clock;
use crate::domain::{LogLimiter, with_causes};
use crate::policy::PolicyDefaults;
use crate::tls::ClientCertificates;

/// Interval at which the client checks for changed certificates and defaults. A stream that has
/// been open for this long counts as connected even if the control plane has sent nothing.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Capacity of the queue of outgoing requests. At most one ACK or NACK is pending at a time.
const REQUEST_QUEUE_CAPACITY: usize = 4;

/// Minimum time between two responses that are applied. Of several responses in this time, only the
/// newest is applied: each has all resources, and compiling them may take seconds.
const APPLY_INTERVAL_MIN: Duration = Duration::from_secs(1);

/// Maximum number of rejections that are logged for one response.
const LOGGED_REJECTIONS_MAX: usize = 8;

/// Maximum number of log lines about the control plane per minute. The rejections of two responses
/// fit.
const LOG_LINES_MAX: u64 = 20;

/// Function that returns the current policy defaults, or `None` while they cannot be read.
pub type ReadDefaults = Arc<dyn Fn() -> Option<PolicyDefaults> + Send + Sync>;

/// xDS client of a control plane, with its configuration.
pub struct Client {
    /// Configuration of the connection to the control plane.
    pub connection: ConnectionConfig,
    /// Configuration of the backoff between attempts to connect.
    pub backoff: BackoffConfig,
    /// Node id of this client. The control plane selects the policies to send by this id.
    pub node_id: String,
    /// Node metadata that the client sends to the control plane, as name-value pairs.
    pub node_metadata: Vec<(String, String)>,
    /// Request headers of the stream, as name-value pairs.
    pub headers: Vec<(String, String)>,
    /// Maximum size of a response, in bytes.
    pub message_bytes_max: usize,
    /// Function that returns the policy defaults, for properties of a policy that messages from
    /// the control plane cannot express. If `None`, the built-in defaults apply.
    pub defaults: Option<ReadDefaults>,
    /// State and counters of the client, for metrics and the live page.
    pub status: Arc<ControlPlaneStatus>,
}

/// Effect of a response on the active policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseEffect {
    /// Whether to activate the domains. True if the domains have changed, or if the response was
    /// accepted and no policy is active yet.
    pub activate: bool,
    /// Whether to report a rejection of the response. True if the response has errors, and either
    /// the previous response had different errors or the active domains have changed.
    pub newly_rejected: bool,
    /// Whether the whole response was accepted.
    pub accepted: bool,
    /// Whether an activation may be logged.
    pub log: bool,
}

/// User of the policies that a client receives.
pub trait PolicyReceiver {
    /// Called before a response is decoded. Should free what is no longer needed, because reading a
    /// large policy takes much memory.
    fn prepare(&mut self);

    /// Called about once a second. Should free what no call uses anymore.
    fn free_unused(&mut self);

    /// Called after a response was applied, before it is acknowledged or rejected.
    fn receive(&mut self, last_good: &LastGood, effect: ResponseEffect);
}

/// State of a running client that persists across streams.
struct Session<R> {
    client: Client,
    last_good: LastGood,
    exchange: Exchange,
    backoff: Backoff,
    /// Certificates of the current connection.
    certificates: Option<ClientCertificates>,
    /// Whether any policy has been activated.
    is_active: bool,
    receiver: R,
    /// Most recently logged error of a connection or stream; `None` while a stream is open.
    last_logged_error: Option<String>,
    /// Limiter of all log lines, because a broken control plane responds thousands of times a
    /// second.
    log_limiter: LogLimiter,
    /// Earliest time at which the next response may be applied.
    next_apply: Instant,
}

impl Client {
    /// Runs the client until the process ends. Passes each response to `receiver`.
    pub async fn run(self, mut last_good: LastGood, receiver: impl PolicyReceiver) {
        last_good.set_defaults(self.read_defaults().unwrap_or_default());
        let backoff = Backoff::new(self.backoff);
        let mut session = Session {
            last_good,
            exchange: Exchange::default(),
            backoff,
            certificates: None,
            is_active: false,
            receiver,
            last_logged_error: None,
            log_limiter: LogLimiter::new(LOG_LINES_MAX, || Clock::System.monotonic_now()),
            next_apply: now(),
            client: self,
        };
        loop {
            let ended = session.run_stream().await;
            let connected = session.client.status.connected.swap(false, Ordering::Relaxed);
            if let Err(error) = ended {
                session.report_failure(error);
                sleep(session.backoff.next_wait(connected, random_fraction())).await;
            }
        }
    }

    fn read_defaults(&self) -> Option<PolicyDefaults> {
        self.defaults.as_ref().and_then(|read| read())
    }

    fn read_certificates(&self) -> Option<ClientCertificates> {
        self.connection.tls.as_ref().and_then(|tls| tls.read.read())
    }

    /// Returns the first request of a stream. Its version is empty, because a restarted control
    /// plane may reuse version numbers and would not send a version that the client claims to have.
    fn first_request(&self) -> DiscoveryRequest {
        let text = |(key, value): &(String, String)| {
            let kind = Some(Kind::StringValue(value.clone()));
            (key.clone(), Value { kind })
        };
        let fields: BTreeMap<_, _> = self.node_metadata.iter().map(text).collect();
        let metadata = (!fields.is_empty()).then_some(Struct { fields });
        DiscoveryRequest {
            node: Some(Node { id: self.node_id.clone(), metadata }),
            type_url: TYPE_URL.to_owned(),
            ..DiscoveryRequest::default()
        }
    }

    /// Returns a request with the message and the configured headers. Skips invalid headers, which
    /// should already have been rejected when the settings were read.
    fn with_headers<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        for (name, value) in &self.headers {
            let name = MetadataKey::from_bytes(name.to_ascii_lowercase().as_bytes());
            if let (Ok(name), Ok(value)) = (name, MetadataValue::try_from(value)) {
                request.metadata_mut().append(name, value);
            }
        }
        request
    }
}

impl<R: PolicyReceiver> Session<R> {
    /// Opens a stream. Applies each response and replies with an ACK or a NACK until certificates or
    /// policy defaults have changed, so that the client must reconnect immediately.
    ///
    /// # Errors
    ///
    /// Returns the reason why the control plane could not be reached, or the stream was lost.
    async fn run_stream(&mut self) -> Result<(), String> {
        // If the files cannot be read at the moment, the former certificates may still do.
        self.certificates = self.client.read_certificates().or(self.certificates.take());
        let connecting = self.client.connection.connect(self.certificates.as_ref());
        let (channel, socket_error) = connecting.await?;
        let (requests, queue) = mpsc::channel(REQUEST_QUEUE_CAPACITY);
        let _ = requests.send(self.client.first_request()).await;
        let outgoing = stream::unfold(queue, |mut queue: mpsc::Receiver<_>| async move {
            queue.recv().await.map(|request| (request, queue))
        });
        let mut service = AggregatedDiscoveryServiceClient::new(channel)
            .max_decoding_message_size(self.client.message_bytes_max);
        let request = self.client.with_headers(outgoing);
        // The response headers may come with the first response only.
        let responses = async move { service.stream_aggregated_resources(request).await }
            .map_ok(Response::into_inner)
            .try_flatten_stream();
        let mut responses = pin!(responses);
        let mut ticks = interval(CHECK_INTERVAL);
        ticks.reset();
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut answer: Option<AckOrNack> = None;
        let mut waiting: Option<DiscoveryResponse> = None;
        loop {
            let (has_waiting, next_apply) = (waiting.is_some(), self.next_apply);
            let due = answer.as_ref().map(|answer| Instant::from_std(answer.due));
            let is_due = async {
                match due {
                    Some(due) => sleep_until(due).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                received = responses.next() => match received {
                    Some(Ok(response)) => {
                        self.report_connected();
                        waiting = self.select_policy(response).or(waiting);
                    }
                    Some(Err(status)) => {
                        // An alert of TLS says more than the stream that it ended.
                        let error = socket_error.take().unwrap_or_else(|| format_status(&status));
                        return Err(error);
                    }
                    None => return Err("the control plane ended the stream".to_owned()),
                },
                () = sleep_until(next_apply), if has_waiting => {
                    let Some(response) = waiting.take() else { continue };
                    // Replaces an answer that waits: its nonce is stale now.
                    answer = Some(self.apply(response));
                    self.next_apply = now() + APPLY_INTERVAL_MIN;
                }
                () = is_due => {
                    let Some(answer) = answer.take() else { continue };
                    let status = &self.client.status;
                    let is_ack = answer.request.error_detail.is_none();
                    let counter = if is_ack { &status.acks } else { &status.nacks };
                    ControlPlaneStatus::add_to_counter(counter, 1);
                    if requests.send(answer.request).await.is_err() {
                        return Err("the stream is closed".to_owned());
                    }
                }
                _ = ticks.tick() => {
                    self.receiver.free_unused();
                    self.report_connected();
                    if self.check_for_changes() {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Returns whether a line may be logged now. Logs how many lines were omitted before.
    fn may_log(&self) -> bool {
        let Some(suppressed) = self.log_limiter.admit("control plane", &"") else { return false };
        if let Some(omitted) = suppressed {
            tracing::warn!(omitted, "log lines about the control plane omitted");
        }
        true
    }

    /// Counts a response. Returns `None` for a response of an unknown type.
    fn select_policy(&mut self, response: DiscoveryResponse) -> Option<DiscoveryResponse> {
        if response.type_url == TYPE_URL {
            ControlPlaneStatus::add_to_counter(&self.client.status.responses, 1);
            return Some(response);
        }
        if self.may_log() {
            let type_url = escape_and_truncate(&response.type_url);
            tracing::warn!(type_url, "ignored a response of another type from the control plane");
        }
        None
    }

    /// Applies a response, activates the policy if it has changed, and returns the ACK or NACK to
    /// send.
    fn apply(&mut self, response: DiscoveryResponse) -> AckOrNack {
        let DiscoveryResponse { version_info: version, resources, nonce, .. } = response;
        self.receiver.prepare();
        let update = self.last_good.apply(resources);
        let status = Arc::clone(&self.client.status);
        ControlPlaneStatus::add_to_counter(&status.compiled, update.compiled);
        let accepted = update.rejections.is_empty();
        let is_repeated = status.state().rejections == update.rejections;
        let is_first = !self.is_active && (accepted || update.changed);
        let activate = update.changed || is_first;
        self.is_active |= activate;
        let newly_rejected = !accepted && (activate || !is_repeated);
        let log = activate && self.may_log();
        let effect = ResponseEffect { activate, newly_rejected, accepted, log };
        self.receiver.receive(&self.last_good, effect);
        let (compiled, domains) = (update.compiled, self.last_good.domains().len());
        let shown_version = escape_and_truncate(&version);
        if activate && self.may_log() {
            let version = &shown_version;
            tracing::info!(version, domains, compiled, "policy received from the control plane");
        }
        if !is_repeated {
            self.log_rejections(&update.rejections);
        }
        let now = Clock::System.monotonic_now();
        let answer = self.exchange.ack_or_nack(&version, &nonce, &update.rejections, now);
        status.update(|state| {
            state.version = escape_and_truncate(&answer.request.version_info);
            state.received_version = shown_version;
            state.domains = domains;
            state.rejections = update.rejections;
        });
        answer
    }

    /// Reads the certificates and the policy defaults, and returns whether either has changed.
    /// Applies changed defaults to `last_good`.
    fn check_for_changes(&mut self) -> bool {
        let mut changed = false;
        if let Some(certificates) = self.client.read_certificates() {
            let differs = self.certificates.as_ref() != Some(&certificates);
            if differs {
                tracing::info!("certificates of the control plane have changed, connecting again");
            }
            changed |= differs;
        }
        let defaults = self.client.read_defaults();
        if defaults.is_some_and(|defaults| self.last_good.set_defaults(defaults)) {
            tracing::info!("policy defaults have changed, reading the policy again");
            changed = true;
        }
        changed
    }

    fn report_connected(&mut self) {
        self.backoff.reset();
        let status = &self.client.status;
        if !status.connected.swap(true, Ordering::Relaxed) {
            ControlPlaneStatus::add_to_counter(&status.connects, 1);
            status.update(|state| state.error = None);
            self.last_logged_error = None;
            if self.may_log() {
                let ConnectionConfig { host, port, .. } = &self.client.connection;
                tracing::info!(server = format!("{host}:{port}"), "connected to the control plane");
            }
        }
    }

    /// Counts a failure to connect or a lost stream, and logs the error unless it equals the last
    /// logged error.
    fn report_failure(&mut self, error: String) {
        let error = escape_and_truncate(&error);
        let status = &self.client.status;
        ControlPlaneStatus::add_to_counter(&status.failures, 1);
        status.update(|state| state.error = Some(error.clone()));
        if self.last_logged_error.as_ref() != Some(&error) && self.may_log() {
            let ConnectionConfig { host, port, .. } = &self.client.connection;
            let server = format!("{host}:{port}");
            if self.is_active {
                tracing::warn!(
                    server,
                    error,
                    "control plane unreachable, the last good policy stays in force"
                );
            } else {
                tracing::warn!(
                    server,
                    error,
                    "control plane unreachable, no policy has arrived yet"
                );
            }
            self.last_logged_error = Some(error);
        }
    }

    /// Logs the rejected resources. After [`LOGGED_REJECTIONS_MAX`] lines, one more line reports how
    /// many were omitted.
    fn log_rejections(&mut self, rejections: &[Rejection]) {
        for Rejection { resource, path, reason } in rejections.iter().take(LOGGED_REJECTIONS_MAX) {
            if !self.may_log() {
                continue;
            }
            if self.last_good.has_version_of(resource) {
                tracing::error!(
                    resource,
                    path,
                    reason,
                    "resource from the control plane rejected, its last good version stays in force"
                );
            } else {
                tracing::error!(
                    resource,
                    path,
                    reason,
                    "resource from the control plane rejected, it has no earlier version"
                );
            }
        }
        if rejections.len() > LOGGED_REJECTIONS_MAX && self.may_log() {
            let more = rejections.len() - LOGGED_REJECTIONS_MAX;
            tracing::error!(more, "more resources from the control plane rejected");
        }
    }
}

fn now() -> Instant {
    Instant::from_std(Clock::System.monotonic_now())
}

/// Returns the error message of a failed stream, with its causes.
fn format_status(status: &tonic::Status) -> String {
    let causes = std::error::Error::source(status).map(with_causes);
    let message = status.message();
    match causes {
        Some(causes) if !causes.contains(message) => format!("{message}: {causes}"),
        Some(causes) => causes,
        None => format!("{}: {message}", status.code()),
    }
}

/// Returns a random number from 0 to 1, for the backoff.
fn random_fraction() -> f64 {
    // `RandomState` has random keys; good enough to spread reconnects.
    (RandomState::new().hash_one(()) % 1_024) as f64 / 1_023.0
}
