//! Plain calls: calls that Redis charges with plain INCRBY commands, without a script.
//!
//! The stored value of a fixed window is the window number followed by a ten-digit hit count. An
//! INCRBY therefore charges the counter and returns its whole state, for a fraction of a script's
//! CPU time. A call is charged this way if all its counters were far from their limits when last
//! seen. The call is admitted if every returned count is within its limit, and if the server's
//! time was within the returned window from sending the command to receiving the reply. Otherwise,
//! the charges are refunded, using their receipts, and scripts decide the call. The refund is a
//! script that compares windows, not an INCRBY of a negative number, which could arrive late and
//! reduce the count of the next window. A charge whose outcome is unknown is never sent again and
//! never refunded.
//!
//! A call that is not admitted stays counted until its refund, one round trip later. Until then, it
//! may cause another call to be rejected. Each admitted call was counted on top of all calls
//! admitted before it, so no limit is exceeded. There is one exception: a client refunds more than
//! it was charged, or an operator resets the counter, while calls that are not admitted are still
//! counted.
//!
//! Not here: writing the commands (`client::plain_charge`), the hints (`plain_hints`).

use std::sync::atomic::{AtomicU64, Ordering};

use super::client::plain_charge::{ChargeReplies, ChargeReply, PlainCharge, PlainCharges};
use super::client::server_time::ServerTimeSpan;
use super::keys::{self, Prefix};
use super::plain_hints::FarFromLimitHints;
use crate::algorithm::{self, State, fixed_window};
use crate::domain::{
    Algorithm, Answer, Answers, Call, Charge, ChargeRecord, Check, ExecutionStatus, Micros, Op,
    Outcome, Receipt, RepeatedCounters, Source, Verdict, Window,
};

/// Maximum cost of a plain charge, in hits. The count could overflow into the window's number only
/// if more than 87,000 such charges were in flight on one counter.
pub(crate) const COST_MAX: u64 = 65_535;

/// Minimum length of a window whose counter is charged with plain commands. With shorter windows,
/// too many replies arrive after the window's end.
const WINDOW_LENGTH_MIN: Micros = Micros::from_secs(2);

/// Maximum number of checks in a call that is charged with plain commands. With more checks, the
/// commands would fill much of one write to the connection, and a script costs little per check.
const CHECKS_MAX: usize = 32;

/// Multiplier that packs a window number and a hit count into one stored value: window number ·
/// `COUNT_SPAN` + count.
const COUNT_SPAN: u64 = 10_000_000_000;

/// Modulus of the window numbers in stored values. The numbers repeat after this many windows.
const WINDOW_MODULUS: u64 = 900_000_000;

/// Largest hit count that a window stores, 2^32 - 1.
const COUNT_MAX: u64 = u32::MAX as u64;

/// Statistics of plain calls, as totals since the store was created.
#[derive(Debug, Default)]
pub(super) struct PlainStats {
    /// Number of calls decided by plain commands.
    pub(super) decided: AtomicU64,
    /// Number of calls that were sent as plain charges but not decided by them.
    pub(super) undecided: AtomicU64,
    /// Number of plain charges refunded.
    pub(super) refunded: AtomicU64,
}

/// Selects the calls to charge with plain commands, and evaluates the replies from Redis.
#[derive(Debug)]
pub(super) struct PlainCalls {
    prefix: Prefix,
    is_cluster: bool,
    hints: FarFromLimitHints,
    /// Test setting: one in every `forced_interval` eligible calls is charged with plain commands
    /// even if a counter may be near its limit. 0 means none.
    forced_interval: u64,
    call_count: AtomicU64,
    pub(super) stats: PlainStats,
}

/// Result of a call that was sent as plain charges, derived from the Redis replies.
pub(super) enum PlainResult {
    /// The replies decided the call. Contains the answers.
    Decided(Answers),
    /// The replies did not decide the call. The charges must be refunded with these receipts before
    /// scripts decide the call.
    Refund(Vec<Receipt>),
    /// Some charges have an unknown outcome, so scripts must not repeat the call. Contains the
    /// answers of the call, and the receipts of the charges to refund.
    Unknown(Answers, Vec<Receipt>),
}

