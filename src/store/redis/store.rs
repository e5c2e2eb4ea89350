//! Redis store: translates calls into requests to nodes, and decodes the replies.
//!
//! A call with a deadline is answered by then. Once a call is queued, the store owns it: its caller
//! only waits. Not here: sending the requests ([`Transport`]), the wait of the caller (`one_part`),
//! calls of several parts (`multi_part`), fallback (`resilience`).

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use smallvec::{SmallVec, smallvec};

use super::client::node_stats::NodeReport;
use super::client::send_error::SendError;
use super::client::topology::RedisClient;
use super::client::transport::{CallReply, PendingCall, Transport};
use super::multi_slot::{self, SlotGroup, SlotGroups};
use super::node_scripts::NodeScriptSwitch;
use super::script;
use super::script::arguments::{CallScope, Encoder};
use super::script::call::{NodeRequest, SharedCall};
use super::script::keys::{self, Prefix};
use super::script::library::{PRODUCTION, STRICT, ScriptCall};
use super::script::reply::{ReplyError, ScriptReply, is_not_here};
use crate::domain::{
    Accounting, Answer, Answers, CALL_WORK_MAX, Call, Check, ExecutionStatus, FailureKind, Micros,
    Receipt, Source,
};
use crate::store::delivery::{UnheardHits, unanswered};
use crate::store::owned_tasks::OwnedTasks;
use crate::store::{SharedStore, Store};

/// Clock from which the scripts read the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimeSource {
    /// Clock of the Redis server, which all replicas share. Used in production.
    #[default]
    Server,
    /// Time of the call, which tests set. Scripts then run in strict mode (Redis 7), and every key
    /// lives a day longer than in production, so that Redis' own clock does not expire it.
    Call,
}

/// Statistics of a Redis store: totals since its creation.
#[derive(Debug, Default)]
pub struct RedisStats {
    /// Number of times that a counter was clamped because its state was too far in the future
    /// ([`ScriptReply::clamped`]).
    pub clamped: AtomicU64,
    /// Number of script replies that could not be decoded.
    pub unreadable: AtomicU64,
    /// Number of calls, or parts of calls, of which a script counted more or fewer checks that passed
    /// ([`ScriptReply::disagrees`]).
    pub disagreements: AtomicU64,
    /// Number of calls whose checks were split by hash slot, with one script call per group.
    pub multi_slot_calls: AtomicU64,
    /// Number of calls, or parts of calls, with checks in several hash slots of one node.
    pub node_calls: AtomicU64,
    /// Number of calls, or parts of calls, that were sent again slot by slot, because the node did
    /// not hold every key.
    pub not_here: AtomicU64,
    /// Number of charges refunded because a check in another hash slot rejected the call.
    pub refunded: AtomicU64,
    /// Number of calls decided by scripts.
    pub script_calls: AtomicU64,
    /// Number of calls that were not answered by their deadline.
    pub overruns: AtomicU64,
    /// Hits charged for calls whose callers had left when the answer arrived.
    pub unheard: UnheardHits,
}

/// Store that keeps its counters in Redis, where scripts decide the calls.
#[derive(Debug)]
pub struct RedisStore<T> {
    shared: Arc<Shared<T>>,
}

/// State of a Redis store, shared with the tasks that own calls.
#[derive(Debug)]
pub(super) struct Shared<T> {
    pub(super) transport: T,
    encoder: Arc<Encoder>,
    time_source: TimeSource,
    /// Time of the latest call, in microseconds since the Unix epoch, which is also the time of
    /// refunds. Used only with [`TimeSource::Call`].
    latest: AtomicU64,
    pub(super) node_scripts: NodeScriptSwitch,
    pub(super) stats: RedisStats,
    /// Tasks that own calls of several parts, or the replies to calls whose callers have left.
    pub(super) tasks: OwnedTasks,
}

impl SharedStore for RedisStore<RedisClient> {
    type Node = NodeReport;

    fn nodes(&self) -> Vec<NodeReport> {
        self.transport().report()
    }

    async fn wait_until_connected(&self) {
        self.transport().wait_until_connected().await;
    }

    async fn wait_until_idle(&self) {
        self.shared.tasks.wait_until_done().await;
        self.transport().wait_until_idle().await;
    }

    fn is_available(&self) -> bool {
        let open = |node: &NodeReport| node.stats.breaker_open.get() > 0;
        self.transport().was_connected() && !self.transport().report().iter().any(open)
    }
}

