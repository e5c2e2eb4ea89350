//! Other replicas of this service, which this replica asks about their state on their debug ports.
//!
//! Only the addresses of `--peers` are asked, never one that a request names. A question carries
//! `scope=replica`, and a replica answers such a question for itself alone, so questions do not
//! circulate.
//!
//! Not here: the routes that ask (`admin_wiring`), merging of answers (`telemetry`).

use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::{BuildHasher as _, RandomState};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use http_body_util::Empty;
use hyper::header::{AUTHORIZATION, HOST};
use hyper::{Request, StatusCode};
use rustls::pki_types::ServerName;
use serde::Serialize;
use serde_json::Value;
use tokio::net::{TcpStream, lookup_host};
use tokio_rustls::TlsConnector;

use super::admin_client::{BoxError, exchange};
use super::process::exit_codes::Failure;
use super::process::watcher_thread::WatchedValue;
use crate::admin::INSTANCE_HEADER;
use crate::clock::Clock;
use crate::domain::Lock;
use crate::settings::{PEERS_MAX, PeerAddress};
use crate::tls::ClientCertificates;

/// Timeout for one peer's answer, from connecting to its last byte: 200 ms. A replica that is well
/// answers in a few milliseconds, and a viewer refreshes once a second.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(200);

/// Time for which all viewers share the answers to a question, 1 s. At most one round of a question is
/// in progress, so viewers cannot multiply the load on peers.
const SHARED_FOR: Duration = Duration::from_secs(1);

/// Pause between two resolutions of the names in `--peers`, 5 s. Kubernetes lists a new pod in DNS
/// within a few seconds.
const RESOLVE_PAUSE: Duration = Duration::from_secs(5);

/// Answer of one peer to a question.
#[derive(Clone, Debug)]
pub(crate) struct PeerAnswer {
    /// Address of the peer, or the entry of `--peers` if it has no address.
    pub(crate) name: String,
    /// JSON that the peer sent, or the reason why there is none.
    pub(crate) result: Result<Value, String>,
}

/// Whether a replica has answered, as JSON.
#[derive(Serialize)]
pub(crate) struct ReplicaState<'a> {
    name: &'a str,
    answered: bool,
    /// Why it has not answered.
    reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    answer: Option<&'a Value>,
}

impl<'a> ReplicaState<'a> {
    pub(crate) fn new(answer: &'a PeerAnswer) -> Self {
        let reason = answer.result.as_ref().err().map(String::as_str);
        ReplicaState { name: &answer.name, answered: reason.is_none(), reason, answer: None }
    }

    pub(crate) fn with_answer(answer: &'a PeerAnswer) -> Self {
        ReplicaState { answer: answer.result.as_ref().ok(), ..Self::new(answer) }
    }
}

/// Answers of all peers to a question.
pub(crate) type PeerAnswers = Arc<[PeerAnswer]>;

/// Latest answers to a question and the time at which it was asked; locked while peers are asked.
type Round = Arc<tokio::sync::Mutex<Option<(Instant, PeerAnswers)>>>;

/// Replicas that `--peers` names.
pub(crate) struct Peers {
    entries: Vec<PeerEntry>,
    /// Random number of this process, which tells its own answer from those of others.
    instance: u64,
    tls: Option<TlsConnector>,
    /// Token of the operators, which is sent only over TLS.
    token: Option<Arc<WatchedValue<String>>>,
    rounds: Lock<HashMap<&'static str, Round>>,
}

struct PeerEntry {
    address: PeerAddress,
    /// Addresses of the host from its last successful resolution, or the error if there is none.
    resolved: Lock<Result<Vec<SocketAddr>, String>>,
}

impl Peers {
    /// Starts to resolve the names of `addresses` in the background.
    ///
    /// # Errors
    ///
    /// Returns an error if a peer needs TLS and the system has no CA certificates.
    pub(crate) fn start(
        addresses: &[PeerAddress],
        token: Option<Arc<WatchedValue<String>>>,
    ) -> Result<Arc<Peers>, Failure> {
        let config = || ClientCertificates::default().build_config("http/1.1");
        let tls = addresses.iter().any(|address| address.uses_tls).then(config).transpose();
        let tls = tls.map_err(|error| Failure::Usage(format!("--peers: {error}")))?;
        let resolved = || Lock::new(Err("not resolved yet".to_owned()));
        let entry =
            |address: &PeerAddress| PeerEntry { address: address.clone(), resolved: resolved() };
        let peers = Arc::new(Peers {
            entries: addresses.iter().map(entry).collect(),
            instance: RandomState::new().hash_one(std::process::id()),
            tls: tls.map(TlsConnector::from),
            token,
            rounds: Lock::default(),
        });
        if !addresses.is_empty() {
            let resolving = Arc::clone(&peers);
            tokio::spawn(async move {
                loop {
                    // Waits for all, so that a resolver that hangs blocks one thread per entry.
                    join_all(resolving.entries.iter().map(PeerEntry::resolve)).await;
                    tokio::time::sleep(RESOLVE_PAUSE).await;
                }
            });
        }
        Ok(peers)
    }

