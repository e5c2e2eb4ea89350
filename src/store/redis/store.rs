//! Redis store: translates calls into plain commands or script calls, and decodes the replies.
//!
//! Not here: sending the script calls ([`Transport`]), deadlines and fallback (`resilience`).

use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::Value;
use smallvec::{SmallVec, smallvec};

use super::client::node_stats::{BreakerState, NodeReport};
use super::client::plain_charge::ChargeReplies;
use super::client::topology::RedisClient;
use super::client::transport::{ScriptCall, ScriptCalls, SendError, Transport, reply_source};
use super::keys::{self, Prefix};
use super::multi_slot::{self, SlotGroup, SlotGroups, UnchargedStatuses};
use super::near_limit_hints::NearLimitHints;
use super::node_scripts::{self, NodeScriptSwitch};
use super::plain_calls::{self, PlainCalls, PlainResult, PlainStats};
use super::script::arguments::Encoder;
use super::script::library::{PRODUCTION, STRICT};
use super::script::reply::{ReplyError, ScriptReply, is_not_here};
use crate::domain::{
    Accounting, Answer, Answers, Call, Check, ExecutionStatus, Micros, Receipt, Source,
};
use crate::store::{SharedStore, SharedStoreStats, Store};

/// Time before the deadline at which a multi-slot call stops waiting for replies, so that it can
/// still report the charges of the hash slots that replied.
///
/// Equal to one tick of the runtime's timer. If it were shorter, `resilience` could cancel the
/// call first, and these charges would never be refunded.
const DEADLINE_MARGIN: Duration = Duration::from_millis(1);

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
}

/// Store that keeps its counters in Redis. Plain commands decide calls far from their limits, and
/// scripts on the server decide all others.
#[derive(Debug)]
pub struct RedisStore<T> {
    transport: T,
    encoder: Encoder,
    time_source: TimeSource,
    /// Time of the latest call, in microseconds since the Unix epoch, which is also the time of
    /// refunds. Used only with [`TimeSource::Call`].
    latest: AtomicU64,
    hints: NearLimitHints,
    node_scripts: NodeScriptSwitch,
    /// Selects the calls that need no script; `None` if plain commands are disabled.
    plain: Option<PlainCalls>,
    stats: RedisStats,
}

impl SharedStore for RedisStore<RedisClient> {
    type Node = NodeReport;

    fn nodes(&self) -> Vec<NodeReport> {
        self.transport.report()
    }

    async fn wait_until_connected(&self) {
        self.transport.wait_until_connected().await;
    }

    async fn wait_until_idle(&self) {
        self.transport.wait_until_idle().await;
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
        } = &self.stats;
        let of_plain = |of: fn(&PlainStats) -> &AtomicU64| {
            self.plain.as_ref().map_or(0, |plain| of(&plain.stats).load(Ordering::Relaxed))
        };
        SharedStoreStats {
            clamped: clamped.load(Ordering::Relaxed),
            unreadable: unreadable.load(Ordering::Relaxed),
            multi_slot_calls: multi_slot_calls.load(Ordering::Relaxed),
            two_rounds: two_rounds.load(Ordering::Relaxed),
            node_calls: node_calls.load(Ordering::Relaxed),
            not_here: not_here.load(Ordering::Relaxed),
            node_scripts_off: self.node_scripts.times_off(),
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
        self.transport.was_connected() && !self.transport.report().iter().any(open)
    }

    fn failure(&self) -> Option<String> {
        self.transport.failure()
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
        let encoder = Encoder::new(prefix, scripts, transport.is_cluster());
        let (latest, hints, stats) =
            (AtomicU64::new(0), NearLimitHints::new(), RedisStats::default());
        let node_scripts = NodeScriptSwitch::new(transport.is_cluster());
        RedisStore { transport, encoder, time_source, latest, hints, node_scripts, plain, stats }
    }