#[cfg(feature = "server")]
impl RedisStore<RedisClient> {
    /// Returns a client of the overrides at run time that are in this Redis.
    pub(crate) fn override_store(&self, replica: u64) -> super::override_store::OverrideStore {
        super::override_store::OverrideStore::new(
            self.transport(),
            &self.shared.encoder.prefix,
            replica,
        )
    }
}

impl<T: Transport> RedisStore<T> {
    /// Creates a store that sends script calls over `transport` and prefixes its keys with
    /// `prefix`.
    pub fn new(transport: T, prefix: Prefix, time_source: TimeSource) -> Self {
        let scripts = match time_source {
            TimeSource::Server => &*PRODUCTION,
            TimeSource::Call => &*STRICT,
        };
        let shared = Shared {
            encoder: Arc::new(Encoder::new(prefix, scripts, transport.is_cluster())),
            time_source,
            latest: AtomicU64::new(0),
            node_scripts: NodeScriptSwitch::new(transport.is_cluster()),
            stats: RedisStats::default(),
            tasks: OwnedTasks::default(),
            transport,
        };
        RedisStore { shared: Arc::new(shared) }
    }

    /// Enables or disables requests that span several hash slots of a cluster node, so that tests
    /// cover services that route such scripts elsewhere. Enabled by default. If disabled, each hash
    /// slot gets its own script call. Call it before the first call of the store.
    #[doc(hidden)]
    #[must_use]
    pub fn with_node_scripts(mut self, enabled: bool) -> Self {
        if let Some(shared) = Arc::get_mut(&mut self.shared) {
            shared.node_scripts = NodeScriptSwitch::new(enabled && shared.transport.is_cluster());
        }
        self
    }

    /// Returns the transport over which script calls are sent.
    pub fn transport(&self) -> &T {
        &self.shared.transport
    }

    /// Returns the number of times that node scripts were turned off, because the service routed
    /// them to nodes that do not own their keys.
    pub fn node_scripts_off_count(&self) -> u64 {
        self.shared.node_scripts.times_off()
    }

    /// Returns the live statistics, which change as calls are decided.
    pub fn stats(&self) -> &RedisStats {
        &self.shared.stats
    }
}

impl<T: Transport> Shared<T> {
    /// Returns the time to send to the scripts, or `None` if they use the server's clock.
    pub(super) fn now(&self, call: &Call<'_>) -> Option<Micros> {
        match self.time_source {
            TimeSource::Server => None,
            TimeSource::Call => {
                self.latest.store(call.now.0, Ordering::Relaxed);
                Some(call.now)
            }
        }
    }

    async fn apply(self: &Arc<Self>, call: &Call<'_>) -> Answers {
        if !self.transport.is_cluster() {
            return pin!(self.decide_in_place(call, None)).await;
        }
        let groups = self.group_checks(call);
        match groups.as_slice() {
            [_, _, ..] => Box::pin(self.decide_in_parts(call, groups, None)).await,
            // Pinned here, because awaiting the future by value would copy it.
            one => pin!(self.decide_in_place(call, one.first())).await,
        }
    }

    /// Decides a call by one request to a node. `group` has all its checks, on a cluster. If the node
    /// does not hold every key, it charges nothing, and the call is sent again, slot by slot.
    async fn decide_in_place(
        self: &Arc<Self>,
        call: &Call<'_>,
        group: Option<&SlotGroup>,
    ) -> Answers {
        let redirects = self.transport.redirects();
        let pending = self.transport.submit(smallvec![self.node_request(call, group, false)]).pop();
        let pending = pending.unwrap_or_else(|| PendingCall::ready(Err(SendError::LOST)));
        let reply = match self.wait_in_place(call, pending).await {
            Ok(reply) => reply,
            Err(answers) => return answers,
        };
        if group.is_some_and(|group| group.is_by_node) && self.replied_not_here(&reply) {
            // Boxed, because it is rare, so that the future stays small.
            let all: SmallVec<[usize; 8]> = (0..call.checks.len()).collect();
            let groups = self.group_missed_checks(call, &all);
            return Box::pin(self.decide_in_parts(call, groups, Some(redirects))).await;
        }
        self.stats.script_calls.fetch_add(1, Ordering::Relaxed);
        self.decode_answers(reply, call)
    }

