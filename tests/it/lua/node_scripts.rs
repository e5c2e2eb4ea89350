//! Scripts for one node of a cluster: what a real node answers to them while slots move, that they
//! write nothing if a key is not there, and when the store uses them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use redis::Value;
use tidegate::clock::Clock;
use tidegate::domain::{Accounting, Check, CounterKey, Holder, Limit, Micros, Verdict};
use tidegate::domain::{Answer, Hits};
use tidegate::store::Store;
use tidegate::store::redis::RedisStore;
use tidegate::store::redis::client::transport::{NodeRequests, PendingCalls, Transport};
use tidegate::store::redis::script::arguments::{CallScope, Encoder};
use tidegate::store::redis::script::call;
use tidegate::store::redis::script::call::NodeRequest;
use tidegate::store::redis::script::keys::{Prefix, counter_slot};
use tidegate::store::redis::script::library::{PRODUCTION, ScriptCall};
use tidegate::store::redis::script::reply::is_not_here;
use tidegate::store::redis::store::TimeSource;

use crate::support::limits::*;
use crate::support::plain_transport::Plain;
use crate::support::redis_cluster::text;
use crate::support::redis_server::{Server, until};

/// Two masters with half of the slots each.
struct Pair {
    nodes: [Server; 2],
    plain: Plain,
    encoder: Encoder,
}

/// The first slot of the second master.
const MIDDLE: u16 = 8_192;

impl Pair {
    async fn new() -> Pair {
        let lines = ["cluster-enabled yes", "cluster-require-full-coverage no"];
        let nodes = [Server::start(&lines), Server::start(&lines)];
        nodes[0].ask(&["CLUSTER", "ADDSLOTSRANGE", "0", "8191"]);
        nodes[1].ask(&["CLUSTER", "ADDSLOTSRANGE", "8192", "16383"]);
        nodes[1].ask(&["CLUSTER", "SET-CONFIG-EPOCH", "2"]);
        nodes[0].ask(&["CLUSTER", "MEET", "127.0.0.1", &nodes[1].port.to_string()]);
        let is_up = |node: &Server| {
            let info = text(node.ask(&["CLUSTER", "INFO"]));
            info.contains("cluster_state:ok") && info.contains("cluster_slots_ok:16384")
        };
        until("the nodes have met", || nodes.iter().all(is_up)).await;
        let plain = Plain(nodes[0].connect().await);
        Pair { nodes, plain, encoder: Encoder::new(Prefix::default(), &PRODUCTION, true) }
    }

    async fn run(&self, checks: &[Check<'_>]) -> Value {
        let call = call(checks, now());
        let scope = CallScope { spans_slots: true, is_part: false };
        let call = call::encode(&self.encoder, &call, scope, None);
        self.plain.run(&call).await.unwrap()
    }

    /// The verdicts of a call, or `None` if the node does not hold all of its keys.
    async fn verdicts(&self, checks: &[Check<'_>]) -> Option<Vec<Verdict>> {
        let reply = self.run(checks).await;
        if is_not_here(&reply) {
            return None;
        }
        let reply = call::decode(&reply, checks, Accounting::AllOrNothing, false).unwrap();
        Some(reply.outcomes.iter().map(|outcome| outcome.verdict).collect())
    }

    /// Marks a slot of the first master as one that moves to the second.
    fn start_move(&self, key: &CounterKey) {
        let slot = counter_slot(key).to_string();
        let ids = self.nodes.each_ref().map(|node| text(node.ask(&["CLUSTER", "MYID"])));
        self.nodes[1].ask(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &ids[0]]);
        self.nodes[0].ask(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &ids[1]]);
    }

    fn end_move(&self, key: &CounterKey) {
        let (slot, id) =
            (counter_slot(key).to_string(), text(self.nodes[1].ask(&["CLUSTER", "MYID"])));
        for node in self.nodes.iter().rev() {
            node.ask(&["CLUSTER", "SETSLOT", &slot, "NODE", &id]);
        }
    }

    fn move_key(&self, check: &Check<'_>) {
        let (port, key) = (self.nodes[1].port.to_string(), text_of(check));
        self.nodes[0].ask(&["MIGRATE", "127.0.0.1", &port, &key, "0", "5000"]);
    }

