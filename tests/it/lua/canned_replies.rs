//! The store over a transport whose replies a test writes: deadlines, failures, and statistics.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use redis::Value;
use tidegate::clock::Clock;
use tidegate::domain::{
    Accounting, Answer, Answers, Call, Check, ExecutionStatus, FailureKind, Micros, Source, Unit,
};
use tidegate::store::redis::RedisStore;
use tidegate::store::redis::client::config::{Address, RedisConfig};
use tidegate::store::redis::client::send_error::SendError;
use tidegate::store::redis::client::topology::RedisClient;
use tidegate::store::redis::client::transport::{NodeRequests, PendingCalls, Transport};
use tidegate::store::redis::script::call::NodeRequest;
use tidegate::store::redis::script::keys::{Prefix, counter_slot};
use tidegate::store::redis::script::library::{PRODUCTION, ScriptCall};
use tidegate::store::redis::script::reply::NOT_HERE;
use tidegate::store::redis::store::TimeSource;
use tidegate::store::{SharedStore, Store};

use crate::support::limits::*;
use crate::support::redis_server::free_port;
use crate::support::requests;

/// Replies what a test has written, and records what it was asked to send.
#[derive(Default)]
struct Canned {
    is_cluster: bool,
    has_node_scripts: bool,
    /// Replies to the script calls of each round trip.
    rounds: Mutex<VecDeque<Vec<Result<Value, SendError>>>>,
    sent: Mutex<Vec<ScriptCall>>,
    in_background: Mutex<Vec<ScriptCall>>,
}

impl Transport for Canned {
    fn is_cluster(&self) -> bool {
        self.is_cluster
    }

    fn submit(&self, calls: NodeRequests) -> PendingCalls {
        let mut replies = self.rounds.lock().unwrap().pop_front().unwrap_or_default();
        replies.resize(calls.len(), Err(SendError::LOST));
        self.sent.lock().unwrap().extend(calls.into_iter().map(NodeRequest::into_script_call));
        replies.into_iter().map(requests::ready).collect()
    }

    fn send_in_background(&self, call: ScriptCall) {
        self.in_background.lock().unwrap().push(call);
    }

    fn node_of(&self, _: u16) -> Option<u16> {
        self.has_node_scripts.then_some(0)
    }

    fn counter_losses(&self) -> u64 {
        4
    }

    fn lost_connections(&self) -> u64 {
        3
    }
}

fn store(canned: Canned) -> RedisStore<Canned> {
    RedisStore::new(canned, Prefix::default(), TimeSource::Server)
}

/// Writes the replies to one round trip of script calls.
fn reply(store: &RedisStore<Canned>, replies: &[Result<Value, SendError>]) {
    store.transport().rounds.lock().unwrap().push_back(replies.to_vec());
}

/// For each script call that was sent since the last look, whether its counters may be in several
/// slots, so that it has no KEYS.
fn sent_without_keys(store: &RedisStore<Canned>) -> Vec<bool> {
    let has_no_keys = |call: ScriptCall| {
        matches!(call.command.args_iter().nth(2), Some(redis::Arg::Simple(b"0")))
    };
    store.transport().sent.lock().unwrap().drain(..).map(has_no_keys).collect()
}

