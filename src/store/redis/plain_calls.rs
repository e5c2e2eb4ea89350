//! Plain calls: calls that Redis charges with plain INCRBY commands, without a script.
//!
//! The stored value of a fixed window is the window number followed by a ten-digit hit count. An
//! INCRBY therefore charges the counter and returns its whole state, for a fraction of a script's
//! CPU time. A call is charged this way if all its counters were far from their limits when last
//! seen. The call is admitted if every returned count is within its limit, and if the server's
//! time was within the returned window from sending the command to receiving the reply. Otherwise,
//! the charges are refunded, and scripts decide the call. A charge whose outcome is unknown is never
//! sent again and never refunded.
//!
//! A call that is not admitted stays counted until its refund, one round trip later. Until then, it
//! may cause another call to be rejected. Each admitted call was counted on top of all calls
//! admitted before it, so no limit is exceeded. There is one exception: a client refunds more than
//! it was charged, or an operator resets the counter, while calls that are not admitted are still
//! counted.
//!
//! Not here: writing the commands, judging each reply, and the refunds on the node that has a charge
//! which did not pass (`client::plain_charge`); the hints (`plain_hints`).

use std::sync::atomic::{AtomicU64, Ordering};

use super::client::plain_charge::{ChargeReply, PlainCharge, PlainCharges, WindowCharge};
use super::keys::{self, Prefix};
use super::plain_hints::FarFromLimitHints;
use crate::algorithm::{self, State, fixed_window};
use crate::domain::{
    Algorithm, Answer, Answers, Call, Charge, ChargeRecord, Check, ExecutionStatus, Micros, Op,
    Outcome, Receipt, RepeatedCounters, Source, Window,
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
    /// The replies did not decide the call. The charges that other nodes have must be refunded with
    /// these receipts before scripts decide the call.
    Undecided(Vec<Receipt>),
    /// Some charges have an unknown outcome, so scripts must not repeat the call. Contains the
    /// answers of the call.
    Unknown(Answers),
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
            capacity: saturate_to_u32(capacity(check)),
            window_length: window_length(check),
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
    pub(super) fn evaluate(&self, call: &Call<'_>, replies: &[ChargeReply]) -> PlainResult {
        let answers = Answers::new(self.answers(call, replies), Source::Redis);
        if answers.each.iter().all(|answer| answer.outcome().is_some()) {
            self.stats.decided.fetch_add(1, Ordering::Relaxed);
            return PlainResult::Decided(answers);
        }
        self.stats.undecided.fetch_add(1, Ordering::Relaxed);
        let is_made = |reply: &&ChargeReply| matches!(reply, ChargeReply::Undecided(Some(_)));
        let refunded = replies.iter().filter(is_made).count() as u64;
        // Charges beside an unknown one stand, as after any call that was not answered.
        if replies.contains(&ChargeReply::Unknown) {
            self.stats.refunded.fetch_add(refunded, Ordering::Relaxed);
            return PlainResult::Unknown(answers);
        }
        let receipts: Vec<Receipt> = call
            .checks
            .iter()
            .zip(&answers.each)
            .filter_map(|(check, answer)| Receipt::for_check(check, answer.outcome()?))
            .collect();
        self.stats.refunded.fetch_add(refunded + receipts.len() as u64, Ordering::Relaxed);
        PlainResult::Undecided(receipts)
    }

    /// Returns the answers that the replies give, and records their counts as hints.
    pub(super) fn answers(&self, call: &Call<'_>, replies: &[ChargeReply]) -> Vec<Answer> {
        let each = call.checks.iter().zip(replies);
        each.map(|(check, reply)| self.evaluate_charge(check, *reply, call.now)).collect()
    }

    fn evaluate_charge(&self, check: &Check<'_>, reply: ChargeReply, now: Micros) -> Answer {
        match reply {
            ChargeReply::Passed(charge) => {
                let outcome = outcome_of(check, charge);
                self.hints.record(check, &outcome, capacity(check), now);
                Answer::Decided(outcome)
            }
            ChargeReply::Undecided(charge) => {
                if let Some(charge) = charge.filter(|charge| charge.count > capacity(check)) {
                    let end = charge.window.saturating_add(window_length(check));
                    let reset_after = end.saturating_sub(charge.span.earliest);
                    self.hints.record_above_limit(check, reset_after, now);
                }
                Answer::Unanswered { executed: ExecutionStatus::NotExecuted }
            }
            ChargeReply::Unknown => Answer::Unanswered { executed: ExecutionStatus::Unknown },
        }
    }
}