    /// Enables or disables script calls that span several hash slots of a cluster node. Enabled by
    /// default. If disabled, each hash slot gets its own script call.
    #[must_use]
    pub fn with_node_scripts(self, enabled: bool) -> Self {
        let node_scripts = NodeScriptSwitch::new(enabled && self.transport.is_cluster());
        RedisStore { node_scripts, ..self }
    }

    /// Configures the store to charge one in every `interval` calls with plain commands even if a
    /// hint says that a counter may be near its limit, so that tests cover wrong hints.
    #[doc(hidden)]
    #[must_use]
    pub fn with_wrong_hints(mut self, interval: u64) -> Self {
        if let Some(plain) = &mut self.plain {
            plain.set_forced_interval(interval);
        }
        self
    }

    /// Returns the transport over which script calls are sent.
    pub fn transport(&self) -> &T {
        &self.transport
    }

    /// Returns the live statistics, which change as calls are decided.
    pub fn stats(&self) -> &RedisStats {
        &self.stats
    }

    /// Returns the time to send to the scripts, or `None` if they use the server's clock.
    fn now(&self, call: &Call<'_>) -> Option<Micros> {
        match self.time_source {
            TimeSource::Server => None,
            TimeSource::Call => {
                self.latest.store(call.now.0, Ordering::Relaxed);
                Some(call.now)
            }
        }
    }

    /// Decides a call with scripts, and records its answers as hints for plain commands.
    async fn decide_by_script(&self, call: &Call<'_>) -> Answers {
        let answers = if self.transport.is_cluster() {
            let groups = self.group_checks(call);
            // The others are boxed, so that the future of a single-slot call stays small.
            match groups.as_slice() {
                [group] if group.needs_node_script() => Box::pin(self.decide_on_node(call)).await,
                [] | [_] => self.decide_single_slot(call).await,
                [_, _, ..] => Box::pin(self.decide_multi_slot(call, groups)).await,
            }
        } else {
            self.decide_single_slot(call).await
        };
        self.stats.script_calls.fetch_add(1, Ordering::Relaxed);
        if let Some(plain) = &self.plain {
            plain.record(call, &answers.each);
        }
        answers
    }

    /// Decides a call by the replies to its plain commands or, if they do not decide it, with
    /// scripts.
    async fn decide_by_plain_commands(
        &self,
        call: &Call<'_>,
        plain: &PlainCalls,
        replies: impl Future<Output = Option<ChargeReplies>>,
    ) -> Answers {
        // The rare script calls are boxed, so that the future of a plain call stays small.
        let Some(replies) = replies.await else {
            return Box::pin(self.decide_by_script(call)).await;
        };
        match plain.evaluate(call, &replies) {
            PlainResult::Decided(answers) => answers,
            PlainResult::Refund(receipts) => {
                // Before the scripts decide, so that they do not refuse the call because of its own
                // hits. Never resent: a lost refund only leaves the counter stricter.
                let _lost = Box::pin(self.transport.send(self.refund_calls(&receipts, None))).await;
                Box::pin(self.decide_by_script(call)).await
            }
            PlainResult::Unknown(answers, receipts) => {
                for script_call in self.refund_calls(&receipts, None) {
                    self.transport.send_in_background(script_call);
                }
                answers
            }
        }
    }

    /// Decides a call with one script call for all checks.
    async fn decide_single_slot(&self, call: &Call<'_>) -> Answers {
        let script_call = self.script_call(call.checks, call);
        let reply = self.transport.send(smallvec![script_call]).await.pop();
        self.decode_answers(reply, call)
    }

    /// Decodes the reply to the one script call that decides all checks of a call.
    fn decode_answers(&self, reply: Option<Result<Value, SendError>>, call: &Call<'_>) -> Answers {
        let source = reply_source(reply.as_ref());
        Answers { each: self.decode_reply(reply, call.checks, call.accounting), source }
    }

