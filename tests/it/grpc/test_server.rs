//! A gRPC server with a fixed decider, and waits with a deadline.

use std::collections::BTreeSet;
use std::future::Future;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::grpc_client::{CallDescriptor, CallRequest, Client, ClientSettings};
use tidegate::clock::{Clock, ManualClock};
use tidegate::decide::{CallLimits, CounterSnapshots, DecideError};
use tidegate::domain::{
    Code, Decision, Entry, Hits, LimitedBy, Micros, Op, Rate, Request, Source, Status, StatusLimit,
    Unit, WaitPrecision,
};
use tidegate::policy::{Policy, Secret};
use tidegate::server::{
    Address, ConnectionStats, Decide, Drain, Health, ListenSettings, Listener, RlsService, Router,
    ServerLimits, Tls,
};
use tidegate::wire::WireError;
use tidegate::wire::{ResponseConfig, ResponseSettings};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinHandle;
use tokio::time;

use crate::support::wait::within;

pub use crate::support::wait::PATIENCE;

/// The wall clock of every server here.
pub const NOW: Micros = Micros(1_700_000_000_000_000);

pub async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    within(PATIENCE, what, future).await
}

/// Waits until `met` says so.
pub async fn until(what: &str, met: impl Fn() -> bool) {
    soon(what, async {
        while !met() {
            time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

/// A judge whose answer is the domain's name: `refuse`, `unavailable`, `wait` (for a permit of
/// `gate`), `stall` (holds its whole thread until `stalled` is false); anything else passes.
pub struct Bench {
    pub policy: Arc<Policy>,
    pub judged: AtomicU64,
    pub gate: Semaphore,
    pub stalled: AtomicBool,
    pub threads: Mutex<BTreeSet<String>>,
    pub moments: Mutex<BTreeSet<Micros>>,
}

impl Decide for Bench {
    fn policy(&self) -> impl Deref<Target = Arc<Policy>> + Send {
        &self.policy
    }

    async fn decide<'p>(
        &self,
        _: &'p Policy,
        request: &Request<'_>,
        now: Micros,
        _: CallLimits<'_>,
    ) -> Result<Decision<'p>, DecideError> {
        self.judged.fetch_add(1, Ordering::SeqCst);
        let thread = std::thread::current().name().unwrap_or_default().to_owned();
        self.threads.lock().unwrap().insert(thread);
        self.moments.lock().unwrap().insert(now);
        let refuse = match request.domain {
            "unavailable" => return Err(DecideError::Unavailable),
            "wait" => {
                self.gate.acquire().await.map_err(|_| DecideError::Unavailable)?.forget();
                false
            }
            "stall" => {
                while self.stalled.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
                false
            }
            domain => domain == "refuse",
        };
        Ok(decision(request, refuse))
    }

    async fn peek<'p>(
        &self,
        policy: &'p Policy,
        request: &Request<'_>,
        now: Micros,
    ) -> Result<Decision<'p>, DecideError> {
        self.decide(policy, request, now, CallLimits::default()).await
    }

    async fn counters<'p>(
        &self,
        _: &'p Policy,
        _: &str,
        _: &[Entry<'_>],
        _: Op,
        _: Micros,
    ) -> CounterSnapshots<'p> {
        CounterSnapshots { each: Vec::new(), source: Source::Memory }
    }
}

fn decision<'p>(request: &Request<'_>, refuse: bool) -> Decision<'p> {
    let rate = Rate { requests_per_unit: 5, unit: Some(Unit::Minute), unit_multiplier: 15 };
    let status = Status {
        code: if refuse { Code::OverLimit } else { Code::Ok },
        shown: Some(StatusLimit { rate, name: "per-ip", capacity: Hits(5) }),
        remaining: if refuse { 0 } else { 4 },
        reset: Some(Micros(1_500_000)),
        rule: None,
        quota: false,
        group_refused: false,
    };
    Decision {
        code: status.code,
        limited_by: refuse.then_some(LimitedBy {
            name: "per-ip",
            rule: None,
            retry_after: Some(Micros(1_500_000)),
            precision: WaitPrecision::Exact,
        }),
        statuses: vec![status; request.descriptors.len()],
        source: Source::Memory,
        shadowed: false,
        domain_known: true,
        slot: None,
        marks: Vec::new(),
        hold: None,
    }
}