/// Returns the outcome of a check whose charge passed.
fn outcome_of(check: &Check<'_>, charge: WindowCharge) -> Outcome {
    let (cost, WindowCharge { window: start, count, span }) = (check.cost(), charge);
    let before =
        fixed_window::State { start, count: saturate_to_u32(count.saturating_sub(cost.0)) };
    let state = State::FixedWindow(before);
    let outcome = algorithm::apply(Some(&state), check.limit, check.op, span.earliest).outcome;
    // The latest time: prepaid hits must not be spent too late, and a refund compares only the
    // window.
    let taken = ChargeRecord { hits: cost, at: span.latest, window: start, entry: 0 };
    Outcome { taken: Some(taken), ..outcome }
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::client::server_time::ServerTimeSpan;
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

    fn calls() -> PlainCalls {
        PlainCalls::new(Prefix::default(), false)
    }

    fn span(earliest: Micros, latest: Micros) -> ServerTimeSpan {
        ServerTimeSpan { earliest, latest, is_certain: true }
    }

    /// Judges the reply of a server that counts `count` hits in the window starting at `START`.
    fn reply_with_count(check: &Check<'_>, count: u64, span: ServerTimeSpan) -> ChargeReply {
        let number = START.0 / LENGTH.0 % 900_000_000;
        let value = i64::try_from(number * 10_000_000_000 + count).unwrap();
        calls().build_charge(check).judge(value, Some(span))
    }

    fn evaluate(checks: &[Check<'_>], replies: &[ChargeReply]) -> PlainResult {
        let accounting = Accounting::AllOrNothing;
        calls().evaluate(&Call { checks, accounting, now: START, deadline: None }, replies)
    }

    /// Returns the window of an undecided charge, which its connection refunds.
    fn refunded_window(reply: ChargeReply) -> Option<Micros> {
        match reply {
            ChargeReply::Undecided(charge) => charge.map(|charge| charge.window),
            ChargeReply::Passed(_) | ChargeReply::Unknown => panic!("{reply:?}"),
        }
    }

    #[test]
    fn a_reply_decides_only_if_the_servers_time_stayed_within_its_window() {
        let limit = limit();
        let check = take(1, &limit);
        let (before, end) = (Micros(START.0 - 1), Micros(START.0 + LENGTH.0));
        let last = Micros(end.0 - 1);
        let reply = |span| reply_with_count(&check, 1, span);
        let passed = reply(span(START, last));
        assert!(matches!(evaluate(&[check], &[passed]), PlainResult::Decided(_)));
        for (earliest, latest, why) in [
            (START, end, "the next window has begun"),
            (before, last, "the window may not have begun"),
        ] {
            let reply = reply(span(earliest, latest));
            assert_eq!(refunded_window(reply), Some(START), "{why}");
            assert!(matches!(evaluate(&[check], &[reply]), PlainResult::Undecided(_)), "{why}");
        }
        let uncertain = ServerTimeSpan { is_certain: false, ..span(START, last) };
        let window = refunded_window(reply(uncertain));
        assert_eq!(window, Some(START), "the bounds on the server's time are only an estimate");
    }

    #[test]
    fn a_charge_to_the_current_or_the_next_window_is_refunded_and_no_other_is() {
        let limit = limit();
        let check = take(1, &limit);
        let refunded =
            |at: Micros| refunded_window(reply_with_count(&check, HITS + 1, span(at, at)));
        assert_eq!(refunded(START), Some(START));
        let before = Micros(START.0 - 1);
        assert_eq!(refunded(before), Some(START), "the server's clock stepped back");
        assert_eq!(refunded(Micros(START.0 - LENGTH.0 - 1)), None, "the window after the next");
        assert_eq!(refunded(Micros(START.0 + LENGTH.0)), None, "the window has ended");
    }

    #[test]
    fn the_count_of_a_plain_reply_is_a_hint_for_later_calls() {
        let limit = Arc::new(fixed_window(1_000, LENGTH));
        let checks = [take(1, &limit)];
        let accounting = Accounting::AllOrNothing;
        let call = Call { checks: &checks, accounting, now: START, deadline: None };
        let calls = calls();
        let evaluate_count = |count| {
            let replies = [reply_with_count(&checks[0], count, span(START, START))];
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
    fn a_charge_carries_what_its_connection_needs_to_judge_it() {
        let calls = PlainCalls::new(Prefix::default(), true);
        let limit = Arc::new(fixed_window(HITS, Micros(2_500_000)));
        let check = take(1, &limit);
        let charge = calls.build_charge(&check);
        assert_eq!((charge.capacity, charge.window_length), (5, Micros(2_500_000)));
        assert_eq!(charge.slot, Some(keys::counter_slot(&check.key)));
    }

    #[test]
    fn a_charge_is_recorded_at_the_latest_time_that_the_server_may_have_shown() {
        let (limit, latest) = (limit(), Micros(START.0 + 700));
        let check = take(1, &limit);
        let reply = reply_with_count(&check, 1, span(START, latest));
        let PlainResult::Decided(answers) = evaluate(&[check], &[reply]) else {
            panic!("within limits")
        };
        let taken = answers.each[0].outcome().and_then(|outcome| outcome.taken).unwrap();
        assert_eq!((taken.at, taken.window), (latest, START));
    }

    #[test]
    fn charges_that_passed_on_other_nodes_are_refunded_unless_one_is_unknown() {
        let limit = limit();
        let checks = [take(1, &limit), take(2, &limit), take(3, &limit)];
        let [passed, above] =
            [HITS, HITS + 1].map(|count| reply_with_count(&checks[0], count, span(START, START)));
        let PlainResult::Undecided(receipts) = evaluate(&checks, &[passed, passed, above]) else {
            panic!("a charge is above its limit")
        };
        let refunded: Vec<CounterKey> = receipts.iter().map(|receipt| receipt.key).collect();
        assert_eq!(
            refunded,
            [checks[0].key, checks[1].key],
            "the last one's connection refunds it"
        );
        let replies = [passed, ChargeReply::Unknown, above];
        let PlainResult::Unknown(answers) = evaluate(&checks, &replies) else {
            panic!("a charge is unknown")
        };
        assert_eq!(answers.each[0].outcome().map(|outcome| outcome.charged), Some(Hits(1)));
        let unanswered = |executed| Answer::Unanswered { executed };
        assert_eq!(answers.each[1], unanswered(ExecutionStatus::Unknown));
        assert_eq!(answers.each[2], unanswered(ExecutionStatus::NotExecuted));
    }
}
