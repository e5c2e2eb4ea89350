//! [`RedisStore`]: a call becomes script calls, their replies become answers.
//!
//! Not here: how the script calls get there ([`Transport`]), deadlines and fallbacks
//! (`resilience`).

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::Value;
use smallvec::{SmallVec, smallvec};

use super::client::transport::{ScriptCalls, SendError, Transport};
use super::keys::{self, Prefix};
use super::multi_slot;
use super::multi_slot::Groups;
use super::near_limit_hints::NearLimitHints;
use super::script::arguments::Encoder;
use super::script::library::{PRODUCTION, STRICTLY};
use super::script::reply::{ReplyError, ScriptReply};
use crate::domain::{Accounting, Answer, Answers, Call, Check, Executed, Micros, Receipt, Source};
use crate::store::Store;

/// A call over several slots ends that long before its deadline, so that what some of them charged
/// is told beside the others' silence. One tick of the runtime's timer: with less, whoever keeps the
/// deadline would end the call first, and nobody would know of those charges.
const SETTLING: Duration = Duration::from_millis(1);

/// Whose time counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Timing {
    /// The server's: every replica sees the same.
    #[default]
    Server,
    /// The call's, for tests: the scripts run strictly (Redis 7), and every expiry is a day longer.
    OfTheCall,
}

/// Counts of what went on; read by telemetry, never reset.
#[derive(Debug, Default)]
pub struct Counters {
    /// Counters that were from the far future and count as full from then on.
    pub clamped: AtomicU64,
    /// Replies that no script of ours gives.
    pub unreadable: AtomicU64,
    /// Calls over several slots.
    pub split: AtomicU64,
    /// Of these: calls that asked one slot first.
    pub two_rounds: AtomicU64,
    /// Charges refunded because another slot of the call refused it.
    pub refunded: AtomicU64,
}

/// Counters in Redis. Implements the store's contract; see the module.
#[derive(Debug)]
pub struct RedisStore<T> {
    transport: T,
    encoder: Encoder,
    timing: Timing,
    /// The latest call's time, for refunds under [`Timing::OfTheCall`].
    latest: AtomicU64,
    seen: NearLimitHints,
    counters: Counters,
}

impl<T: Transport> RedisStore<T> {
    /// A store whose keys begin with `prefix`.
    pub fn new(transport: T, prefix: Prefix, timing: Timing) -> Self {
        let scripts = match timing {
            Timing::Server => &*PRODUCTION,
            Timing::OfTheCall => &*STRICTLY,
        };
        let encoder = Encoder::new(prefix, scripts, transport.is_cluster());
        let (latest, seen, counters) =
            (AtomicU64::new(0), NearLimitHints::new(), Counters::default());
        RedisStore { transport, encoder, timing, latest, seen, counters }
    }

    /// What carries the script calls.
    pub fn transport(&self) -> &T {
        &self.transport
    }