    /// Returns the number that tells this process from other replicas.
    pub(crate) fn instance(&self) -> u64 {
        self.instance
    }

    /// Asks all peers for a path of their debug port, with its query but without `scope`. Returns
    /// one answer per replica other than this one. Answers are at most [`SHARED_FOR`] old.
    pub(crate) async fn ask(&self, path: &'static str) -> PeerAnswers {
        let round = Arc::clone(self.rounds.lock().entry(path).or_default());
        let mut round = round.lock().await;
        let now = Clock::System.monotonic_now();
        if let Some((asked_at, answers)) = &*round
            && now.duration_since(*asked_at) < SHARED_FOR
        {
            return Arc::clone(answers);
        }
        let answers: PeerAnswers = self.ask_all(path).await.into();
        *round = Some((now, Arc::clone(&answers)));
        answers
    }

    async fn ask_all(&self, path: &str) -> Vec<PeerAnswer> {
        let mut answers = Vec::new();
        let mut targets = BTreeSet::new();
        for (at, entry) in self.entries.iter().enumerate() {
            match &*entry.resolved.lock() {
                Ok(addresses) => targets.extend(addresses.iter().map(|address| (*address, at))),
                Err(reason) => answers.push(PeerAnswer {
                    name: entry.name(),
                    result: Err(format!("cannot be resolved: {reason}")),
                }),
            }
        }
        // An address that several entries have is one replica.
        let mut targets: Vec<_> = targets.into_iter().collect();
        targets.dedup_by_key(|(address, _)| *address);
        if let Some(more) = targets.len().checked_sub(PEERS_MAX).filter(|more| *more > 0) {
            let result = Err(format!("not asked: at most {PEERS_MAX} addresses are"));
            answers.push(PeerAnswer { name: format!("{more} more addresses"), result });
        }
        targets.truncate(PEERS_MAX);
        let asked = targets.into_iter().map(async |(address, at)| {
            let asked = self.ask_one(&self.entries[at].address, address, path);
            let result = match tokio::time::timeout(ANSWER_TIMEOUT, asked).await {
                Ok(result) => result.map_err(|error| error.to_string()),
                Err(_) => Err(format!("no answer within {} ms", ANSWER_TIMEOUT.as_millis())),
            };
            (address, result)
        });
        let mut instances = HashSet::from([self.instance]);
        for (address, result) in join_all(asked).await {
            let result = match result {
                Ok((instance, _)) if !instances.insert(instance) => continue,
                Ok((_, value)) => Ok(value),
                Err(reason) => Err(reason),
            };
            answers.push(PeerAnswer { name: address.to_string(), result });
        }
        answers
    }

    /// Returns the instance of the replica at an address, and the JSON that it answers.
    async fn ask_one(
        &self,
        peer: &PeerAddress,
        address: SocketAddr,
        path: &str,
    ) -> Result<(u64, Value), BoxError> {
        let separator = if path.contains('?') { '&' } else { '?' };
        let mut request = Request::get(format!("{path}{separator}scope=replica"))
            .header(HOST, address.to_string());
        let socket = TcpStream::connect(address).await?;
        let response = match self.tls.as_ref().filter(|_| peer.uses_tls) {
            None => exchange(socket, request.body(Empty::new())?).await?,
            Some(tls) => {
                // Reading needs no token, so it is sent only to a proxy, which may ask for one.
                if let Some(token) = self.token.as_ref().and_then(|token| token.get()) {
                    request = request.header(AUTHORIZATION, format!("Bearer {token}"));
                }
                let name = ServerName::try_from(peer.host.clone())?;
                let socket = tls.connect(name, socket).await?;
                exchange(socket, request.body(Empty::new())?).await?
            }
        };
        if response.status() != StatusCode::OK {
            return Err(format!("status {}", response.status().as_u16()).into());
        }
        let instance = response.headers().get(INSTANCE_HEADER).and_then(|it| it.to_str().ok());
        let instance =
            instance.and_then(|it| it.parse().ok()).ok_or("not a Tidegate debug port")?;
        Ok((instance, serde_json::from_slice(response.body()).map_err(|_| "answer is not JSON")?))
    }
}

impl PeerEntry {
    fn name(&self) -> String {
        let host = &self.address.host;
        let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
        format!("{host}:{}", self.address.port)
    }

    /// Resolves the host. Keeps its former addresses if that fails.
    async fn resolve(&self) {
        let resolved = lookup_host((&*self.address.host, self.address.port)).await;
        let mut known = self.resolved.lock();
        match resolved {
            Ok(addresses) => *known = Ok(addresses.collect()),
            Err(error) if known.is_err() => *known = Err(error.to_string()),
            Err(_) => {}
        }
    }
}
