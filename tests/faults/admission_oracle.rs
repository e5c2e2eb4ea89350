//! Upper bound on over-admission, computed from the record of calls.
//!
//! It raises no false alarm: an admitted call took effect at some time between its sending and its
//! response, so it counts for an interval only if it lies in it as a whole.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::grpc_caller::CallResult;
use crate::open_loop_load::CallRecord;

/// Admitted calls by counter.
pub fn admitted(book: &[CallRecord]) -> BTreeMap<u32, u64> {
    let mut admitted = BTreeMap::new();
    for entry in book.iter().filter(|entry| entry.told == CallResult::Admitted) {
        *admitted.entry(entry.key).or_default() += 1;
    }
    admitted
}

/// What was admitted beyond a limit that holds for the whole run, in limits, by the worst counter:
/// 0 is exact, 1 is twice the limit.
pub fn beyond(book: &[CallRecord], limit: u64) -> f64 {
    let worst = admitted(book).into_values().max().unwrap_or(0);
    worst.saturating_sub(limit) as f64 / limit as f64
}

/// The same of a bucket that holds `burst` and gets `rate` a second back: in bursts, over every
/// interval and every counter.
pub fn beyond_bucket(book: &[CallRecord], burst: u64, rate: f64) -> f64 {
    let mut by_key: BTreeMap<u32, Vec<(Duration, Duration)>> = BTreeMap::new();
    for entry in book.iter().filter(|entry| entry.told == CallResult::Admitted) {
        by_key.entry(entry.key).or_default().push((entry.due, entry.done));
    }
    let worst = |calls: &Vec<(Duration, Duration)>| {
        let mut most = 0.0_f64;
        for (from, _) in calls {
            for (_, to) in calls.iter().filter(|(_, to)| to >= from) {
                let inside = calls.iter().filter(|(due, done)| due >= from && done <= to).count();
                let allowed = burst as f64 + rate * (*to - *from).as_secs_f64();
                most = most.max(inside as f64 - allowed);
            }
        }
        most / burst as f64
    };
    by_key.values().map(worst).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(key: u32, due: u64, done: u64, told: CallResult) -> CallRecord {
        let at = Duration::from_millis;
        CallRecord { key, target: 0, due: at(due), done: at(done), told }
    }

    #[test]
    fn only_the_worst_counter_and_only_admitted_calls_count() {
        let mut book: Vec<CallRecord> =
            (0..15).map(|at| call(1, at, at, CallResult::Admitted)).collect();
        book.extend((0..50).map(|at| call(2, at, at, CallResult::Refused)));
        book.extend((0..10).map(|at| call(3, at, at, CallResult::Admitted)));
        assert_eq!(beyond(&book, 10), 0.5);
        assert_eq!(beyond(&book, 15), 0.0);
    }

    #[test]
    fn a_bucket_may_give_its_burst_and_what_comes_back() {
        let exact: Vec<CallRecord> =
            (0..20).map(|at| call(1, at * 100, at * 100 + 1, CallResult::Admitted)).collect();
        assert_eq!(beyond_bucket(&exact, 10, 10.0), 0.0);
        let too_many: Vec<CallRecord> =
            (0..20).map(|at| call(1, at, at + 1, CallResult::Admitted)).collect();
        assert!((beyond_bucket(&too_many, 10, 10.0) - 0.98).abs() < 0.001);
    }

    #[test]
    fn a_call_that_may_have_taken_effect_outside_an_interval_is_not_counted_in_it() {
        let slow: Vec<CallRecord> =
            (0..20).map(|at| call(1, 0, at * 1_000, CallResult::Admitted)).collect();
        assert_eq!(beyond_bucket(&slow, 1, 1.0), 0.0);
    }
}
