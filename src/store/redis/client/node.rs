//! One Redis node: its address, connections, circuit breaker, and statistics.
//!
//! Not here: the connection task (`connection`), finding the node that holds a key (`cluster`).

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use arc_swap::ArcSwapOption;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Notify, mpsc};

use super::config::Address;
use super::connection_load::{ConnectionLoad, LoadMeter};
use super::connection_state::{Connection, QUEUE_MAX};
use super::dialer::{ClientContext, ConnectionSignal, Dialer};
use super::info::NodeInfo;
use super::loss_detector::LossDetector;
use super::node_breaker::NodeBreaker;
use super::node_stats::{NodeReport, NodeStats};
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
    address: Address,
    connections: Box<[ConnectionHandle]>,
    /// Round-robin counter that picks a connection for callers outside the worker runtimes.
    next_connection: AtomicUsize,
    stats: Arc<NodeStats>,
    refresh_needed: Arc<Notify>,
    breaker: Option<Arc<NodeBreaker>>,
    /// Time from which the next call is sent regardless of the load estimate, in microseconds of
    /// the breaker's clock.
    next_load_probe: AtomicU64,
    info: ArcSwapOption<NodeInfo>,
}

/// Handle through which callers queue commands for a connection task.
#[derive(Debug)]
struct ConnectionHandle {
    queue: mpsc::Sender<Batch>,
    /// Whether the connection is open and accepts commands.
    ready: Arc<AtomicBool>,
    load: Arc<ConnectionLoad>,
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
        let config = &context.config;
        let stats = Arc::new(NodeStats::default());
        // Before the connections start: the handshake tries a command on it.
        stats.owned_slot.add(slot.map_or(0, |slot| u64::from(slot) + 1));
        let runtimes = &config.worker_runtimes;
        let connections = config.connections_per_node.max(1);
        let signals: Vec<Arc<ConnectionSignal>> =
            (0..connections).map(|_| Arc::default()).collect();
        let loss_detector: Arc<LossDetector> = Arc::default();
        let breaker = config.breaker_clock.clone().map(|clock| {
            let (stats, refresh_needed) = (Arc::clone(&stats), Arc::clone(refresh_needed));
            let signals = signals.clone();
            Arc::new(NodeBreaker::new(clock, address.to_string(), stats, refresh_needed, signals))
        });
        let open_connection = |(index, signal): (usize, Arc<ConnectionSignal>)| {
            let (sender, queue) = mpsc::channel(QUEUE_MAX);
            let (ready, load): (Arc<AtomicBool>, Arc<ConnectionLoad>) = Default::default();
            let stats = Arc::clone(&stats);
            let dialer = Dialer {
                context: Arc::clone(context),
                address: address.clone(),
                password: None,
                stats: Arc::clone(&stats),
                signal: Arc::clone(&signal),
                loss_detector: Arc::clone(&loss_detector),
            };
            let connection = Connection {
                dialer,
                queue,
                signal,
                ready: Arc::clone(&ready),
                load: Arc::clone(&load),
                meter: LoadMeter::default(),
                stats,
                refresh_needed: Arc::clone(refresh_needed),
                breaker: breaker.clone(),
            };
            match index.checked_rem(runtimes.len()) {
                None => drop(tokio::spawn(connection.run())),
                Some(worker) => drop(runtimes[worker].spawn(async move {
                    WORKER_INDEX.set(Some(worker));
                    connection.run().await;
                })),
            }
            ConnectionHandle { queue: sender, ready, load }
        };
        let connections = signals.into_iter().enumerate().map(open_connection).collect();
        Node {
            address,
            connections,
            next_connection: AtomicUsize::new(0),
            stats,
            refresh_needed: Arc::clone(refresh_needed),
            breaker,
            next_load_probe: AtomicU64::new(0),
            info: ArcSwapOption::empty(),
        }
    }

    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// Returns whether at least one connection to the node is open and accepts commands.
    pub(crate) fn is_connected(&self) -> bool {
        self.connections.iter().any(|connection| connection.ready.load(Ordering::Acquire))
    }

    /// Returns whether no command is queued or in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.connections.iter().all(|connection| connection.load.is_idle())
    }

    /// Returns whether the node could not be connected to, but not because it replied with an error.
    pub(crate) fn is_unreachable(&self) -> bool {
        !self.is_connected()
            && self.stats.connect_failures.get() > 0
            && self.stats.is_refusing.get() == 0
    }

    /// Marks the node as the owner of a hash slot; `None` if the slot is not known. Returns true if it
    /// was not marked before.
    pub(crate) fn mark_as_owner(&self, slot: Option<u16>) -> bool {
        self.stats.owned_slot.swap(slot.map_or(u64::MAX, |slot| u64::from(slot) + 1)) == 0
    }

    /// Returns the address of the node, its statistics, and the result of the last INFO
    /// poll.
    pub(crate) fn report(&self) -> NodeReport {
        NodeReport {
            address: self.address.to_string(),
            stats: Arc::clone(&self.stats),
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
        for step in 0..self.connections.len() {
            let connection = &self.connections[first.wrapping_add(step) % self.connections.len()];
            if !connection.ready.load(Ordering::Acquire) {
                continue;
            }
            // If one connection is slow, another one without a measurement is no better: both lead
            // to the same node.
            let is_promising = !is_node_slow || connection.load.is_measured(now);
            if !is_promising || !connection.load.can_reply_by(now, deadline) {
                is_node_slow = true;
                if !self.claim_load_probe(now) {
                    overload = overload.or(Some((&self.stats.shed, FailureKind::Overload)));
                    continue;
                }
                // Otherwise the connection would reject it.
                batch.iter_mut().for_each(|command| command.deadline = Micros(u64::MAX));
            }
            let commands = batch.len();
            connection.load.add(commands);
            batch = match connection.queue.try_send(batch) {
                Ok(()) => return,
                Err(TrySendError::Full(batch)) => {
                    overload = Some((&self.stats.queue_full, FailureKind::QueueFull));
                    batch
                }
                Err(TrySendError::Closed(batch)) => batch,
            };
            connection.load.remove(commands);
        }
        let (counter, kind) = overload.unwrap_or_else(|| {
            self.refresh_needed.notify_one();
            (&self.stats.not_connected, FailureKind::NotConnected)
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
        if self.breaker.as_ref().is_none_or(|breaker| !breaker.is_open()) {
            self.enqueue(Batch::from_buf([PendingCommand::without_reply(call)]));
        } else {
            self.stats.breaker_rejected.add(1);
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
        let Some(breaker) = &self.breaker else {
            return (Some(command), PendingReply { receiver, tracker: None });
        };
        if breaker.is_open() {
            self.stats.breaker_rejected.add(1);
            command.reject(FailureKind::BreakerOpen);
            return (None, PendingReply { receiver, tracker: None });
        }
        let now = breaker.clock.now();
        command.queued_at = now;
        if let Some(deadline) = deadline {
            command.deadline = breaker.clock.micros_at(deadline);
        }
        let tracker = Some(breaker.track(now));
        (Some(command), PendingReply { receiver, tracker })
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use futures_util::FutureExt;
    use tokio::sync::mpsc::Receiver;

    use super::*;
    use crate::store::redis::client::config::MonotonicClock;
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
            let (stats, refresh_needed) = (Arc::<NodeStats>::default(), Arc::<Notify>::default());
            let address = Address::Tcp("10.0.0.1".to_owned(), 6379);
            let breaker = NodeBreaker::new(
                clock,
                address.to_string(),
                Arc::clone(&stats),
                Arc::clone(&refresh_needed),
                Vec::new(),
            );
            let [(first, one), (second, other)] = [(); 2].map(|()| mpsc::channel(capacity));
            let open = |queue| ConnectionHandle {
                queue,
                ready: Arc::new(AtomicBool::new(true)),
                load: Arc::default(),
            };
            let node = Node {
                address,
                connections: [first, second].map(open).into(),
                next_connection: AtomicUsize::new(0),
                stats,
                refresh_needed,
                breaker: Some(Arc::new(breaker)),
                next_load_probe: AtomicU64::new(0),
                info: ArcSwapOption::empty(),
            };
            Bench { node, queues: [one, other], time, origin }
        }

        fn set_time(&self, micros: u64) {
            self.time.store(micros, Ordering::Relaxed);
        }

        fn set_ready(&self, ready: [bool; 2]) {
            for (connection, ready) in self.node.connections.iter().zip(ready) {
                connection.ready.store(ready, Ordering::Relaxed);
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
            Some(CommandReply::Failed(error)) => {
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
        assert_eq!(bench.node.stats.not_connected.get(), 2);
        assert!(bench.node.refresh_needed.notified().now_or_never().is_some());
    }

    #[test]
    fn a_call_beyond_both_queues_is_rejected_and_is_no_load() {
        let mut bench = Bench::new(1);
        let _queued = [(); 2].map(|()| bench.node.send_one(call(), false));
        let [(one, first), (other, second)] =
            [(); 2].map(|()| bench.node.prepare(call().into(), false));
        bench.node.enqueue(one.into_iter().chain(other).collect());
        assert_eq!([first, second].map(kind), [FailureKind::QueueFull; 2]);
        let stats = &bench.node.stats;
        assert_eq!((stats.queue_full.get(), stats.not_connected.get()), (2, 0));
        assert!(bench.node.refresh_needed.notified().now_or_never().is_none());
        for connection in bench.node.connections.iter() {
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
        let slow = Arc::clone(&bench.node.connections[0].load);
        LoadMeter::default().record(&slow, Micros(0), Micros(50_000), 1);
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
        let stats = &bench.node.stats;
        assert_eq!((stats.shed.get(), stats.not_connected.get()), (2, 0));
    }

    #[test]
    fn an_open_breaker_rejects_calls_with_and_without_a_waiting_caller() {
        let mut bench = Bench::new(8);
        let breaker = Arc::clone(bench.node.breaker.as_ref().unwrap());
        breaker.record_silence();
        assert_eq!(bench.node.stats.breaker_open.get(), 1);
        assert_eq!(kind(bench.node.send_one(call(), false)), FailureKind::BreakerOpen);
        bench.node.send_in_background(call());
        assert!(bench.queued().iter().all(Vec::is_empty));
        assert_eq!(bench.node.stats.breaker_rejected.get(), 2);
        breaker.close();
        bench.node.send_in_background(call());
        assert_eq!(bench.queued(), [vec![NEVER], vec![]]);
        assert_eq!(bench.node.stats.breaker_rejected.get(), 2);
    }
}
