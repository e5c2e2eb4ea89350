//! Turns checks and receipts into script calls.
//!
//! The arguments of each script stand in the header of its file in `lua/`; a test holds both to the
//! same list. Products are formed here, so that the scripts only add and compare.
//!
//! Not here: where counters live (`keys`), what the replies mean (`reply`).

use redis::Cmd;

use super::library::{Script, Scripts};
use super::msgpack::Numbers;
use super::selection::{Form, Plan, form, is_debt};
use super::told;
use super::told::COUNT_MAX;
use crate::domain::{
    Accounting, Algorithm, Bucket, Charge, Check, FixedWindow, Hits, Key, Micros, Op, Receipt,
    Refill, Role, Window,
};
use crate::store::redis::client::transport::ScriptCall;
use crate::store::redis::keys;
use crate::store::redis::keys::Prefix;

/// Every number in Lua is a double: whole numbers are exact below 2^53.
const EXACT: u64 = 1 << 53;

/// What the scripts call their arguments, in order. A test holds the headers in `lua/` and the
/// commands made here to these lists.
pub mod names {
    /// `fixed_window.lua`: ARGV.
    pub const FIXED_WINDOW: [&str; 4] = ["now_us", "cost", "limit", "length_us"];
    /// `bucket.lua`: ARGV; the rate in credit form only, the cap beside a floor.
    pub const BUCKET: [&str; 5] = ["now_us", "need", "capacity", "rate", "cap"];
    /// `takes.lua`: ARGV.
    pub const TAKES: [&str; 2] = ["now_us", "numbers"];
    /// `takes.lua`: the first numbers, of the call.
    pub const TAKES_CALL: [&str; 3] = ["all_or_nothing", "windows", "arrivals"];
    /// `takes.lua`: of each check of a fixed window.
    pub const TAKES_WINDOW: [&str; 3] = ["cost", "limit", "length_us"];
    /// `takes.lua`: of each check of a bucket; the last in credit form only.
    pub const TAKES_BUCKET: [&str; 3] = ["need", "capacity", "rate"];
    /// `apply.lua`: ARGV of the call.
    pub const APPLY: [&str; 3] = ["now_us", "accounting", "stride"];
    /// `apply.lua`: of each check of a fixed window.
    pub const APPLY_WINDOW: [&str; 5] = ["word", "cost", "limit", "length_us", "cap"];
    /// `apply.lua`: of each check of a bucket.
    pub const APPLY_BUCKET: [&str; 5] = ["word", "need", "capacity", "rate", "cap"];
    /// `refund.lua`: ARGV of the call.
    pub const REFUND: [&str; 1] = ["now_us"];
    /// `refund.lua`: of each receipt of a fixed window.
    pub const REFUND_WINDOW: [&str; 4] = ["form", "count", "start", "length_us"];
    /// `refund.lua`: of each receipt of a bucket.
    pub const REFUND_BUCKET: [&str; 5] = ["form", "need", "at", "cap", "rate"];
}

/// Bytes that one check adds to a command: a key of 29 to 117, a word, four to six numbers of up to
/// 16 digits. A hint: more only costs a reallocation.
const CHECK_BYTES: usize = 160;

/// Turns checks and receipts into script calls.
#[derive(Clone, Debug)]
pub struct Encoder {
    prefix: Prefix,
    scripts: &'static Scripts,
    slots: bool,
}

/// A bucket's limit in credits, as `lua/bucket.lua` counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    /// Hits that fit in.
    pub(crate) burst: u64,
    /// Credits per hit.
    pub(crate) unit: u64,
    /// Credits that come back each microsecond.
    pub(crate) rate: u64,
    /// The largest debt in credits: one capacity, charged always two.
    pub(crate) cap: u64,
}

impl Terms {
    pub(crate) fn of(bucket: &Bucket, charge: Charge) -> Terms {
        let (unit, rate) = match bucket.refill {
            Refill::Arrival { emission } => (emission.0, 1),
            Refill::Credits { hits, window } => (window.0, hits.0),
        };
        // The policy lets nothing through that these would change; they keep Lua exact and Rust
        // free of overflow whatever comes.
        let (unit, rate) = (unit.clamp(1, EXACT), rate.clamp(1, EXACT));
        let burst = bucket.burst.0.min(EXACT / unit);
        let times = if charge == Charge::Always { 2 } else { 1 };
        Terms { burst, unit, rate, cap: burst * unit * times }
    }

    /// Credits of a full bucket.
    pub(crate) fn capacity(&self) -> u64 {
        self.burst * self.unit
    }

    /// Credits that refunding so many hits is worth: no more than the largest debt.
    fn back(&self, hits: Hits) -> u64 {
        hits.0.saturating_mul(self.unit).min(self.cap)
    }

    /// Credits that so many hits take: no more than the largest debt, and more than the capacity
    /// where they never fit.
    fn need(&self, hits: Hits) -> u64 {
        let never_fits = if hits.0 > self.burst { self.capacity() + 1 } else { 0 };
        self.back(hits).max(never_fits)
    }

