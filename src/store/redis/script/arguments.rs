//! Encodes checks and receipts as script calls.
//!
//! The head of each file in `lua/` lists its arguments; a test compares both. For the fast paths,
//! products are computed here, so that the scripts only add and compare.
//!
//! Not here: the keys of counters (`keys`), the replies (`reply`).

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

/// Highest count of a window.
const COUNT_MAX: u64 = u32::MAX as u64;

/// Highest number of hits in a log or slot table: half of what three bytes of an entry can hold (the
/// policy's bound is 10,000).
const ENTRIES_MAX: u64 = 1 << 22;

/// Unit of a calendar window's number, in microseconds.
const CALENDAR_UNIT: u64 = 1_000_000;

/// Capacity to reserve for each check: a key of 29 to 117 bytes and four to six numbers of up to 16
/// digits.
const CHECK_BYTES: usize = 160;

/// Encodes checks and receipts as script calls.
#[derive(Clone, Debug)]
pub struct Encoder {
    prefix: Prefix,
    scripts: &'static Scripts,
    slots: bool,
}

impl Encoder {
    /// Creates an encoder of calls to these scripts. With `slots`, every call names its cluster slot.
    pub fn new(prefix: Prefix, scripts: &'static Scripts, slots: bool) -> Encoder {
        Encoder { prefix, scripts, slots }
    }

    /// Returns the script call that decides these checks. On a cluster all keys must be in one slot.
    ///
    /// `now` is `None` in production, where the scripts read the server's clock. `clock` is the time
    /// of this process, which selects the calendar windows to send.
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

    /// Returns the script call that refunds these receipts. On a cluster all keys must be in one
    /// slot.
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

/// Name of a check's operation in the scripts.
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

/// Hits to take, refund or ask for; at most one more than the limit distinguishes.
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

/// Adds the arguments of `single_*.lua`.
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

/// Numbers of a bucket check on a fast path.
struct BucketNumbers {
    credits: BucketCredits,
    /// Credits to take; more than the capacity if the hits never fit.
    need: u64,
    /// Credits below the floor, which must be available and are not taken.
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

/// Packs the numbers of `multi_check.lua`; the checks are in its order.
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
            // `Selection::of` sends no such check to this script.
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

/// Adds lists as one argument, padded to one length, and that length before it.
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

/// Packs a check for `apply.lua`.
fn check_list(check: &Check<'_>, clock: Micros) -> Packed {
    let mut packed = Packed::default();
    packed.text(&[letter(&check.limit.algorithm)]);
    packed.text(op_word(check).as_bytes());
    packed.text(role_word(check.role).as_bytes());
    packed.number(cost(check));
    pack_limit(&mut packed, check.limit, check.holder, clock);
    packed
}

/// Packs a receipt for `refund.lua`.
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
    // A refund finds a calendar window by its start, so the windows around now do not matter.
    pack_limit(&mut packed, taken_under, None, taken.window);
    packed
}

/// Packs a limit as the algorithm's file in `lua/algorithm` lists it.
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