    /// What went on so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    fn now(&self, call: &Call<'_>) -> Option<Micros> {
        match self.timing {
            Timing::Server => None,
            Timing::OfTheCall => {
                self.latest.store(call.now.0, Ordering::Relaxed);
                Some(call.now)
            }
        }
    }

    /// One script call for all checks.
    async fn together(&self, call: &Call<'_>) -> Vec<Answer> {
        let item = self.encoder.call(call.checks, call.accounting, self.now(call), call.now);
        let reply = self.transport.send(smallvec![item]).await.pop();
        self.read(reply, call.checks, call.accounting)
    }

    /// One script call for each slot, in at most two rounds.
    async fn apart(&self, call: &Call<'_>, groups: Groups) -> Vec<Answer> {
        let mut answers = vec![Answer::NotAsked; call.checks.len()];
        self.counters.split.fetch_add(1, Ordering::Relaxed);
        let near = |check: &Check<'_>| self.seen.near(check, call.now);
        match multi_slot::first(call.checks, &groups, call.accounting, near) {
            None => self.round(call, &groups, &mut answers).await,
            Some(first) => {
                self.counters.two_rounds.fetch_add(1, Ordering::Relaxed);
                self.round(call, &groups[first..=first], &mut answers).await;
                let settled = multi_slot::settled(call.checks, &groups[first], &mut answers);
                let rest = multi_slot::rest(call.checks, groups, first, settled);
                self.round(call, &rest, &mut answers).await;
            }
        }
        for (check, answer) in call.checks.iter().zip(&answers) {
            if let Answer::Decided(outcome) = answer {
                self.seen.note(check, outcome, call.now);
            }
        }
        if call.accounting == Accounting::AllOrNothing && multi_slot::refused(call.checks, &answers)
        {
            let receipts = multi_slot::undo(call.checks, &mut answers);
            self.counters.refunded.fetch_add(receipts.len() as u64, Ordering::Relaxed);
            for item in self.returns(&receipts, self.now(call)) {
                self.transport.post(item);
            }
        }
        answers
    }

    async fn round(&self, call: &Call<'_>, groups: &[multi_slot::Group], answers: &mut [Answer]) {
        type Part<'a> = SmallVec<[Check<'a>; 8]>;
        let part = |at: &usize| multi_slot::part(&call.checks[*at], call.accounting);
        let parts: SmallVec<[Part<'_>; 4]> =
            groups.iter().map(|group| group.checks.iter().map(part).collect()).collect();
        let now = self.now(call);
        let items: ScriptCalls = parts
            .iter()
            .map(|part| self.encoder.call(part, call.accounting, now, call.now))
            .collect();
        if items.is_empty() {
            return;
        }
        let until = call.deadline.and_then(|deadline| deadline.checked_sub(SETTLING));
        let mut replies = self.transport.send_until(items, until).await.into_iter();
        for (group, part) in groups.iter().zip(&parts) {
            let read = self.read(replies.next(), part, call.accounting);
            for (at, answer) in group.checks.iter().zip(read) {
                answers[*at] = answer;
            }
        }
    }

    /// One answer per check.
    fn read(
        &self,
        reply: Option<Result<Value, SendError>>,
        checks: &[Check<'_>],
        accounting: Accounting,
    ) -> Vec<Answer> {
        let executed = match reply {
            Some(Ok(value)) => match ScriptReply::decode(&value, checks, accounting) {
                Ok(decoded) => {
                    self.counters.clamped.fetch_add(decoded.clamped, Ordering::Relaxed);
                    return decoded.outcomes.into_iter().map(Answer::Decided).collect();
                }
                Err(ReplyError::NoWindow) => Executed::No,
                Err(_) => {
                    self.counters.unreadable.fetch_add(1, Ordering::Relaxed);
                    Executed::Unknown
                }
            },
            Some(Err(error)) => error.executed,
            None => Executed::Unknown,
        };
        vec![Answer::Unanswered { executed }; checks.len()]
    }

    /// One script call for each slot.
    fn returns(&self, receipts: &[Receipt], now: Option<Micros>) -> ScriptCalls {
        if receipts.is_empty() {
            return ScriptCalls::new();
        }
        if !self.transport.is_cluster() {
            return smallvec![self.encoder.refund(receipts, now)];
        }
        let mut by_slot: SmallVec<[(u16, Vec<Receipt>); 4]> = SmallVec::new();
        for receipt in receipts {
            let slot = keys::slot(&receipt.key);
            match by_slot.iter_mut().find(|(at, _)| *at == slot) {
                Some((_, held)) => held.push(receipt.clone()),
                None => by_slot.push((slot, vec![receipt.clone()])),
            }
        }
        by_slot.iter().map(|(_, receipts)| self.encoder.refund(receipts, now)).collect()
    }
}

impl<T: Transport> Store for RedisStore<T> {
    async fn apply(&self, call: &Call<'_>) -> Answers {
        let each = if !self.transport.is_cluster() {
            self.together(call).await
        } else {
            let groups = multi_slot::groups(call.checks, |check| keys::slot(&check.key));
            if groups.len() < 2 {
                self.together(call).await
            } else {
                // Boxed, so that the calls of one slot do not carry the room for it.
                Box::pin(self.apart(call, groups)).await
            }
        };
        Answers { each, source: Source::Redis }
    }

    async fn refund(&self, receipts: &[Receipt]) {
        let now = match self.timing {
            Timing::Server => None,
            Timing::OfTheCall => Some(Micros(self.latest.load(Ordering::Relaxed))),
        };
        let items = self.returns(receipts, now);
        if !items.is_empty() {
            // What is lost only makes a counter stricter; it is not sent again.
            let _lost = self.transport.send(items).await;
        }
    }
}
