//! Encodes checks and refund receipts as script calls.
//!
//! The header of each file in `lua/` lists the script's arguments, and a test compares that list
//! with this encoder. The encoder does the multiplications for the fast-path scripts, so that those
//! scripts only add and compare.
//!
//! Not here: the keys of counters (`keys`), the replies (`reply`).

use redis::Cmd;
use smallvec::SmallVec;

use super::library::{Script, Scripts};
use super::msgpack::Packed;
use super::selection::{
    FastPath, MultiCheckKind, ScriptSelection, is_credit_bucket, multi_check_kind,
    needs_extra_numbers,
};
use crate::algorithm::bucket::BucketCredits;
use crate::algorithm::hybrid::HybridCredits;
use crate::domain::{
    Accounting, Algorithm, Bucket, Call, Check, CounterKey, Hits, Holder, Limit, Micros, Op,
    Receipt, Role, Window,
};
use crate::store::redis::client::transport::ScriptCall;
use crate::store::redis::keys;
use crate::store::redis::keys::{Prefix, algorithm_letter};

/// Largest hit count that a window stores, 2^32 - 1.
pub(super) const COUNT_MAX: u64 = u32::MAX as u64;

/// Maximum number of hits in a sliding log, or of slots in a concurrency limit, that the scripts
/// support. An entry stores its hits in three bytes, and this is a quarter of that range. The
/// policy allows only 10,000.
const COUNTER_HITS_MAX: u64 = 1 << 22;

/// Unit in which calendar windows are numbered: one second, in microseconds. The number of a
/// calendar window is the window's start divided by this unit.
const CALENDAR_UNIT_US: u64 = 1_000_000;

/// Number of bytes to reserve per check for its encoded key and arguments: a key of 29 to 117
/// bytes, and four to six numbers of up to 16 digits.
const BYTES_PER_CHECK: usize = 160;

/// Which checks of a call a request to a node has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CallScope {
    /// Whether the other checks of an all-or-nothing call are decided elsewhere.
    pub(crate) is_part: bool,
    /// Whether the counters are in several hash slots of a cluster node.
    pub(crate) spans_slots: bool,
}

/// Encoder that turns checks and refund receipts into script calls.
#[derive(Clone, Debug)]
pub struct Encoder {
    prefix: Prefix,
    scripts: &'static Scripts,
    is_cluster: bool,
}

impl Encoder {
    /// Creates an encoder of calls to `scripts`. If `is_cluster` is true, each call contains the
    /// hash slot of its keys.
    pub fn new(prefix: Prefix, scripts: &'static Scripts, is_cluster: bool) -> Encoder {
        Encoder { prefix, scripts, is_cluster }
    }

    pub(super) fn prefix(&self) -> &Prefix {
        &self.prefix
    }

