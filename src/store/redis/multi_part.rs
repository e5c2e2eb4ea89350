//! Decides a call whose counters are in several hash slots of a cluster, in a task that owns the call.
//!
//! The caller only waits. Whether it stays, leaves, or is never polled again, the task receives every
//! reply and refunds the charges of a call that is not admitted. When the caller leaves, or its
//! deadline passes, parts that are not written are dropped, and the charges of the others are settled
//! once their replies arrive: a call is never half charged.
//!
//! Not here: planning the parts (`multi_slot`, `node_scripts`), calls of one part (`one_part`).

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Instant;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use smallvec::SmallVec;

use super::client::send_error::SendError;
use super::client::transport::{CallReply, NodeRequests, PendingCall, PendingCalls, Transport};
use super::multi_slot::{self, SlotGroup, SlotGroups, UnchargedStatuses};
use super::store::Shared;
use crate::domain::{
    Accounting, Answer, Answers, Call, Check, ExecutionStatus, FailureKind, LateFate, OwnedCall,
    Source,
};
use crate::store::delivery::{Caller, run_in_task, unanswered};

/// Checks of one script call, as they were sent.
type SentChecks<'a> = SmallVec<[Check<'a>; 8]>;

impl<T: Transport> Shared<T> {
    /// Decides a call of several parts in a task, by one request to a node for each group. `not_here`
    /// is the number of redirects before a request for the whole call got the reply that its node does
    /// not hold every key; `None` if there was no such request.
    pub(super) async fn decide_in_parts(
        self: &Arc<Self>,
        call: &Call<'_>,
        groups: SlotGroups,
        not_here: Option<u64>,
    ) -> Answers {
        let (store, owned) = (Arc::clone(self), OwnedCall::new(call));
        let work = |caller| async move {
            let checks = owned.checks();
            let call = owned.to_call(&checks);
            OwnedMultiPart::new(&store, &call, caller).run(groups, not_here).await;
        };
        let answers = run_in_task(&self.tasks, &self.stats.unheard, work).await;
        answers.unwrap_or_else(|| unanswered(call, ExecutionStatus::Unknown, FailureKind::Lost))
    }
}

/// For each check, whether its answer was passed to the caller.
type KnownChecks = SmallVec<[bool; 8]>;

/// State of the caller of a call that a task owns.
enum CallerState {
    Waits(Caller),
    Left,
    /// The deadline has passed, and the caller has got the answers known by then. The future resolves
    /// to the fate of the others.
    Late(BoxFuture<'static, LateFate>, KnownChecks),
}

/// Call of several parts, with the answers so far.
struct OwnedMultiPart<'a, T> {
    store: &'a Arc<Shared<T>>,
    call: &'a Call<'a>,
    caller: CallerState,
    answers: Vec<Answer>,
    /// For each check, the status of its counter without the charges of the call.
    uncharged: UnchargedStatuses,
    source: Source,
    /// Reason why checks are unanswered; overload, if it is one of several.
    failure: Option<FailureKind>,
}

impl<'a, T: Transport> OwnedMultiPart<'a, T> {
    fn new(store: &'a Arc<Shared<T>>, call: &'a Call<'a>, caller: Caller) -> Self {
        OwnedMultiPart {
            store,
            call,
            caller: CallerState::Waits(caller),
            answers: vec![Answer::NotAsked; call.checks.len()],
            uncharged: UnchargedStatuses::from_elem(None, call.checks.len()),
            source: Source::Redis,
            failure: None,
        }
    }

    /// Sends one request per group, and settles the charges of the call. If a node does not hold every
    /// key of a group, the group's checks are sent again, slot by slot.
    async fn run(mut self, groups: SlotGroups, not_here: Option<u64>) {
        let store = self.store;
        store.stats.multi_slot_calls.fetch_add(1, Ordering::Relaxed);
        let redirects = store.transport.redirects();
        let missed = self.send_once(&groups).await;
        if !missed.is_empty() {
            let slots = store.group_missed_checks(self.call, &missed);
            // No group spans slots, so none is missed again.
            self.send_once(&slots).await;
            store.record_not_here(self.call, &missed, &self.answers, redirects);
        }
        store.stats.script_calls.fetch_add(1, Ordering::Relaxed);
        if let Some(redirects) = not_here {
            let all: SmallVec<[usize; 8]> = (0..self.call.checks.len()).collect();
            store.record_not_here(self.call, &all, &self.answers, redirects);
        }
        self.settle().await;
    }