/// Result of one plain charge.
enum ChargeResult {
    Passed(Outcome),
    /// The reply does not decide the check, so scripts must decide the call. If there is a charge
    /// record, the charge must be refunded first.
    Undecided(Option<ChargeRecord>),
    /// The command may or may not have run.
    Unknown,
}

impl PlainCalls {
    pub(super) fn new(prefix: Prefix, is_cluster: bool) -> PlainCalls {
        PlainCalls {
            prefix,
            is_cluster,
            hints: FarFromLimitHints::new(),
            forced_interval: 0,
            call_count: AtomicU64::new(0),
            stats: PlainStats::default(),
        }
    }

    /// Sets how often a call is charged with plain commands even if a hint says that a counter may
    /// be near its limit: one in every `interval` eligible calls. Tests thereby cover wrong hints.
    pub(super) fn set_forced_interval(&mut self, interval: u64) {
        self.forced_interval = interval;
    }

    /// Returns the plain charges of a call, or `None` if scripts must decide it.
    pub(super) fn plan(&self, call: &Call<'_>) -> Option<PlainCharges> {
        let checks = call.checks;
        if checks.is_empty() || checks.len() > CHECKS_MAX || !checks.iter().all(is_eligible) {
            return None;
        }
        let is_forced = self.forced_interval > 0
            && self.call_count.fetch_add(1, Ordering::Relaxed).is_multiple_of(self.forced_interval);
        let is_far = |check: &Check<'_>| self.hints.is_far(check, capacity(check), call.now);
        if !is_forced && !checks.iter().all(is_far) {
            return None;
        }
        if !RepeatedCounters::from_checks(checks).is_empty() {
            return None;
        }
        Some(checks.iter().map(|check| self.build_charge(check)).collect())
    }

    fn build_charge(&self, check: &Check<'_>) -> PlainCharge {
        PlainCharge {
            counter: check.key.identity.into(),
            key: self.prefix.key(&check.key, &check.limit.algorithm).as_slice().into(),
            cost: saturate_to_u32(check.cost().0),
            // One window and a second, so that the key outlives any window that it may count.
            expire_s: saturate_to_u32(window_length(check).0.div_ceil(Micros::SECOND.0) + 1),
            slot: self.is_cluster.then(|| keys::counter_slot(&check.key)),
        }
    }

    /// Records the hit counts from a call that scripts decided, as hints for later calls.
    pub(super) fn record(&self, call: &Call<'_>, answers: &[Answer]) {
        for (check, answer) in call.checks.iter().zip(answers) {
            if let Answer::Decided(outcome) = answer
                && is_eligible(check)
            {
                self.hints.record(check, outcome, capacity(check), call.now);
            }
        }
    }

    /// Evaluates the replies to the charges of a call, and records their counts as hints for later
    /// calls.
    pub(super) fn evaluate(&self, call: &Call<'_>, replies: &ChargeReplies) -> PlainResult {
        let judged = call.checks.iter().zip(replies);
        let mut judged = judged.map(|(check, reply)| self.evaluate_charge(check, reply, call.now));
        let mut each = Vec::with_capacity(call.checks.len());
        let first_other = judged.by_ref().find_map(|result| match result {
            ChargeResult::Passed(outcome) => {
                each.push(Answer::Decided(outcome));
                None
            }
            ChargeResult::Undecided(_) | ChargeResult::Unknown => Some(result),
        });
        let Some(first_other) = first_other else {
            self.stats.decided.fetch_add(1, Ordering::Relaxed);
            return PlainResult::Decided(Answers { each, source: Source::Redis });
        };
        let passed = each.iter().filter_map(Answer::outcome).copied().map(ChargeResult::Passed);
        let results: Vec<ChargeResult> = passed.chain([first_other]).chain(judged).collect();
        self.stats.undecided.fetch_add(1, Ordering::Relaxed);
        let is_unknown = |result: &ChargeResult| matches!(result, ChargeResult::Unknown);
        let has_unknown = results.iter().any(is_unknown);
        let receipts: Vec<Receipt> = call
            .checks
            .iter()
            .zip(&results)
            .filter_map(|(check, result)| {
                let taken = match result {
                    // Charges beside an unknown one stand, as after any call that was not answered.
                    ChargeResult::Passed(_) if has_unknown => return None,
                    ChargeResult::Passed(outcome) => outcome.taken?,
                    ChargeResult::Undecided(taken) => (*taken)?,
                    ChargeResult::Unknown => return None,
                };
                Some(Receipt { key: check.key, limit: check.limit.clone(), taken })
            })
            .collect();
        self.stats.refunded.fetch_add(receipts.len() as u64, Ordering::Relaxed);
        match has_unknown {
            true => PlainResult::Unknown(to_answers(&results), receipts),
            false => PlainResult::Refund(receipts),
        }
    }