    pub(super) fn scripts(&self) -> &'static Scripts {
        self.scripts
    }

    pub(super) fn is_cluster(&self) -> bool {
        self.is_cluster
    }

    /// Returns the hash slot of the first counter; `None` if Redis is not a cluster.
    pub(crate) fn slot_of(&self, checks: &[Check<'_>]) -> Option<u16> {
        let first = checks.first().filter(|_| self.is_cluster);
        first.map(|check| keys::counter_slot(&check.key))
    }

    /// Encodes the script call that decides a call, or the part of a call that `scope` describes,
    /// with its deadline. `now` is `None` in production, where the scripts read the server's clock.
    pub(crate) fn encode(
        &self,
        call: &Call<'_>,
        scope: CallScope,
        now: Option<Micros>,
    ) -> ScriptCall {
        let Call { checks, accounting, now: local_now, deadline } = *call;
        let CallScope { is_part, spans_slots } = scope;
        let script_call = match (spans_slots, is_part) {
            (true, _) => self.encode_node_call(checks, accounting, is_part, now, local_now),
            (false, true) => self.encode_part(checks, now, local_now),
            (false, false) => self.encode_call(checks, accounting, now, local_now),
        };
        ScriptCall { deadline, ..script_call }
    }

    /// Encodes the script call that decides `checks`. On a cluster, all keys must be in one hash
    /// slot.
    ///
    /// `now` is `None` in production, where the scripts read the server's clock. `local_now` is
    /// this process's time; it selects the calendar windows to send.
    pub fn encode_call(
        &self,
        checks: &[Check<'_>],
        accounting: Accounting,
        now: Option<Micros>,
        local_now: Micros,
    ) -> ScriptCall {
        let mode_name = accounting_name(accounting, false);
        self.encode_in_slot(checks, accounting, mode_name, now, local_now)
    }

    /// Encodes the script call that decides some of the checks of an all-or-nothing call; other
    /// script calls decide the remaining checks. Decode the reply with
    /// [`ScriptReply::decode_part`](super::reply::ScriptReply::decode_part).
    pub fn encode_part(
        &self,
        checks: &[Check<'_>],
        now: Option<Micros>,
        local_now: Micros,
    ) -> ScriptCall {
        let accounting = Accounting::AllOrNothing;
        self.encode_in_slot(checks, accounting, accounting_name(accounting, true), now, local_now)
    }

    /// Encodes the script call that decides `checks`, whose keys are in several hash slots of one
    /// node. The node replies [`NOT_HERE`](super::reply::NOT_HERE) if it does not hold all of
    /// these keys. Decode any other reply like the reply to [`encode_part`](Self::encode_part) if
    /// `is_part` is true, otherwise like the reply to [`encode_call`](Self::encode_call).
    pub fn encode_node_call(
        &self,
        checks: &[Check<'_>],
        accounting: Accounting,
        is_part: bool,
        now: Option<Micros>,
        local_now: Micros,
    ) -> ScriptCall {
        let mode_name = accounting_name(accounting, is_part);
        let selection = ScriptSelection::for_checks(checks);
        let (script, takes_mode_name) = match selection {
            ScriptSelection::Multi => (&self.scripts.node_check, false),
            ScriptSelection::Single(_) | ScriptSelection::Apply => (&self.scripts.node_apply, true),
        };
        let order = selection.order(checks);
        let order = order.iter().map(|at| &checks[*at]);
        // Redis checks that all KEYS are in one slot, so these keys are arguments.
        let mut command = Cmd::with_capacity(7 + checks.len(), 64 + checks.len() * BYTES_PER_CHECK);
        command.arg("EVALSHA").arg(script.sha.as_str()).arg(0);
        add_time(&mut command, now);
        if takes_mode_name {
            command.arg(mode_name);
            add_lists(&mut command, order.clone().map(|check| pack_check(check, local_now)));
        } else {
            command.arg(pack_multi(order.clone(), accounting).as_slice());
        }
        for check in order {
            command.arg(self.prefix.key(&check.key, &check.limit.algorithm).as_slice());
        }
        self.script_call(script, command, checks.first().map(|check| &check.key))
    }

    fn encode_in_slot(
        &self,
        checks: &[Check<'_>],
        accounting: Accounting,
        mode_name: &str,
        now: Option<Micros>,
        local_now: Micros,
    ) -> ScriptCall {
        let selection = ScriptSelection::for_checks(checks);
        let script = match selection {
            ScriptSelection::Single(FastPath::FixedWindow(..)) => &self.scripts.single_fixed_window,
            ScriptSelection::Single(FastPath::Bucket(_)) => &self.scripts.single_bucket,
            ScriptSelection::Single(FastPath::SlidingWindow(_)) => {
                &self.scripts.single_sliding_window
            }
            ScriptSelection::Multi => &self.scripts.multi_check,
            ScriptSelection::Apply => &self.scripts.apply,
        };
        let mut command = build_evalsha(script, checks.len());
        let order = selection.order(checks);
        let order = order.iter().map(|at| &checks[*at]);
        for check in order.clone() {
            command.arg(self.prefix.key(&check.key, &check.limit.algorithm).as_slice());
        }
        add_time(&mut command, now);
        match selection {
            ScriptSelection::Single(path) => {
                checks.iter().for_each(|check| add_single_arguments(&mut command, check, path));
            }
            ScriptSelection::Multi => {
                command.arg(pack_multi(order, accounting).as_slice());
            }
            ScriptSelection::Apply => {
                command.arg(mode_name);
                add_lists(&mut command, order.map(|check| pack_check(check, local_now)));
            }
        }
        self.script_call(script, command, checks.first().map(|check| &check.key))
    }

    /// Encodes the script call that refunds `receipts`. On a cluster, all keys must be in one hash
    /// slot.
    pub fn encode_refund(&self, receipts: &[Receipt], now: Option<Micros>) -> ScriptCall {
        let script = &self.scripts.refund;
        let mut command = build_evalsha(script, receipts.len());
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
        let slot = key.filter(|_| self.is_cluster).map(keys::counter_slot);
        ScriptCall { script, command, slot, deadline: None }
    }
}

fn build_evalsha(script: &Script, keys: usize) -> Cmd {
    let mut command = Cmd::with_capacity(7 + keys, 64 + keys * BYTES_PER_CHECK);
    command.arg("EVALSHA").arg(script.sha.as_str()).arg(keys);
    command
}

/// Returns the name that `apply.lua` uses for an accounting mode. `is_part` is true if the other
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
        Op::Refund { .. } => "refund",
    }
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
    let Hits(cost) = if check.is_refund() { check.cost() } else { check.hits_needed() };
    let stops_at_limit = !check.is_refund() && !check.charges_always();
    let limit = check.limit;
    cost.min(match &limit.algorithm {
        Algorithm::FixedWindow(window) if stops_at_limit => window.hits.0.min(COUNT_MAX) + 1,
        Algorithm::FixedWindow(_) => COUNT_MAX + 1,
        // A refund may empty both windows.
        Algorithm::SlidingWindow(_) => 2 * COUNT_MAX,
        Algorithm::SlidingLog(_) => 2 * COUNTER_HITS_MAX + 1,
        Algorithm::Bucket(bucket) => {
            let credits = BucketCredits::new(bucket, limit.charge);
            if check.is_refund() { credits.refund_hits_max() } else { credits.cap_hits + 1 }
        }
        Algorithm::Hybrid(classes) => HybridCredits::new(classes).burst + 1,
        Algorithm::Concurrency(slots) => slots.slots.0.min(COUNTER_HITS_MAX) + 1,
    })
}

/// Appends the arguments of a `single_*.lua` script.
fn add_single_arguments(command: &mut Cmd, check: &Check<'_>, path: FastPath<'_>) {
    let is_take = op_name(check) == "take";
    let cost = capped_cost(check);
    match path {
        FastPath::FixedWindow(window, length) => {
            let hits = window.hits.0.min(COUNT_MAX);
            command.arg(cost).arg(hits).arg(length.0);
            if !is_take {
                command.arg(op_name(check));
            }
        }
        FastPath::Bucket(bucket) => {
            let BucketArguments { credits, needed_credits, reserved_credits } =
                BucketArguments::new(check, bucket, cost);
            command.arg(needed_credits).arg(credits.capacity - reserved_credits);
            let has_cap = reserved_credits > 0 || !is_take || credits.cap != credits.capacity;
            if is_credit_bucket(check) {
                command.arg(credits.flow);
            } else if has_cap {
                command.arg("");
            }
            if has_cap {
                command.arg(credits.cap);
            }
            if !is_take {
                let op = op_name(check);
                command.arg(op).arg(cost).arg(credits.burst).arg(credits.unit).arg(credits.floor);
            }
        }
        FastPath::SlidingWindow(window) => {
            command.arg(cost).arg(window.hits.0).arg(window.length.0.max(1)).arg(window.tick().0);
            if !is_take {
                command.arg(op_name(check)).arg(window.count_max());
            }
        }
    }
}

/// Arguments of a fast-path script for a check of a bucket limit, in credits.
struct BucketArguments {
    credits: BucketCredits,
    /// Credits to charge; one more than the capacity if the cost exceeds the burst, so that the
    /// check never passes.
    needed_credits: u64,
    /// Credits that must remain after the charge, as the floor of the consumer class requires.
    reserved_credits: u64,
}

impl BucketArguments {
    fn new(check: &Check<'_>, bucket: &Bucket, cost: u64) -> BucketArguments {
        let credits = BucketCredits::new(bucket, check.limit.charge);
        let needed_credits =
            if cost > credits.burst { credits.capacity + 1 } else { cost * credits.unit };
        let reserved_credits = credits.floor.saturating_sub(1) * credits.unit;
        BucketArguments { credits, needed_credits, reserved_credits }
    }
}

/// Packs the arguments of `multi_check.lua`. `checks` must be in the order of the script's keys.
fn pack_multi<'a>(
    checks: impl Iterator<Item = &'a Check<'a>> + Clone,
    accounting: Accounting,
) -> Packed {
    let of = |wanted| {
        checks.clone().filter(|check| multi_check_kind(check) == Some(wanted)).count() as u64
    };
    // Usually all limits of a call have the same charge. Then no bucket needs a cap of its own.
    let all_keep_debt = checks.clone().all(|check| check.limit.charge.keeps_debt());
    let is_special = |check: &&Check<'_>| needs_extra_numbers(check, accounting, all_keep_debt);
    let special = checks.clone().filter(is_special).count() as u64;
    let (mut packed, mut listed) = (Packed::default(), Packed::default());
    let all_or_nothing = u64::from(accounting == Accounting::AllOrNothing);
    packed.push_numbers([
        all_or_nothing,
        of(MultiCheckKind::FixedWindow),
        of(MultiCheckKind::ArrivalBucket),
        special,
    ]);
    packed.push_number(u64::from(all_keep_debt));
    for (place, check) in (1..).zip(checks) {
        let cost = capped_cost(check);
        let (cap, bucket) = match FastPath::for_check(check) {
            Some(FastPath::FixedWindow(window, length)) => {
                let hits = window.hits.0.min(COUNT_MAX);
                packed.push_numbers([cost, hits, length.0]);
                (0, [0; 4])
            }
            Some(FastPath::Bucket(bucket)) => {
                let BucketArguments { credits, needed_credits, reserved_credits } =
                    BucketArguments::new(check, bucket, cost);
                packed.push_numbers([needed_credits, credits.capacity - reserved_credits]);
                if is_credit_bucket(check) {
                    packed.push_number(credits.flow);
                }
                (credits.cap, [cost, credits.burst, credits.unit, credits.floor])
            }
            // `ScriptSelection::for_checks` never selects this script for such a check.
            Some(FastPath::SlidingWindow(_)) | None => (0, [0; 4]),
        };
        if is_special(&check) {
            listed.push_number(place);
            listed.push_string(op_name(check).as_bytes());
            pack_role(&mut listed, check.role);
            listed.push_number(cap);
            listed.push_numbers(bucket);
        }
    }
    packed.extend(&listed);
    pack_into_array_if_too_many(packed)
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

/// Packs a check in the format that `apply.lua` expects.
fn pack_check(check: &Check<'_>, local_now: Micros) -> Packed {
    let mut packed = Packed::default();
    packed.push_string(&[algorithm_letter(&check.limit.algorithm)]);
    packed.push_string(op_name(check).as_bytes());
    pack_role(&mut packed, check.role);
    packed.push_number(capped_cost(check));
    pack_limit(&mut packed, check.limit, check.holder, local_now);
    packed
}

/// Packs a receipt in the format that `refund.lua` expects.
fn pack_receipt(receipt: &Receipt) -> Packed {
    let Receipt { limit: taken_under, taken, .. } = receipt;
    let mut packed = Packed::default();
    packed.push_string(&[algorithm_letter(&taken_under.algorithm)]);
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
    let charge = limit.charge;
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
