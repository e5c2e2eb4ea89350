//! Redis store: translates calls into plain commands or script calls, and decodes the replies.
//!
//! A call with a deadline is answered by then. Once a call is queued, the store owns it: its caller
//! only waits. Not here: sending the script calls ([`Transport`]), the wait of the caller
//! (`one_part`), calls of several parts (`multi_part`), fallback (`resilience`).

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use redis::Value;
use smallvec::{SmallVec, smallvec};

use super::client::node_stats::{BreakerState, NodeReport};
use super::client::plain_charge::{ChargeReply, PendingCharges};
use super::client::shared_write::SharedCall;
use super::client::topology::RedisClient;
use super::client::transport::{ScriptCall, ScriptCalls, SendError, Transport, reply_source};
use super::keys::{self, Prefix};
use super::multi_part::Parts;
use super::multi_slot::{self, SlotGroups};
use super::near_limit_hints::NearLimitHints;
use super::node_scripts::{self, NodeScriptSwitch};
use super::one_part::{PartReply, Pending};
use super::plain_calls::{self, PlainCalls, PlainResult, PlainStats};
use super::script::arguments::Encoder;
use super::script::library::{PRODUCTION, STRICT};
use super::script::reply::{ReplyError, ScriptReply, is_not_here};
use crate::domain::{
    Accounting, Answer, Answers, CALL_WORK_MAX, Call, Check, ExecutionStatus, Micros, Receipt,
    Source,
};
use crate::store::delivery::{UnheardHits, unanswered};
use crate::store::owned_tasks::OwnedTasks;
use crate::store::{SharedStore, SharedStoreStats, Store};

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
    /// Number of calls whose checks were split by hash slot, with one script call per group.
    pub multi_slot_calls: AtomicU64,
    /// Number of multi-slot calls sent in up to two round trips: first the group of the counter
    /// nearest to its limit, then the other groups that the call still needs.
    pub two_rounds: AtomicU64,
    /// Number of script calls that decided checks in several hash slots of one node.
    pub node_calls: AtomicU64,
    /// Number of script calls for a node that were sent again slot by slot, because the node did
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

/// Store that keeps its counters in Redis. Plain commands decide calls far from their limits, and
/// scripts on the server decide all others.
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
    pub(super) hints: NearLimitHints,
    pub(super) node_scripts: NodeScriptSwitch,
    /// Selects the calls that need no script; `None` if plain commands are disabled.
    plain: Option<PlainCalls>,
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

    fn shared_stats(&self) -> SharedStoreStats {
        let RedisStats {
            clamped,
            unreadable,
            multi_slot_calls,
            two_rounds,
            node_calls,
            not_here,
            refunded,
            script_calls,
            overruns,
            unheard,
        } = self.stats();
        let of_plain = |of: fn(&PlainStats) -> &AtomicU64| {
            self.shared.plain.as_ref().map_or(0, |plain| of(&plain.stats).load(Ordering::Relaxed))
        };
        SharedStoreStats {
            overruns: overruns.load(Ordering::Relaxed),
            unheard_hits: unheard.get(),
            clamped: clamped.load(Ordering::Relaxed),
            unreadable: unreadable.load(Ordering::Relaxed),
            multi_slot_calls: multi_slot_calls.load(Ordering::Relaxed),
            two_rounds: two_rounds.load(Ordering::Relaxed),
            node_calls: node_calls.load(Ordering::Relaxed),
            not_here: not_here.load(Ordering::Relaxed),
            node_scripts_off: self.shared.node_scripts.times_off(),
            refunds: refunded.load(Ordering::Relaxed),
            plain_calls: of_plain(|stats| &stats.decided),
            script_calls: script_calls.load(Ordering::Relaxed),
            plain_undecided: of_plain(|stats| &stats.undecided),
            plain_refunds: of_plain(|stats| &stats.refunded),
            ..SharedStoreStats::default()
        }
    }

    fn is_available(&self) -> bool {
        let open = |node: &NodeReport| node.breaker == Some(BreakerState::Open);
        self.transport().was_connected() && !self.transport().report().iter().any(open)
    }

    fn failure(&self) -> Option<String> {
        self.transport().failure()
    }

    fn retire_policy(&self) {}
}

