//! Encodes the calls of one write as one call of `decide.lua`.
//!
//! The script reads and writes each counter once, which costs Redis less than half of a script call
//! per call. Not here: the outcomes (`replay`), which calls are queued (`client`).

use std::sync::Arc;

use redis::Cmd;

use super::arguments::{self, Encoder};
use super::msgpack::Packed;
use crate::domain::{
    Accounting, Algorithm, Call, Check, CounterKey, FixedWindow, Limit, Micros, Op,
    RepeatedCounters, Role, Window,
};
use crate::store::redis::client::transport::ScriptCall;
use crate::store::redis::keys::algorithm_letter;

/// Maximum number of calls in one script call. Redis decides them in 0.1 ms.
const CALLS_MAX: usize = 64;
/// Maximum number of counters in one script call.
const COUNTERS_MAX: usize = 128;
/// Maximum number of checks in one script call.
const CHECKS_MAX: usize = 512;
/// Approximate maximum size of one script call, in bytes: Redis reads at most 16 KiB from a
/// connection before it serves the next connection.
const BYTES_MAX: usize = 16 * 1024;
/// Number of values before the limits.
const HEAD_VALUES: usize = 2;

/// Returns whether `decide.lua` can decide a call: takes and peeks of windows and buckets, all of
/// different counters, and no charge of a rejected call.
pub fn is_shareable(checks: &[Check<'_>]) -> bool {
    let is_simple = |check: &Check<'_>| {
        let algorithm = match &check.limit.algorithm {
            Algorithm::FixedWindow(_) | Algorithm::SlidingWindow(_) | Algorithm::Bucket(_) => true,
            Algorithm::SlidingLog(_) | Algorithm::Hybrid(_) | Algorithm::Concurrency(_) => false,
        };
        algorithm
            && matches!(check.op, Op::Take { .. } | Op::Peek { .. })
            && !check.charges_always()
    };
    (1..=COUNTERS_MAX).contains(&checks.len())
        && checks.iter().all(is_simple)
        && RepeatedCounters::from_checks(checks).is_empty()
}

/// Calls that become one call of `decide.lua`.
#[derive(Debug, Default)]
pub struct WriteCalls {
    /// Time that the script is told; `None` inside if it uses the server's clock.
    now: Option<Option<Micros>>,
    calls: usize,
    counters: Vec<SharedCounter>,
    /// Texts of the counters' keys, one after another.
    keys: Vec<u8>,
    limits: Vec<SharedLimit>,
    packed_limits: Packed,
    packed_calls: Packed,
    /// Index in `counters` of each check of each call.
    places: Vec<u8>,
}

#[derive(Debug)]
struct SharedCounter {
    key: CounterKey,
    letter: u8,
    /// Length of the windows; zero for other limits, and for calendar windows.
    length: Micros,
    key_end: usize,
}

#[derive(Debug)]
struct SharedLimit {
    limit: Arc<Limit>,
    /// Start of the calendar window that the caller's clock is in; zero for other limits.
    window: Micros,
    /// Index of its values in the script's numbers.
    at: u64,
}

impl WriteCalls {
    /// Returns the number of calls.
    pub fn len(&self) -> usize {
        self.calls
    }

    /// Returns whether there are no calls.
    pub fn is_empty(&self) -> bool {
        self.calls == 0
    }