async fn apply_until(
    store: &RedisStore<Canned>,
    checks: &[Check<'_>],
    accounting: Accounting,
    deadline: Option<Instant>,
) -> Answers {
    store.apply(&Call { checks, accounting, now: START, deadline }).await
}

async fn apply(store: &RedisStore<Canned>, checks: &[Check<'_>]) -> Answers {
    apply_until(store, checks, Accounting::AllOrNothing, None).await
}

/// A reply of `decide.lua`: numbers in MessagePack.
fn numbers(numbers: &[i64]) -> Result<Value, SendError> {
    let mut reply = vec![0xdc, 0, u8::try_from(numbers.len()).unwrap()];
    for number in numbers {
        reply.push(0xd3);
        reply.extend(number.to_be_bytes());
    }
    Ok(Value::BulkString(reply))
}

fn now() -> i64 {
    i64::try_from(START.0).unwrap()
}

/// A reply of `decide.lua`: the bucket was full, and the check passes.
fn full_bucket() -> Result<Value, SendError> {
    numbers(&[0, now()])
}

fn text(line: &str) -> Result<Value, SendError> {
    Ok(Value::BulkString(line.as_bytes().to_vec()))
}

fn failed(executed: ExecutionStatus, kind: FailureKind) -> Result<Value, SendError> {
    Err(SendError { executed, kind })
}

fn unanswered(executed: ExecutionStatus) -> Answer {
    Answer::Unanswered { executed }
}

#[tokio::test]
async fn every_script_call_has_the_callers_deadline() {
    let limit = bucket(1_000, SECOND);
    let checks = [take(key(1), &limit, 1), take(key(2), &limit, 1)];
    assert_ne!(counter_slot(&checks[0].key), counter_slot(&checks[1].key));
    let deadline = Clock::System.monotonic_now() + Duration::from_secs(9);
    for accounting in [Accounting::AllOrNothing, Accounting::Independent] {
        for (is_cluster, has_node_scripts, count) in
            [(false, false, 1), (true, true, 1), (true, false, 2)]
        {
            let store = store(Canned { is_cluster, has_node_scripts, ..Canned::default() });
            let answers = apply_until(&store, &checks, accounting, Some(deadline)).await;
            assert_eq!(answers.each, [unanswered(ExecutionStatus::Unknown); 2], "no reply");
            let canned = store.transport();
            let sent: Vec<Option<Instant>> =
                canned.sent.lock().unwrap().iter().map(|call| call.deadline).collect();
            assert_eq!(sent, vec![Some(deadline); count]);
        }
    }
}

#[tokio::test]
async fn a_call_is_shed_if_one_of_its_slots_is_overloaded() {
    let limit = bucket(1_000, SECOND);
    let checks = [take(key(1), &limit, 1), take(key(2), &limit, 1)];
    for (kind, source) in
        [(FailureKind::Overload, Source::Shed), (FailureKind::NotConnected, Source::Redis)]
    {
        let store = store(Canned { is_cluster: true, ..Canned::default() });
        reply(&store, &[full_bucket(), failed(ExecutionStatus::NotExecuted, kind)]);
        let answers = apply(&store, &checks).await;
        assert_eq!(answers.source, source);
        assert!(answers.each[0].outcome().is_some());
        assert_eq!(answers.each[1], unanswered(ExecutionStatus::NotExecuted));
        let canned = store.transport();
        assert!(canned.in_background.lock().unwrap().is_empty(), "the other charge is kept");
    }
}

#[tokio::test]
async fn unreadable_replies_and_clamped_counters_are_counted() {
    let store = store(Canned::default());
    let (limit, day) = (bucket(1_000, SECOND), calendar(5, Unit::Day, "UTC"));
    let counts = || {
        let stats = store.stats();
        [&stats.clamped, &stats.unreadable, &stats.script_calls]
            .map(|of| of.load(Ordering::Relaxed))
    };
    // A bucket that is not plain, from the far future.
    reply(&store, &[numbers(&[-1, now(), 1 << 40, 0, 1, 0])]);
    assert!(apply(&store, &[take(key(1), &limit, 1)]).await.each[0].outcome().is_some());
    assert_eq!(counts(), [1, 0, 1]);
    reply(&store, &[text("nonsense")]);
    let answers = apply(&store, &[take(key(1), &limit, 1)]).await;
    assert_eq!(answers.each, [unanswered(ExecutionStatus::Unknown)], "it may have charged");
    assert_eq!(counts(), [1, 1, 2]);
    reply(&store, &[numbers(&[0, now(), 1, -1])]);
    let answers = apply(&store, &[take(key(2), &day, 1)]).await;
    assert_eq!(answers.each, [unanswered(ExecutionStatus::NotExecuted)], "no such window");
    assert_eq!(counts(), [1, 1, 3]);
}

#[tokio::test]
async fn only_unexplained_not_here_replies_turn_node_scripts_off() {
    let store = store(Canned { is_cluster: true, has_node_scripts: true, ..Canned::default() });
    let limit = bucket(1_000, SECOND);
    let checks = [take(key(1), &limit, 1), take(key(2), &limit, 1)];
    let mut seconds = 0;
    let mut call = async |rounds: [&[Result<Value, SendError>]; 2]| {
        rounds.iter().for_each(|replies| reply(&store, replies));
        // The slots of a `not here` reply are excluded for a second.
        seconds += 1;
        let now = Micros(START.0 + seconds * SECOND);
        store.apply(&call(&checks, now)).await;
        store.transport().rounds.lock().unwrap().clear();
        sent_without_keys(&store)[0]
    };
    let not_here: [Result<Value, SendError>; 1] = [Ok(Value::BulkString(NOT_HERE.to_vec()))];
    let both = [full_bucket(), full_bucket()];
    let one = [full_bucket(), failed(ExecutionStatus::Unknown, FailureKind::Lost)];
    let decided = [numbers(&[0, 0, now()])];
    for _ in 0..9 {
        assert!(call([&not_here, &one]).await, "a slot that does not answer explains nothing");
    }
    for _ in 0..7 {
        assert!(call([&not_here, &both]).await);
    }
    for _ in 0..4 {
        assert!(call([&decided, &[]]).await, "each makes up for a quarter of one of the others");
    }
    assert!(call([&not_here, &both]).await);
    assert!(call([&not_here, &both]).await, "the eighth in excess turns them off");
    assert!(!call([&both, &[]]).await);
}

#[test]
fn only_a_cluster_refuses_transiently() {
    let hour = window(5, HOUR);
    let check = take(key(1), &hour, 1);
    assert!(!store(Canned::default()).has_transient_refusals(&check));
    let cluster = store(Canned { is_cluster: true, ..Canned::default() });
    assert!(cluster.has_transient_refusals(&check));
}

#[test]
fn lost_connections_and_lost_counters_both_begin_a_new_session() {
    let store = store(Canned::default());
    assert_eq!((store.session(), store.counter_losses()), (7, 4));
}

#[tokio::test]
async fn a_store_that_was_never_connected_is_not_available() {
    let addresses = vec![Address::Tcp("127.0.0.1".into(), free_port())];
    let config = RedisConfig { addresses, ..RedisConfig::default() };
    let client = RedisClient::open(config, PRODUCTION.all().to_vec()).unwrap();
    let store = RedisStore::new(client, Prefix::default(), TimeSource::Server);
    assert!(!store.is_available());
}