    /// Returns the request that decides the checks of `call`, which are those of `group` on a cluster.
    /// `is_part` is true if the other checks of an all-or-nothing call are in other requests.
    pub(super) fn node_request(
        &self,
        call: &Call<'_>,
        group: Option<&SlotGroup>,
        is_part: bool,
    ) -> NodeRequest {
        let spans_slots = group.is_some_and(|group| group.spans_slots);
        if spans_slots {
            self.stats.node_calls.fetch_add(1, Ordering::Relaxed);
        }
        let (scope, now) = (CallScope { is_part, spans_slots }, self.now(call));
        // A call with a key in a slot that may have moved is redirected, which needs its own KEYS.
        if group.is_none_or(|group| group.is_by_node)
            && let Some(shared) = SharedCall::new(call, &self.encoder, now, scope)
        {
            return NodeRequest::Shared(Box::new(shared));
        }
        script::call::encode(&self.encoder, call, scope, now).into()
    }

    /// Returns the answers to a call whose deadline has passed, and counts it.
    pub(super) fn overrun(&self, call: &Call<'_>) -> Answers {
        self.stats.overruns.fetch_add(1, Ordering::Relaxed);
        unanswered(call, ExecutionStatus::Unknown, FailureKind::TimedOut)
    }

    /// Decodes the reply to the one request that decides all checks of a call.
    pub(super) fn decode_answers(
        &self,
        reply: Result<CallReply, SendError>,
        call: &Call<'_>,
    ) -> Answers {
        match self.decode(reply, call.checks, call.accounting, false) {
            Ok(decoded) => {
                let each = decoded.outcomes.into_iter().map(Answer::Decided).collect();
                Answers::new(each, Source::Redis)
            }
            Err(SendError { executed, kind }) => unanswered(call, executed, kind),
        }
    }

    /// Groups the checks of a call by node or, where node scripts are off, by hash slot.
    pub(super) fn group_checks(&self, call: &Call<'_>) -> SlotGroups {
        let slots = call.checks.iter().map(|check| keys::counter_slot(&check.key)).enumerate();
        let is_on = self.node_scripts.is_on(call.now);
        multi_slot::group_checks(slots, |slot| {
            let node = self.transport.node_of(slot);
            node.filter(|_| is_on && self.node_scripts.allows(slot, call.now))
        })
    }

    /// Returns whether a node replied that it does not hold every key. Records the reply in the
    /// statistics.
    pub(super) fn replied_not_here(&self, reply: &Result<CallReply, SendError>) -> bool {
        let is_not_here = match reply {
            Ok(CallReply::NotHere) => true,
            Ok(CallReply::Script(reply)) => is_not_here(reply),
            Ok(CallReply::Decided(_)) => false,
            Err(_) => return false,
        };
        if is_not_here {
            self.stats.not_here.fetch_add(1, Ordering::Relaxed);
        } else {
            self.node_scripts.record_reply();
        }
        is_not_here
    }

    /// Records a `not here` reply as unexplained if the same checks, sent again slot by slot, were
    /// decided without a redirect. `redirects` is the redirect count before the node script call.
    pub(super) fn record_not_here(
        &self,
        call: &Call<'_>,
        missed: &[usize],
        answers: &[Answer],
        redirects: u64,
    ) {
        let is_decided = |at: &usize| matches!(answers[*at], Answer::Decided(_));
        let served = self.transport.redirects() == redirects && missed.iter().all(is_decided);
        if served && self.node_scripts.record_unexplained(call.now) {
            tracing::warn!("scripts for cluster nodes reach other nodes and are turned off");
        }
    }

    /// Groups checks by slot after node scripts replied `not here` to them. Temporarily turns off
    /// node scripts for these slots.
    pub(super) fn group_missed_checks(&self, call: &Call<'_>, missed: &[usize]) -> SlotGroups {
        let slot = |at: &usize| keys::counter_slot(&call.checks[*at].key);
        self.node_scripts.record_not_here(missed.iter().map(slot), call.now);
        multi_slot::group_checks(missed.iter().map(|at| (*at, slot(at))), |_| None)
    }