    /// Everything that the first master holds.
    fn contents(&self) -> Vec<(String, Option<Vec<u8>>)> {
        let keys: Vec<String> =
            redis::from_redis_value(self.nodes[0].ask(&["KEYS", "tg1*"])).unwrap();
        let dump = |key: String| {
            let value = redis::from_redis_value(self.nodes[0].ask(&["DUMP", &key])).unwrap();
            (key, value)
        };
        let mut contents: Vec<_> = keys.into_iter().map(dump).collect();
        contents.sort();
        contents
    }
}

fn now() -> Micros {
    Clock::System.now()
}

fn text_of(check: &Check<'_>) -> String {
    let text = Prefix::default().key(&check.key, &check.limit.algorithm);
    String::from_utf8(text.to_vec()).unwrap()
}

/// Counters in different slots of the first master, or of the second.
fn keys_of(node: usize) -> Vec<CounterKey> {
    let mut slots = Vec::new();
    let is_there = |key: &CounterKey| usize::from(counter_slot(key) >= MIDDLE) == node;
    let is_new = |key: &CounterKey| {
        let slot = counter_slot(key);
        let is_new = !slots.contains(&slot);
        slots.push(slot);
        is_new
    };
    (0..).map(key).filter(is_there).filter(is_new).take(8).collect()
}

/// A call of fixed windows and buckets, one of buckets in arrival form, and one of every algorithm.
fn kinds_of_calls() -> [Vec<Arc<Limit>>; 3] {
    let buckets = [9, 10, 11].map(|burst| bucket(burst, MINUTE)).to_vec();
    let common = vec![window(9, HOUR), bucket(9, MINUTE), credits(9, 7, HOUR), window(9, HOUR)];
    let others = vec![
        sliding_window(9, HOUR),
        sliding_log(9, HOUR),
        slots(9, HOUR),
        hybrid(9, 7, HOUR, &[100], 0),
        calendar(9, tidegate::domain::Unit::Year, "UTC"),
    ];
    [common.clone(), buckets, [common, others].concat().split_off(1)]
}

fn takes<'a>(keys: &[CounterKey], limits: &'a [Arc<Limit>]) -> Vec<Check<'a>> {
    let one = |(key, limit): (&CounterKey, &'a Arc<Limit>)| Check {
        holder: Some(Holder(5)),
        ..take(*key, limit, 2)
    };
    keys.iter().zip(limits).map(one).collect()
}

#[tokio::test]
async fn a_node_decides_checks_in_several_of_its_slots_at_once() {
    let pair = Pair::new().await;
    for limits in kinds_of_calls() {
        let checks = takes(&keys_of(0), &limits);
        for _ in 0..4 {
            let verdicts = pair.verdicts(&checks).await.expect("all keys are here");
            assert!(verdicts.iter().all(|verdict| *verdict == Verdict::Pass));
        }
        // 8 of 9 are taken; the slots of one holder are renewed.
        let before = pair.contents();
        let verdicts = pair.verdicts(&checks).await.expect("all keys are here");
        assert!(verdicts.contains(&Verdict::Refuse));
        assert_eq!(pair.contents(), before, "a rejected call changed something");
        pair.nodes[0].ask(&["FLUSHALL"]);
    }
}

#[tokio::test]
async fn a_key_of_another_node_wherever_it_stands_changes_nothing() {
    let pair = Pair::new().await;
    for limits in kinds_of_calls() {
        let (own, foreign) = (keys_of(0), keys_of(1));
        let count = limits.len().min(own.len());
        pair.verdicts(&takes(&own, &limits)).await.expect("all keys are here");
        let before = pair.contents();
        for place in 0..count {
            let mut keys = own.clone();
            keys[place] = foreign[0];
            assert_eq!(pair.verdicts(&takes(&keys, &limits)).await, None, "at {place}");
            assert_eq!(pair.contents(), before, "something was written");
        }
        pair.nodes[0].ask(&["FLUSHALL"]);
    }
}