/// A server under test.
pub struct Server {
    pub address: SocketAddr,
    pub bench: Arc<Bench>,
    pub service: Arc<RlsService<Bench>>,
    pub health: Health,
    pub traffic: Arc<ConnectionStats>,
    leave: Option<oneshot::Sender<()>>,
    served: JoinHandle<Result<usize, WireError>>,
}

/// What a test wants of its server.
pub struct Wanted {
    pub limits: ServerLimits,
    pub threads: usize,
    pub response_config: ResponseSettings,
    pub tls: Option<Tls>,
    pub address: Address,
}

impl Default for Wanted {
    fn default() -> Self {
        // Neither the drain nor keepalive ends a wait of a test.
        let limits = ServerLimits {
            drain_delay: Duration::ZERO,
            hard_limit: PATIENCE,
            keepalive_interval: None,
            ..Default::default()
        };
        Wanted {
            limits,
            threads: 1,
            response_config: ResponseSettings::default(),
            tls: None,
            address: Address::Tcp(([127, 0, 0, 1], 0).into()),
        }
    }
}

impl Wanted {
    pub fn start(self) -> Server {
        let settings = ListenSettings {
            address: self.address,
            threads: NonZeroUsize::new(self.threads).unwrap(),
            limits: self.limits,
            tls: self.tls,
        };
        let listener = Listener::bind(settings).unwrap();
        let address = match &listener.address().unwrap() {
            Address::Tcp(address) => *address,
            Address::Unix(_) => ([127, 0, 0, 1], 0).into(),
        };
        let bench = Arc::new(Bench {
            policy: Arc::new(Policy::build(Vec::new(), Secret::default())),
            judged: AtomicU64::new(0),
            gate: Semaphore::new(0),
            stalled: AtomicBool::new(true),
            threads: Mutex::default(),
            moments: Mutex::default(),
        });
        let clock = Clock::Manual(ManualClock::at(NOW));
        let response_config = ResponseConfig::new(self.response_config).unwrap();
        let health = Health::default();
        health.set_serving(true);
        let service = Arc::new(RlsService::new(Arc::clone(&bench), clock, response_config));
        let front = Router::new(Arc::clone(&service), health.clone());
        let (leave, left) = oneshot::channel();
        let traffic = listener.connection_stats();
        let served = tokio::spawn(async {
            let told = async {
                let _ = left.await;
                Drain::AfterDelay
            };
            let mut draining = listener.serve(front, told).await;
            let report = draining.finish_calls().await;
            draining.stop().await;
            Ok(report)
        });
        Server { address, bench, service, health, traffic, leave: Some(leave), served }
    }
}

impl Server {
    pub fn start() -> Server {
        Wanted::default().start()
    }

    pub fn with(limits: impl FnOnce(&mut ServerLimits)) -> Server {
        let mut wanted = Wanted::default();
        limits(&mut wanted.limits);
        wanted.start()
    }

    /// Tells it to leave.
    pub fn leave(&mut self) {
        drop(self.leave.take());
    }

    /// Tells it to leave and waits until it has.
    pub async fn left(mut self) -> usize {
        self.leave();
        soon("the server leaves", self.served).await.unwrap().unwrap()
    }

    pub async fn client(&self) -> Client {
        let settings = ClientSettings { target: self.address.to_string(), ..Default::default() };
        soon("connecting", Client::connect(&settings)).await.unwrap()
    }

    pub fn judged(&self) -> u64 {
        self.bench.judged.load(Ordering::SeqCst)
    }

    pub fn open(&self) -> usize {
        self.traffic.open.load(Ordering::SeqCst)
    }
}

/// A question with one ordinary descriptor.
pub fn question(domain: &str) -> CallRequest {
    let entries = vec![(b"remote_address".to_vec(), b"192.0.2.1".to_vec())];
    CallRequest {
        domain: domain.to_owned(),
        descriptors: vec![CallDescriptor { entries, ..Default::default() }],
        hits: 0,
    }
}

/// The same question, encoded by hand: domain, one descriptor, one entry.
pub fn encoded(domain: &str) -> Vec<u8> {
    let entry = [&[0x0a, 2][..], b"ip", &[0x12, 1], b"1"].concat();
    let descriptor = [&[0x0a, entry.len() as u8][..], &entry].concat();
    let domain = [&[0x0a, domain.len() as u8][..], domain.as_bytes()].concat();
    [&domain[..], &[0x12, descriptor.len() as u8], &descriptor].concat()
}
