//! Encodes checks and refund receipts as script calls.
//!
//! The header of each file in `lua/` lists the script's arguments, and a test compares that list
//! with this encoder.
//!
//! Not here: the calls of one write (`write_calls`), the keys of counters (`keys`), the replies
//! (`reply`).

use redis::Cmd;
use smallvec::SmallVec;

use super::keys::{self, Prefix, algorithm_letter};
use super::library::{Script, ScriptCall, Scripts};
use super::msgpack::Packed;
use crate::algorithm::bucket::BucketCredits;
use crate::algorithm::hybrid_credits::HybridCredits;
use crate::domain::{
    Accounting, Algorithm, Call, Check, Hits, Holder, Limit, Micros, Op, Receipt, Role, Window,
};

/// Largest hit count that a window stores, 2^32 - 1.
pub(super) const COUNT_MAX: u64 = u32::MAX as u64;

/// Maximum number of hits in a sliding log, or of slots in a concurrency limit, that the scripts
/// support. An entry stores its hits in three bytes, and this is a quarter of that range. The
/// policy allows only 10,000.
const COUNTER_HITS_MAX: u64 = 1 << 22;

/// Unit in which calendar windows are numbered: one second, in microseconds. The number of a
/// calendar window is the window's start divided by this unit.
const CALENDAR_UNIT_US: u64 = 1_000_000;

/// Letter before that of a window or bucket whose hits can be held.
const BUDGET_LETTER: u8 = b'r';

/// Number of a check's values before those of its limit.
const CHECK_HEAD_VALUES: usize = 4;

/// Number of a receipt's values before those of its limit.
const RECEIPT_HEAD_VALUES: usize = 5;

/// Number of values of a limit before those of its holds: those of a calendar window, the longest.
const COUNTER_LIMIT_VALUES: usize = 6;

/// Number of bytes to reserve per check for its encoded key and arguments: a key of 29 to 117
/// bytes, and four to six numbers of up to 16 digits.
const BYTES_PER_CHECK: usize = 160;

/// Number of checks whose order is stored without a heap allocation.
const CHECKS_INLINE: usize = 16;

/// Which checks of a call a request to a node has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallScope {
    /// Whether the other checks of an all-or-nothing call are decided elsewhere.
    pub is_part: bool,
    /// Whether the counters are in several hash slots of a cluster node.
    pub spans_slots: bool,
}

/// Encoder that turns checks and refund receipts into script calls.
#[derive(Clone, Debug)]
pub struct Encoder {
    pub(crate) prefix: Prefix,
    pub(super) scripts: &'static Scripts,
    is_cluster: bool,
}

impl Encoder {
    /// Creates an encoder of calls to `scripts`. If `is_cluster` is true, each call contains the
    /// hash slot of its keys.
    pub fn new(prefix: Prefix, scripts: &'static Scripts, is_cluster: bool) -> Encoder {
        Encoder { prefix, scripts, is_cluster }
    }

    /// Returns whether Redis is a cluster.
    pub fn is_cluster(&self) -> bool {
        self.is_cluster
    }

