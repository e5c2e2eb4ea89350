//! Turns checks and receipts into script calls.
//!
//! The arguments of each script stand in the header of its file in `lua/`; a test holds both
//! together. On the fast paths products are formed here, so that the scripts only add and compare.
//!
//! Not here: where counters live (`keys`), what the replies mean (`reply`).

use redis::Cmd;
use smallvec::SmallVec;

use super::library::{Script, Scripts};
use super::msgpack::Packed;
use super::selection::{FastPath, MultiKind, Selection, is_credit_form, is_special, multi_kind};
use crate::algorithm::bucket::BucketCredits;
use crate::algorithm::fixed_window;
use crate::algorithm::hybrid::HybridCredits;
use crate::domain::{
    Accounting, Algorithm, Bucket, Charge, Check, CounterKey, Hits, Holder, Limit, Micros, Op,
    Receipt, Role, Window,
};
use crate::store::redis::client::transport::ScriptCall;
use crate::store::redis::keys;
use crate::store::redis::keys::{Prefix, letter};

/// The most hits that are counted in a window.
const COUNT_MAX: u64 = u32::MAX as u64;

/// The most hits that a log or a slot table is asked for: what three bytes of an entry can hold,
/// twice (the policy's bound is 10,000).
const ENTRIES_MAX: u64 = 1 << 22;

/// What a calendar's windows are numbered in.
const CALENDAR_UNIT: u64 = 1_000_000;

/// Bytes that one check adds to a command: a key of 29 to 117, four to six numbers of up to 16
/// digits. A hint: more only costs a reallocation.
const CHECK_BYTES: usize = 160;

/// Turns checks and receipts into script calls.
#[derive(Clone, Debug)]
pub struct Encoder {
    prefix: Prefix,
    scripts: &'static Scripts,
    slots: bool,
}

impl Encoder {
    /// An encoder of calls to these scripts; `slots`: every call names its cluster slot.
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
        let selection = Selection::of(checks);
        let script = match selection {
            Selection::Single(FastPath::FixedWindow(..)) => &self.scripts.single_fixed_window,
            Selection::Single(FastPath::Bucket(_)) => &self.scripts.single_bucket,
            Selection::Single(FastPath::SlidingWindow(_)) => &self.scripts.single_sliding_window,
            Selection::Multi => &self.scripts.multi_check,
            Selection::Apply => &self.scripts.apply,
        };
        let mut command = evalsha(script, checks.len());
        let order = selection.order(checks).map(|at| &checks[at]);
        for check in order.clone() {
            command.arg(self.prefix.key(&check.key, &check.limit.algorithm).as_slice());
        }
        add_time(&mut command, now);
        match selection {
            Selection::Single(path) => {
                checks.iter().for_each(|check| single_arguments(&mut command, check, path));
            }
            Selection::Multi => {
                command.arg(multi_numbers(order, accounting).as_slice());
            }
            Selection::Apply => {
                command.arg(match accounting {
                    Accounting::AllOrNothing => "all_or_nothing",
                    Accounting::Independent => "independent",
                });
                add_lists(&mut command, order.map(|check| check_list(check, clock)));
            }
        }
        self.script_call(script, command, checks.first().map(|check| &check.key))
    }

    /// The call of a script that refunds what these receipts say. On a cluster all of their
    /// counters must be in one slot.
    pub fn refund(&self, receipts: &[Receipt], now: Option<Micros>) -> ScriptCall {
        let script = &self.scripts.refund;
        let mut command = evalsha(script, receipts.len());
        for receipt in receipts {
            command.arg(self.prefix.key(&receipt.key, &receipt.limit.algorithm).as_slice());
        }
        add_time(&mut command, now);
        add_lists(&mut command, receipts.iter().map(receipt_list));
        self.script_call(script, command, receipts.first().map(|receipt| &receipt.key))
    }

    fn script_call(
        &self,
        script: &'static Script,
        command: Cmd,
        key: Option<&CounterKey>,
    ) -> ScriptCall {
        ScriptCall { script, command, slot: key.filter(|_| self.slots).map(keys::slot) }
    }
}

fn evalsha(script: &Script, keys: usize) -> Cmd {
    let mut command = Cmd::with_capacity(7 + keys, 64 + keys * CHECK_BYTES);
    command.arg("EVALSHA").arg(script.sha.as_str()).arg(keys);
    command
}

fn add_time(command: &mut Cmd, now: Option<Micros>) {
    match now {
        None => command.arg(""),
        Some(now) => command.arg(now.0),
    };
}

