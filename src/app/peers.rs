//! Other replicas of this service, which this replica asks about their state on their debug ports.
//!
//! Only the addresses of `--peers` are asked, never one that a request names. A question carries
//! `scope=replica`, and a replica answers such a question for itself alone, so questions do not
//! circulate. Questions are sent without the operator token: reading needs none, the debug port has
//! no TLS, and the address of a pod that is gone may belong to somebody else.
//!
//! Not here: the pages that ask (`live_page_data`), the sum of answers (`telemetry`).

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::{BuildHasher as _, RandomState};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use http_body_util::Empty;
use hyper::header::HOST;
use hyper::{Request, StatusCode};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::net::{TcpStream, lookup_host};

use super::admin_client::{BoxError, exchange};
use crate::admin::INSTANCE_HEADER;
use crate::clock::Clock;
use crate::domain::Lock;
use crate::settings::PEERS_MAX;

/// Timeout for one peer's answer, from connecting to its last byte: 200 ms. A replica that is well
/// answers in a few milliseconds, and a viewer refreshes once a second.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(200);

/// Time for which all viewers share the answers to a question, 1 s. At most one round of a question is
/// in progress, so viewers cannot multiply the load on peers.
const SHARED_FOR: Duration = Duration::from_secs(1);

/// Pause between two resolutions of the names in `--peers`, 5 s. Kubernetes lists a new pod in DNS
/// within a few seconds.
const RESOLVE_PAUSE: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
pub(crate) struct PeerAnswer {
    /// Address of the peer, or the entry of `--peers` if it has no address.
    pub(crate) name: String,
    /// JSON that the peer sent, or the reason why there is none.
    pub(crate) result: Result<Value, String>,
}

pub(crate) type PeerAnswers = Arc<[PeerAnswer]>;

/// Latest answers to a question and the time at which it was asked; locked while peers are asked.
type Round = Arc<tokio::sync::Mutex<Option<(Instant, PeerAnswers)>>>;

/// Addresses of an entry of `--peers`, or why it has none.
type Resolved = Result<Vec<SocketAddr>, String>;

/// Replicas that `--peers` names.
pub(crate) struct Peers {
    /// Random number of this process, which tells its own answer from those of others, and by which Redis
    /// counts replicas.
    pub(crate) instance: u64,
    known: Lock<BTreeMap<(String, u16), Resolved>>,
    rounds: Lock<HashMap<&'static str, Round>>,
}

impl Peers {
    /// Starts to resolve the names of `entries` in the background.
    pub(crate) fn start(entries: &[(String, u16)]) -> Arc<Peers> {
        let known = entries.iter().map(|entry| (entry.clone(), Err("not resolved yet".to_owned())));
        let peers = Arc::new(Peers {
            instance: RandomState::new().hash_one(std::process::id()),
            known: Lock::new(known.collect()),
            rounds: Lock::default(),
        });
        for entry in entries {
            tokio::spawn(Arc::clone(&peers).keep_resolving(entry.clone()));
        }
        peers
    }

    /// Resolves an entry every few seconds. If that fails, it keeps its addresses.
    async fn keep_resolving(self: Arc<Self>, entry: (String, u16)) {
        loop {
            let resolved = lookup_host((&*entry.0, entry.1)).await;
            let resolved = resolved.map(Vec::from_iter).map_err(|error| error.to_string());
            if let Some(known) = self.known.lock().get_mut(&entry)
                && (resolved.is_ok() || known.is_err())
            {
                *known = resolved;
            }
            tokio::time::sleep(RESOLVE_PAUSE).await;
        }
    }

    /// Asks all peers for a path of their debug port, with its query but without `scope`. Returns
    /// one answer per replica other than this one, at most [`SHARED_FOR`] old.
    pub(crate) async fn ask(&self, path: &'static str) -> PeerAnswers {
        let round = Arc::clone(self.rounds.lock().entry(path).or_default());
        let mut round = round.lock().await;
        let now = Clock::System.monotonic_now();
        if let Some((_, answers)) = round.as_ref().filter(|(at, _)| now - *at < SHARED_FOR) {
            return Arc::clone(answers);
        }
        let answers: PeerAnswers = self.ask_all(path).await.into();
        *round = Some((now, Arc::clone(&answers)));
        answers
    }

    async fn ask_all(&self, path: &str) -> Vec<PeerAnswer> {
        let (mut addresses, mut answers) = (BTreeSet::new(), Vec::new());
        for ((host, port), resolved) in &*self.known.lock() {
            match resolved {
                Ok(resolved) => addresses.extend(resolved.iter().copied()),
                Err(reason) => answers.push(PeerAnswer {
                    name: format!("{host}:{port}"),
                    result: Err(format!("cannot be resolved: {reason}")),
                }),
            }
        }
        let asked =
            addresses.iter().take(PEERS_MAX).map(async |address| {
                match tokio::time::timeout(ANSWER_TIMEOUT, ask_one(*address, path)).await {
                    Ok(result) => result.map_err(|error| error.to_string()),
                    Err(_) => Err(format!("no answer within {} ms", ANSWER_TIMEOUT.as_millis())),
                }
            });
        let results = join_all(asked).await.into_iter();
        let not_asked = || Err(format!("not asked: only the first {PEERS_MAX} addresses are"));
        let results = results.chain(std::iter::repeat_with(not_asked));
        let mut instances = HashSet::from([self.instance]);
        for (address, result) in addresses.iter().zip(results) {
            if result.as_ref().map_or(true, |(instance, _)| instances.insert(*instance)) {
                let result = result.map(|(_, value)| value);
                answers.push(PeerAnswer { name: address.to_string(), result });
            }
        }
        answers
    }
}

/// Returns the instance of the replica at an address, and the JSON that it answers.
async fn ask_one(address: SocketAddr, path: &str) -> Result<(u64, Value), BoxError> {
    let separator = if path.contains('?') { '&' } else { '?' };
    let request = Request::get(format!("{path}{separator}scope=replica"))
        .header(HOST, address.to_string())
        .body(Empty::new())?;
    let response = exchange(TcpStream::connect(address).await?, request).await?;
    if response.status() != StatusCode::OK {
        return Err(format!("status {}", response.status().as_u16()).into());
    }
    let instance = response.headers().get(INSTANCE_HEADER).and_then(|it| it.to_str().ok());
    let instance = instance.and_then(|it| it.parse().ok()).ok_or("not a debug port of Tidegate")?;
    Ok((instance, serde_json::from_slice(response.body()).map_err(|_| "answer is not JSON")?))
}

impl PeerAnswer {
    /// Reads the answer as a `T`, or returns why there is none.
    pub(crate) fn read<T: DeserializeOwned>(&self) -> Result<T, String> {
        let value = self.result.as_ref().map_err(String::clone)?;
        T::deserialize(value).map_err(|_| "answer of another version".to_owned())
    }
}