    /// Sends one request per group, and records the replies. Returns the indices of the checks in
    /// groups for which the node does not hold every key. If the caller no longer waits, sends
    /// nothing.
    async fn send_once(&mut self, groups: &[SlotGroup]) -> SmallVec<[usize; 8]> {
        let (store, call) = (self.store, self.call);
        let mut missed = SmallVec::new();
        if groups.is_empty() {
            return missed;
        }
        if !self.caller.is_waiting() {
            self.mark(groups, ExecutionStatus::NotExecuted);
            return missed;
        }
        let is_part = call.accounting == Accounting::AllOrNothing;
        let sent = |at: &usize| multi_slot::check_to_send(&call.checks[*at]);
        let parts: SmallVec<[SentChecks<'_>; 4]> =
            groups.iter().map(|group| group.checks.iter().map(sent).collect()).collect();
        let request = |(group, part): (&SlotGroup, &SentChecks<'_>)| {
            store.node_request(&Call { checks: part, ..*call }, Some(group), is_part)
        };
        let calls: NodeRequests = groups.iter().zip(&parts).map(request).collect();
        // Until a group has its reply, it may have been executed.
        self.mark(groups, ExecutionStatus::Unknown);
        let mut pending = store.transport.submit(calls);
        for (at, (group, part)) in groups.iter().zip(&parts).enumerate() {
            let reply = self.wait_for(at, &mut pending, groups, &parts).await;
            if group.is_by_node && store.replied_not_here(&reply) {
                missed.extend_from_slice(&group.checks);
                continue;
            }
            self.record(reply, group, part);
        }
        missed
    }

    /// Waits for the reply to the call at index `at`. If the caller leaves or its time is up
    /// meanwhile, records the replies that have arrived and withdraws the calls that are not written.
    async fn wait_for(
        &mut self,
        at: usize,
        pending: &mut PendingCalls,
        groups: &[SlotGroup],
        parts: &[SentChecks<'_>],
    ) -> Result<CallReply, SendError> {
        // All of them side by side: a redirect of one must not wait for the reply to another.
        let reply = std::future::poll_fn(|context| {
            let others = pending.iter_mut().skip(at + 1);
            others.for_each(|other| other.advance(context));
            match pending.get_mut(at) {
                Some(script) => Pin::new(script).poll(context),
                None => Poll::Ready(Err(SendError::LOST)),
            }
        });
        tokio::select! {
            biased;
            reply = reply => return reply,
            () = self.caller.gone(self.call.deadline) => {}
        }
        for ((script, group), part) in pending.iter_mut().zip(groups).zip(parts).skip(at) {
            script.stop_waiting();
            if let Some(reply) = script.now_or_never() {
                self.record(reply.clone(), group, part);
                *script = PendingCall::ready(reply);
            }
        }
        self.stop_waiting();
        match pending.get_mut(at) {
            Some(script) => script.await,
            None => Err(SendError::LOST),
        }
    }

    /// Records the reply to the script call of a group.
    fn record(
        &mut self,
        reply: Result<CallReply, SendError>,
        group: &SlotGroup,
        part: &[Check<'_>],
    ) {
        let Call { accounting, .. } = *self.call;
        let is_part = accounting == Accounting::AllOrNothing;
        match self.store.decode(reply, part, accounting, is_part) {
            Ok(decoded) => {
                for (at, outcome) in group.checks.iter().zip(decoded.outcomes) {
                    self.answers[*at] = Answer::Decided(outcome);
                }
                for (at, status) in group.checks.iter().zip(decoded.uncharged) {
                    self.uncharged[*at] = Some(status);
                }
            }
            Err(SendError { executed, kind }) => {
                self.mark(std::slice::from_ref(group), executed);
                if kind.is_overload() {
                    self.source = Source::Shed;
                }
                if self.failure.is_none() || kind.is_overload() {
                    self.failure = Some(kind);
                }
            }
        }
    }

    fn mark(&mut self, groups: &[SlotGroup], executed: ExecutionStatus) {
        for at in groups.iter().flat_map(|group| &group.checks) {
            self.answers[*at] = Answer::Unanswered { executed };
        }
    }

    /// Passes the answers known so far to a caller whose time is up, or records that it has left. The
    /// caller decides all other checks, including those that were not sent, unless an answer has
    /// already rejected the call.
    fn stop_waiting(&mut self) {
        let caller = std::mem::replace(&mut self.caller, CallerState::Left);
        let CallerState::Waits(caller) = caller else { return };
        if caller.is_closed() {
            return;
        }
        self.store.stats.overruns.fetch_add(1, Ordering::Relaxed);
        let known = self.known_checks();
        let unanswered = Answer::Unanswered { executed: ExecutionStatus::Unknown };
        let is_rejected = self.call.accounting == Accounting::AllOrNothing
            && multi_slot::is_rejected(self.call.checks, &self.answers);
        let each = self.answers.iter().map(|answer| match answer {
            Answer::Decided(_) => *answer,
            Answer::NotAsked if is_rejected => *answer,
            Answer::NotAsked | Answer::LastKnown { .. } | Answer::Unanswered { .. } => unanswered,
        });
        let failure = self.failure.or(Some(FailureKind::TimedOut));
        let answers = Answers { failure, ..Answers::new(each.collect(), self.source) };
        self.caller = CallerState::Late(Box::pin(caller.deliver_part(answers)), known);
    }

    fn known_checks(&self) -> KnownChecks {
        self.answers.iter().map(|answer| answer.outcome().is_some()).collect()
    }

    /// Answers the caller, if it still waits, and settles the charges of the call.
    async fn settle(mut self) {
        let (fate, known) = match std::mem::replace(&mut self.caller, CallerState::Left) {
            CallerState::Waits(caller) => {
                self.refund_if_rejected();
                let answers = Answers::new(self.answers.clone(), self.source);
                let answers = Answers { failure: self.failure, ..answers };
                if !answers.is_half_charged() {
                    return caller.deliver(answers);
                }
                let known = self.known_checks();
                (caller.deliver_part(answers).await, known)
            }
            CallerState::Left => (LateFate::Unheard, KnownChecks::new()),
            CallerState::Late(fate, known) => (fate.await, known),
        };
        match fate {
            LateFate::Keep => {}
            LateFate::Refund => {
                // Whoever decided the call refunds the charges that it knows of.
                for (answer, is_known) in self.answers.iter_mut().zip(known) {
                    if is_known {
                        *answer = Answer::NotAsked;
                    }
                }
                self.store.refund_charged(self.call, &mut self.answers);
            }
            LateFate::Unheard => self.settle_unheard(),
        }
    }

    /// Refunds the charges of a call that its answers reject.
    fn refund_if_rejected(&mut self) {
        let Call { checks, accounting, .. } = *self.call;
        if multi_slot::is_rejected(checks, &self.answers) {
            let (answers, uncharged) = (&mut self.answers, &self.uncharged);
            let receipts = multi_slot::refund_answers(checks, accounting, answers, uncharged);
            self.store.refund_in_background(&receipts, self.store.now(self.call));
        }
    }

    /// Settles the charges of a call whose caller has left. If the call was admitted, all of it is
    /// charged, and its charges stand. Otherwise, they are refunded.
    fn settle_unheard(mut self) {
        let checks = self.call.checks;
        let is_whole = self.answers.iter().all(|answer| answer.outcome().is_some())
            && !multi_slot::is_rejected(checks, &self.answers);
        if !is_whole {
            self.store.refund_charged(self.call, &mut self.answers);
        }
        self.store.stats.unheard.add(Answers::new(self.answers, self.source).charged());
    }
}

impl CallerState {
    fn is_waiting(&self) -> bool {
        matches!(self, CallerState::Waits(_))
    }

    /// Waits until a caller that waits leaves or its deadline passes. Never returns if it no longer
    /// waits.
    async fn gone(&mut self, deadline: Option<Instant>) {
        let CallerState::Waits(caller) = self else { return std::future::pending().await };
        match deadline {
            // Ends at the deadline or when the caller leaves, whichever is first.
            Some(deadline) => drop(tokio::time::timeout_at(deadline.into(), caller.closed()).await),
            None => caller.closed().await,
        }
    }
}