/// A check's operation, as the scripts name it.
fn op_word(check: &Check<'_>) -> &'static str {
    match check.op {
        Op::Take { cost: Hits::ZERO } | Op::Peek => "peek",
        Op::Take { .. } if check.is_debt() => "debt",
        Op::Take { .. } => "take",
        Op::Refund { .. } => "refund",
    }
}

fn role_word(role: Role) -> &'static str {
    match role {
        Role::Required => "required",
        Role::Quota => "quota",
        Role::Shadow => "shadow",
    }
}

/// Hits to take or to refund, or that a peek asks for: as many as matter to the limit.
fn cost(check: &Check<'_>) -> u64 {
    let Hits(cost) = if check.is_refund() { check.cost() } else { check.hits_needed() };
    let stops_at_limit = !check.is_refund() && !check.is_debt();
    let limit = check.limit;
    cost.min(match &limit.algorithm {
        Algorithm::FixedWindow(window) if stops_at_limit => window.hits.0.min(COUNT_MAX) + 1,
        Algorithm::FixedWindow(_) => COUNT_MAX + 1,
        // A refund may empty both windows.
        Algorithm::SlidingWindow(_) => 2 * COUNT_MAX,
        Algorithm::SlidingLog(_) => 2 * ENTRIES_MAX + 1,
        Algorithm::Bucket(bucket) => BucketCredits::of(bucket, limit.charge).cap_hits + 1,
        Algorithm::Hybrid(classes) => HybridCredits::of(classes).burst + 1,
        Algorithm::Concurrency(slots) => slots.slots.0.min(ENTRIES_MAX) + 1,
    })
}

/// The arguments of `single_*.lua`.
fn single_arguments(command: &mut Cmd, check: &Check<'_>, path: FastPath<'_>) {
    let op = op_word(check);
    let (cost, is_take) = (cost(check), op == "take");
    match path {
        FastPath::FixedWindow(window, length) => {
            let hits = window.hits.0.min(COUNT_MAX);
            command.arg(cost).arg(hits).arg(length.0);
            if !is_take {
                command.arg(op).arg(fixed_window::cap(hits, check.limit.charge));
            }
        }
        FastPath::Bucket(bucket) => {
            let BucketNumbers { credits, need, kept } = BucketNumbers::of(check, bucket, cost);
            command.arg(need).arg(credits.capacity - kept);
            let has_cap = kept > 0 || !is_take;
            if is_credit_form(check) {
                command.arg(credits.flow);
            } else if has_cap {
                command.arg("");
            }
            if has_cap {
                command.arg(credits.cap);
            }
            if !is_take {
                command.arg(op).arg(cost).arg(credits.burst).arg(credits.unit).arg(credits.floor);
            }
        }
        FastPath::SlidingWindow(window) => {
            command.arg(cost).arg(window.hits.0).arg(window.length.0.max(1)).arg(window.tick().0);
            if !is_take {
                command.arg(op).arg(window.count_max(check.limit.charge));
            }
        }
    }
}

/// A bucket's numbers for a fast path.
struct BucketNumbers {
    credits: BucketCredits,
    /// Credits to take: more than the capacity where the hits never fit.
    need: u64,
    /// Credits that a floor keeps: they must be there and are not taken.
    kept: u64,
}

impl BucketNumbers {
    fn of(check: &Check<'_>, bucket: &Bucket, cost: u64) -> BucketNumbers {
        let credits = BucketCredits::of(bucket, check.limit.charge);
        let need = if cost > credits.burst { credits.capacity + 1 } else { cost * credits.unit };
        let kept = credits.floor.saturating_sub(cost.max(1)) * credits.unit;
        BucketNumbers { credits, need, kept }
    }
}

/// The numbers of `multi_check.lua`; the checks in its order.
fn multi_numbers<'a>(
    checks: impl Iterator<Item = &'a Check<'a>> + Clone,
    accounting: Accounting,
) -> Packed {
    let of =
        |wanted| checks.clone().filter(|check| multi_kind(check) == Some(wanted)).count() as u64;
    let special = checks.clone().filter(|check| is_special(check, accounting)).count() as u64;
    let (mut packed, mut listed) = (Packed::default(), Packed::default());
    let all_or_nothing = u64::from(accounting == Accounting::AllOrNothing);
    packed.numbers([all_or_nothing, of(MultiKind::Window), of(MultiKind::Arrival), special]);
    for (place, check) in (1..).zip(checks) {
        let cost = cost(check);
        let (cap, bucket) = match FastPath::of(check) {
            Some(FastPath::FixedWindow(window, length)) => {
                let hits = window.hits.0.min(COUNT_MAX);
                packed.numbers([cost, hits, length.0]);
                (fixed_window::cap(hits, check.limit.charge), [0; 4])
            }
            Some(FastPath::Bucket(bucket)) => {
                let BucketNumbers { credits, need, kept } = BucketNumbers::of(check, bucket, cost);
                packed.numbers([need, credits.capacity - kept]);
                if is_credit_form(check) {
                    packed.number(credits.flow);
                }
                (credits.cap, [cost, credits.burst, credits.unit, credits.floor])
            }
            // No such call is sent there.
            Some(FastPath::SlidingWindow(_)) | None => (0, [0; 4]),
        };
        if is_special(check, accounting) {
            listed.number(place);
            listed.text(op_word(check).as_bytes());
            listed.text(role_word(check.role).as_bytes());
            listed.number(cap);
            listed.numbers(bucket);
        }
    }
    packed.extend(&listed);
    packed
}