impl<T: Transport> RedisStore<T> {
    /// Creates a store that sends script calls over `transport` and prefixes its keys with
    /// `prefix`.
    pub fn new(transport: T, prefix: Prefix, time_source: TimeSource) -> Self {
        let scripts = match time_source {
            TimeSource::Server => &*PRODUCTION,
            TimeSource::Call => &*STRICT,
        };
        // Plain commands use the server's clock.
        let plain = (time_source == TimeSource::Server && transport.can_charge())
            .then(|| PlainCalls::new(prefix.clone(), transport.is_cluster()));
        let shared = Shared {
            encoder: Arc::new(Encoder::new(prefix, scripts, transport.is_cluster())),
            time_source,
            latest: AtomicU64::new(0),
            hints: NearLimitHints::new(),
            node_scripts: NodeScriptSwitch::new(transport.is_cluster()),
            plain,
            stats: RedisStats::default(),
            tasks: OwnedTasks::default(),
            transport,
        };
        RedisStore { shared: Arc::new(shared) }
    }

    /// Enables or disables script calls that span several hash slots of a cluster node. Enabled by
    /// default. If disabled, each hash slot gets its own script call. Call it before the first call
    /// of the store.
    #[must_use]
    pub fn with_node_scripts(mut self, enabled: bool) -> Self {
        if let Some(shared) = Arc::get_mut(&mut self.shared) {
            shared.node_scripts = NodeScriptSwitch::new(enabled && shared.transport.is_cluster());
        }
        self
    }

    /// Configures the store to charge one in every `interval` calls with plain commands even if a
    /// hint says that a counter may be near its limit, so that tests cover wrong hints.
    #[doc(hidden)]
    #[must_use]
    pub fn with_wrong_hints(mut self, interval: u64) -> Self {
        if let Some(plain) = Arc::get_mut(&mut self.shared).and_then(|shared| shared.plain.as_mut())
        {
            plain.set_forced_interval(interval);
        }
        self
    }

    /// Returns the transport over which script calls are sent.
    pub fn transport(&self) -> &T {
        &self.shared.transport
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
        if self.transport.shares_writes()
            && let Some(shared) = SharedCall::new(call, &self.encoder, self.now(call))
        {
            return pin!(self.decide_shared(call, shared)).await;
        }
        if let Some(plain) = &self.plain
            && let Some(charges) = plain.plan(call)
            && let Some(charges) = self.transport.charge(charges, call.deadline)
        {
            if charges.is_on_one_node() {
                // Pinned here, because awaiting the future by value would copy it.
                return pin!(self.decide_by_plain_commands(call, charges)).await;
            }
            return Box::pin(self.decide_in_parts(call, Parts::Charges(charges))).await;
        }
        // Boxed, so that the futures of the stores around this one, which contain it, stay small.
        Box::pin(self.decide_by_script(call)).await
    }

    /// Decides a call with scripts.
    async fn decide_by_script(self: &Arc<Self>, call: &Call<'_>) -> Answers {
        if !self.transport.is_cluster() {
            return self.decide_single_slot(call).await;
        }
        let groups = self.group_checks(call);
        // The others are boxed, so that the future of a single-slot call stays small.
        match groups.as_slice() {
            [group] if group.needs_node_script() => Box::pin(self.decide_on_node(call)).await,
            [] | [_] => self.decide_single_slot(call).await,
            [_, _, ..] => Box::pin(self.decide_in_parts(call, Parts::Groups(groups))).await,
        }
    }

    /// Counts a call that scripts have decided, and records its answers as hints for plain commands.
    pub(super) fn record_script_call(&self, call: &Call<'_>, answers: &[Answer]) {
        self.stats.script_calls.fetch_add(1, Ordering::Relaxed);
        if let Some(plain) = &self.plain {
            plain.record(call, answers);
        }
    }

    /// Decides a call by the replies to its plain commands, all on one node, or, if they do not
    /// decide it, with scripts. The node's connection has refunded charges that do not decide it.
    async fn decide_by_plain_commands(
        self: &Arc<Self>,
        call: &Call<'_>,
        charges: PendingCharges,
    ) -> Answers {
        let replies = match self.wait_in_place(call, Pending::Charges(charges)).await {
            Ok(PartReply::Charges(replies)) => replies,
            Ok(PartReply::Script(_) | PartReply::Shared(_)) => return self.overrun(call),
            Err(answers) => return answers,
        };
        match self.evaluate_charges(call, &replies) {
            Some(PlainResult::Decided(answers) | PlainResult::Unknown(answers)) => answers,
            // The rare script calls are boxed, so that the future of a plain call stays small.
            Some(PlainResult::Undecided(_)) | None => Box::pin(self.decide_by_script(call)).await,
        }
    }

