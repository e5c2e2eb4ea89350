//! One Redis node: its address, connections, circuit breaker, and statistics.
//!
//! Not here: the connection task (`connection`), finding the node that holds a key (`cluster`).

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use arc_swap::ArcSwapOption;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Notify, mpsc};

use super::client_context::ClientContext;
use super::config::Address;
use super::connection_state::{Connection, QUEUE_MAX};
use super::info::NodeInfo;
use super::node_state::{ConnectionStatus, NodeState};
use super::node_stats::NodeReport;
use super::pending_command::{Batch, PendingCommand, PendingReply};
use crate::domain::{FailureKind, Micros};
use crate::store::redis::script::call::NodeRequest;
use crate::store::redis::script::library::ScriptCall;

/// Interval at which one call is sent even if, by the load estimate, it would miss its deadline.
const LOAD_PROBE_INTERVAL: Micros = Micros(100_000);

thread_local! {
    /// Index of this thread's runtime in `RedisConfig::worker_runtimes`; `None` on other threads.
    /// Set by the connection tasks that run on the thread.
    static WORKER_INDEX: Cell<Option<usize>> = const { Cell::new(None) };
}

/// One Redis server and the connections to it, which are opened in the background and closed when
/// the node is dropped.
#[derive(Debug)]
pub(crate) struct Node {
    state: Arc<NodeState>,
    /// Queues of the connections' tasks, each of which contains the commands of one call.
    queues: Box<[mpsc::Sender<Batch>]>,
    /// Round-robin counter that picks a connection for callers outside the worker runtimes.
    next_connection: AtomicUsize,
    /// Time from which the next call is sent regardless of the load estimate, in microseconds of
    /// the breaker's clock.
    next_load_probe: AtomicU64,
    info: ArcSwapOption<NodeInfo>,
}

impl Node {
    /// Starts opening the node's connections, on the worker runtimes if there are any, otherwise on
    /// the current runtime. `refresh_needed` is notified whenever a connection is lost or cannot be
    /// opened. `slot` is a hash slot that the node owns, if one is known.
    pub(crate) fn open(
        context: &Arc<ClientContext>,
        address: Address,
        refresh_needed: &Arc<Notify>,
        slot: Option<u16>,
    ) -> Node {
        let (shared, refresh_needed) = (Arc::clone(context), Arc::clone(refresh_needed));
        let state = Arc::new(NodeState::new(shared, address, refresh_needed));
        // Before the connections start: the handshake tries a command on it.
        state.stats.owned_slot.add(slot.map_or(0, |slot| u64::from(slot) + 1));
        let runtimes = &context.config.worker_runtimes;
        let open_connection = |(index, status): (usize, &Arc<ConnectionStatus>)| {
            let (sender, queue) = mpsc::channel(QUEUE_MAX);
            let connection = Connection::new(&state, status, queue);
            match index.checked_rem(runtimes.len()) {
                None => drop(tokio::spawn(connection.run())),
                Some(worker) => drop(runtimes[worker].spawn(async move {
                    WORKER_INDEX.set(Some(worker));
                    connection.run().await;
                })),
            }
            sender
        };
        let queues = state.connections.iter().enumerate().map(open_connection).collect();
        Node {
            state,
            queues,
            next_connection: AtomicUsize::new(0),
            next_load_probe: AtomicU64::new(0),
            info: ArcSwapOption::empty(),
        }
    }

    pub(crate) fn address(&self) -> &Address {
        &self.state.address
    }

    /// Returns whether at least one connection to the node is open and accepts commands.
    pub(crate) fn is_connected(&self) -> bool {
        self.state.connections.iter().any(|connection| connection.is_ready.load(Ordering::Acquire))
    }