/// Lists of one length, and that length before them.
fn add_lists(command: &mut Cmd, lists: impl Iterator<Item = Packed>) {
    let lists: SmallVec<[Packed; 2]> = lists.collect();
    let stride = lists.iter().map(Packed::len).max().unwrap_or(0);
    let mut all = Packed::default();
    for (nth, list) in (1..).zip(&lists) {
        all.extend(list);
        all.pad_to(nth * stride);
    }
    command.arg(stride).arg(all.as_slice());
}

/// What `apply.lua` gets of a check.
fn check_list(check: &Check<'_>, clock: Micros) -> Packed {
    let mut packed = Packed::default();
    packed.text(&[letter(&check.limit.algorithm)]);
    packed.text(op_word(check).as_bytes());
    packed.text(role_word(check.role).as_bytes());
    packed.number(cost(check));
    pack_limit(&mut packed, check.limit, check.holder, clock);
    packed
}

/// What `refund.lua` gets of a receipt.
fn receipt_list(receipt: &Receipt) -> Packed {
    let Receipt { limit: taken_under, taken, .. } = receipt;
    let mut packed = Packed::default();
    packed.text(&[letter(&taken_under.algorithm)]);
    packed.numbers([taken.hits.0.min(COUNT_MAX), taken.at.0, taken.window.0]);
    match &taken_under.algorithm {
        Algorithm::Concurrency(_) => packed.text(&taken.entry.to_be_bytes()),
        Algorithm::FixedWindow(_)
        | Algorithm::SlidingWindow(_)
        | Algorithm::SlidingLog(_)
        | Algorithm::Bucket(_)
        | Algorithm::Hybrid(_) => packed.number(u64::try_from(taken.entry).unwrap_or(u64::MAX)),
    }
    // A refund finds a calendar's window by its start, whatever the windows around now are.
    pack_limit(&mut packed, taken_under, None, taken.window);
    packed
}

/// A limit, as its file in `lua/algorithm` lists it.
fn pack_limit(packed: &mut Packed, limit: &Limit, holder: Option<Holder>, clock: Micros) {
    let charge = limit.charge;
    match &limit.algorithm {
        Algorithm::FixedWindow(window) => {
            let hits = window.hits.0.min(COUNT_MAX);
            packed.numbers([hits, fixed_window::cap(hits, charge)]);
            match &window.window {
                Window::Epoch { length } => {
                    packed.number(length.0.max(1));
                    packed.nil();
                }
                Window::Calendar(calendar) => {
                    packed.number(CALENDAR_UNIT);
                    packed.numbers(calendar.boundaries_around(clock).map(|bound| bound.0));
                }
            }
        }
        Algorithm::SlidingWindow(window) => {
            let cap = window.count_max(charge);
            packed.numbers([window.hits.0, cap, window.length.0.max(1), window.tick().0]);
        }
        Algorithm::SlidingLog(log) => {
            let hits = log.hits.0.min(ENTRIES_MAX);
            let cap = if charge == Charge::Always { 2 * hits } else { hits };
            packed.numbers([hits, cap, log.length.0]);
        }
        Algorithm::Bucket(bucket) => {
            let BucketCredits { burst, cap, unit, flow, floor, .. } =
                BucketCredits::of(bucket, charge);
            packed.numbers([burst, cap, unit, flow, floor]);
        }
        Algorithm::Hybrid(classes) => {
            let credits = HybridCredits::of(classes);
            packed.numbers([credits.burst, credits.unit, credits.tick, classes.hits.0]);
            packed.numbers([classes.class as u64 + 1, u64::from(classes.floor_percent)]);
            packed.number(classes.shares.len() as u64);
            packed.numbers(classes.shares.iter().map(|share| u64::from(*share)));
        }
        Algorithm::Concurrency(slots) => {
            packed.numbers([slots.slots.0.min(ENTRIES_MAX), slots.lease.0]);
            match holder {
                Some(Holder(bits)) => packed.text(&bits.to_be_bytes()),
                None => packed.nil(),
            }
        }
    }
}