    /// Evaluates the replies to plain charges; `None` if plain commands are disabled.
    pub(super) fn evaluate_charges(
        &self,
        call: &Call<'_>,
        replies: &[ChargeReply],
    ) -> Option<PlainResult> {
        self.plain.as_ref().map(|plain| plain.evaluate(call, replies))
    }

    /// Returns the answers that replies to plain charges give so far.
    pub(super) fn charge_answers(&self, call: &Call<'_>, replies: &[ChargeReply]) -> Vec<Answer> {
        self.plain.as_ref().map_or_else(Vec::new, |plain| plain.answers(call, replies))
    }

    /// Decides a call with one script call for all checks.
    async fn decide_single_slot(self: &Arc<Self>, call: &Call<'_>) -> Answers {
        let answers = match self.send_in_place(call, self.script_call(call.checks, call)).await {
            Ok(reply) => self.decode_answers(reply, call),
            Err(answers) => answers,
        };
        self.record_script_call(call, &answers.each);
        answers
    }

    /// Sends the one script call of a call, and waits for its reply until the call's deadline.
    ///
    /// # Errors
    ///
    /// If there is no reply by then, returns the unanswered checks.
    async fn send_in_place(
        self: &Arc<Self>,
        call: &Call<'_>,
        script_call: ScriptCall,
    ) -> Result<Result<Value, SendError>, Answers> {
        let Some(pending) = self.transport.submit(smallvec![script_call]).pop() else {
            return Ok(Err(SendError::LOST));
        };
        match self.wait_in_place(call, Pending::Script(pending)).await? {
            PartReply::Script(reply) => Ok(reply),
            PartReply::Charges(_) | PartReply::Shared(_) => Ok(Err(SendError::LOST)),
        }
    }

    /// Returns the answers to a call whose deadline has passed, and counts it.
    pub(super) fn overrun(&self, call: &Call<'_>) -> Answers {
        self.stats.overruns.fetch_add(1, Ordering::Relaxed);
        unanswered(call, ExecutionStatus::Unknown, Source::Redis)
    }

    /// Decodes the reply to the one script call that decides all checks of a call.
    pub(super) fn decode_answers(
        &self,
        reply: Result<Value, SendError>,
        call: &Call<'_>,
    ) -> Answers {
        let source = reply_source(&reply);
        let decode = |reply: &Value| ScriptReply::decode(reply, call.checks, call.accounting);
        match self.validate_reply(reply, decode) {
            Ok(decoded) => {
                Answers::new(decoded.outcomes.into_iter().map(Answer::Decided).collect(), source)
            }
            Err(executed) => unanswered(call, executed, source),
        }
    }

