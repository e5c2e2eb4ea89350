//! Encodes the calls of one write as one call of `decide.lua`.
//!
//! The script reads and writes each counter once, so that a call costs Redis half of what a script
//! call of its own does. A call by itself is encoded likewise. Not here: the outcomes (`replay`), which calls are queued (`client`).

use std::sync::Arc;

use redis::Cmd;
use smallvec::SmallVec;

use super::arguments::{self, Encoder, capped_cost};
use super::keys::{self, BLOCK_LETTER, algorithm_letter};
use super::library::ScriptCall;
use super::msgpack::{Packed, SmallValues, Unpacked, UnpackedItem};
use super::reply::NOT_HERE;
use crate::algorithm::bucket::BucketCredits;
use crate::domain::{
    Accounting, Algorithm, Call, Check, CounterKey, FixedWindow, Limit, Micros, Op,
    RepeatedCounters, Role, Window,
};

/// Maximum number of calls in one script call.
const CALLS_MAX: usize = 64;
/// Maximum number of counters in one script call, which are most of its cost.
const COUNTERS_MAX: usize = 128;
/// Maximum number of checks in one script call.
const CHECKS_MAX: usize = 512;
/// Approximate maximum size of one script call, in bytes: Redis reads at most 16 KiB from a
/// connection before it serves the next connection.
const BYTES_MAX: usize = 16 * 1024;
/// Number of a limit's values before those that its algorithm's file lists.
const LIMIT_HEAD_VALUES: usize = 8;
/// Largest count in a window's counter, which has ten decimal digits for it.
const COUNT_MAX: u64 = 9_999_999_999;

/// Returns whether `decide.lua` can decide a call: takes and peeks of windows and buckets, all of
/// different counters, and no charge that stands if the call is rejected.
pub fn is_shareable(checks: &[Check<'_>]) -> bool {
    let is_simple = |check: &Check<'_>| {
        let has_small_state = match &check.limit.algorithm {
            Algorithm::FixedWindow(_) | Algorithm::SlidingWindow(_) | Algorithm::Bucket(_) => true,
            Algorithm::SlidingLog(_) | Algorithm::Hybrid(_) | Algorithm::Concurrency(_) => false,
        };
        has_small_state
            && check.limit.reserve.is_none()
            && matches!(check.op, Op::Take { .. } | Op::Peek { .. })
            && !check.charges_always()
    };
    (1..=COUNTERS_MAX).contains(&counter_count(checks))
        && checks.iter().all(is_simple)
        && RepeatedCounters::from_checks(checks).is_empty()
}

