//! Replays the calls of a write over the states that `decide.lua` answered.
//!
//! The script answers the state of each counter before the calls, and how many checks of each call
//! passed. [`algorithm::apply`], in the same order over the same states, computes the outcomes. Not
//! here: the arguments (`write_calls`).

use std::ops::Range;

use smallvec::SmallVec;

use super::msgpack::{Unpacked, UnpackedItem};
use super::reply::{
    CounterStatus, ReplyError, ScriptReply, uncharged_status, undo_rejected_charges,
};
use crate::algorithm::bucket::BucketCredits;
use crate::algorithm::{self, State, block, bucket, fixed_window, sliding_window};
use crate::domain::{Accounting, Algorithm, Call, Check, Limit, Micros, Op, Outcome, Verdict};

/// Result of one call of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallResult {
    /// The script decided the call, and wrote all its charges.
    Decided(ScriptReply),
    /// The server's clock is outside the calendar windows in the call. The call charged nothing.
    NoWindow,
    /// The server refused to write any of the call's charges.
    NotWritten,
    /// The server refused to write some of the call's charges.
    PartlyWritten,
}

/// Results of the calls of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteResults {
    /// Result of each call, in order.
    pub each: Vec<CallResult>,
    /// Code of the first error that the server replied to a write, such as OOM; `None` if all writes
    /// were made.
    pub error_code: Option<String>,
}

