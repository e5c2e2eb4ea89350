//! Encodes checks and receipts as script calls.
//!
//! The header of each file in `lua/` lists its arguments, and a test compares both. Products for
//! the fast paths are computed here, so that those scripts only add and compare.
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

/// Largest hit count of a window.
const COUNT_MAX: u64 = u32::MAX as u64;

/// Most hits in a sliding log or slots in a concurrency limit. An entry stores its hits in three
/// bytes, and this is a quarter of what they hold; the policy allows 10,000.
const ENTRIES_MAX: u64 = 1 << 22;

/// Unit in which the scripts number calendar windows, in microseconds.
const CALENDAR_UNIT: u64 = 1_000_000;

/// Bytes to reserve per check: a key of 29 to 117 bytes and four to six numbers of up to 16 digits.
const CHECK_BYTES: usize = 160;

/// Encoder of script calls: holds the key prefix and the scripts.
#[derive(Clone, Debug)]
pub struct Encoder {
    prefix: Prefix,
    scripts: &'static Scripts,
    is_cluster: bool,
}

impl Encoder {
    /// Creates an encoder. If `is_cluster`, each call names its cluster slot.
    pub fn new(prefix: Prefix, scripts: &'static Scripts, is_cluster: bool) -> Encoder {
        Encoder { prefix, scripts, is_cluster }
    }

    /// Encodes the script call that decides `checks`. On a cluster all keys must be in one slot.
    ///
    /// `now` is `None` in production, where the scripts read the server's clock. `clock` is this
    /// process's time; it selects the calendar windows to send.
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
                checks.iter().for_each(|check| add_single_arguments(&mut command, check, path));
            }
            Selection::Multi => {
                command.arg(pack_multi(order, accounting).as_slice());
            }
            Selection::Apply => {
                command.arg(match accounting {
                    Accounting::AllOrNothing => "all_or_nothing",
                    Accounting::Independent => "independent",
                });
                add_lists(&mut command, order.map(|check| pack_check(check, clock)));
            }
        }
        self.script_call(script, command, checks.first().map(|check| &check.key))
    }

    /// Encodes the script call that refunds `receipts`. On a cluster all keys must be in one slot.
    pub fn refund(&self, receipts: &[Receipt], now: Option<Micros>) -> ScriptCall {
        let script = &self.scripts.refund;
        let mut command = evalsha(script, receipts.len());
        for receipt in receipts {
            command.arg(self.prefix.key(&receipt.key, &receipt.limit.algorithm).as_slice());
        }
        add_time(&mut command, now);
        add_lists(&mut command, receipts.iter().map(pack_receipt));
        self.script_call(script, command, receipts.first().map(|receipt| &receipt.key))
    }

    fn script_call(
        &self,
        script: &'static Script,
        command: Cmd,
        key: Option<&CounterKey>,
    ) -> ScriptCall {
        ScriptCall { script, command, slot: key.filter(|_| self.is_cluster).map(keys::slot) }
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

/// Returns the scripts' name of a check's operation.
fn op_word(check: &Check<'_>) -> &'static str {
    match check.op {
        Op::Take { cost: Hits::ZERO } | Op::Peek => "peek",
        Op::Take { .. } if check.is_debt() => "debt",
        Op::Take { .. } => "take",
        Op::Refund { .. } => "refund",
    }
}

/// Returns the scripts' name of a role.
fn role_word(role: Role) -> &'static str {
    match role {
        Role::Required => "required",
        Role::Quota => "quota",
        Role::Shadow => "shadow",
    }
}

/// Returns the hits to take, refund, or test for, capped where a larger number has the same effect.
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

/// Appends the arguments of a `single_*.lua` script.
fn add_single_arguments(command: &mut Cmd, check: &Check<'_>, path: FastPath<'_>) {
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

/// Bucket check in credits, for the fast paths.
struct BucketNumbers {
    credits: BucketCredits,
    /// Credits to take; capacity + 1 if the cost exceeds the burst.
    need: u64,
    /// Credits that must remain after the take because of the floor.
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

/// Packs the numbers for `multi_check.lua`; `checks` must be in the order of its keys.
fn pack_multi<'a>(
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
            // `Selection::of` never selects this script for such a check.
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

/// Appends two arguments: the longest length of `lists`, and all lists padded to it.
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
fn pack_check(check: &Check<'_>, clock: Micros) -> Packed {
    let mut packed = Packed::default();
    packed.text(&[letter(&check.limit.algorithm)]);
    packed.text(op_word(check).as_bytes());
    packed.text(role_word(check.role).as_bytes());
    packed.number(cost(check));
    pack_limit(&mut packed, check.limit, check.holder, clock);
    packed
}

/// Packs a receipt for `refund.lua`.
fn pack_receipt(receipt: &Receipt) -> Packed {
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
    // A refund identifies a calendar window by its start, so any time within it serves as the
    // clock.
    pack_limit(&mut packed, taken_under, None, taken.window);
    packed
}

/// Packs a limit's numbers in the order of the header of the algorithm's file in `lua/algorithm`.
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