    fn evaluate_charge(&self, check: &Check<'_>, reply: &ChargeReply, now: Micros) -> ChargeResult {
        let value = match reply.value {
            Ok(value) => value,
            Err(error) => {
                return match error.executed {
                    ExecutionStatus::NotExecuted => ChargeResult::Undecided(None),
                    ExecutionStatus::Unknown => ChargeResult::Unknown,
                };
            }
        };
        // Charges are written only while the server's time is known.
        let Some(span) = reply.span else { return ChargeResult::Undecided(None) };
        let Some((start, count)) = decode_window(check, value, &span) else {
            return ChargeResult::Undecided(None);
        };
        let (cost, end) = (check.cost(), start.saturating_add(window_length(check)));
        // The latest time: prepaid hits must not be spent too late, and a refund compares only the
        // window.
        let window = ChargeRecord { hits: cost, at: span.latest, window: start, entry: 0 };
        if !span.is_certain || span.earliest < start || span.latest >= end {
            return ChargeResult::Undecided(Some(window));
        }
        let state =
            fixed_window::State { start, count: saturate_to_u32(count - cost.0.min(count)) };
        let state = State::FixedWindow(state);
        let outcome = algorithm::apply(Some(&state), check.limit, check.op, span.earliest).outcome;
        if count > capacity(check) || outcome.verdict == Verdict::Refuse {
            self.hints.record_above_limit(check, outcome.reset_after, now);
            return ChargeResult::Undecided(Some(window));
        }
        self.hints.record(check, &outcome, capacity(check), now);
        ChargeResult::Passed(Outcome { taken: Some(window), ..outcome })
    }
}

/// Returns whether a check can ever be charged with a plain command. If so, the check may be
/// refused because of another call's charges that are about to be refunded.
pub(super) fn is_eligible(check: &Check<'_>) -> bool {
    let is_small_take = match check.op {
        Op::Take { cost } => (1..=COST_MAX).contains(&cost.0),
        Op::Peek { .. } | Op::Refund { .. } => false,
    };
    let limit = check.limit;
    let is_long_window = match &limit.algorithm {
        Algorithm::FixedWindow(window) => match window.window {
            Window::Epoch { length } => length >= WINDOW_LENGTH_MIN,
            Window::Calendar(_) => false,
        },
        Algorithm::SlidingWindow(_)
        | Algorithm::SlidingLog(_)
        | Algorithm::Bucket(_)
        | Algorithm::Hybrid(_)
        | Algorithm::Concurrency(_) => false,
    };
    is_small_take
        && !check.is_quota()
        && is_long_window
        && limit.charge == Charge::Admitted
        && !limit.is_override()
}

/// Decodes a counter's value into the start and the hit count of its window. Returns `None` if the
/// charge needs no refund, because no script will read that window again: the window had ended
/// when the charge was sent, or no script wrote the value.
fn decode_window(check: &Check<'_>, value: i64, span: &ServerTimeSpan) -> Option<(Micros, u64)> {
    let value = u64::try_from(value).ok()?;
    let (number, count, length) = (value / COUNT_SPAN, value % COUNT_SPAN, window_length(check).0);
    let first = span.earliest.0 / length;
    // A clock that steps back may leave a window that has not begun.
    let last = span.latest.0 / length + 1;
    let ahead = (number + WINDOW_MODULUS).checked_sub(first % WINDOW_MODULUS)? % WINDOW_MODULUS;
    let is_live = number < WINDOW_MODULUS && first.saturating_add(ahead) <= last;
    is_live.then(|| (Micros((first + ahead) * length), count))
}

/// Returns the window length of a check that [`is_eligible`] accepts.
fn window_length(check: &Check<'_>) -> Micros {
    match &check.limit.algorithm {
        Algorithm::FixedWindow(window) => match window.window {
            Window::Epoch { length } => Micros(length.0.max(1)),
            Window::Calendar(_) => WINDOW_LENGTH_MIN,
        },
        Algorithm::SlidingWindow(_)
        | Algorithm::SlidingLog(_)
        | Algorithm::Bucket(_)
        | Algorithm::Hybrid(_)
        | Algorithm::Concurrency(_) => WINDOW_LENGTH_MIN,
    }
}