/// Replay of the calls of a write, over the reply that the head of `decide.lua` describes.
#[derive(Debug)]
pub struct Replay<'a> {
    now: Micros,
    /// All numbers of the reply: the state of each counter, the time, the states that are not plain,
    /// the calls of which not all checks passed, and the places of the counters that were not written.
    numbers: Vec<i64>,
    /// Index in `numbers` of each counter's state, if it is not plain.
    rest: Vec<usize>,
    /// Whether each counter is a block; empty if none is.
    blocks: Vec<bool>,
    /// Range in `numbers` of the calls of which not all checks passed, after the last that was taken.
    refused: Range<usize>,
    /// Code of the first error, and index in `numbers` of the first place.
    failure: Option<(&'a [u8], usize)>,
    /// State of each counter; `None` if it is missing.
    states: Vec<Option<State>>,
    /// Indices of the counters of the checks of each call so far.
    places: SmallVec<[&'a [u8]; 1]>,
    each: Vec<CallResult>,
}

impl<'a> Replay<'a> {
    /// Begins the replay of a write. `limits` are the limits under which the script reads each counter;
    /// `None` for a block.
    ///
    /// # Errors
    ///
    /// Returns a [`ReplyError`] if `decide.lua` cannot send this reply.
    pub fn new<'l>(
        limits: impl Iterator<Item = Option<&'l Limit>> + Clone,
        reply: &'a [u8],
    ) -> Result<Replay<'a>, ReplyError> {
        let mut reply = Unpacked::array(reply).ok_or(ReplyError::Shape)?;
        let mut blocks = Vec::new();
        if limits.clone().any(|limit| limit.is_none()) {
            blocks.extend(limits.clone().map(|limit| limit.is_none()));
        }
        let counters = limits.clone().count();
        let (mut numbers, mut failure) = (Vec::with_capacity(counters + 1), None);
        while !reply.is_empty() {
            match reply.next_item().ok_or(ReplyError::Number)? {
                UnpackedItem::Number(number) => numbers.push(number),
                UnpackedItem::String(code) => failure = Some((code, numbers.len())),
            }
        }
        let now = Micros(count(*numbers.get(counters).ok_or(ReplyError::Length)?)?);
        let (mut rest, mut end) = (Vec::new(), counters + 1);
        if numbers[..counters].iter().any(|state| *state < 0) {
            for (limit, state) in limits.clone().zip(&numbers) {
                rest.push(end);
                let is_sliding =
                    limit.is_some_and(|l| matches!(l.algorithm, Algorithm::SlidingWindow(_)));
                end += if *state >= 0 { 0 } else { 2 + usize::from(is_sliding) };
            }
        }
        let refused = end..failure.map_or(numbers.len(), |(_, start)| start);
        if refused.start > refused.end || refused.len() % 2 > 0 {
            return Err(ReplyError::Length);
        }
        let (states, places, each) = Default::default();
        let mut replay =
            Replay { now, numbers, rest, blocks, refused, failure, states, places, each };
        let states = limits.enumerate().map(|(place, limit)| replay.state(place, limit));
        replay.states = states.collect::<Result<_, _>>()?;
        Ok(replay)
    }

    /// Replays the next call. Calls must be passed in the order in which they were added to the
    /// write. `places` are the indices of the counters of its checks, each after that of its block if
    /// it has one. `is_part` is true if the other checks of an all-or-nothing call are decided
    /// elsewhere.
    ///
    /// # Errors
    ///
    /// Returns a [`ReplyError`] if `decide.lua` cannot send this reply.
    pub fn next(
        &mut self,
        call: &Call<'_>,
        places: &'a [u8],
        is_part: bool,
    ) -> Result<(), ReplyError> {
        let now = self.now;
        self.places.push(places);
        let Some(passed) = self.take_passed(places.len()) else {
            self.each.push(CallResult::NoWindow);
            return Ok(());
        };
        // Checks of blocks count as passed.
        let passed = passed.saturating_sub(places.len() - call.checks.len());
        let mut lefts = SmallVec::<[Micros; 10]>::new();
        let mut outcomes = Vec::with_capacity(call.checks.len());
        let mut before = SmallVec::<[Option<State>; 10]>::new();
        let mut clamped = 0;
        for (check, (block, place)) in call.checks.iter().zip(with_blocks(call.checks, places)) {
            let is_blocked = self.block_left(block, check) > Micros::ZERO;
            let op = if is_blocked { block::op_while_blocked(check) } else { check.op };
            let state = &mut self.states[place];
            let mut step = algorithm::apply(state.as_ref(), check.limit, op, now);
            if is_blocked {
                step.outcome.verdict = Verdict::Refuse;
            }
            if step.stepped_back {
                let peeked = algorithm::apply(state.as_ref(), check.limit, Op::PEEK, now);
                clamped += u64::from(peeked.write.is_some());
                *state = peeked.write.or(state.take());
            }
            before.push(match step.write {
                Some(after) => state.replace(after),
                None => state.clone(),
            });
            if let (Some(place), false) = (block, is_blocked)
                && let Some(begun) = block::begun(check, &step.outcome, now)
            {
                self.states[place] = Some(State::Block(begun));
            }
            lefts.push(self.block_left(block, check));
            outcomes.push(step.outcome);
        }
        let passes = |outcome: &&Outcome| outcome.verdict == Verdict::Pass;
        let disagrees = passed != outcomes.iter().filter(passes).count();
        if disagrees {
            follow_script(&mut outcomes, call.checks, passed, now);
        }
        let is_charged =
            undo_rejected_charges(&mut outcomes, call.checks, call.accounting, &before, now);
        let parts = if is_part { call.checks } else { &[] };
        let each = parts.iter().zip(&before).zip(&outcomes);
        let status = |((check, state), outcome): ((_, &Option<State>), _)| {
            uncharged_status(state.as_ref(), check, outcome, now)
        };
        let mut uncharged: Vec<CounterStatus> = each.map(status).collect();
        if !is_charged {
            for ((_, place), before) in with_blocks(call.checks, places).zip(before) {
                self.states[place] = before;
            }
        }
        for (at, left) in lefts.into_iter().enumerate() {
            outcomes[at] = block::outcome_with_block(outcomes[at], &call.checks[at], left);
            uncharged.get_mut(at).into_iter().for_each(|status| *status = status.with_block(left));
        }
        let reply = ScriptReply { outcomes, clamped, uncharged, disagrees };
        self.each.push(CallResult::Decided(reply));
        Ok(())
    }

    /// Returns the time for which a check's key is blocked, given the place of the block.
    fn block_left(&self, place: Option<usize>, check: &Check<'_>) -> Micros {
        let state = place.and_then(|place| self.states.get(place)?.as_ref()?.as_block());
        block::left(state, check, self.now)
    }

    /// Returns how many checks of the latest call passed, of this number; `None` if the server's clock
    /// is outside the calendar windows in the call. Must be called for each call in order.
    fn take_passed(&mut self, checks: usize) -> Option<usize> {
        match self.numbers[self.refused.clone()] {
            [call, passed, ..] if usize::try_from(call) == Ok(self.places.len()) => {
                self.refused.start += 2;
                usize::try_from(passed).ok()
            }
            _ => Some(checks),
        }
    }

    /// Ends the replay after the last call.
    ///
    /// # Errors
    ///
    /// Returns a [`ReplyError`] if `decide.lua` cannot send this reply.
    pub fn finish(self) -> Result<WriteResults, ReplyError> {
        let Replay { numbers, blocks, refused, failure, states, places, mut each, .. } = self;
        if !refused.is_empty() {
            return Err(ReplyError::Length);
        }
        let Some((code, start)) = failure else {
            return Ok(WriteResults { each, error_code: None });
        };
        let mut is_lost = vec![false; states.len()];
        for place in &numbers[start..] {
            let place = count(*place)?.checked_sub(1).and_then(|at| is_lost.get_mut(at as usize));
            *place.ok_or(ReplyError::Number)? = true;
        }
        for (result, places) in each.iter_mut().zip(places) {
            let CallResult::Decided(reply) = result else { continue };
            let is_block = |place: u8| blocks.get(usize::from(place)) == Some(&true);
            let counters = places.iter().filter(|place| !is_block(**place));
            let each = reply.outcomes.iter().zip(counters);
            let charged = each.filter(|(outcome, _)| outcome.taken.is_some());
            let (mut lost, mut made) = (false, false);
            for (_, place) in charged {
                let is_lost = is_lost[usize::from(*place)];
                (lost, made) = (lost || is_lost, made || !is_lost);
            }
            if lost {
                *result = if made { CallResult::PartlyWritten } else { CallResult::NotWritten };
            }
        }
        Ok(WriteResults { each, error_code: Some(String::from_utf8_lossy(code).into_owned()) })
    }

    /// Returns the state of a counter; `None` if it is missing. `limit` is the limit under which the
    /// script read it, or `None` for a block.
    fn state(&self, place: usize, limit: Option<&Limit>) -> Result<Option<State>, ReplyError> {
        let first = self.numbers[place];
        if first == 0 {
            return Ok(None);
        }
        let hits = |number: i64| count(number).map(|hits| u32::try_from(hits).unwrap_or(u32::MAX));
        let micros = |number: i64| count(number).map(Micros);
        let rest = self.rest.get(place).map_or(&[][..], |start| &self.numbers[*start..]);
        let Some(limit) = limit else {
            let [start, end, ..] = rest else { return Err(ReplyError::Shape) };
            let (start, end) = (micros(*start)?, micros(*end)?);
            return Ok(Some(State::Block(block::State { start, end })));
        };
        let state = match (&limit.algorithm, rest) {
            (Algorithm::FixedWindow(window), _) if first > 0 => {
                let start = fixed_window::window_at(&window.window, self.now).start;
                State::FixedWindow(fixed_window::State { start, count: hits(first)? })
            }
            (Algorithm::FixedWindow(_), [start, count, ..]) => {
                State::FixedWindow(fixed_window::State {
                    start: micros(*start)?,
                    count: hits(*count)?,
                })
            }
            (Algorithm::SlidingWindow(_), [start, prev, cur, ..]) => {
                let (start, prev, cur) = (micros(*start)?, hits(*prev)?, hits(*cur)?);
                State::SlidingWindow(sliding_window::State { start, prev, cur })
            }
            (Algorithm::Bucket(bucket), rest) => {
                let flow = BucketCredits::new(bucket, limit.charge).flow as i64;
                let (ahead, rem) = match rest {
                    _ if first > 0 => (first / flow, first % flow),
                    [ahead, rem, ..] => (*ahead, *rem),
                    _ => return Err(ReplyError::Shape),
                };
                let tat = self.now.saturating_add(micros(ahead)?);
                State::Bucket(bucket::State { tat, rem: hits(rem)? })
            }
            _ => return Err(ReplyError::Shape),
        };
        Ok(Some(state))
    }
}