    /// Returns the hash slot of the first counter; `None` if Redis is not a cluster.
    pub(crate) fn slot_of(&self, checks: &[Check<'_>]) -> Option<u16> {
        let first = checks.first().filter(|_| self.is_cluster);
        first.map(|check| keys::counter_slot(&check.key))
    }

    /// Encodes the call of `decide_call.lua`, which can decide any call, as [`encode`](super::call::encode)
    /// does.
    pub fn encode_apply(
        &self,
        call: &Call<'_>,
        CallScope { is_part, spans_slots }: CallScope,
        now: Option<Micros>,
    ) -> ScriptCall {
        let Call { checks, accounting, now: local_now, deadline } = *call;
        let order = refunds_first(checks);
        let order = order.iter().map(|at| &checks[*at]);
        let add_keys = |command: &mut Cmd| {
            for check in order.clone() {
                if block_op(check).is_some() {
                    command.arg(
                        self.prefix.key_with_letter(&check.key, keys::BLOCK_LETTER).as_slice(),
                    );
                }
                command.arg(self.prefix.key(&check.key, &check.limit.algorithm).as_slice());
            }
            for check in order.clone().filter(|check| check.limit.reserve.is_some()) {
                for key in self.prefix.hold_keys(&check.key) {
                    command.arg(key.as_slice());
                }
            }
        };
        let count = checks.len() + checks.iter().filter_map(block_op).count();
        let holds = checks.iter().filter(|check| check.limit.reserve.is_some()).count();
        // Redis checks that all KEYS are in one slot, so keys in several slots are arguments.
        let keys = if spans_slots { 0 } else { count + 2 * holds };
        let mut command = build_evalsha(&self.scripts.apply, keys, count);
        if !spans_slots {
            add_keys(&mut command);
        }
        add_time(&mut command, now);
        command.arg(accounting_name(accounting, is_part));
        let mut next_key = count + 1;
        let lists = order.clone().flat_map(|check| {
            let block = block_op(check).map(|op| pack_block(check, op));
            block.into_iter().chain([pack_check(check, local_now, &mut next_key)])
        });
        add_lists(&mut command, lists);
        if spans_slots {
            add_keys(&mut command);
        }
        ScriptCall { script: &self.scripts.apply, command, slot: self.slot_of(checks), deadline }
    }

    /// Encodes the script call that refunds `receipts`. On a cluster, all keys must be in one hash
    /// slot.
    pub fn encode_refund(&self, receipts: &[Receipt], now: Option<Micros>) -> ScriptCall {
        let script = &self.scripts.refund;
        let holds = receipts.iter().filter(|receipt| receipt.is_hold());
        let keys = receipts.len() + 2 * holds.clone().count();
        let mut command = build_evalsha(script, keys, receipts.len());
        for receipt in receipts {
            command.arg(self.prefix.key(&receipt.key, &receipt.limit.algorithm).as_slice());
        }
        for receipt in holds {
            for key in self.prefix.hold_keys(&receipt.key) {
                command.arg(key.as_slice());
            }
        }
        add_time(&mut command, now);
        let mut next_key = receipts.len() + 1;
        add_lists(&mut command, receipts.iter().map(|one| pack_receipt(one, &mut next_key)));
        let first = receipts.first().filter(|_| self.is_cluster);
        let slot = first.map(|receipt| keys::counter_slot(&receipt.key));
        ScriptCall { script, command, slot, deadline: None }
    }
}

/// Returns the indices of the checks in the order in which `decide_call.lua` expects and decides them.
pub(super) fn refunds_first(checks: &[Check<'_>]) -> SmallVec<[usize; CHECKS_INLINE]> {
    let mut order: SmallVec<[usize; CHECKS_INLINE]> = (0..checks.len()).collect();
    order.sort_by_key(|at| !checks[*at].comes_first());
    order
}

fn build_evalsha(script: &Script, keys: usize, checks: usize) -> Cmd {
    let mut command = Cmd::with_capacity(7 + checks, 64 + checks * BYTES_PER_CHECK);
    command.arg("EVALSHA").arg(script.sha.as_str()).arg(keys);
    command
}

/// Returns the name that `decide_call.lua` uses for an accounting mode. `is_part` is true if the other
/// checks of an all-or-nothing call are decided by other script calls.
pub(super) fn accounting_name(accounting: Accounting, is_part: bool) -> &'static str {
    match accounting {
        Accounting::AllOrNothing if is_part => "part",
        Accounting::AllOrNothing => "all_or_nothing",
        Accounting::Independent => "independent",
    }
}

pub(super) fn add_time(command: &mut Cmd, now: Option<Micros>) {
    match now {
        None => command.arg(""),
        Some(now) => command.arg(now.0),
    };
}

/// Returns the name that the scripts use for a check's operation.
pub(super) fn op_name(check: &Check<'_>) -> &'static str {
    match check.op {
        Op::Take { cost: Hits::ZERO } | Op::Peek { .. } => "peek",
        Op::Take { .. } if check.charges_always() => "debt",
        Op::Take { .. } => "take",
        Op::Refund { .. } if check.op == Op::RESET && check.limit.reserve.is_some() => "reset",
        Op::Refund { .. } => "refund",
        Op::Hold { .. } => "hold",
        Op::Settle { .. } => "settle",
    }
}

/// Returns the operation of the scripts on the block of a check's key, which precedes the check;
/// `None` if the check has nothing to do with a block.
pub(super) fn block_op(check: &Check<'_>) -> Option<&'static str> {
    check.limit.block_seconds?;
    match check.op {
        Op::Refund { .. } => check.is_reset().then_some("refund"),
        Op::Settle { .. } => None,
        Op::Take { .. } | Op::Hold { .. } | Op::Peek { .. } if check.starts_block() => {
            Some("blocks")
        }
        Op::Take { .. } | Op::Hold { .. } | Op::Peek { .. } => Some("blocked"),
    }
}

/// Packs the check of a block in the format that `decide_call.lua` expects.
fn pack_block(check: &Check<'_>, op: &str) -> Packed {
    let mut packed = Packed::default();
    packed.push_string(&[keys::BLOCK_LETTER]);
    packed.push_string(op.as_bytes());
    pack_role(&mut packed, Role::Shadow);
    packed.push_numbers([0, block_micros(check.limit)]);
    packed
}

/// Returns the length of a limit's blocks in microseconds.
pub(super) fn block_micros(limit: &Limit) -> u64 {
    limit.block_length().unwrap_or_default().0
}

/// Appends a check's role in the form that the scripts expect: the number of a quota group, or the
/// name of any other role.
pub(super) fn pack_role(packed: &mut Packed, role: Role) {
    match role {
        Role::Required => packed.push_string(b"required"),
        Role::Quota(number) => packed.push_number(u64::from(number)),
        Role::Shadow => packed.push_string(b"shadow"),
    }
}

/// Returns the number of hits that a check charges, refunds, or requires to be available. Caps the
/// number at a value above which more hits have no further effect, so that the scripts' arithmetic
/// stays exact.
pub(super) fn capped_cost(check: &Check<'_>) -> u64 {
    let Hits(cost) = if check.comes_first() { check.cost() } else { check.hits_needed() };
    let stops_at_limit = !check.is_refund() && !check.charges_always();
    let limit = check.limit;
    cost.min(match &limit.algorithm {
        Algorithm::FixedWindow(window) if stops_at_limit => window.hits.0.min(COUNT_MAX) + 1,
        Algorithm::FixedWindow(_) => COUNT_MAX + 1,
        // A refund may empty both windows.
        Algorithm::SlidingWindow(_) => 2 * COUNT_MAX,
        Algorithm::SlidingLog(_) => 2 * COUNTER_HITS_MAX + 1,
        Algorithm::Bucket(bucket) => {
            let credits = BucketCredits::new(bucket, limit.debt_charge());
            if check.is_refund() { credits.refund_hits_max() } else { credits.cap_hits + 1 }
        }
        Algorithm::Hybrid(classes) => HybridCredits::new(classes).burst + 1,
        Algorithm::Concurrency(slots) => slots.slots.0.min(COUNTER_HITS_MAX) + 1,
    })
}

/// Maximum number of MessagePack values that are sent separately rather than in one array. Lua's
/// stack has room for 8,000 values in one call. An array has no such limit, but costs Redis more to
/// fill.
const VALUES_MAX: usize = 4_000;

/// Packs the values into one array if there are too many for Lua's stack; otherwise returns them
/// unchanged.
pub(super) fn pack_into_array_if_too_many(packed: Packed) -> Packed {
    if packed.len() <= VALUES_MAX {
        return packed;
    }
    let mut array = Packed::default();
    array.push_array(&packed);
    array
}

/// Appends two arguments: the length of the longest list, and all lists, each padded to that
/// length.
fn add_lists(command: &mut Cmd, lists: impl Iterator<Item = Packed>) {
    let lists: SmallVec<[Packed; 2]> = lists.collect();
    let stride = lists.iter().map(Packed::len).max().unwrap_or(0);
    let mut all = Packed::default();
    for (nth, list) in (1..).zip(&lists) {
        all.extend(list);
        all.pad_to(nth * stride);
    }
    command.arg(stride).arg(pack_into_array_if_too_many(all).as_slice());
}

/// Packs a check in the format that `decide_call.lua` expects.
fn pack_check(check: &Check<'_>, local_now: Micros, next_key: &mut usize) -> Packed {
    let mut packed = Packed::default();
    let letter = algorithm_letter(&check.limit.algorithm);
    let is_budget = check.limit.reserve.is_some();
    packed.push_string(&[BUDGET_LETTER, letter][usize::from(!is_budget)..]);
    packed.push_string(op_name(check).as_bytes());
    pack_role(&mut packed, check.role);
    packed.push_number(capped_cost(check));
    pack_limit(&mut packed, check.limit, check.holder, local_now);
    if is_budget {
        packed.pad_to(CHECK_HEAD_VALUES + COUNTER_LIMIT_VALUES);
        pack_hold_keys(&mut packed, next_key);
        match check.holder {
            Some(Holder(id)) => pack_hold_id(&mut packed, id),
            None => packed.push_nil(),
        }
        if let Op::Hold { ttl_secs, .. } = check.op {
            packed.push_number(Micros::from_secs(ttl_secs.into()).0);
        }
    }
    packed
}

/// Packs the low 112 bits of the id of a hold: 16 bytes would take 24 in each of its two keys, and 14
/// take 16.
fn pack_hold_id(packed: &mut Packed, id: u128) {
    packed.push_string(&id.to_be_bytes()[2..]);
}

/// Packs the number of the first of two keys, and counts them.
fn pack_hold_keys(packed: &mut Packed, next_key: &mut usize) {
    packed.push_number(*next_key as u64);
    *next_key += 2;
}

/// Packs a receipt in the format that `refund.lua` expects.
fn pack_receipt(receipt: &Receipt, next_key: &mut usize) -> Packed {
    let Receipt { limit: taken_under, taken, .. } = receipt;
    let mut packed = Packed::default();
    let letter = algorithm_letter(&taken_under.algorithm);
    if receipt.is_hold() {
        packed.push_string(&[BUDGET_LETTER, letter]);
        packed.push_numbers([taken.hits.0, taken.at.0, taken.window.0]);
        pack_hold_id(&mut packed, taken.entry);
        packed.pad_to(RECEIPT_HEAD_VALUES + COUNTER_LIMIT_VALUES);
        pack_hold_keys(&mut packed, next_key);
        return packed;
    }
    packed.push_string(&[letter]);
    packed.push_numbers([taken.hits.0.min(COUNT_MAX), taken.at.0, taken.window.0]);
    match &taken_under.algorithm {
        Algorithm::Concurrency(_) => packed.push_string(&taken.entry.to_be_bytes()),
        Algorithm::FixedWindow(_)
        | Algorithm::SlidingWindow(_)
        | Algorithm::SlidingLog(_)
        | Algorithm::Bucket(_)
        | Algorithm::Hybrid(_) => {
            packed.push_number(u64::try_from(taken.entry).unwrap_or(u64::MAX))
        }
    }
    // A refund identifies a calendar window by its start, so any time within the window serves as
    // the local time.
    pack_limit(&mut packed, taken_under, None, taken.window);
    packed
}

/// Packs the parameters of a limit, in the order documented in the header of the algorithm's file
/// in `lua/algorithm`.
pub(super) fn pack_limit(
    packed: &mut Packed,
    limit: &Limit,
    holder: Option<Holder>,
    local_now: Micros,
) {
    let charge = limit.debt_charge();
    match &limit.algorithm {
        Algorithm::FixedWindow(window) => {
            let hits = window.hits.0.min(COUNT_MAX);
            packed.push_number(hits);
            match &window.window {
                Window::Epoch { length } => {
                    packed.push_number(length.0.max(1));
                    packed.push_nil();
                }
                Window::Calendar(calendar) => {
                    packed.push_number(CALENDAR_UNIT_US);
                    packed.push_numbers(calendar.boundaries_around(local_now).map(|bound| bound.0));
                }
            }
        }
        Algorithm::SlidingWindow(window) => {
            let cap = window.count_max();
            packed.push_numbers([window.hits.0, cap, window.length.0.max(1), window.tick().0]);
        }
        Algorithm::SlidingLog(log) => {
            let hits = log.hits.0.min(COUNTER_HITS_MAX);
            let cap = if charge.keeps_debt() { 2 * hits } else { hits };
            packed.push_numbers([hits, cap, log.length.0]);
        }
        Algorithm::Bucket(bucket) => {
            let BucketCredits { burst, cap, unit, flow, floor, .. } =
                BucketCredits::new(bucket, charge);
            packed.push_numbers([burst, cap, unit, flow, floor]);
        }
        Algorithm::Hybrid(classes) => {
            let credits = HybridCredits::new(classes);
            packed.push_numbers([credits.burst, credits.unit, credits.tick, classes.hits.0]);
            packed.push_numbers([classes.class as u64 + 1, u64::from(classes.floor_percent)]);
            packed.push_number(credits.expiry_ticks());
            packed.push_number(classes.shares.len() as u64);
            packed.push_numbers(classes.shares.iter().map(|share| u64::from(*share)));
        }
        Algorithm::Concurrency(slots) => {
            packed.push_numbers([slots.slots.0.min(COUNTER_HITS_MAX), slots.lease.0]);
            match holder {
                Some(Holder(bits)) => packed.push_string(&bits.to_be_bytes()),
                None => packed.push_nil(),
            }
        }
    }
}