    /// Decodes the reply to a request for these checks. Counts clamps and unreadable replies.
    pub(super) fn decode(
        &self,
        reply: Result<CallReply, SendError>,
        checks: &[Check<'_>],
        accounting: Accounting,
        is_part: bool,
    ) -> Result<ScriptReply, SendError> {
        let decoded = match reply? {
            CallReply::Decided(decoded) => Ok(decoded),
            CallReply::Script(value) => script::call::decode(&value, checks, accounting, is_part),
            CallReply::NotHere => return Err(SendError::not_executed(FailureKind::Moving)),
        };
        match decoded {
            Ok(decoded) => {
                self.stats.clamped.fetch_add(decoded.clamped, Ordering::Relaxed);
                // The first one only: all have the same cause, and are counted.
                if decoded.disagrees
                    && self.stats.disagreements.fetch_add(1, Ordering::Relaxed) == 0
                {
                    tracing::error!("the scripts and Tidegate decided differently");
                }
                Ok(decoded)
            }
            Err(ReplyError::NoWindow) => Err(SendError::not_executed(FailureKind::Script)),
            Err(ReplyError::PartlyWritten) => Err(SendError::SCRIPT_FAILED),
            Err(_) => {
                self.stats.unreadable.fetch_add(1, Ordering::Relaxed);
                Err(SendError::SCRIPT_FAILED)
            }
        }
    }

    /// Returns the script calls that refund these receipts: one per hash slot, or several if one would
    /// be too much work.
    fn refund_calls(&self, receipts: &[Receipt], now: Option<Micros>) -> Vec<ScriptCall> {
        if !self.transport.is_cluster() {
            let pieces = split_by_work(receipts);
            return pieces.map(|piece| self.encoder.encode_refund(piece, now)).collect();
        }
        let slots = receipts.iter().map(|receipt| keys::counter_slot(&receipt.key)).enumerate();
        let mut calls = Vec::new();
        for group in multi_slot::group_checks(slots, |_| None) {
            let receipts: Vec<Receipt> =
                group.checks.iter().map(|at| receipts[*at].clone()).collect();
            let pieces = split_by_work(&receipts);
            calls.extend(pieces.map(|piece| self.encoder.encode_refund(piece, now)));
        }
        calls
    }

    /// Refunds charges in the background. Never resent: a lost refund only leaves the counter
    /// stricter.
    pub(super) fn refund_in_background(&self, receipts: &[Receipt], now: Option<Micros>) {
        self.stats.refunded.fetch_add(receipts.len() as u64, Ordering::Relaxed);
        for script_call in self.refund_calls(receipts, now) {
            self.transport.send_in_background(script_call);
        }
    }

    /// Refunds charges, and waits until they are refunded or lost.
    pub(super) async fn refund(&self, receipts: &[Receipt]) {
        if receipts.is_empty() {
            return;
        }
        let now = match self.time_source {
            TimeSource::Server => None,
            TimeSource::Call => Some(Micros(self.latest.load(Ordering::Relaxed))),
        };
        let calls = self.refund_calls(receipts, now).into_iter().map(NodeRequest::from).collect();
        for refund in self.transport.submit(calls) {
            // Never resent: a lost refund only leaves the counter stricter.
            let _lost = refund.await;
        }
    }
}

/// Splits receipts into pieces of at most [`CALL_WORK_MAX`], or of one receipt.
fn split_by_work(receipts: &[Receipt]) -> impl Iterator<Item = &[Receipt]> {
    let mut work = receipts.first().map_or(0, Receipt::work);
    receipts.chunk_by(move |_, next| {
        work += next.work();
        let fits = work <= CALL_WORK_MAX;
        if !fits {
            work = next.work();
        }
        fits
    })
}

impl<T: Transport> Store for RedisStore<T> {
    async fn apply(&self, call: &Call<'_>) -> Answers {
        // Pinned here, because awaiting the future by value would copy it.
        pin!(self.shared.apply(call)).await
    }

    /// Returns true on a cluster, where any call over several nodes may hold hits of the counter
    /// until it refunds them.
    fn has_transient_refusals(&self, _: &Check<'_>) -> bool {
        self.transport().is_cluster()
    }

    async fn refund(&self, receipts: &[Receipt]) {
        self.shared.refund(receipts).await;
    }

    fn failure(&self, kind: FailureKind) -> Option<String> {
        self.transport().failure(kind)
    }

    fn counter_losses(&self) -> u64 {
        self.transport().counter_losses()
    }

    fn session(&self) -> u64 {
        self.transport().lost_connections() + self.transport().counter_losses()
    }
}