#[tokio::test]
async fn a_fresh_or_moved_key_of_a_moving_slot_changes_nothing() {
    for limits in kinds_of_calls() {
        // New nodes: a slot that is told to move back may be claimed again by a message on its way.
        let pair = Pair::new().await;
        let own = keys_of(0);
        let checks = takes(&own, &limits);
        for at in 0..checks.len() {
            // Fresh: the others are there, this one is not.
            pair.nodes[0].ask(&["FLUSHALL"]);
            pair.verdicts(&checks).await.expect("all keys are here");
            pair.nodes[0].ask(&["DEL", &text_of(&checks[at])]);
            pair.start_move(&checks[at].key);
            let before = pair.contents();
            assert_eq!(pair.verdicts(&checks).await, None, "{at} is fresh");
            assert_eq!(pair.contents(), before, "something was written");
            let slot = counter_slot(&checks[at].key).to_string();
            for node in &pair.nodes {
                node.ask(&["CLUSTER", "SETSLOT", &slot, "STABLE"]);
            }
        }
        pair.verdicts(&checks).await.expect("all keys are here again");
        // Moved, with the slot still moving and then gone.
        pair.start_move(&checks[0].key);
        pair.move_key(&checks[0]);
        let before = pair.contents();
        assert_eq!(pair.verdicts(&checks).await, None, "it has moved");
        pair.end_move(&checks[0].key);
        assert_eq!(pair.verdicts(&checks).await, None, "its slot has moved");
        assert_eq!(pair.contents(), before, "something was written");
    }
}

/// On Redis 7.0 the call is decided. On Redis 8.0, a key of a moving slot is found only if the command
/// before it used no other slot, so the call must not be decided: a write would fail after others.
#[tokio::test]
async fn a_present_key_of_a_moving_slot_is_charged_with_all_others_or_nothing_is() {
    let pair = Pair::new().await;
    for limits in kinds_of_calls() {
        let checks = takes(&keys_of(0), &limits);
        for at in 0..checks.len() {
            pair.nodes[0].ask(&["FLUSHALL"]);
            pair.verdicts(&checks).await.expect("all keys are here");
            pair.start_move(&checks[at].key);
            let before = pair.contents();
            match pair.verdicts(&checks).await {
                Some(verdicts) => {
                    assert!(verdicts.iter().all(|verdict| *verdict == Verdict::Pass));
                    let same = before.iter().filter(|entry| pair.contents().contains(entry));
                    assert_eq!(same.count(), 0, "every counter was charged, {at} is moving");
                }
                None => assert_eq!(pair.contents(), before, "something was written"),
            }
            let slot = counter_slot(&checks[at].key).to_string();
            for node in &pair.nodes {
                node.ask(&["CLUSTER", "SETSLOT", &slot, "STABLE"]);
            }
        }
    }
}

#[tokio::test]
async fn the_last_slot_in_flight_of_a_moving_slot_can_be_returned_with_other_charges() {
    let pair = Pair::new().await;
    let (keys, seats, wide) = (keys_of(0), slots(9, HOUR), window(9, HOUR));
    let held = |check| Check { holder: Some(Holder(5)), ..check };
    let checks = [held(take(keys[0], &seats, 1)), take(keys[1], &wide, 1)];
    pair.verdicts(&checks).await.expect("all keys are here");
    pair.start_move(&keys[0]);
    let checks = [held(refund(keys[0], &seats, 1)), take(keys[1], &wide, 1)];
    let before = pair.contents();
    match pair.verdicts(&checks).await {
        Some(_) => {
            let contents = pair.contents();
            assert_eq!(contents.len(), 1, "the slot in flight is free: {contents:?}");
            assert!(!before.contains(&contents[0]), "and the other counter was charged");
        }
        None => assert_eq!(pair.contents(), before, "something was written"),
    }
}

/// Sends scripts for nodes to one node, and the others to the nodes of their slots.
struct Routed {
    plains: [Plain; 2],
    /// The node that gets the scripts for nodes.
    routed_to: usize,
    redirects: AtomicU64,
    node_calls: AtomicU64,
    slot_calls: AtomicU64,
}

impl Routed {
    async fn new(pair: &Pair, routed_to: usize) -> Routed {
        let plains = [Plain(pair.nodes[0].connect().await), Plain(pair.nodes[1].connect().await)];
        let (redirects, node_calls, slot_calls) = Default::default();
        Routed { plains, routed_to, redirects, node_calls, slot_calls }
    }

    /// Script calls for nodes and for slots since the last look.
    fn traffic(&self) -> (u64, u64) {
        let [nodes, slots] = [&self.node_calls, &self.slot_calls].map(|of| of.swap(0, Relaxed));
        (nodes, slots)
    }
}

impl Transport for Routed {
    fn is_cluster(&self) -> bool {
        true
    }

    fn node_of(&self, slot: u16) -> Option<u16> {
        Some(u16::from(slot >= MIDDLE))
    }

