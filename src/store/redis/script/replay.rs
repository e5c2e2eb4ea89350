//! Replays the calls of a write over the states that `decide.lua` answered.
//!
//! The script answers the state of each counter before the calls, and per call how many of its
//! checks passed. [`algorithm::apply`], in the same order over the same states, computes the
//! outcomes. Not here: the arguments (`write_calls`).

use smallvec::SmallVec;

use super::msgpack::{Unpacked, UnpackedValue};
use super::reply::{ReplyError, ScriptReply, undo_rejected_charges};
use super::write_calls::WriteCalls;
use crate::algorithm::{self, State, bucket, fixed_window, sliding_window};
use crate::domain::{Algorithm, Call, Check, Micros, Op, Outcome, Verdict};

/// Result of one call of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallResult {
    /// The script decided the call, and wrote all its charges.
    Decided(ScriptReply),
    /// The server's clock is outside the calendar windows in the call. The call charged nothing.
    NoWindow,
    /// The server refused to write any of the call's charges.
    NotWritten,
    /// The server wrote some of the call's charges.
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
    /// Number of calls of which the script said that another number of checks passed. Redis has
    /// charged what the script decided, so these answers follow the script.
    pub disagreements: u64,
}

/// Replay of the calls of a write.
#[derive(Debug)]
pub struct Replay<'a> {
    write: &'a WriteCalls,
    reply: Unpacked<'a>,
    now: Micros,
    /// State of each counter, `None` inside if it is missing; `None` before its first use.
    states: Vec<Option<Option<State>>>,
    /// Index in the write's places of the next check.
    next_place: usize,
    results: WriteResults,
}

