//! Turns the scripts' replies into outcomes.
//!
//! A script answers with the counter's state after the call, as few integers as say it; what the
//! caller is told of it (what is left, how long to wait) is derived here. Robust to anything: what
//! is no such reply is a [`ReplyError`], never a panic.
//!
//! Not here: the arguments (`args`), servers' errors (the connections), what an outcome means (`decide`).

use redis::Value;
use smallvec::SmallVec;

use super::arguments::Terms;
use super::selection::{Form, Plan, form, is_debt};
use super::told;
use super::told::COUNT_MAX;
pub use super::told::ReplyError;
use crate::domain::{
    Accounting, Algorithm, ChargeRecord, Check, Hits, Micros, Op, Outcome, Role, Verdict, Window,
};

/// What `apply.lua` answers then.
const MISFIT: [Value; 1] = [Value::Int(-1)];

/// A reply, read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decoded {
    /// One per check, in the checks' order.
    pub outcomes: Vec<Outcome>,
    /// How many counters were from the far future and count as full from now on: a clock stepped
    /// back, or the state was damaged.
    pub clamped: u64,
}

/// What a script says of one check.
#[derive(Clone, Copy, Debug)]
enum Said {
    /// Its counter's state.
    State(Told),
    /// Everything.
    Outcome(Outcome),
}

impl Said {
    fn passes(&self) -> bool {
        match self {
            Said::State(told) => told.passes,
            Said::Outcome(outcome) => outcome.verdict == Verdict::Pass,
        }
    }
}

/// What a script says of a counter that is a number or two.
#[derive(Clone, Copy, Debug)]
struct Told {
    passes: bool,
    /// Hits counted, or whole microseconds of debt, after the call.
    used: u64,
    /// How many windows the counter is ahead, or the rest of the debt.
    more: u64,
    /// Of a debt: hits or credits charged.
    charged: Option<u64>,
    /// The debt that a refusal met, whole microseconds and rest; differs from the above where other
    /// checks of the call were on the same counter.
    met: (u64, u64),
}