    /// Returns whether another call fits. `now` is the time that the script is to use instead of the
    /// server's clock.
    ///
    /// Does not admit two calls that differ in the length of one counter's windows: the state of a
    /// counter would mean something else to each.
    pub fn fits(&self, call: &Call<'_>, now: Option<Micros>) -> bool {
        let checks = call.checks.len();
        let is_known_otherwise = |check: &Check<'_>| {
            let known = self.find(check);
            known.is_some_and(|at| self.counters[at].length != window_length(check))
        };
        self.is_empty()
            || self.calls < CALLS_MAX
                && self.counters.len() + checks <= COUNTERS_MAX
                && self.places.len() + checks <= CHECKS_MAX
                && self.wire_size() < BYTES_MAX
                && self.now == Some(now)
                && !call.checks.iter().any(is_known_otherwise)
    }

    /// Returns the approximate size of the encoded script call, in bytes.
    pub fn wire_size(&self) -> usize {
        let packed = self.packed_limits.as_slice().len() + self.packed_calls.as_slice().len();
        self.keys.len() + 8 * self.counters.len() + packed
    }

    /// Adds a call for which [`fits`](Self::fits) has returned true.
    pub fn add(&mut self, encoder: &Encoder, call: &Call<'_>, now: Option<Micros>) {
        self.now = Some(now);
        self.calls += 1;
        let is_plain =
            |check: &Check<'_>| arguments::op_name(check) == "take" && check.role == Role::Required;
        let is_plain =
            call.accounting == Accounting::AllOrNothing && call.checks.iter().all(is_plain);
        if !is_plain {
            self.packed_calls.push_number(0);
            let accounting = arguments::accounting_name(call.accounting, false);
            self.packed_calls.push_string(accounting.as_bytes());
        }
        self.packed_calls.push_number(call.checks.len() as u64);
        for check in call.checks {
            let place = self.find(check).unwrap_or_else(|| self.add_counter(encoder, check));
            self.places.push(place as u8);
            let at = self.limit_index(check.limit, call.now);
            let packed = &mut self.packed_calls;
            packed.push_numbers([place as u64 + 1, at, arguments::capped_cost(check)]);
            if !is_plain {
                packed.push_string(arguments::op_name(check).as_bytes());
                arguments::pack_role(packed, check.role);
            }
        }
    }

    /// Encodes the script call.
    pub fn encode(&self, encoder: &Encoder) -> ScriptCall {
        let script = &encoder.scripts().decide;
        let mut command = Cmd::with_capacity(5 + self.counters.len(), 64 + self.wire_size());
        command.arg("EVALSHA").arg(script.sha.as_str()).arg(self.counters.len());
        let mut start = 0;
        for counter in &self.counters {
            command.arg(&self.keys[start..counter.key_end]);
            start = counter.key_end;
        }
        arguments::add_time(&mut command, self.now.flatten());
        let mut numbers = Packed::default();
        let last = HEAD_VALUES + self.packed_limits.len();
        numbers.push_numbers([last as u64, (last + self.packed_calls.len()) as u64]);
        numbers.extend(&self.packed_limits);
        numbers.extend(&self.packed_calls);
        let mut array = Packed::default();
        array.push_array(&numbers);
        command.arg(array.as_slice());
        ScriptCall { script, command, slot: None, deadline: None }
    }

    /// Returns the number of different counters.
    pub(super) fn counter_count(&self) -> usize {
        self.counters.len()
    }

    /// Returns the indices of the counters of all checks, in order.
    pub(super) fn places(&self) -> &[u8] {
        &self.places
    }

    fn find(&self, check: &Check<'_>) -> Option<usize> {
        let letter = algorithm_letter(&check.limit.algorithm);
        self.counters.iter().position(|known| known.key == check.key && known.letter == letter)
    }

    fn add_counter(&mut self, encoder: &Encoder, check: &Check<'_>) -> usize {
        let algorithm = &check.limit.algorithm;
        self.keys.extend_from_slice(&encoder.prefix().key(&check.key, algorithm));
        self.counters.push(SharedCounter {
            key: check.key,
            letter: algorithm_letter(algorithm),
            length: window_length(check),
            key_end: self.keys.len(),
        });
        self.counters.len() - 1
    }

    /// Returns the index of a limit in the script's numbers, and adds the limit if it is new.
    fn limit_index(&mut self, limit: &Arc<Limit>, local_now: Micros) -> u64 {
        let window = match &limit.algorithm {
            Algorithm::FixedWindow(FixedWindow { window: Window::Calendar(calendar), .. }) => {
                calendar.window_at(local_now).start
            }
            _ => Micros::ZERO,
        };
        let is_same =
            |known: &&SharedLimit| Arc::ptr_eq(&known.limit, limit) && known.window == window;
        // The limits of a call often are those of the call before it.
        if let Some(known) = self.limits.iter().find(is_same) {
            return known.at;
        }
        let at = (HEAD_VALUES + self.packed_limits.len() + 1) as u64;
        self.packed_limits.push_string(&[algorithm_letter(&limit.algorithm)]);
        arguments::pack_limit(&mut self.packed_limits, limit, None, local_now);
        self.limits.push(SharedLimit { limit: Arc::clone(limit), window, at });
        at
    }
}

/// Returns the length of a check's windows; zero for other limits, and for calendar windows.
fn window_length(check: &Check<'_>) -> Micros {
    match &check.limit.algorithm {
        Algorithm::FixedWindow(window) => match window.window {
            Window::Epoch { length } => length,
            Window::Calendar(_) => Micros::ZERO,
        },
        Algorithm::SlidingWindow(window) => window.length,
        Algorithm::SlidingLog(_)
        | Algorithm::Bucket(_)
        | Algorithm::Hybrid(_)
        | Algorithm::Concurrency(_) => Micros::ZERO,
    }
}