/// Returns the number of counters of a call with different counters, and of their blocks.
fn counter_count(checks: &[Check<'_>]) -> usize {
    checks.len() + checks.iter().filter(|check| check.reads_block()).count()
}

/// Calls that become one call of `decide.lua`.
#[derive(Debug, Default)]
pub struct WriteCalls {
    /// Time that the script uses instead of the server's clock; only in tests.
    now: Option<Micros>,
    counters: Vec<SharedCounter>,
    index: CounterIndex,
    /// Texts of the counters' keys, one after another.
    keys: Vec<u8>,
    limits: Vec<SharedLimit>,
    /// Index in `limits` after the limit that was found last: calls often have the same limits in the
    /// same order.
    next_limit: usize,
    packed_limits: Packed,
    values: SmallValues,
    /// Index in `counters` of each check of each call, after that of its block if it has one.
    places: Vec<u8>,
    /// End of each call's checks in `places`.
    call_ends: Vec<u16>,
}

#[derive(Debug)]
struct SharedCounter {
    key: CounterKey,
    letter: u8,
    /// Windows of its limits, as [`windows_of`] returns them.
    windows: Micros,
    /// Index in `limits` of the limit under which the script reads it.
    limit: usize,
    /// End of its key in `keys`.
    key_end: usize,
}

/// Places of counters, hashed by their keys.
#[derive(Debug)]
struct CounterIndex {
    /// Number of a counter, from 1; 0 if there is none. A counter is where its key's last byte says, or
    /// in the next free place: at most half of them are taken.
    numbers: [u8; 2 * COUNTERS_MAX],
}

impl Default for CounterIndex {
    fn default() -> CounterIndex {
        CounterIndex { numbers: [0; 2 * COUNTERS_MAX] }
    }
}

impl CounterIndex {
    /// Returns the index in `counters` of a counter, or else where `numbers` has room for it.
    fn find(&self, key: &CounterKey, letter: u8, counters: &[SharedCounter]) -> Result<usize, u8> {
        let mut at = key.identity as u8;
        while let Some(place) = usize::from(self.numbers[usize::from(at)]).checked_sub(1) {
            if counters[place].key == *key && counters[place].letter == letter {
                return Ok(place);
            }
            at = at.wrapping_add(1);
        }
        Err(at)
    }
}

#[derive(Debug)]
struct SharedLimit {
    limit: Arc<Limit>,
    windows: Micros,
    /// Whether it stands for the limit's blocks.
    is_block: bool,
    /// Index of its first value in `packed_limits`, from 1 as in Lua.
    at: u64,
}

impl SharedLimit {
    fn letter(&self) -> u8 {
        if self.is_block { BLOCK_LETTER } else { algorithm_letter(&self.limit.algorithm) }
    }
}

impl WriteCalls {
    /// Returns the number of calls.
    pub fn len(&self) -> usize {
        self.call_ends.len()
    }

    /// Returns whether there are no calls.
    pub fn is_empty(&self) -> bool {
        self.call_ends.is_empty()
    }

    /// Returns whether another call fits. `now` is the time that the script uses instead of the
    /// server's clock.
    ///
    /// Two calls that differ in the windows of one counter do not fit together, because the script
    /// reads the value of a counter only once.
    pub fn fits(&self, call: &Call<'_>, now: Option<Micros>) -> bool {
        let checks = counter_count(call.checks);
        let differs = |check: &Check<'_>| {
            let letter = algorithm_letter(&check.limit.algorithm);
            let counter = self.find(check, letter).map(|place| &self.counters[place]);
            counter.is_ok_and(|one| one.windows != windows_of(check.limit, call.now))
        };
        self.is_empty()
            || self.len() < CALLS_MAX
                && self.counters.len() + checks <= COUNTERS_MAX
                && self.places.len() + checks <= CHECKS_MAX
                && self.wire_size() < BYTES_MAX
                && self.now == now
                && !call.checks.iter().any(differs)
    }

    /// Returns the approximate size of the encoded script call, in bytes.
    pub fn wire_size(&self) -> usize {
        let values = self.packed_limits.as_slice().len() + self.values.size();
        self.keys.len() + 8 * self.counters.len() + values
    }

    /// Adds a call for which [`fits`](Self::fits) has returned true.
    pub fn add(&mut self, encoder: &Encoder, call: &Call<'_>, now: Option<Micros>) {
        self.now = now;
        let start = self.places.len();
        let mut each = SmallVec::<[(usize, u64, &str, Role); 10]>::new();
        let mut is_plain = call.accounting == Accounting::AllOrNothing;
        for check in call.checks {
            if let Some(op) = arguments::block_op(check) {
                let limit = self.limit_index(check.limit, call.now, true);
                self.add_place(encoder, check, call.now, limit);
                each.push((limit, 0, op, Role::Shadow));
                is_plain = false;
            }
            let (limit, cost) =
                (self.limit_index(check.limit, call.now, false), capped_cost(check));
            let place = self.add_place(encoder, check, call.now, limit);
            let op = arguments::op_name(check);
            each.push((limit, cost, op, check.role));
            is_plain &= each.first().is_some_and(|(_, first, ..)| cost == *first)
                && self.counters[place].limit == limit
                && check.is_required()
                && op == "take";
        }
        self.call_ends.push(self.places.len() as u16);
        let (values, places) = (&mut self.values, &self.places[start..]);
        let number_of = |place: &u8| u64::from(*place) + 1;
        if is_plain {
            let cost = each.first().map_or(0, |(_, cost, ..)| *cost);
            values.push_numbers([places.len() as u64, cost]);
            values.push_numbers(places.iter().map(number_of));
            return;
        }
        values.push_number(0);
        values.push_string(arguments::accounting_name(call.accounting, false).as_bytes());
        values.push_number(places.len() as u64);
        for (place, (limit, cost, op, role)) in places.iter().zip(each) {
            values.push_numbers([number_of(place), cost, self.limits[limit].at]);
            values.push_string(op.as_bytes());
            arguments::pack_role(values.as_packed(), role);
        }
    }

    /// Encodes the script call. With `spans_slots`, the counters may be in several hash slots of a
    /// cluster's node.
    pub fn encode(&self, encoder: &Encoder, spans_slots: bool) -> ScriptCall {
        let script = &encoder.scripts.decide;
        let mut command = Cmd::with_capacity(5 + self.counters.len(), 64 + self.wire_size());
        command.arg("EVALSHA").arg(script.sha.as_str());
        // Redis checks that all KEYS are in one slot, so keys in several slots are arguments.
        if spans_slots {
            command.arg(0);
        } else {
            command.arg(self.counters.len());
            self.add_keys(&mut command);
        }
        arguments::add_time(&mut command, self.now);
        command.arg(arguments::pack_into_array_if_too_many(self.packed_limits.clone()).as_slice());
        let mut values = SmallValues::default();
        values.push_numbers(self.counters.iter().map(|counter| self.limits[counter.limit].at));
        values.extend(&self.values);
        command.arg(values.bytes());
        if let Some(packed) = values.message_pack() {
            command.arg(arguments::pack_into_array_if_too_many(packed.clone()).as_slice());
        } else if spans_slots {
            command.arg("");
        }
        if spans_slots {
            self.add_keys(&mut command);
        }
        ScriptCall { script, command, slot: None, deadline: None }
    }

    fn add_keys(&self, command: &mut Cmd) {
        let mut start = 0;
        for counter in &self.counters {
            command.arg(&self.keys[start..counter.key_end]);
            start = counter.key_end;
        }
    }

    /// Returns, for each call, whether the node holds all hash slots that it uses, if the script
    /// replied that the node does not hold some counters.
    pub fn calls_here(&self, reply: &[u8]) -> Option<Vec<bool>> {
        let mut reply = Unpacked::array(reply)?;
        let Some(UnpackedItem::String(NOT_HERE)) = reply.next_item() else { return None };
        let slot = |counter: &SharedCounter| keys::counter_slot(&counter.key);
        let mut elsewhere = SmallVec::<[u16; 4]>::new();
        while let Some(UnpackedItem::Number(place)) = reply.next_item() {
            let place = usize::try_from(place).ok().and_then(|place| place.checked_sub(1));
            elsewhere.extend(place.and_then(|place| self.counters.get(place)).map(slot));
        }
        // A key of a slot may be found although the slot is moving and it cannot be written.
        let is_here: Vec<bool> =
            self.counters.iter().map(|counter| !elsewhere.contains(&slot(counter))).collect();
        let all_here = |nth| self.places(nth).iter().all(|place| is_here[usize::from(*place)]);
        Some((0..self.len()).map(all_here).collect())
    }

    /// Returns the limit under which the script reads each counter; `None` for a block.
    pub fn limits(&self) -> impl Iterator<Item = Option<&Limit>> + Clone {
        self.counters.iter().map(|counter| {
            let shared = &self.limits[counter.limit];
            (!shared.is_block).then_some(&*shared.limit)
        })
    }

    /// Returns the indices of the counters of the `nth` call's checks.
    pub fn places(&self, nth: usize) -> &[u8] {
        let end = |nth: usize| self.call_ends.get(nth).map_or(0, |end| usize::from(*end));
        &self.places[nth.checked_sub(1).map_or(0, end)..end(nth)]
    }

    fn find(&self, check: &Check<'_>, letter: u8) -> Result<usize, u8> {
        self.index.find(&check.key, letter, &self.counters)
    }

    /// Adds a check of a counter, or of its block. Returns the index in `counters`.
    fn add_place(
        &mut self,
        encoder: &Encoder,
        check: &Check<'_>,
        local_now: Micros,
        limit: usize,
    ) -> usize {
        let letter = self.limits[limit].letter();
        let place = self.find(check, letter).unwrap_or_else(|free| {
            self.index.numbers[usize::from(free)] = self.counters.len() as u8 + 1;
            self.keys.extend_from_slice(&encoder.prefix.key_with_letter(&check.key, letter));
            self.counters.push(SharedCounter {
                key: check.key,
                letter,
                windows: windows_of(check.limit, local_now),
                limit,
                key_end: self.keys.len(),
            });
            self.counters.len() - 1
        });
        self.places.push(place as u8);
        place
    }

    /// Returns the index in `limits` of a limit, or of its blocks, and adds the limit if it is new.
    fn limit_index(&mut self, limit: &Arc<Limit>, local_now: Micros, is_block: bool) -> usize {
        let is_same = |known: &SharedLimit| {
            Arc::ptr_eq(&known.limit, limit)
                && known.windows == windows_of(limit, local_now)
                && known.is_block == is_block
        };
        let (earlier, later) = self.limits.split_at(self.next_limit);
        let known = later.iter().position(is_same).map(|at| at + earlier.len());
        if let Some(known) = known.or_else(|| earlier.iter().position(is_same)) {
            self.next_limit = known + 1;
            return known;
        }
        let at = self.packed_limits.len() as u64 + 1;
        let mut values = Packed::default();
        if is_block {
            values.push_number(arguments::block_micros(limit));
        } else {
            arguments::pack_limit(&mut values, limit, None, local_now);
        }
        let windows = windows_of(limit, local_now);
        let shared = SharedLimit { limit: Arc::clone(limit), windows, is_block, at };
        let next = at + (LIMIT_HEAD_VALUES + values.len()) as u64;
        pack_limit_head(&mut self.packed_limits, &shared, next);
        self.packed_limits.extend(&values);
        self.limits.push(shared);
        self.next_limit = self.limits.len();
        self.next_limit - 1
    }
}