/// Returns the maximum number of hits in the check's window.
fn capacity(check: &Check<'_>) -> u64 {
    check.limit.capacity().0.min(COUNT_MAX)
}

fn saturate_to_u32(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

fn to_answers(results: &[ChargeResult]) -> Answers {
    let each = results.iter().map(|result| match result {
        ChargeResult::Passed(outcome) => Answer::Decided(*outcome),
        ChargeResult::Undecided(_) => Answer::Unanswered { executed: ExecutionStatus::NotExecuted },
        ChargeResult::Unknown => Answer::Unanswered { executed: ExecutionStatus::Unknown },
    });
    Answers { each: each.collect(), source: Source::Redis }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::client::transport::SendError;
    use super::*;
    use crate::domain::fixtures::{self, fixed_window};
    use crate::domain::{Accounting, CounterKey, Hits, Limit};

    const LENGTH: Micros = Micros::from_secs(60);
    /// Start of a window.
    const START: Micros = Micros(1_763_596_800_000_000);
    const HITS: u64 = 5;

    fn limit() -> Arc<Limit> {
        Arc::new(fixed_window(HITS, LENGTH))
    }

    fn take(identity: u128, limit: &Arc<Limit>) -> Check<'_> {
        fixtures::take(identity, 1, limit)
    }

    /// Builds the reply of a server that counts `count` hits in the window starting at `START`, and
    /// whose time is between `earliest` and `latest`.
    fn reply_with_count(count: u64, earliest: Micros, latest: Micros) -> ChargeReply {
        let number = START.0 / LENGTH.0 % WINDOW_MODULUS;
        let value = i64::try_from(number * COUNT_SPAN + count).unwrap();
        let span = ServerTimeSpan { earliest, latest, is_certain: true };
        ChargeReply { value: Ok(value), span: Some(span) }
    }

    fn evaluate(checks: &[Check<'_>], replies: ChargeReplies) -> PlainResult {
        let accounting = Accounting::AllOrNothing;
        let call = Call { checks, accounting, now: START, deadline: None };
        PlainCalls::new(Prefix::default(), false).evaluate(&call, &replies)
    }

    #[test]
    fn a_reply_decides_only_if_the_servers_time_stayed_within_its_window() {
        let limit = limit();
        let check = [take(1, &limit)];
        let (before, end) = (Micros(START.0 - 1), Micros(START.0 + LENGTH.0));
        let last = Micros(end.0 - 1);
        let is_decided = |earliest, latest| match evaluate(
            &check,
            ChargeReplies::from_iter([reply_with_count(1, earliest, latest)]),
        ) {
            PlainResult::Decided(_) => true,
            PlainResult::Refund(receipts) => {
                assert_eq!((receipts.len(), receipts[0].taken.window), (1, START));
                false
            }
            PlainResult::Unknown(answers, _) => panic!("{answers:?}"),
        };
        assert!(is_decided(START, last));
        assert!(!is_decided(START, end), "the next window has begun");
        assert!(!is_decided(before, last), "the window may not have begun");
        let mut uncertain = reply_with_count(1, START, last);
        uncertain.span = uncertain.span.map(|span| ServerTimeSpan { is_certain: false, ..span });
        let result = evaluate(&check, ChargeReplies::from_iter([uncertain]));
        let is_refunded =
            matches!(result, PlainResult::Refund(receipts) if receipts[0].taken.window == START);
        assert!(is_refunded, "the bounds on the server's time are only an estimate");
    }

    #[test]
    fn a_charge_to_the_current_or_the_next_window_is_refunded_and_no_other_is() {
        let limit = limit();
        let check = [take(1, &limit)];
        let refunded = |at: Micros| -> Vec<Micros> {
            let replies = ChargeReplies::from_iter([reply_with_count(HITS + 1, at, at)]);
            let PlainResult::Refund(receipts) = evaluate(&check, replies) else {
                panic!("the charge does not decide the call")
            };
            receipts.iter().map(|receipt| receipt.taken.window).collect()
        };
        assert_eq!(refunded(START), [START]);
        assert_eq!(refunded(Micros(START.0 - 1)), [START], "the server's clock stepped back");
        assert!(refunded(Micros(START.0 - LENGTH.0 - 1)).is_empty(), "the window after the next");
        assert!(refunded(Micros(START.0 + LENGTH.0)).is_empty(), "the window has ended");
    }

    #[test]
    fn the_count_of_a_plain_reply_is_a_hint_for_later_calls() {
        let limit = Arc::new(fixed_window(1_000, LENGTH));
        let checks = [take(1, &limit)];
        let accounting = Accounting::AllOrNothing;
        let call = Call { checks: &checks, accounting, now: START, deadline: None };
        let calls = PlainCalls::new(Prefix::default(), false);
        let evaluate_count = |count| {
            let replies = ChargeReplies::from_iter([reply_with_count(count, START, START)]);
            matches!(calls.evaluate(&call, &replies), PlainResult::Decided(_))
        };
        assert!(calls.plan(&call).is_none(), "nothing is known");
        assert!(evaluate_count(1));
        assert!(calls.plan(&call).is_some(), "1 hit of 1,000");
        assert!(!evaluate_count(1_001));
        assert!(evaluate_count(1), "another reply that was still on its way");
        assert!(calls.plan(&call).is_none(), "the counter was above its limit in this window");
    }

    #[test]
    fn only_takes_of_1_to_65_535_hits_from_windows_of_two_seconds_or_more_are_eligible() {
        for (cost, length, is_plain) in [
            (0, 2_000_000, false),
            (1, 2_000_000, true),
            (65_535, 2_000_000, true),
            (65_536, 2_000_000, false),
            (1, 1_999_999, false),
        ] {
            let limit = Arc::new(fixed_window(HITS, Micros(length)));
            let is_eligible = is_eligible(&fixtures::take(1, cost, &limit));
            assert_eq!(is_eligible, is_plain, "{cost} hits, {length} us");
        }
    }

    #[test]
    fn a_charged_key_expires_one_window_and_a_second_after_it_is_created() {
        let calls = PlainCalls::new(Prefix::default(), true);
        for (length, expire_s) in [(60_000_000, 61), (60_000_001, 62), (2_500_000, 4)] {
            let limit = Arc::new(fixed_window(HITS, Micros(length)));
            let check = take(1, &limit);
            let charge = calls.build_charge(&check);
            assert_eq!(charge.expire_s, expire_s, "{length} us");
            assert_eq!(charge.slot, Some(keys::counter_slot(&check.key)));
        }
    }

    #[test]
    fn a_charge_is_recorded_at_the_latest_time_that_the_server_may_have_shown() {
        let (limit, latest) = (limit(), Micros(START.0 + 700));
        let check = [take(1, &limit)];
        let replies = ChargeReplies::from_iter([reply_with_count(1, START, latest)]);
        let PlainResult::Decided(answers) = evaluate(&check, replies) else {
            panic!("within limits")
        };
        let taken = answers.each[0].outcome().and_then(|outcome| outcome.taken).unwrap();
        assert_eq!((taken.at, taken.window), (latest, START));
    }

    #[test]
    fn if_one_charge_is_unknown_only_undecided_charges_are_refunded() {
        let limit = limit();
        let checks = [take(1, &limit), take(2, &limit), take(3, &limit)];
        let reply = |count| reply_with_count(count, START, START);
        let unknown = ChargeReply { value: Err(SendError::LOST), span: None };
        let replies = ChargeReplies::from_iter([reply(HITS), unknown, reply(HITS + 1)]);
        let PlainResult::Unknown(answers, receipts) = evaluate(&checks, replies) else {
            panic!("a charge is unknown")
        };
        assert_eq!(answers.each[0].outcome().map(|outcome| outcome.charged), Some(Hits(1)));
        let unanswered = |executed| Answer::Unanswered { executed };
        assert_eq!(answers.each[1], unanswered(ExecutionStatus::Unknown));
        assert_eq!(answers.each[2], unanswered(ExecutionStatus::NotExecuted));
        let refunded: Vec<CounterKey> = receipts.iter().map(|receipt| receipt.key).collect();
        assert_eq!(refunded, [checks[2].key], "the first charge stands, as it is answered");
    }
}