    /// Credits that a floor keeps from a take of so many hits: what must be there and is not taken.
    fn kept(&self, floor: Hits, hits: Hits) -> u64 {
        floor.0.min(self.burst).saturating_sub(hits.0.max(1)) * self.unit
    }
}

impl Encoder {
    /// An encoder of calls to these scripts; `slots`: every item names its cluster slot.
    pub fn new(prefix: Prefix, scripts: &'static Scripts, slots: bool) -> Encoder {
        Encoder { prefix, scripts, slots }
    }

    /// The call of a script that decides these checks. On a cluster all of them must be in one
    /// slot. `now`: `None` in production, where the server's clock counts; `clock`: now, by the
    /// process, which finds the calendar windows that the server's clock may be in.
    pub fn call(
        &self,
        checks: &[Check<'_>],
        accounting: Accounting,
        now: Option<Micros>,
        clock: Micros,
    ) -> ScriptCall {
        let plan = Plan::of(checks, accounting);
        let (script, numbers) = match (plan, checks.first().map(form)) {
            (Plan::Alone, Some(Form::Window)) => (&self.scripts.fixed_window, 4),
            (Plan::Alone, Some(Form::Told(_))) => (&self.scripts.sliding_window, 6),
            (Plan::Alone, _) => (&self.scripts.bucket, 4),
            (Plan::Takes, _) => (&self.scripts.takes, 0),
            (Plan::Any, _) => (&self.scripts.apply, 5),
        };
        let mut command = begin(script, checks.len(), 4 + checks.len() * numbers);
        for at in plan.order(checks) {
            let Check { key, limit, .. } = &checks[at];
            command.arg(self.prefix.key(key, &limit.algorithm).as_slice());
        }
        time(&mut command, now);
        match plan {
            Plan::Alone => checks.iter().for_each(|check| write_alone(&mut command, check)),
            Plan::Takes => {
                command.arg(takes(checks, accounting, plan).as_slice());
            }
            Plan::Any => {
                let stride = checks.iter().map(stride).max().unwrap_or(0);
                command.arg(letter(accounting)).arg(stride);
                for at in plan.order(checks) {
                    write_any(&mut command, &checks[at], stride, clock);
                }
            }
        }
        self.item(script, command, checks.first().map(|check| &check.key))
    }

    /// The call of a script that refunds what these receipts say. On a cluster all of their
    /// counters must be in one slot.
    pub fn refund(&self, receipts: &[Receipt], now: Option<Micros>) -> ScriptCall {
        let script = &self.scripts.refund;
        let mut command = begin(script, receipts.len(), 1 + receipts.len() * 5);
        for receipt in receipts {
            command.arg(self.prefix.key(&receipt.key, &receipt.limit.algorithm).as_slice());
        }
        time(&mut command, now);
        for receipt @ Receipt { limit, taken, .. } in receipts {
            if let Some(letter) = told::form(&limit.algorithm) {
                told::write_receipt(&mut command, receipt, letter);
                continue;
            }
            match &limit.algorithm {
                Algorithm::FixedWindow(window) => {
                    command.arg("w").arg(taken.hits.0.min(COUNT_MAX)).arg(taken.window.0);
                    command.arg(length(&window.window)).arg(0);
                }
                Algorithm::Bucket(bucket) => {
                    let terms = Terms::of(bucket, limit.charge);
                    command.arg("c").arg(terms.back(taken.hits)).arg(taken.at.0);
                    command.arg(terms.cap).arg(terms.rate);
                }
                _ => {}
            }
        }
        self.item(script, command, receipts.first().map(|receipt| &receipt.key))
    }

    fn item(&self, script: &'static Script, command: Cmd, key: Option<&Key>) -> ScriptCall {
        ScriptCall { script, command, slot: key.filter(|_| self.slots).map(keys::slot) }
    }
}

fn begin(script: &Script, keys: usize, args: usize) -> Cmd {
    let mut command = Cmd::with_capacity(3 + keys + args, 64 + keys * CHECK_BYTES);
    command.arg("EVALSHA").arg(script.sha.as_str()).arg(keys);
    command
}

fn time(command: &mut Cmd, now: Option<Micros>) {
    match now {
        None => command.arg(""),
        Some(now) => command.arg(now.0),
    };
}

fn letter(accounting: Accounting) -> &'static str {
    match accounting {
        Accounting::AllOrNothing => "a",
        Accounting::Independent => "i",
    }
}

