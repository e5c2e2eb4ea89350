//! The Redis store against the contract: on one server, behind Sentinel and on a Cluster.
//!
//! The scripts run strictly and take the call's time as their own. After every operation, every key
//! that it may have written must have an expiry. Each case gets its own single server; the Sentinel
//! group and the cluster take seconds to start, so they serve all cases in turn, over the service's
//! own connections and under its least-privilege ACL.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use redis::aio::MultiplexedConnection;
use tidegate::clock::ManualClock;
use tidegate::domain::{Answers, Call, CounterKey, Receipt, Source};
use tidegate::store::Store;
use tidegate::store::redis::RedisStore;
use tidegate::store::redis::client::config::{Address, RedisConfig, TopologyConfig};
use tidegate::store::redis::client::topology::RedisClient;
use tidegate::store::redis::client::transport::{NodeRequests, PendingCalls, Transport};
use tidegate::store::redis::script::keys::{self, Prefix};
use tidegate::store::redis::script::library::{STRICT, ScriptCall};
use tidegate::store::redis::store::TimeSource;

use super::contract;
use super::memory_store::spread;
use super::store_under_test::{Bench, START};
use crate::support::acl;
use crate::support::heavy;
use crate::support::plain_transport::Plain;
use crate::support::proof::times;
use crate::support::real_store::login;
use crate::support::redis_cluster::{Cluster, text};
use crate::support::redis_sentinel::{Group, NAME};
use crate::support::redis_server::{PATIENCE, Server, until};

/// Where the masters' slots begin, as `redis-cli --cluster create` deals them to three.
const SLOTS_BEGIN: [u16; 3] = [0, 5_461, 10_923];

/// A store whose keys are looked at after every operation.
pub struct Watched<T> {
    store: RedisStore<T>,
    /// A connection to each master.
    eyes: Vec<MultiplexedConnection>,
}

impl<T: Transport> Watched<T> {
    fn new(transport: T, eyes: Vec<MultiplexedConnection>) -> Arc<Watched<T>> {
        let store = RedisStore::new(transport, Prefix::default(), TimeSource::Call);
        Arc::new(Watched { store, eyes })
    }

    async fn every_key_ends(&self, keys: impl Iterator<Item = (CounterKey, Vec<u8>)>) {
        let mut looks = vec![redis::pipe(); self.eyes.len()];
        for (key, text) in keys {
            let is_behind = |begin: &&u16| **begin <= keys::counter_slot(&key);
            let at = match self.eyes.len() {
                1 => 0,
                _ => SLOTS_BEGIN.iter().filter(is_behind).count() - 1,
            };
            looks[at].cmd("PTTL").arg(text);
        }
        for (look, eye) in looks.iter().zip(&self.eyes).filter(|(look, _)| !look.is_empty()) {
            let left: Vec<i64> = look.query_async(&mut eye.clone()).await.unwrap();
            // -2: there is no such key. -1: it would stay for ever.
            let ends = |left: &i64| *left == -2 || *left >= 0;
            assert!(left.iter().all(ends), "a key never ends: {left:?} for {look:?}");
        }
    }
}

/// Where the counters of a bench are in a cluster.
#[derive(Clone, Copy)]
enum Placement {
    /// In one slot.
    OneTag,
    /// In slots of the first of three nodes.
    OneNode,
}

/// Shared by all benches of one set of servers.
pub struct Shared<T>(Arc<Watched<T>>);

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Shared<T> {
        Shared(Arc::clone(&self.0))
    }
}

impl<T: Transport> Store for Shared<T> {
    async fn apply(&self, call: &Call<'_>) -> Answers {
        let answers = self.0.store.apply(call).await;
        let texts = |check: &tidegate::domain::Check<'_>| {
            let key = Prefix::default().key(&check.key, &check.limit.algorithm);
            let [amounts, ends] = Prefix::default().hold_keys(&check.key);
            let key_of = check.key;
            [key, amounts, ends].map(|text| (key_of, text.to_vec()))
        };
        self.0.every_key_ends(call.checks.iter().flat_map(texts)).await;
        answers
    }

    async fn refund(&self, receipts: &[Receipt]) {
        self.0.store.refund(receipts).await;
        let text = |receipt: &Receipt| {
            (receipt.key, Prefix::default().key(&receipt.key, &receipt.limit.algorithm).to_vec())
        };
        self.0.every_key_ends(receipts.iter().map(text)).await;
    }
}

pub struct RedisBench<T> {
    store: Shared<T>,
    placement: Placement,
    clock: ManualClock,
    traces: u64,
    salt: u64,
    _server: Option<Server>,
}

impl<T: Transport> RedisBench<T> {
    fn on(store: Shared<T>, server: Option<Server>, placement: Placement) -> RedisBench<T> {
        static BENCHES: AtomicU64 = AtomicU64::new(1);
        let salt = BENCHES.fetch_add(1, Ordering::Relaxed);
        let clock = ManualClock::at(START);
        // Only the way of a call differs from the plain server's; the proof has them all.
        let traces = times(40, 1_600);
        RedisBench { store, placement, clock, traces, salt, _server: server }
    }
}

