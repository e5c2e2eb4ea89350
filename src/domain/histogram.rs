//! Numbers sorted into buckets, so that a share of them can be told without keeping each.
//!
//! Not here: what is measured, and under which name it is shown (`telemetry`).

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds of waiting times, in microseconds. Close together around the two budgets that a
/// decision has, 6 ms for the store and Envoy's 20 ms for all of it, so that the share of calls
/// beyond either can be read off; wide elsewhere, since each bound is a series for each node.
pub const DURATION_BOUNDS_US: [u64; 25] = [
    25, 50, 100, 150, 200, 300, 400, 500, 750, 1_000, 1_500, 2_000, 3_000, 4_000, 5_000, 6_000,
    7_000, 8_000, 10_000, 15_000, 20_000, 25_000, 50_000, 100_000, 1_000_000,
];

/// Upper bounds of how many items one write carries; a connection never writes more than 128.
pub const SIZE_BOUNDS: [u64; 8] = [1, 2, 4, 8, 16, 32, 64, 128];

/// Counts per bucket. Noting is two relaxed additions: no lock, no allocation.
#[derive(Debug)]
pub struct Histogram<const N: usize> {
    bounds: &'static [u64; N],
    counts: [AtomicU64; N],
    /// Above the last bound.
    above: AtomicU64,
    sum: AtomicU64,
}

/// Waiting times.
pub type DurationHistogram = Histogram<{ DURATION_BOUNDS_US.len() }>;

/// SizeHistogram of writes.
pub type SizeHistogram = Histogram<{ SIZE_BOUNDS.len() }>;

impl Default for DurationHistogram {
    fn default() -> Self {
        Histogram::new(&DURATION_BOUNDS_US)
    }
}

impl Default for SizeHistogram {
    fn default() -> Self {
        Histogram::new(&SIZE_BOUNDS)
    }
}

impl<const N: usize> Histogram<N> {
    /// Empty buckets with these upper bounds, which ascend.
    pub fn new(bounds: &'static [u64; N]) -> Self {
        let counts = std::array::from_fn(|_| AtomicU64::new(0));
        Histogram { bounds, counts, above: AtomicU64::new(0), sum: AtomicU64::new(0) }
    }

    /// One more number. A bound belongs to the bucket below it.
    pub fn record(&self, number: u64) {
        self.record_with(number, false);
    }

    /// The same; `single_writer`: no other thread notes anything, see [`add_relaxed`].
    fn record_with(&self, number: u64, single_writer: bool) {
        let at = self.bounds.partition_point(|bound| *bound < number);
        add_relaxed(self.counts.get(at).unwrap_or(&self.above), 1, single_writer);
        add_relaxed(&self.sum, number, single_writer);
    }

    /// What was noted so far. Not one moment: a number that is noted meanwhile may be in the sum
    /// and not in its bucket.
    pub fn snapshot(&self) -> HistogramSnapshot {
        let read = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        let counts = self.counts.iter().chain([&self.above]).map(read).collect();
        HistogramSnapshot { bounds: self.bounds, counts, sum: read(&self.sum) }
    }
}

impl DurationHistogram {
    /// One more wait, to the microsecond, rounded down.
    pub fn record_duration(&self, wait: Duration) {
        self.record_duration_with(wait, false);
    }

    /// The same; `single_writer`: no other thread notes anything, see [`add_relaxed`].
    pub fn record_duration_with(&self, wait: Duration, single_writer: bool) {
        self.record_with(u64::try_from(wait.as_micros()).unwrap_or(u64::MAX), single_writer);
    }
}

/// Adds to a cell. `single_writer`: no other thread ever writes it, so that a load and a store do, which cost
/// less than an addition that every thread may make; others may read it.
pub fn add_relaxed(cell: &AtomicU64, number: u64, single_writer: bool) {
    if single_writer {
        cell.store(cell.load(Ordering::Relaxed).wrapping_add(number), Ordering::Relaxed);
    } else {
        cell.fetch_add(number, Ordering::Relaxed);
    }
}

/// What a histogram held when it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistogramSnapshot {
    /// Upper bounds, ascending; each belongs to its bucket.
    pub bounds: &'static [u64],
    /// Per bucket, and at the end what was above the last bound: one more than bounds.
    pub counts: Vec<u64>,
    /// Of all numbers.
    pub sum: u64,
}

impl HistogramSnapshot {
    /// How many numbers.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The lowest bound that at least this share (0 to 1) of the numbers does not exceed: a true
    /// upper bound of the quantile, above it by less than one bucket. `None` where there are no
    /// numbers, or where only the bucket without an upper bound would do.
    pub fn quantile(&self, share: f64) -> Option<u64> {
        let count = self.count();
        if count == 0 {
            return None;
        }
        let wanted = (share * count as f64).ceil() as u64;
        let mut seen = 0;
        let mut counts = self.counts.iter();
        let bound = self.bounds.iter().find(|_| {
            seen += counts.next().unwrap_or(&0);
            seen >= wanted
        });
        bound.copied()
    }

    /// Adds what another histogram of the same bounds held.
    pub fn merge(&mut self, other: &HistogramSnapshot) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.sum += other.sum;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_belongs_to_the_bucket_below_it() {
        let sizes = SizeHistogram::default();
        for size in [0, 1, 2, 3, 128, 129] {
            sizes.record(size);
        }
        let read = sizes.snapshot();
        assert_eq!(read.counts, [2, 1, 1, 0, 0, 0, 0, 1, 1]);
        assert_eq!((read.count(), read.sum), (6, 263));
    }

    #[test]
    fn a_quantile_is_the_bound_that_it_does_not_exceed() {
        let sizes = SizeHistogram::default();
        assert_eq!(sizes.snapshot().quantile(0.5), None);
        for size in 1..=100 {
            sizes.record(size);
        }
        let read = sizes.snapshot();
        assert_eq!(
            [0.0, 0.5, 0.64, 0.65, 1.0].map(|share| read.quantile(share)),
            [1, 64, 64, 128, 128].map(Some)
        );
        sizes.record(1_000);
        assert_eq!(sizes.snapshot().quantile(1.0), None, "above every bound");
    }

    #[test]
    fn bounds_ascend_and_both_budgets_are_among_them() {
        assert!(DURATION_BOUNDS_US.is_sorted() && SIZE_BOUNDS.is_sorted());
        assert!(DURATION_BOUNDS_US.contains(&6_000) && DURATION_BOUNDS_US.contains(&20_000));
    }

    #[test]
    fn a_wait_beyond_every_bound_is_counted_above_them() {
        let waits = DurationHistogram::default();
        waits.record_duration(Duration::from_secs(3_600));
        assert_eq!(waits.snapshot().counts.last(), Some(&1));
    }

    #[test]
    fn distributions_of_the_same_bounds_add_up() {
        let (one, other) = (SizeHistogram::default(), SizeHistogram::default());
        one.record(1);
        other.record(1);
        other.record(100);
        let mut both = one.snapshot();
        both.merge(&other.snapshot());
        assert_eq!((both.count(), both.sum, both.counts[0]), (3, 102, 2));
    }
}