/// What `takes.lua` needs.
fn takes(checks: &[Check<'_>], accounting: Accounting, plan: Plan) -> Numbers {
    let of = |wanted| checks.iter().filter(|check| form(check) == wanted).count() as u64;
    let mut numbers = Numbers::default();
    numbers.push((accounting == Accounting::AllOrNothing).into());
    numbers.push(of(Form::Window));
    numbers.push(of(Form::Arrival));
    for at in plan.order(checks) {
        let (limit, cost) = (checks[at].limit, cost(&checks[at]));
        match &limit.algorithm {
            Algorithm::FixedWindow(window) => {
                for number in window_terms(window, cost) {
                    numbers.push(number);
                }
            }
            Algorithm::Bucket(bucket) => {
                let terms = Terms::of(bucket, limit.charge);
                numbers.push(terms.need(cost));
                numbers.push(terms.capacity());
                if form(&checks[at]) == Form::Credits {
                    numbers.push(terms.rate);
                }
            }
            _ => {}
        }
    }
    numbers
}

/// Hits to take, at most one more than the limit; the limit; the window's length.
fn window_terms(window: &FixedWindow, cost: Hits) -> [u64; 3] {
    let hits = window.hits.0.min(COUNT_MAX);
    [cost.0.min(hits + 1), hits, length(&window.window)]
}

fn cost(check: &Check<'_>) -> Hits {
    match check.op {
        Op::Take { cost } | Op::Refund { cost } => cost,
        Op::Peek => Hits::ONE,
    }
}

/// What the script of one check that only takes needs of it.
fn write_alone(command: &mut Cmd, check: &Check<'_>) {
    let cost = cost(check);
    match &check.limit.algorithm {
        Algorithm::FixedWindow(window) => {
            for number in window_terms(window, cost) {
                command.arg(number);
            }
        }
        Algorithm::Bucket(bucket) => {
            let terms = Terms::of(bucket, check.limit.charge);
            let kept = terms.kept(bucket.floor, cost);
            command.arg(terms.need(cost)).arg(terms.capacity() - kept);
            if form(check) == Form::Credits {
                command.arg(terms.rate);
            } else if kept > 0 {
                command.arg("");
            }
            if kept > 0 {
                command.arg(terms.cap);
            }
        }
        // They need no clock: calendar windows have no script of their own.
        _ => told::write(command, check.limit, cost, false, check.holder, Micros::ZERO),
    }
}

/// Whether the largest debt is not the capacity that the check is given.
fn has_cap(check: &Check<'_>) -> bool {
    let floored = match (&check.limit.algorithm, check.op) {
        (_, Op::Refund { .. }) => false,
        (Algorithm::Bucket(bucket), _) => bucket.floor > Hits::ONE,
        _ => false,
    };
    floored || check.limit.charge == Charge::Always
}

/// How many arguments `apply.lua` needs of a check.
fn stride(check: &Check<'_>) -> usize {
    match form(check) {
        Form::Told(_) => 1 + told::arguments(&check.limit.algorithm),
        _ if has_cap(check) => 5,
        Form::Window | Form::Credits => 4,
        Form::Arrival => 3,
    }
}

fn write_any(command: &mut Cmd, check: &Check<'_>, stride: usize, clock: Micros) {
    let (op, cost) = match check.op {
        Op::Refund { cost } => (b'g', cost),
        Op::Peek | Op::Take { cost: Hits::ZERO } => (b'p', Hits::ONE),
        Op::Take { cost } => (if is_debt(check) { b'd' } else { b't' }, cost),
    };
    let role = match check.role {
        Role::Required => b'r',
        Role::Quota => b'q',
        Role::Shadow => b's',
    };
    let form = form(check);
    let letter = match form {
        Form::Window => b'w',
        Form::Arrival => b'a',
        Form::Credits => b'c',
        Form::Told(letter) => letter,
    };
    command.arg([letter, op, role].as_slice());
    let (cap, mut written) = match &check.limit.algorithm {
        Algorithm::FixedWindow(window) if form == Form::Window => {
            command.arg(cost.0.min(COUNT_MAX + 1));
            command.arg(window.hits.0.min(COUNT_MAX)).arg(length(&window.window));
            (COUNT_MAX, 4)
        }
        Algorithm::Bucket(bucket) => {
            let terms = Terms::of(bucket, check.limit.charge);
            let (need, kept) = match op {
                b'g' => (terms.back(cost), 0),
                _ => (terms.need(cost), terms.kept(bucket.floor, cost)),
            };
            command.arg(need).arg(terms.capacity() - kept);
            if form == Form::Credits {
                command.arg(terms.rate);
            }
            (terms.cap, if form == Form::Credits { 4 } else { 3 })
        }
        algorithm => {
            told::write(command, check.limit, cost, op == b'g', check.holder, clock);
            (0, 1 + told::arguments(algorithm))
        }
    };
    if has_cap(check) && !matches!(form, Form::Told(_)) {
        // Its place is the fifth.
        if written == 3 {
            command.arg("");
        }
        command.arg(cap);
        written = 5;
    }
    for _ in written..stride {
        command.arg("");
    }
}

/// Only of windows of one length.
fn length(window: &Window) -> u64 {
    match window {
        Window::Epoch { length } => length.0.max(1),
        Window::Calendar(_) => 1,
    }
}