/// Packs the values of a limit that precede those of its algorithm's file, in the order documented in
/// the head of `decide.lua`. `next` is the index of the next limit's first value.
fn pack_limit_head(packed: &mut Packed, shared: &SharedLimit, next: u64) {
    let SharedLimit { limit, is_block, .. } = shared;
    match &limit.algorithm {
        Algorithm::FixedWindow(FixedWindow { hits, window: Window::Epoch { .. } }) if !is_block => {
            packed.push_numbers([hits.0.min(arguments::COUNT_MAX), 1]);
            packed.push_nil();
            packed.push_number(COUNT_MAX);
            packed.push_nil();
            packed.push_nil();
        }
        Algorithm::Bucket(bucket) if !is_block => {
            let credits = BucketCredits::new(bucket, limit.charge);
            let reserved_credits = credits.floor.saturating_sub(1) * credits.unit;
            packed.push_numbers([credits.capacity - reserved_credits, credits.unit]);
            packed.push_nil();
            packed.push_number(credits.cap);
            packed.push_nil();
            packed.push_number(credits.flow);
        }
        Algorithm::FixedWindow(_)
        | Algorithm::Bucket(_)
        | Algorithm::SlidingWindow(_)
        | Algorithm::SlidingLog(_)
        | Algorithm::Hybrid(_)
        | Algorithm::Concurrency(_) => {
            packed.push_numbers([0, 0]);
            packed.pad_to(packed.len() + 4);
        }
    }
    packed.push_number(next);
    packed.push_string(&[shared.letter()]);
}

/// Returns the length of a limit's windows or, for calendar windows, the start of the one that the
/// process is in, which tells the bounds that the script gets. Returns zero for buckets.
fn windows_of(limit: &Limit, local_now: Micros) -> Micros {
    match &limit.algorithm {
        Algorithm::FixedWindow(window) => match &window.window {
            Window::Epoch { length } => *length,
            Window::Calendar(calendar) => calendar.window_at(local_now).start,
        },
        Algorithm::SlidingWindow(window) => window.length,
        Algorithm::SlidingLog(_)
        | Algorithm::Bucket(_)
        | Algorithm::Hybrid(_)
        | Algorithm::Concurrency(_) => Micros::ZERO,
    }
}