    fn redirects(&self) -> u64 {
        self.redirects.load(Relaxed)
    }

    fn submit(&self, calls: NodeRequests) -> PendingCalls {
        let mut replies = PendingCalls::new();
        for call in calls.into_iter().map(NodeRequest::into_script_call) {
            let owner = usize::from(call.slot.unwrap() >= MIDDLE);
            let keys = call.command.args_iter().nth(2);
            let is_for_node = matches!(keys, Some(redis::Arg::Simple(b"0")));
            let (at, counter) = match is_for_node {
                true => (self.routed_to, &self.node_calls),
                false => (owner, &self.slot_calls),
            };
            counter.fetch_add(1, Relaxed);
            replies.extend(self.plains[at].submit(NodeRequests::from_iter([call.into()])));
        }
        replies
    }

    fn send_in_background(&self, call: ScriptCall) {
        panic!("nothing is refused: {}", call.script.name);
    }
}

/// Calls over three slots of the first master, in milliseconds after `now`, all of which must pass.
struct Caller {
    store: RedisStore<Routed>,
    now: Micros,
    limits: Vec<Arc<Limit>>,
}

impl Caller {
    async fn new(pair: &Pair, routed_to: usize) -> Caller {
        let transport = Routed::new(pair, routed_to).await;
        let store = RedisStore::new(transport, Prefix::default(), TimeSource::Server);
        let wide = |n: u64| if n == 0 { window(1_000, HOUR) } else { bucket(1_000, MINUTE) };
        Caller { store, now: now(), limits: (0..3).map(wide).collect() }
    }

    /// Makes a call, and returns the numbers of script calls for nodes and for slots that it took.
    async fn call(&self, after_millis: u64) -> (u64, u64) {
        let checks = takes(&keys_of(0), &self.limits);
        let now = Micros(self.now.0 + 1_000 * after_millis);
        let call = call(&checks, now);
        for answer in self.store.apply(&call).await.each {
            let Answer::Decided(outcome) = answer else { panic!("{answer:?}") };
            assert_eq!((outcome.verdict, outcome.charged), (Verdict::Pass, Hits(2)));
        }
        self.store.transport().traffic()
    }
}

#[tokio::test]
async fn a_service_that_routes_scripts_anywhere_is_learned_and_charged_once() {
    let pair = Pair::new().await;
    let caller = Caller::new(&pair, 1).await;
    // The slots of a call are off for a second after each answer.
    for n in 0..8 {
        assert_eq!(caller.call(1_000 * n).await, (1, 3), "call {n}");
        assert_eq!(caller.call(1_000 * n + 999).await, (0, 3), "call {n}");
    }
    for later in [8_000, 60_000, 600_000] {
        assert_eq!(caller.call(later).await, (0, 3), "after {later} ms");
    }
    assert_eq!(caller.call(607_000).await, (1, 3), "tried again after ten minutes");
    assert_eq!(caller.call(609_000).await, (0, 3), "and turned off again at once");
    let stats = caller.store.stats();
    assert_eq!(stats.not_here.load(Relaxed), 9);
    // Every call was charged exactly once, in each of its counters.
    let checks = takes(&keys_of(0), &caller.limits);
    let contents = text(pair.nodes[0].ask(&["GET", &text_of(&checks[0])]));
    assert!(contents.ends_with(&format!("{:010}", 2 * (2 * 8 + 3 + 2))), "{contents}");
}

#[tokio::test]
async fn answers_that_redirects_explain_turn_no_script_off() {
    let pair = Pair::new().await;
    let caller = Caller::new(&pair, 1).await;
    for n in 0..50 {
        let redirected = async {
            loop {
                caller.store.transport().redirects.fetch_add(1, Relaxed);
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            traffic = caller.call(1_000 * n) => assert_eq!(traffic, (1, 3), "call {n}"),
            () = redirected => {}
        }
    }
}

#[tokio::test]
async fn one_script_decides_a_call_on_its_node_and_none_where_it_is_turned_off() {
    let pair = Pair::new().await;
    let caller = Caller::new(&pair, 0).await;
    for n in 0..5 {
        assert_eq!(caller.call(n).await, (1, 0));
    }
    let Caller { store, now, limits } = caller;
    let caller = Caller { store: store.with_node_scripts(false), now, limits };
    assert_eq!(caller.call(9).await, (0, 3));
}
