//! Counts the calls of the last second: all calls, and those that the store did not decide.
//!
//! Not here: deciding whether the undecided calls are an outage (`outage`).

use std::sync::atomic::{AtomicU64, Ordering};

use crate::domain::Micros;

/// Base-2 logarithm of a bucket's length in microseconds: a bucket lasts 2^17 µs = 131 ms. The
/// length is a power of two, so that a bit shift converts a time into the number of its interval.
const BUCKET_BITS: u32 = 17;
/// Number of buckets in the sliding window. Together, they cover 1.05 s.
const BUCKET_COUNT: usize = 8;
/// Increment of the upper 32 bits of [`Bucket::counts`], which count the undecided calls. The lower
/// 32 bits count all calls.
const UNDECIDED_INCREMENT: u64 = 1 << 32;

/// Counter of the calls of the last second, in a sliding window. Lock-free: a call may go
/// uncounted if another thread resets the bucket at the same time.
#[derive(Debug, Default)]
pub(super) struct RecentCalls {
    buckets: [Bucket; BUCKET_COUNT],
}

#[derive(Debug, Default)]
struct Bucket {
    /// Time interval whose calls the bucket counts: its start, in microseconds since the Unix
    /// epoch, shifted right by [`BUCKET_BITS`].
    interval: AtomicU64,
    counts: AtomicU64,
}

/// Number of all calls and number of undecided calls in the last second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RecentCounts {
    /// Number of calls, decided or not.
    pub(super) calls: u64,
    /// Number of calls that the store did not decide.
    pub(super) undecided: u64,
}

impl RecentCalls {
    /// Counts a call. `is_decided` states whether the store decided it.
    pub(super) fn record(&self, now: Micros, is_decided: bool) {
        let interval = now.0 >> BUCKET_BITS;
        let bucket = &self.buckets[interval as usize % BUCKET_COUNT];
        let counted = bucket.interval.load(Ordering::Relaxed);
        if counted != interval
            && bucket
                .interval
                .compare_exchange(counted, interval, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
        {
            bucket.counts.store(0, Ordering::Relaxed);
        }
        let call = if is_decided { 1 } else { UNDECIDED_INCREMENT + 1 };
        bucket.counts.fetch_add(call, Ordering::Relaxed);
    }

    /// Returns the number of all calls and the number of undecided calls in the second before
    /// `now`.
    pub(super) fn counts(&self, now: Micros) -> RecentCounts {
        let interval = now.0 >> BUCKET_BITS;
        let recent = self.buckets.iter().filter(|bucket| {
            interval.wrapping_sub(bucket.interval.load(Ordering::Relaxed)) < BUCKET_COUNT as u64
        });
        recent.fold(RecentCounts::default(), |sum, bucket| {
            let counts = bucket.counts.load(Ordering::Relaxed);
            RecentCounts {
                calls: sum.calls + counts % UNDECIDED_INCREMENT,
                undecided: sum.undecided + counts / UNDECIDED_INCREMENT,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Micros = Micros(1_763_668_800_000_000);

    fn after(millis: u64) -> Micros {
        Micros(NOW.0 + millis * 1_000)
    }

    #[test]
    fn only_calls_of_the_last_second_count() {
        let recent = RecentCalls::default();
        for call in 0..300 {
            recent.record(after(call * 10), call % 3 > 0);
        }
        let RecentCounts { calls, undecided } = recent.counts(after(2_990));
        assert!((90..=106).contains(&calls), "{calls}");
        assert!((30..=36).contains(&undecided), "{undecided}");
        assert_eq!(recent.counts(after(4_100)), RecentCounts::default());
        assert_eq!(recent.counts(NOW), RecentCounts::default(), "the clock stepped back");
    }
}