/// Reads the reply to [`super::arguments::Encoder::call`] of the same checks.
///
/// # Errors
///
/// [`ReplyError`] for what is no reply to them.
pub fn decode(
    reply: &Value,
    checks: &[Check<'_>],
    accounting: Accounting,
) -> Result<Decoded, ReplyError> {
    match (reply, checks) {
        (Value::BulkString(line), [check]) => line_of(line, check),
        (Value::Array(numbers), _) if *numbers == MISFIT => Err(ReplyError::Misfit),
        (Value::Array(numbers), _) => array_of(numbers, checks, accounting),
        (Value::ServerError(_), _) => Err(ReplyError::Error),
        _ => Err(ReplyError::Shape),
    }
}

/// `used now [more-or-start [far]]`, of a lean script.
fn line_of(line: &[u8], check: &Check<'_>) -> Result<Decoded, ReplyError> {
    let mut numbers = SmallVec::<[i64; 8]>::new();
    let whole = matches!(form(check), Form::Told(_));
    let most = if whole { told::NUMBERS + 1 } else { 4 };
    for word in line.split(|byte| *byte == b' ') {
        let number = std::str::from_utf8(word).ok().and_then(|word| word.parse().ok());
        numbers.push(number.ok_or(ReplyError::Number)?);
        if numbers.len() > most {
            return Err(ReplyError::Length);
        }
    }
    if whole {
        let [available, wait, reset, charged, since, far, now] = numbers[..] else {
            return Err(ReplyError::Length);
        };
        let six = [available, wait, reset, charged, since, 0];
        let outcome = told::outcome(six, check, micros(now)?)?;
        return Ok(Decoded { outcomes: vec![outcome], clamped: u64::from(far == 1) });
    }
    let [used, now, rest @ ..] = numbers.as_slice() else { return Err(ReplyError::Length) };
    let now = micros(*now)?;
    let mut told = told(*used, rest.first().copied().unwrap_or(0))?;
    if let Algorithm::FixedWindow(window) = &check.limit.algorithm {
        // Here the third number is the window's beginning.
        told.more = u64::from(told.more > begins(&window.window, now).0);
    }
    let clamped = u64::from(rest.get(1) == Some(&1));
    Ok(Decoded { outcomes: vec![outcome(check, told, true, now)], clamped })
}

/// The numbers that `takes.lua` and `apply.lua` answer with; the latter's header says which.
fn array_of(
    reply: &[Value],
    checks: &[Check<'_>],
    accounting: Accounting,
) -> Result<Decoded, ReplyError> {
    let mut numbers = reply.iter().map(|value| match value {
        Value::Int(number) => Ok(*number),
        _ => Err(ReplyError::Number),
    });
    let mut next = || numbers.next().unwrap_or(Err(ReplyError::Length));
    let now = micros(next()?)?;
    let mut each = SmallVec::<[(usize, Said); 8]>::new();
    for at in Plan::of(checks, accounting).order(checks) {
        if let Form::Told(_) = form(&checks[at]) {
            let six = [next()?, next()?, next()?, next()?, next()?, next()?];
            each.push((at, Said::Outcome(told::outcome(six, &checks[at], now)?)));
            continue;
        }
        let used = next()?;
        let rest = if form(&checks[at]) == Form::Credits { next()? } else { 0 };
        let mut told = told(used, rest)?;
        if is_debt(&checks[at]) {
            told.charged = Some(count(next()?)?);
        }
        each.push((at, Said::State(told)));
    }
    let mut clamped = 0;
    while let Some(which) = numbers.next().transpose()? {
        let mut next = || numbers.next().unwrap_or(Err(ReplyError::Length));
        let (which, a, b) = (count(which)?, count(next()?)?, count(next()?)?);
        let Some(at) = which.checked_sub(1) else {
            clamped = a;
            continue;
        };
        let at = usize::try_from(at).ok().and_then(|at| each.get_mut(at));
        let Some((at, Said::State(told))) = at else { return Err(ReplyError::Number) };
        if form(&checks[*at]) == Form::Window {
            told.more = a;
        } else {
            told.met = (a, b);
        }
    }
    each.sort_unstable_by_key(|(at, _)| *at);
    let charges = accounting == Accounting::Independent || admitted(checks, &each);
    let outcomes = each
        .iter()
        .map(|(at, said)| match said {
            Said::State(told) => outcome(&checks[*at], *told, charges, now),
            Said::Outcome(outcome) => *outcome,
        })
        .collect();
    Ok(Decoded { outcomes, clamped })
}

/// Whether the verdicts admit the call (contract, 3).
fn admitted(checks: &[Check<'_>], each: &[(usize, Said)]) -> bool {
    let (mut quotas, mut quota_passes) = (false, false);
    for (at, said) in each {
        match checks[*at].role {
            Role::Required if !said.passes() => return false,
            Role::Quota => {
                quotas = true;
                quota_passes |= said.passes();
            }
            Role::Required | Role::Shadow => {}
        }
    }
    !quotas || quota_passes
}

fn told(used: i64, more: i64) -> Result<Told, ReplyError> {
    let passes = used >= 0;
    let used = count(if passes { used } else { -1 - used })?;
    let more = count(more)?;
    Ok(Told { passes, used, more, charged: None, met: (used, more) })
}

fn outcome(check: &Check<'_>, told: Told, charges: bool, now: Micros) -> Outcome {
    let cost = match check.op {
        Op::Take { cost } => cost.0.max(1),
        Op::Peek | Op::Refund { .. } => 1,
    };
    let plain = match check.op {
        Op::Take { cost } if told.passes && charges => cost.0,
        Op::Take { .. } | Op::Peek | Op::Refund { .. } => 0,
    };
    let (charged, window, available, wait, reset) = match &check.limit.algorithm {
        Algorithm::FixedWindow(limit) => {
            let hits = limit.hits.0.min(COUNT_MAX);
            let length = length(&limit.window);
            let ahead = length.0.saturating_mul(told.more.min(1));
            let start = begins(&limit.window, now).saturating_add(Micros(ahead));
            let rest = start.saturating_add(length).saturating_sub(now);
            let wait = (cost <= hits).then_some(rest);
            (told.charged.unwrap_or(plain), start, hits.saturating_sub(told.used), wait, rest)
        }
        Algorithm::Bucket(limit) => {
            let terms = Terms::of(limit, check.limit.charge);
            let charged = told.charged.map_or(plain, |credits| credits / terms.unit);
            let debt = Debt::of(told.used, told.more, terms).fitted();
            let floor = limit.floor.0.min(terms.burst);
            let wait = Debt::of(told.met.0, told.met.1, terms).wait(cost.max(floor));
            (charged, Micros::ZERO, debt.available(floor), wait, debt.reset())
        }
        // The script told the outcome itself.
        _ => (0, Micros::ZERO, 0, None, Micros::ZERO),
    };
    Outcome {
        verdict: if told.passes { Verdict::Pass } else { Verdict::Refuse },
        charged: Hits(charged),
        available: Hits(available),
        retry_after: wait.filter(|_| !told.passes),
        reset_after: reset,
        taken: (charged > 0).then_some(ChargeRecord {
            hits: Hits(charged),
            at: now,
            window,
            entry: 0,
        }),
    }
}

/// A debt that reaches further than a full one by more than this is from the far future: the
/// second in `lua/bucket.lua`.
const STEP_BACK_MAX_US: i128 = 1_000_000;

/// A bucket's debt. In 128 bits nothing that a reply can say overflows.
struct Debt {
    ahead: i128,
    rest: i128,
    terms: Terms,
}

impl Debt {
    fn of(ahead: u64, rest: u64, terms: Terms) -> Debt {
        Debt { ahead: ahead.into(), rest: rest.into(), terms }
    }

    /// As this limit sees a debt that a later check of the call, under other numbers, left behind;
    /// what `fit` in `lua/bucket.lua` does.
    fn fitted(mut self) -> Debt {
        let (rate, cap) = (i128::from(self.terms.rate), i128::from(self.terms.cap));
        if self.rest >= rate {
            (self.ahead, self.rest) = (self.ahead + 1, 0);
        }
        if self.ahead > cap / rate + STEP_BACK_MAX_US {
            (self.ahead, self.rest) = (cap / rate, cap % rate);
        }
        self
    }

    fn capacity(&self) -> i128 {
        i128::from(self.terms.burst) * i128::from(self.terms.unit)
    }

    /// Single hits pass until one more than the floor is no longer there.
    fn available(&self, floor: u64) -> u64 {
        let owed = self.ahead * i128::from(self.terms.rate) + self.rest;
        let there = clamped((self.capacity() - owed) / i128::from(self.terms.unit));
        (there + 1).saturating_sub(floor.max(1))
    }

    /// Until that many hits fit; `None` if they never do.
    fn wait(&self, hits: u64) -> Option<Micros> {
        let left = self.terms.burst.checked_sub(hits)?;
        let room = i128::from(left) * i128::from(self.terms.unit) - self.rest;
        let wait = self.ahead - room.div_euclid(i128::from(self.terms.rate));
        Some(Micros(clamped(wait)))
    }

    fn reset(&self) -> Micros {
        Micros(clamped(self.ahead + i128::from(self.rest > 0)))
    }
}

fn clamped(number: i128) -> u64 {
    u64::try_from(number.max(0)).unwrap_or(u64::MAX)
}

/// The beginning of the window that holds `now`.
fn begins(window: &Window, now: Micros) -> Micros {
    Micros(now.0 - now.0 % length(window).0)
}

/// Of windows of one length; the scripts tell of others themselves.
fn length(window: &Window) -> Micros {
    match window {
        Window::Epoch { length } => Micros(length.0.max(1)),
        Window::Calendar(_) => Micros(1),
    }
}

fn micros(number: i64) -> Result<Micros, ReplyError> {
    count(number).map(Micros)
}

fn count(number: i64) -> Result<u64, ReplyError> {
    u64::try_from(number).map_err(|_| ReplyError::Number)
}