    /// Returns the script call that decides `checks`, with the deadline of `call`.
    fn script_call(&self, checks: &[Check<'_>], call: &Call<'_>) -> ScriptCall {
        let script_call =
            self.encoder.encode_call(checks, call.accounting, self.now(call), call.now);
        ScriptCall { deadline: call.deadline, ..script_call }
    }

    /// Returns the script call for `checks`, all in one hash slot, with the deadline of `call`.
    fn partial_script_call(&self, checks: &[Check<'_>], call: &Call<'_>) -> ScriptCall {
        match call.accounting {
            Accounting::AllOrNothing => {
                let script_call = self.encoder.encode_part(checks, self.now(call), call.now);
                ScriptCall { deadline: call.deadline, ..script_call }
            }
            Accounting::Independent => self.script_call(checks, call),
        }
    }

    /// Groups the checks of a call by node or, where node scripts are off, by hash slot.
    fn group_checks(&self, call: &Call<'_>) -> SlotGroups {
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
    async fn decide_on_node(&self, call: &Call<'_>) -> Answers {
        let redirects = self.transport.redirects();
        let script_call = self.node_call(call.checks, call, false);
        let reply = self.transport.send(smallvec![script_call]).await.pop();
        if !self.replied_not_here(reply.as_ref()) {
            return self.decode_answers(reply, call);
        }
        let missed: SmallVec<[usize; 8]> = (0..call.checks.len()).collect();
        let groups = self.group_missed_checks(call, &missed);
        let answers = self.decide_multi_slot(call, groups).await;
        self.record_not_here(call, &missed, &answers.each, redirects);
        answers
    }

    /// Returns the script call for `checks`, all on one cluster node, with the deadline of `call`.
    fn node_call(&self, checks: &[Check<'_>], call: &Call<'_>, is_part: bool) -> ScriptCall {
        let (now, accounting) = (self.now(call), call.accounting);
        let script_call = self.encoder.encode_node_call(checks, accounting, is_part, now, call.now);
        self.stats.node_calls.fetch_add(1, Ordering::Relaxed);
        ScriptCall { deadline: call.deadline, ..script_call }
    }

    /// Returns whether a node script replied that the node does not hold every key. Records the
    /// reply in the statistics.
    fn replied_not_here(&self, reply: Option<&Result<Value, SendError>>) -> bool {
        match reply {
            Some(Ok(reply)) if is_not_here(reply) => {
                self.stats.not_here.fetch_add(1, Ordering::Relaxed);
                true
            }
            Some(Ok(_)) => {
                self.node_scripts.record_reply();
                false
            }
            Some(Err(_)) | None => false,
        }
    }

    /// Records a `not here` reply as unexplained if the same checks, sent again slot by slot, were
    /// decided without a redirect. `redirects` is the redirect count before the node script call.
    fn record_not_here(
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

    /// Decides a call whose counters are in several hash slots, in one or two round trips. Sends
    /// one script call per hash slot.
    async fn decide_multi_slot(&self, call: &Call<'_>, groups: SlotGroups) -> Answers {
        let each = vec![Answer::NotAsked; call.checks.len()];
        let mut answers = Answers { each, source: Source::Redis };
        let mut uncharged = UnchargedStatuses::from_elem(None, call.checks.len());
        self.stats.multi_slot_calls.fetch_add(1, Ordering::Relaxed);
        let distance = |check: &Check<'_>| self.hints.distance(check, call.now);
        match multi_slot::first_group(call.checks, &groups, call.accounting, distance) {
            None => self.send_groups(call, &groups, &mut answers, &mut uncharged).await,
            Some(first) => {
                self.stats.two_rounds.fetch_add(1, Ordering::Relaxed);
                let alone = &groups[first..=first];
                self.send_groups(call, alone, &mut answers, &mut uncharged).await;
                let has_ended = multi_slot::first_group_ends_call(
                    call.checks,
                    &groups[first],
                    &mut answers.each,
                );
                let others = multi_slot::other_groups(call.checks, groups, first, has_ended);
                self.send_groups(call, &others, &mut answers, &mut uncharged).await;
            }
        }
        for (check, answer) in call.checks.iter().zip(&answers.each) {
            if let Answer::Decided(outcome) = answer {
                self.hints.record(check, outcome, call.now);
            }
        }
        for (check, answer) in call.checks.iter().zip(&mut answers.each) {
            if *answer == Answer::NotAsked
                && let Some(last) = self.hints.last_available(check)
            {
                let available = last.min(check.limit.capacity());
                *answer = Answer::LastKnown { available, reset_after: None };
            }
        }
        if call.accounting == Accounting::AllOrNothing
            && multi_slot::is_rejected(call.checks, &answers.each)
        {
            let receipts = multi_slot::refund_answers(call.checks, &mut answers.each, &uncharged);
            self.stats.refunded.fetch_add(receipts.len() as u64, Ordering::Relaxed);
            for script_call in self.refund_calls(&receipts, self.now(call)) {
                self.transport.send_in_background(script_call);
            }
        }
        answers
    }

    /// Sends one script call per group. Stores the replies in `answers`, and each counter's status
    /// without the call's charges in `uncharged`. If a node does not hold every key of a group,
    /// the group's checks are sent again, slot by slot.
    async fn send_groups(
        &self,
        call: &Call<'_>,
        groups: &[SlotGroup],
        answers: &mut Answers,
        uncharged: &mut UnchargedStatuses,
    ) {
        let redirects = self.transport.redirects();
        let missed = self.send_once(call, groups, answers, uncharged).await;
        if missed.is_empty() {
            return;
        }
        let slots = self.group_missed_checks(call, &missed);
        // No group spans slots, so none is missed again.
        self.send_once(call, &slots, answers, uncharged).await;
        self.record_not_here(call, &missed, &answers.each, redirects);
    }

    /// Sends one script call per group, and stores the replies like `send_groups`. Returns the
    /// indices of the checks in groups for which the node does not hold every key.
    async fn send_once(
        &self,
        call: &Call<'_>,
        groups: &[SlotGroup],
        answers: &mut Answers,
        uncharged: &mut UnchargedStatuses,
    ) -> SmallVec<[usize; 8]> {
        let is_part = call.accounting == Accounting::AllOrNothing;
        let sent = |at: &usize| multi_slot::check_to_send(&call.checks[*at], call.accounting);
        let parts: SmallVec<[SmallVec<[Check<'_>; 8]>; 4]> =
            groups.iter().map(|group| group.checks.iter().map(sent).collect()).collect();
        let script_call = |(group, part): (&SlotGroup, &SmallVec<[Check<'_>; 8]>)| match group
            .needs_node_script()
        {
            true => self.node_call(part, call, is_part),
            false => self.partial_script_call(part, call),
        };
        let script_calls: ScriptCalls = groups.iter().zip(&parts).map(script_call).collect();
        let mut missed = SmallVec::new();
        if script_calls.is_empty() {
            return missed;
        }
        let until = call.deadline.and_then(|deadline| deadline.checked_sub(DEADLINE_MARGIN));
        let mut replies = self.transport.send_until(script_calls, until).await.into_iter();
        for (group, part) in groups.iter().zip(&parts) {
            let reply = replies.next();
            if group.needs_node_script() && self.replied_not_here(reply.as_ref()) {
                missed.extend_from_slice(&group.checks);
                continue;
            }
            if reply_source(reply.as_ref()) == Source::Shed {
                answers.source = Source::Shed;
            }
            let decode = |reply: &Value| match is_part {
                true => ScriptReply::decode_part(reply, part),
                false => ScriptReply::decode(reply, part, call.accounting),
            };
            match self.validate_reply(reply, decode) {
                Ok(decoded) => {
                    for (at, outcome) in group.checks.iter().zip(decoded.outcomes) {
                        answers.each[*at] = Answer::Decided(outcome);
                    }
                    for (at, status) in group.checks.iter().zip(decoded.uncharged) {
                        uncharged[*at] = Some(status);
                    }
                }
                Err(executed) => {
                    for at in &group.checks {
                        answers.each[*at] = Answer::Unanswered { executed };
                    }
                }
            }
        }
        missed
    }

    /// Groups checks by slot after node scripts replied `not here` to them. Temporarily turns off
    /// node scripts for these slots.
    fn group_missed_checks(&self, call: &Call<'_>, missed: &[usize]) -> SlotGroups {
        let slot = |at: &usize| keys::counter_slot(&call.checks[*at].key);
        self.node_scripts.record_not_here(missed.iter().map(slot), call.now);
        let checks: SmallVec<[Check<'_>; 8]> = missed.iter().map(|at| call.checks[*at]).collect();
        let mut groups = multi_slot::group_by_slot(&checks, |check| keys::counter_slot(&check.key));
        for at in groups.iter_mut().flat_map(|group| &mut group.checks) {
            *at = missed[*at];
        }
        groups
    }

    /// Decodes a script's reply into one answer per check. Counts clamps and unreadable replies.
    fn decode_reply(
        &self,
        reply: Option<Result<Value, SendError>>,
        checks: &[Check<'_>],
        accounting: Accounting,
    ) -> Vec<Answer> {
        let decode = |reply: &Value| ScriptReply::decode(reply, checks, accounting);
        match self.validate_reply(reply, decode) {
            Ok(decoded) => decoded.outcomes.into_iter().map(Answer::Decided).collect(),
            Err(executed) => vec![Answer::Unanswered { executed }; checks.len()],
        }
    }

    /// Decodes a script's reply. On failure, returns the call's execution status as the error.
    /// Counts clamps and unreadable replies.
    fn validate_reply(
        &self,
        reply: Option<Result<Value, SendError>>,
        decode: impl FnOnce(&Value) -> Result<ScriptReply, ReplyError>,
    ) -> Result<ScriptReply, ExecutionStatus> {
        let value = match reply {
            Some(Ok(value)) => value,
            Some(Err(error)) => return Err(error.executed),
            None => return Err(ExecutionStatus::Unknown),
        };
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

    /// Returns the script calls that refund these receipts, one per hash slot.
    fn refund_calls(&self, receipts: &[Receipt], now: Option<Micros>) -> ScriptCalls {
        if receipts.is_empty() {
            return ScriptCalls::new();
        }
        if !self.transport.is_cluster() {
            return smallvec![self.encoder.encode_refund(receipts, now)];
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
        by_slot.iter().map(|(_, receipts)| self.encoder.encode_refund(receipts, now)).collect()
    }
}

impl<T: Transport> Store for RedisStore<T> {
    async fn apply(&self, call: &Call<'_>) -> Answers {
        if let Some(plain) = &self.plain
            && let Some(charges) = plain.plan(call)
        {
            let until = call.deadline.and_then(|deadline| deadline.checked_sub(DEADLINE_MARGIN));
            let replies = self.transport.charge(charges, until);
            // Pinned here, because awaiting the future by value would copy it.
            return pin!(self.decide_by_plain_commands(call, plain, replies)).await;
        }
        // Boxed, so that the futures of the stores around this one, which contain it, stay small.
        Box::pin(self.decide_by_script(call)).await
    }

    fn has_transient_refusals(&self, check: &Check<'_>) -> bool {
        self.plain.is_some() && plain_calls::is_eligible(check)
    }

    async fn refund(&self, receipts: &[Receipt]) {
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

    fn counter_losses(&self) -> u64 {
        self.transport.counter_losses()
    }

    fn session(&self) -> u64 {
        self.transport.lost_connections() + self.transport.counter_losses()
    }
}