impl<'a> Replay<'a> {
    /// Begins a replay.
    ///
    /// # Errors
    ///
    /// Returns a [`ReplyError`] if `decide.lua` cannot send this reply.
    pub fn new(write: &'a WriteCalls, reply: &'a [u8]) -> Result<Replay<'a>, ReplyError> {
        let mut reply = Unpacked::array(reply).ok_or(ReplyError::Shape)?;
        let now = Micros(next_count(&mut reply)?);
        let (each, states) = (Vec::with_capacity(write.len()), vec![None; write.counter_count()]);
        let results = WriteResults { each, error_code: None, disagreements: 0 };
        Ok(Replay { write, reply, now, states, next_place: 0, results })
    }

    /// Replays the next call of the write. Calls must be passed in the order in which they were
    /// added.
    ///
    /// # Errors
    ///
    /// Returns a [`ReplyError`] if `decide.lua` cannot send this reply.
    pub fn next(&mut self, call: &Call<'_>) -> Result<(), ReplyError> {
        let places = self.next_places(call.checks.len())?;
        // The states before the call, and after it if it is admitted.
        let mut states = SmallVec::<[(Option<State>, Option<State>); 4]>::new();
        let (mut outcomes, mut clamped) = (Vec::with_capacity(call.checks.len()), 0);
        for (check, place) in call.checks.iter().zip(places) {
            let Some(before) = self.state(usize::from(*place), check)? else { continue };
            let step = algorithm::apply(before.as_ref(), check.limit, check.op, self.now);
            let uncharged = step
                .stepped_back
                .then(|| algorithm::apply(before.as_ref(), check.limit, Op::PEEK, self.now).write);
            let uncharged = uncharged.flatten();
            clamped += u64::from(uncharged.is_some());
            let before = uncharged.or(before);
            states.push((before.clone(), step.write.or(before)));
            outcomes.push(step.outcome);
        }
        let passed = next_number(&mut self.reply)?;
        if passed == -1 {
            self.results.each.push(CallResult::NoWindow);
            return Ok(());
        }
        if outcomes.len() != call.checks.len() {
            return Err(ReplyError::Number);
        }
        let passes = |outcome: &&Outcome| outcome.verdict == Verdict::Pass;
        let passed = usize::try_from(passed).map_err(|_| ReplyError::Number)?;
        if passed != outcomes.iter().filter(passes).count() {
            self.results.disagreements += 1;
            follow_script(&mut outcomes, call.checks, passed, self.now);
        }
        let before = states.iter().map(|(before, _)| before.as_ref());
        let is_charged =
            undo_rejected_charges(&mut outcomes, call.checks, call.accounting, before, self.now);
        for (place, (before, after)) in places.iter().zip(states) {
            self.states[usize::from(*place)] = Some(if is_charged { after } else { before });
        }
        let reply = ScriptReply { outcomes, clamped, uncharged: Vec::new() };
        self.results.each.push(CallResult::Decided(reply));
        Ok(())
    }

    /// Ends the replay after the last call.
    ///
    /// # Errors
    ///
    /// Returns a [`ReplyError`] if `decide.lua` cannot send this reply.
    pub fn finish(mut self) -> Result<WriteResults, ReplyError> {
        if self.reply.is_empty() {
            return Ok(self.results);
        }
        let Some(UnpackedValue::String(code)) = self.reply.next_value() else {
            return Err(ReplyError::Shape);
        };
        let mut failed = vec![false; self.states.len()];
        while !self.reply.is_empty() {
            let place = next_count(&mut self.reply)? as usize;
            let place = place.checked_sub(1).and_then(|place| failed.get_mut(place));
            *place.ok_or(ReplyError::Number)? = true;
        }
        self.next_place = 0;
        for result in &mut self.results.each {
            let CallResult::Decided(reply) = &*result else { continue };
            let places = &self.write.places()[self.next_place..];
            let charged = reply.outcomes.iter().zip(places).filter(|(one, _)| one.taken.is_some());
            let (lost, made): (Vec<bool>, Vec<bool>) =
                charged.map(|(_, place)| failed[usize::from(*place)]).partition(|failed| *failed);
            self.next_place += reply.outcomes.len();
            match (lost.is_empty(), made.is_empty()) {
                (true, _) => {}
                (false, true) => *result = CallResult::NotWritten,
                (false, false) => *result = CallResult::PartlyWritten,
            }
        }
        self.results.error_code = Some(String::from_utf8_lossy(code).into_owned());
        Ok(self.results)
    }

    fn next_places(&mut self, checks: usize) -> Result<&'a [u8], ReplyError> {
        let start = self.next_place;
        self.next_place += checks;
        self.write.places().get(start..self.next_place).ok_or(ReplyError::Length)
    }

    /// Returns the state of a counter, which is read from the reply at its first use. `None` if the
    /// script could not read the state because the server's clock is outside the calendar windows.
    fn state(
        &mut self,
        place: usize,
        check: &Check<'_>,
    ) -> Result<Option<Option<State>>, ReplyError> {
        let known = self.states.get(place).ok_or(ReplyError::Length)?;
        if known.is_some() {
            return Ok(known.clone());
        }
        let state = self.read_state(check)?;
        self.states[place].clone_from(&state);
        Ok(state)
    }

    /// Reads the state of a check's counter from the reply. The head of `decide.lua` describes it.
    fn read_state(&mut self, check: &Check<'_>) -> Result<Option<Option<State>>, ReplyError> {
        let first = match self.reply.next_value() {
            Some(UnpackedValue::Number(number)) => number,
            Some(UnpackedValue::Boolean(false)) => return Ok(None),
            _ => return Err(ReplyError::Number),
        };
        let (is_whole, first) = match first {
            0 => return Ok(Some(None)),
            1.. => (true, first as u64),
            ..0 => (false, (-1 - first) as u64),
        };
        let mut rest = || if is_whole { Ok(0) } else { next_count(&mut self.reply) };
        let count = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        let state = match &check.limit.algorithm {
            Algorithm::FixedWindow(window) => {
                let start = match rest()? {
                    0 => fixed_window::window_at(&window.window, self.now).start,
                    start => Micros(start),
                };
                State::FixedWindow(fixed_window::State { start, count: count(first) })
            }
            Algorithm::SlidingWindow(_) => {
                let (start, prev) = (Micros(rest()?), count(rest()?));
                State::SlidingWindow(sliding_window::State { start, prev, cur: count(first) })
            }
            Algorithm::Bucket(_) => {
                let tat = self.now.saturating_add(Micros(first));
                State::Bucket(bucket::State { tat, rem: count(rest()?) })
            }
            Algorithm::SlidingLog(_) | Algorithm::Hybrid(_) | Algorithm::Concurrency(_) => {
                return Err(ReplyError::Shape);
            }
        };
        Ok(Some(Some(state)))
    }
}

/// Changes outcomes so that as many checks pass as the script said: those with the most hits left.
fn follow_script(outcomes: &mut [Outcome], checks: &[Check<'_>], passed: usize, now: Micros) {
    let mut order: Vec<usize> = (0..outcomes.len()).collect();
    order.sort_by_key(|at| {
        let outcome = &outcomes[*at];
        (outcome.verdict != Verdict::Pass, std::cmp::Reverse(outcome.available))
    });
    for (nth, at) in order.into_iter().enumerate() {
        let wanted = if nth < passed { Verdict::Pass } else { Verdict::Refuse };
        if outcomes[at].verdict != wanted {
            // Of a counter without hits, which records the charge as the script did.
            let fresh = algorithm::apply(None, checks[at].limit, checks[at].op, now).outcome;
            outcomes[at] = match wanted {
                Verdict::Pass => Outcome { verdict: wanted, retry_after: None, ..fresh },
                Verdict::Refuse => Outcome::refuse_for(outcomes[at].reset_after),
            };
        }
    }
}

fn next_number(reply: &mut Unpacked<'_>) -> Result<i64, ReplyError> {
    match reply.next_value() {
        Some(UnpackedValue::Number(number)) => Ok(number),
        Some(_) => Err(ReplyError::Number),
        None => Err(ReplyError::Length),
    }
}

fn next_count(reply: &mut Unpacked<'_>) -> Result<u64, ReplyError> {
    u64::try_from(next_number(reply)?).map_err(|_| ReplyError::Number)
}