impl RedisBench<Plain> {
    pub async fn new() -> RedisBench<Plain> {
        let server = Server::start(&[]);
        let connection = server.connect().await;
        let watched = Watched::new(Plain(connection.clone()), vec![connection]);
        let bench = RedisBench::on(Shared(watched), Some(server), Placement::OneTag);
        RedisBench { traces: 160, ..bench }
    }
}

impl<T: Transport> Bench for RedisBench<T> {
    type Store = Shared<T>;

    fn store(&self) -> &Shared<T> {
        &self.store
    }

    fn source(&self) -> Source {
        Source::Redis
    }

    fn clock(&self) -> &ManualClock {
        &self.clock
    }

    fn traces(&self) -> u64 {
        self.traces
    }

    fn key(&self, n: u64) -> CounterKey {
        match self.placement {
            Placement::OneTag => {
                let tag = Some(spread(self.salt, u64::MAX));
                CounterKey { identity: spread(self.salt, n), tag }
            }
            Placement::OneNode => {
                let tries = (0..).map(|nth| spread(self.salt, n << 8 | nth));
                let mut keys = tries.map(|identity| CounterKey { identity, tag: None });
                keys.find(|key| keys::counter_slot(key) < SLOTS_BEGIN[1]).unwrap()
            }
        }
    }
}

contract!(standalone, crate::store_contract::redis_store::RedisBench::new().await);

/// A server that is a whole cluster, so that a script for its node decides every call of several
/// slots.
pub struct OneNode(Plain);

impl Transport for OneNode {
    fn is_cluster(&self) -> bool {
        true
    }

    fn node_of(&self, _: u16) -> Option<u16> {
        Some(0)
    }

    fn submit(&self, calls: NodeRequests) -> PendingCalls {
        self.0.submit(calls)
    }

    fn send_in_background(&self, call: ScriptCall) {
        panic!("a call on one node needs no refund: {}", call.script.name);
    }
}

impl RedisBench<OneNode> {
    pub async fn one_node() -> RedisBench<OneNode> {
        let server = Server::start(&["cluster-enabled yes"]);
        server.ask(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
        let is_up = || text(server.ask(&["CLUSTER", "INFO"])).contains("cluster_state:ok");
        until("the cluster is up", is_up).await;
        let connection = server.connect().await;
        let watched = Watched::new(OneNode(Plain(connection.clone())), vec![connection]);
        RedisBench::on(Shared(watched), Some(server), Placement::OneNode)
    }
}

contract!(one_node, crate::store_contract::redis_store::RedisBench::one_node().await);

/// The service's connections, and an operator's to each of the masters.
async fn connected(
    topology: TopologyConfig,
    dialled: &[u16],
    masters: &[u16],
    shared_calls_min: usize,
) -> Shared<RedisClient> {
    let local = |port: &u16| Address::Tcp("127.0.0.1".into(), *port);
    let config = RedisConfig {
        topology,
        addresses: dialled.iter().map(local).collect(),
        auth: login(),
        // A case may keep the machine busy for long; what is meant here is right, not fast.
        reply_timeout: PATIENCE,
        shared_calls_min,
        ..RedisConfig::default()
    };
    let connections = RedisClient::open(config, STRICT.all().to_vec()).unwrap();
    let connected = tokio::time::timeout(PATIENCE, connections.wait_until_connected()).await;
    connected.expect("the connections are made");
    let mut eyes = Vec::new();
    for port in masters {
        let client = redis::Client::open(("127.0.0.1", *port)).unwrap();
        // A busy machine may take longer than the client's half a second.
        let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
        eyes.push(client.get_multiplexed_async_connection_with_config(&config).await.unwrap());
    }
    Shared(Watched::new(connections, eyes))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_contract_holds_behind_sentinel_where_calls_share_a_script_call() {
    let _turn = heavy::turn().await;
    let group = Group::start(&[&acl::line(acl::SENTINEL_MASTER)], &[&acl::line(acl::SENTINEL)]);
    let topology = TopologyConfig::Sentinel { master: NAME.into(), auth: login() };
    let sentinels: Vec<u16> = group.sentinels.iter().map(|sentinel| sentinel.port).collect();
    let store = connected(topology, &sentinels, &[group.servers[0].port], 1).await;
    crate::store_contract::all_cases!(RedisBench::on(store.clone(), None, Placement::OneTag));
    assert_eq!(store.0.store.stats().disagreements.load(Ordering::Relaxed), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_contract_holds_on_a_cluster_for_counters_of_one_tag() {
    let _turn = heavy::turn().await;
    let cluster = Cluster::start(&[&acl::line(acl::CLUSTER)]);
    let ports: Vec<u16> = cluster.nodes.iter().map(|node| node.port).collect();
    for (at, begin) in SLOTS_BEGIN.iter().enumerate() {
        assert_eq!(cluster.owner(0, *begin), at, "the slots are dealt as this test thinks");
    }
    let store = connected(TopologyConfig::Cluster, &ports[3..4], &ports[..3], 1).await;
    crate::store_contract::all_cases!(RedisBench::on(store.clone(), None, Placement::OneTag));
}