/// Returns the places of the block, if any, and of the counter of each check.
fn with_blocks<'p>(
    checks: &'p [Check<'_>],
    places: &'p [u8],
) -> impl Iterator<Item = (Option<usize>, usize)> {
    let mut places = places.iter().map(|place| usize::from(*place));
    checks.iter().map_while(move |check| {
        let block = if check.reads_block() { Some(places.next()?) } else { None };
        Some((block, places.next()?))
    })
}

/// Decodes the reply to the only call of a write.
pub(super) fn decode_alone(
    reply: &[u8],
    checks: &[Check<'_>],
    accounting: Accounting,
    is_part: bool,
) -> Result<ScriptReply, ReplyError> {
    let limits: SmallVec<[Option<&Limit>; 16]> = checks
        .iter()
        .flat_map(|check| {
            check.reads_block().then_some(None).into_iter().chain([Some(&**check.limit)])
        })
        .collect();
    let places: SmallVec<[u8; 16]> = (0..limits.len()).map(|place| place as u8).collect();
    let mut replay = Replay::new(limits.iter().copied(), reply)?;
    let call = Call { checks, accounting, now: Micros::ZERO, deadline: None };
    replay.next(&call, &places, is_part)?;
    match replay.finish()?.each.pop() {
        Some(CallResult::Decided(reply)) => Ok(reply),
        Some(CallResult::NoWindow) => Err(ReplyError::NoWindow),
        Some(CallResult::NotWritten | CallResult::PartlyWritten) | None => {
            Err(ReplyError::PartlyWritten)
        }
    }
}

/// Changes outcomes so that as many checks pass as the script said: first those that pass, and those
/// with the most hits left.
fn follow_script(outcomes: &mut [Outcome], checks: &[Check<'_>], passed: usize, now: Micros) {
    let mut order: Vec<usize> = (0..outcomes.len()).collect();
    order.sort_by_key(|at| {
        let Outcome { verdict, available, .. } = outcomes[*at];
        (verdict != Verdict::Pass, std::cmp::Reverse(available))
    });
    for (nth, at) in order.into_iter().enumerate() {
        let passes = nth < passed;
        if passes != (outcomes[at].verdict == Verdict::Pass) {
            // Of a counter without hits, so that the charge is recorded as the script made it.
            let fresh = algorithm::apply(None, checks[at].limit, checks[at].op, now).outcome;
            let passed = Outcome { verdict: Verdict::Pass, retry_after: None, ..fresh };
            let refused = Outcome::refuse_for(outcomes[at].reset_after);
            outcomes[at] = if passes { passed } else { refused };
        }
    }
}

fn count(number: i64) -> Result<u64, ReplyError> {
    u64::try_from(number).map_err(|_| ReplyError::Number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::Hits;
    use crate::domain::fixtures::{fixed_window, take};
    use crate::store::redis::script::arguments::Encoder;
    use crate::store::redis::script::keys::Prefix;
    use crate::store::redis::script::library::PRODUCTION;
    use crate::store::redis::script::write_calls::WriteCalls;
    use std::sync::Arc;

    /// Packs small numbers and the code of an error as `decide.lua` does.
    fn packed(numbers: &[i8], code: Option<&str>, places: &[i8]) -> Vec<u8> {
        let mut reply = vec![0xdc, 0, 0];
        reply.extend(numbers.iter().map(|number| *number as u8));
        if let Some(code) = code {
            reply.push(0xa0 | code.len() as u8);
            reply.extend(code.bytes());
        }
        reply.extend(places.iter().map(|place| *place as u8));
        reply
    }

    /// Replays two calls of the counters 1 and 2, and one of counter 1, over a reply.
    fn replay(reply: &[u8]) -> Result<WriteResults, ReplyError> {
        let limit = Arc::new(fixed_window(5, Micros(100)));
        let encoder = Encoder::new(Prefix::default(), &PRODUCTION, false);
        let calls = [vec![take(1, 2, &limit), take(2, 2, &limit)], vec![take(1, 2, &limit)]];
        let call = |checks| Call {
            checks,
            accounting: Accounting::AllOrNothing,
            now: Micros(7),
            deadline: None,
        };
        let mut write = WriteCalls::default();
        for checks in &calls {
            assert!(write.fits(&call(checks), None));
            write.add(&encoder, &call(checks), None);
        }
        let mut replay = Replay::new(write.limits(), reply)?;
        for (nth, checks) in calls.iter().enumerate() {
            replay.next(&call(checks), write.places(nth), false)?;
        }
        replay.finish()
    }

    fn charged(results: &WriteResults) -> Vec<Vec<u64>> {
        let each = results.each.iter().map(|result| match result {
            CallResult::Decided(reply) => reply.outcomes.iter().map(|one| one.charged.0).collect(),
            _ => Vec::new(),
        });
        each.collect()
    }

    fn disagreements(results: &WriteResults) -> usize {
        let disagrees =
            |result: &&CallResult| matches!(result, CallResult::Decided(reply) if reply.disagrees);
        results.each.iter().filter(disagrees).count()
    }

    #[test]
    fn each_call_sees_the_charges_of_the_calls_before_it() {
        let results = replay(&packed(&[0, 1, 7], None, &[])).unwrap();
        assert_eq!(charged(&results), [vec![2, 2], vec![2]]);
        let CallResult::Decided(last) = &results.each[1] else { panic!("{results:?}") };
        assert_eq!(last.outcomes[0].available, Hits(1));
        assert_eq!((disagreements(&results), results.error_code), (0, None));
    }

    #[test]
    fn answers_follow_a_script_that_decided_otherwise() {
        // Three hits are left, so both calls should pass.
        let results = replay(&packed(&[0, 1, 7, 1, 1], None, &[])).unwrap();
        assert_eq!(disagreements(&results), 1);
        assert_eq!(charged(&results), [vec![0, 0], vec![2]], "a rejected call charges nothing");
        // None is left, so none should pass.
        let results = replay(&packed(&[5, 5, 7], None, &[])).unwrap();
        assert_eq!(disagreements(&results), 2);
        assert_eq!(charged(&results), [vec![2, 2], vec![2]]);
    }

    #[test]
    fn a_counter_that_was_not_written_fails_the_calls_that_charge_it() {
        let results = replay(&packed(&[0, 1, 7], Some("OOM"), &[2])).unwrap();
        assert_eq!(results.each[0], CallResult::PartlyWritten);
        assert!(matches!(results.each[1], CallResult::Decided(_)));
        assert_eq!(results.error_code.as_deref(), Some("OOM"));
        let results = replay(&packed(&[0, 1, 7], Some("OOM"), &[1, 2])).unwrap();
        assert_eq!(results.each, [CallResult::NotWritten, CallResult::NotWritten]);
    }

    #[test]
    fn a_reply_that_the_script_cannot_send_is_an_error() {
        for numbers in [&[][..], &[7], &[0, 0], &[0, 0, 7, 1], &[0, 0, 7, 3, 0], &[0, 0, -7]] {
            assert!(replay(&packed(numbers, None, &[])).is_err(), "{numbers:?}");
        }
        assert!(replay(&packed(&[0, 1, 7], Some("OOM"), &[3])).is_err());
        assert!(replay(&packed(&[-1, 1, 7], None, &[])).is_err(), "its window is not there");
        assert!(replay(b"").is_err() && replay(b"\xc0").is_err());
    }
}