    /// Returns the script call that decides `checks`, with the deadline of `call`.
    fn script_call(&self, checks: &[Check<'_>], call: &Call<'_>) -> ScriptCall {
        let script_call =
            self.encoder.encode_call(checks, call.accounting, self.now(call), call.now);
        ScriptCall { deadline: call.deadline, ..script_call }
    }

    /// Returns the script call for `checks`, all in one hash slot, with the deadline of `call`.
    pub(super) fn partial_script_call(&self, checks: &[Check<'_>], call: &Call<'_>) -> ScriptCall {
        match call.accounting {
            Accounting::AllOrNothing => {
                let script_call = self.encoder.encode_part(checks, self.now(call), call.now);
                ScriptCall { deadline: call.deadline, ..script_call }
            }
            Accounting::Independent => self.script_call(checks, call),
        }
    }

    /// Groups the checks of a call by node or, where node scripts are off, by hash slot.
    pub(super) fn group_checks(&self, call: &Call<'_>) -> SlotGroups {
        let slot = |check: &Check<'_>| keys::counter_slot(&check.key);
        if !self.node_scripts.is_on(call.now) {
            return multi_slot::group_by_slot(call.checks, slot);
        }
        let node = |slot| {
            let node = self.transport.node_of(slot);
            node.filter(|_| self.node_scripts.allows(slot, call.now))
        };
        node_scripts::group_by_node(call.checks, slot, node)
    }

    /// Decides a call whose counters are in several hash slots of one node, with one script call.
    /// If the node does not hold every key, it charges nothing, and the call is resent per slot.
    async fn decide_on_node(self: &Arc<Self>, call: &Call<'_>) -> Answers {
        let redirects = self.transport.redirects();
        let script_call = self.node_call(call.checks, call, false);
        let reply = match self.send_in_place(call, script_call).await {
            Ok(reply) => reply,
            Err(answers) => return answers,
        };
        if self.replied_not_here(&reply) {
            return self.decide_in_parts(call, Parts::NotHere { redirects }).await;
        }
        let answers = self.decode_answers(reply, call);
        self.record_script_call(call, &answers.each);
        answers
    }

    /// Returns the script call for `checks`, all on one cluster node, with the deadline of `call`.
    pub(super) fn node_call(
        &self,
        checks: &[Check<'_>],
        call: &Call<'_>,
        is_part: bool,
    ) -> ScriptCall {
        let (now, accounting) = (self.now(call), call.accounting);
        let script_call = self.encoder.encode_node_call(checks, accounting, is_part, now, call.now);
        self.stats.node_calls.fetch_add(1, Ordering::Relaxed);
        ScriptCall { deadline: call.deadline, ..script_call }
    }

    /// Returns whether a node script replied that the node does not hold every key. Records the
    /// reply in the statistics.
    pub(super) fn replied_not_here(&self, reply: &Result<Value, SendError>) -> bool {
        match reply {
            Ok(reply) if is_not_here(reply) => {
                self.stats.not_here.fetch_add(1, Ordering::Relaxed);
                true
            }
            Ok(_) => {
                self.node_scripts.record_reply();
                false
            }
            Err(_) => false,
        }
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
        let checks: SmallVec<[Check<'_>; 8]> = missed.iter().map(|at| call.checks[*at]).collect();
        let mut groups = multi_slot::group_by_slot(&checks, |check| keys::counter_slot(&check.key));
        for at in groups.iter_mut().flat_map(|group| &mut group.checks) {
            *at = missed[*at];
        }
        groups
    }

    /// Decodes a script's reply. On failure, returns the call's execution status as the error.
    /// Counts clamps and unreadable replies.
    pub(super) fn validate_reply(
        &self,
        reply: Result<Value, SendError>,
        decode: impl FnOnce(&Value) -> Result<ScriptReply, ReplyError>,
    ) -> Result<ScriptReply, ExecutionStatus> {
        let value = reply.map_err(|error| error.executed)?;
        match decode(&value) {
            Ok(decoded) => {
                self.stats.clamped.fetch_add(decoded.clamped, Ordering::Relaxed);
                Ok(decoded)
            }
            Err(ReplyError::NoWindow) => Err(ExecutionStatus::NotExecuted),
            Err(_) => {
                self.stats.unreadable.fetch_add(1, Ordering::Relaxed);
                Err(ExecutionStatus::Unknown)
            }
        }
    }

    /// Returns the script calls that refund these receipts: one per hash slot, or several if one would
    /// be too much work.
    fn refund_calls(&self, receipts: &[Receipt], now: Option<Micros>) -> ScriptCalls {
        if receipts.is_empty() {
            return ScriptCalls::new();
        }
        if !self.transport.is_cluster() {
            let pieces = split_by_work(receipts);
            return pieces.map(|piece| self.encoder.encode_refund(piece, now)).collect();
        }
        let mut by_slot: SmallVec<[(u16, Vec<Receipt>); 4]> = SmallVec::new();
        let mut index = multi_slot::GroupIndex::default();
        for receipt in receipts {
            let slot = keys::counter_slot(&receipt.key);
            match index.find_or_add(slot, |place| by_slot.get(place).map(|(slot, _)| *slot)) {
                Some(place) => by_slot[place].1.push(receipt.clone()),
                None => by_slot.push((slot, vec![receipt.clone()])),
            }
        }
        let pieces = by_slot.iter().flat_map(|(_, receipts)| split_by_work(receipts));
        pieces.map(|piece| self.encoder.encode_refund(piece, now)).collect()
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
        let now = match self.time_source {
            TimeSource::Server => None,
            TimeSource::Call => Some(Micros(self.latest.load(Ordering::Relaxed))),
        };
        let script_calls = self.refund_calls(receipts, now);
        if !script_calls.is_empty() {
            // Never resent: a lost refund only leaves the counter stricter.
            let _lost = self.transport.send(script_calls).await;
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
    /// until it refunds them, and for checks that plain commands may charge.
    fn has_transient_refusals(&self, check: &Check<'_>) -> bool {
        let is_plain = self.shared.plain.is_some() && plain_calls::is_eligible(check);
        self.transport().is_cluster() || is_plain
    }

    async fn refund(&self, receipts: &[Receipt]) {
        self.shared.refund(receipts).await;
    }

    fn counter_losses(&self) -> u64 {
        self.transport().counter_losses()
    }

    fn session(&self) -> u64 {
        self.transport().lost_connections() + self.transport().counter_losses()
    }
}