    /// Returns whether no command is queued or in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.state.connections.iter().all(|connection| connection.load.is_idle())
    }

    /// Returns whether the node could not be connected to, but not because it replied with an error.
    pub(crate) fn is_unreachable(&self) -> bool {
        !self.is_connected()
            && self.state.stats.connect_failures.get() > 0
            && self.state.stats.is_refusing.get() == 0
    }

    /// Marks the node as the owner of a hash slot; `None` if the slot is not known. Returns true if it
    /// was not marked before.
    pub(crate) fn mark_as_owner(&self, slot: Option<u16>) -> bool {
        self.state.stats.owned_slot.swap(slot.map_or(u64::MAX, |slot| u64::from(slot) + 1)) == 0
    }

    /// Returns the address of the node, its statistics, and the result of the last INFO
    /// poll.
    pub(crate) fn report(&self) -> NodeReport {
        NodeReport {
            address: self.state.address.to_string(),
            stats: Arc::clone(&self.state.stats),
            info: self.info.load_full(),
        }
    }

    /// Stores the result of an INFO poll; `None` if INFO could not be read.
    pub(crate) fn set_info(&self, info: Option<NodeInfo>) {
        self.info.store(info.map(Arc::new));
    }

    /// Queues the commands of one call on an open connection that can deliver the replies in time.
    /// If there is no such connection, rejects the commands immediately.
    pub(crate) fn enqueue(&self, mut batch: Batch) {
        let Some(command) = batch.first() else { return };
        let (now, deadline) = (command.queued_at, command.deadline);
        let first = WORKER_INDEX
            .get()
            .unwrap_or_else(|| self.next_connection.fetch_add(1, Ordering::Relaxed));
        let (mut overload, mut is_node_slow) = (None, false);
        for step in 0..self.queues.len() {
            let at = first.wrapping_add(step) % self.queues.len();
            let (queue, connection) = (&self.queues[at], &self.state.connections[at]);
            if !connection.is_ready.load(Ordering::Acquire) {
                continue;
            }
            // If one connection is slow, another one without a measurement is no better: both lead
            // to the same node.
            let is_promising = !is_node_slow || connection.load.is_measured(now);
            if !is_promising || !connection.load.can_reply_by(now, deadline) {
                is_node_slow = true;
                if !self.claim_load_probe(now) {
                    overload = overload.or(Some((&self.state.stats.shed, FailureKind::Overload)));
                    continue;
                }
                // Otherwise the connection would reject it.
                batch.iter_mut().for_each(|command| command.deadline = Micros(u64::MAX));
            }
            let commands = batch.len();
            connection.load.add(commands);
            batch = match queue.try_send(batch) {
                Ok(()) => return,
                Err(TrySendError::Full(batch)) => {
                    overload = Some((&self.state.stats.queue_full, FailureKind::QueueFull));
                    batch
                }
                Err(TrySendError::Closed(batch)) => batch,
            };
            connection.load.remove(commands);
        }
        let (counter, kind) = overload.unwrap_or_else(|| {
            self.state.refresh_needed.notify_one();
            (&self.state.stats.not_connected, FailureKind::NotConnected)
        });
        counter.add(batch.len() as u64);
        for command in batch {
            command.reject(kind);
        }
    }

    /// Returns whether to send a call regardless of the load estimate. Returns true at most once
    /// per [`LOAD_PROBE_INTERVAL`], so that the estimate recovers even if all other calls are
    /// rejected.
    fn claim_load_probe(&self, now: Micros) -> bool {
        let due = self.next_load_probe.load(Ordering::Relaxed);
        let next = now.saturating_add(LOAD_PROBE_INTERVAL).0;
        now.0 >= due
            && self
                .next_load_probe
                .compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }

    /// Queues a script call without waiting for its reply. Drops the call if the circuit breaker is
    /// open or no connection accepts the call.
    pub(crate) fn send_in_background(&self, call: ScriptCall) {
        if self.state.is_open() {
            self.state.stats.breaker_rejected.add(1);
        } else {
            self.enqueue(Batch::from_buf([PendingCommand::without_reply(call.into())]));
        }
    }

    /// Queues one script call and returns its pending reply. If `asking` is true, sends ASKING
    /// before the call.
    pub(crate) fn send_one(&self, call: ScriptCall, asking: bool) -> PendingReply {
        let (command, reply) = self.prepare(call.into(), asking);
        self.enqueue(command.into_iter().collect());
        reply
    }

    /// Returns the command for a call, and its pending reply. If the circuit breaker rejects the
    /// call, the command is `None` and the reply is an error.
    pub(crate) fn prepare(
        &self,
        call: NodeRequest,
        asking: bool,
    ) -> (Option<PendingCommand>, PendingReply) {
        let deadline = call.deadline();
        let (mut command, receiver) = PendingCommand::new(call, asking);
        let mut reply = PendingReply { receiver, tracker: None };
        if self.state.is_open() {
            self.state.stats.breaker_rejected.add(1);
            command.reject(FailureKind::BreakerOpen);
            return (None, reply);
        }
        if let Some(clock) = self.state.clock() {
            command.queued_at = clock.now();
            if let Some(deadline) = deadline {
                command.deadline = clock.micros_at(deadline);
            }
            reply.tracker = Some(self.state.track(command.queued_at));
        }
        (Some(command), reply)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use futures_util::FutureExt;
    use tokio::sync::mpsc::Receiver;

    use super::*;
    use crate::store::redis::client::config::MonotonicClock;
    use crate::store::redis::client::connection_load::LoadMeter;
    use crate::store::redis::client::reply_slot::CommandReply;
    use crate::store::redis::client::send_error::SendError;
    use crate::store::redis::script::library::Script;

    static SCRIPT: Script = Script { name: "count", text: String::new(), sha: String::new() };

    /// Node with two connections, whose queues the test reads.
    struct Bench {
        node: Node,
        queues: [Receiver<Batch>; 2],
        /// Time of the circuit breaker's clock, in microseconds, which starts at `origin`.
        time: Arc<AtomicU64>,
        origin: Instant,
    }

    impl Bench {
        /// Opens both connections. Each queue has room for `capacity` calls.
        fn new(capacity: usize) -> Bench {
            let (clock, time, origin) = MonotonicClock::manual();
            let [(first, one), (second, other)] = [(); 2].map(|()| mpsc::channel(capacity));
            let node = Node {
                state: NodeState::for_test(clock),
                queues: [first, second].into(),
                next_connection: AtomicUsize::new(0),
                next_load_probe: AtomicU64::new(0),
                info: ArcSwapOption::empty(),
            };
            let bench = Bench { node, queues: [one, other], time, origin };
            bench.set_ready([true, true]);
            bench
        }

        fn set_time(&self, micros: u64) {
            self.time.store(micros, Ordering::Relaxed);
        }

        fn set_ready(&self, ready: [bool; 2]) {
            for (connection, ready) in self.node.state.connections.iter().zip(ready) {
                connection.is_ready.store(ready, Ordering::Relaxed);
            }
        }

        /// Sends a call whose caller waits until `deadline`, in microseconds of the clock.
        fn send_until(&self, deadline: u64) -> PendingReply {
            let deadline = Some(self.origin + Duration::from_micros(deadline));
            self.node.send_one(ScriptCall { deadline, ..call() }, false)
        }

        /// Returns the deadlines of the commands queued on each connection since the last call.
        fn queued(&mut self) -> [Vec<u64>; 2] {
            self.queues.each_mut().map(|queue| {
                let batches = std::iter::from_fn(|| queue.try_recv().ok());
                batches.flatten().map(|command| command.deadline.0).collect()
            })
        }
    }

    fn call() -> ScriptCall {
        ScriptCall { script: &SCRIPT, command: redis::cmd("EVALSHA"), slot: None, deadline: None }
    }

    fn kind(reply: PendingReply) -> FailureKind {
        match reply.receiver.take() {
            Some(CommandReply::Final(Err(error))) => {
                assert_eq!(error, SendError::not_executed(error.kind));
                error.kind
            }
            other => panic!("{other:?}"),
        }
    }

    const NEVER: u64 = u64::MAX;

    #[test]
    fn calls_take_turns_among_the_open_connections_or_use_their_workers_own() {
        let mut bench = Bench::new(8);
        let send = |bench: &Bench| [(); 4].map(|()| bench.node.send_one(call(), false));
        let _replies = send(&bench);
        assert_eq!(bench.queued(), [vec![NEVER; 2], vec![NEVER; 2]]);
        bench.set_ready([false, true]);
        assert!(bench.node.is_connected());
        let _replies = send(&bench);
        assert_eq!(bench.queued(), [vec![], vec![NEVER; 4]]);
        bench.set_ready([true, true]);
        let on_worker = || {
            WORKER_INDEX.set(Some(3));
            send(&bench)
        };
        let _replies = std::thread::scope(|scope| scope.spawn(on_worker).join().unwrap());
        assert_eq!(bench.queued(), [vec![], vec![NEVER; 4]]);
    }

    #[test]
    fn a_call_without_an_open_connection_is_rejected_and_requests_a_refresh() {
        let mut bench = Bench::new(8);
        bench.set_ready([false, false]);
        assert!(!bench.node.is_connected());
        let [(one, first), (other, second)] =
            [(); 2].map(|()| bench.node.prepare(call().into(), false));
        bench.node.enqueue(one.into_iter().chain(other).collect());
        assert_eq!([first, second].map(kind), [FailureKind::NotConnected; 2]);
        assert!(bench.queued().iter().all(Vec::is_empty));
        assert_eq!(bench.node.state.stats.not_connected.get(), 2);
        assert!(bench.node.state.refresh_needed.notified().now_or_never().is_some());
    }

    #[test]
    fn a_call_beyond_both_queues_is_rejected_and_is_no_load() {
        let mut bench = Bench::new(1);
        let _queued = [(); 2].map(|()| bench.node.send_one(call(), false));
        let [(one, first), (other, second)] =
            [(); 2].map(|()| bench.node.prepare(call().into(), false));
        bench.node.enqueue(one.into_iter().chain(other).collect());
        assert_eq!([first, second].map(kind), [FailureKind::QueueFull; 2]);
        let stats = &bench.node.state.stats;
        assert_eq!((stats.queue_full.get(), stats.not_connected.get()), (2, 0));
        assert!(bench.node.state.refresh_needed.notified().now_or_never().is_none());
        for connection in &bench.node.state.connections {
            // Two commands take 1 ms, so the outstanding one needs 1 ms of the time left.
            let (load, mut meter) = (&connection.load, LoadMeter::default());
            meter.record(load, Micros(10_000), Micros(10_000), 1);
            meter.record(load, Micros(9_000), Micros(11_000), 1);
            assert!(load.can_reply_by(Micros(11_000), Micros(12_000)));
            assert!(!load.can_reply_by(Micros(11_000), Micros(11_999)));
        }
        assert_eq!(bench.queued(), [vec![NEVER], vec![NEVER]]);
    }

    #[test]
    fn a_slow_node_gets_one_call_per_100_ms_that_would_miss_its_deadline() {
        let mut bench = Bench::new(8);
        // A round trip on the first connection takes 50 ms.
        let slow = Arc::clone(&bench.node.state.connections[0]);
        LoadMeter::default().record(&slow.load, Micros(0), Micros(50_000), 1);
        bench.set_time(50_000);
        let _probe = bench.send_until(60_000);
        assert_eq!(bench.queued(), [vec![NEVER], vec![]]);
        let _unmeasured = bench.send_until(60_000);
        assert_eq!(bench.queued(), [vec![], vec![60_000]], "the turn of the other connection");
        let rejected = bench.send_until(60_000);
        assert_eq!(kind(rejected), FailureKind::Overload, "both lead to the same node");
        bench.set_ready([true, false]);
        let _in_time = bench.send_until(100_000);
        assert_eq!(bench.queued(), [vec![100_000], vec![]], "the round trip fits");
        bench.set_time(149_999);
        assert_eq!(kind(bench.send_until(159_999)), FailureKind::Overload);
        bench.set_time(150_000);
        let _probe = bench.send_until(160_000);
        assert_eq!(bench.queued(), [vec![NEVER], vec![]]);
        let stats = &bench.node.state.stats;
        assert_eq!((stats.shed.get(), stats.not_connected.get()), (2, 0));
    }

    #[test]
    fn an_open_breaker_rejects_calls_with_and_without_a_waiting_caller() {
        let mut bench = Bench::new(8);
        let state = Arc::clone(&bench.node.state);
        state.record_silence();
        assert_eq!(bench.node.state.stats.breaker_open.get(), 1);
        assert_eq!(kind(bench.node.send_one(call(), false)), FailureKind::BreakerOpen);
        bench.node.send_in_background(call());
        assert!(bench.queued().iter().all(Vec::is_empty));
        assert_eq!(bench.node.state.stats.breaker_rejected.get(), 2);
        state.close();
        bench.node.send_in_background(call());
        assert_eq!(bench.queued(), [vec![NEVER], vec![]]);
        assert_eq!(bench.node.state.stats.breaker_rejected.get(), 2);
    }
}
