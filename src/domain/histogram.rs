//! Histograms with fixed buckets, which estimate quantiles without storing every value.
//!
//! Not here: taking measurements, names of metrics (`telemetry`).

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds of the buckets of a [`DurationHistogram`], in microseconds. One bound is 20 ms, to
/// show how many calls exceed Envoy's default timeout. There are few buckets, because each one is a
/// time series per node.
pub const DURATION_BOUNDS_US: [u64; 25] = [
    25, 50, 100, 150, 200, 300, 400, 500, 750, 1_000, 1_500, 2_000, 3_000, 4_000, 5_000, 6_000,
    7_000, 8_000, 10_000, 15_000, 20_000, 25_000, 50_000, 100_000, 1_000_000,
];

/// Upper bounds of the buckets of a [`BatchSizeHistogram`], in commands per write. A connection
/// writes at most 128 commands at once.
pub const BATCH_SIZE_BOUNDS: [u64; 8] = [1, 2, 4, 8, 16, 32, 64, 128];

/// Histogram with fixed buckets, updated without locks. Recording a value takes two relaxed atomic
/// additions.
#[derive(Debug)]
pub struct Histogram<const N: usize> {
    bounds: &'static [u64; N],
    counts: [AtomicU64; N],
    /// Number of recorded values above the last bound.
    overflow: AtomicU64,
    sum: AtomicU64,
}

/// Histogram of durations in microseconds, with the bounds [`DURATION_BOUNDS_US`].
pub type DurationHistogram = Histogram<{ DURATION_BOUNDS_US.len() }>;

/// Histogram of batch sizes in commands per write, with the bounds [`BATCH_SIZE_BOUNDS`].
pub type BatchSizeHistogram = Histogram<{ BATCH_SIZE_BOUNDS.len() }>;

impl Default for DurationHistogram {
    fn default() -> Self {
        Histogram::new(&DURATION_BOUNDS_US)
    }
}

impl Default for BatchSizeHistogram {
    fn default() -> Self {
        Histogram::new(&BATCH_SIZE_BOUNDS)
    }
}

impl<const N: usize> Histogram<N> {
    /// Creates an empty histogram. `bounds` are the upper bounds of its buckets, in ascending
    /// order.
    pub fn new(bounds: &'static [u64; N]) -> Self {
        let counts = std::array::from_fn(|_| AtomicU64::new(0));
        Histogram { bounds, counts, overflow: AtomicU64::new(0), sum: AtomicU64::new(0) }
    }

    /// Records a value. A value equal to a bound belongs to the bucket of that bound.
    pub fn record(&self, number: u64) {
        self.record_with(number, false);
    }

    /// Records a value. If `single_writer` is true, no other thread may record values; see
    /// [`add_relaxed`].
    fn record_with(&self, number: u64, single_writer: bool) {
        let at = self.bounds.partition_point(|bound| *bound < number);
        add_relaxed(self.counts.get(at).unwrap_or(&self.overflow), 1, single_writer);
        add_relaxed(&self.sum, number, single_writer);
    }

    /// Returns the current counts. The snapshot is not atomic: a value that is recorded at the same
    /// time may be in the sum but not yet in its bucket.
    pub fn snapshot(&self) -> HistogramSnapshot {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counts = self.counts.iter().chain([&self.overflow]).map(load).collect();
        HistogramSnapshot { bounds: self.bounds, counts, sum: load(&self.sum) }
    }
}

impl DurationHistogram {
    /// Records a duration in whole microseconds, rounded down. If `single_writer` is true, no other
    /// thread may record values; see [`add_relaxed`].
    pub fn record_duration_with(&self, wait: Duration, single_writer: bool) {
        self.record_with(u64::try_from(wait.as_micros()).unwrap_or(u64::MAX), single_writer);
    }
}

/// Adds `number` to a counter with relaxed ordering. If `single_writer` is true, uses a load and a
/// store instead of the more expensive atomic addition. In that case, no other thread may write to
/// the counter, but any thread may read it.
pub fn add_relaxed(counter: &AtomicU64, number: u64, single_writer: bool) {
    if single_writer {
        counter.store(counter.load(Ordering::Relaxed).wrapping_add(number), Ordering::Relaxed);
    } else {
        counter.fetch_add(number, Ordering::Relaxed);
    }
}

/// Snapshot of a histogram's counts and sum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistogramSnapshot {
    /// Upper bounds of the buckets, ascending and inclusive.
    pub bounds: &'static [u64],
    /// Number of values in each bucket, followed by the number of values above the last bound.
    pub counts: Vec<u64>,
    /// Sum of all recorded values, in the unit of the bounds.
    pub sum: u64,
}

impl HistogramSnapshot {
    /// Returns the number of recorded values.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the upper bound of the bucket that contains the given quantile (0 to 1). Returns
    /// `None` if no values were recorded or if the quantile is above the last bound.
    pub fn quantile(&self, quantile: f64) -> Option<u64> {
        let count = self.count();
        if count == 0 {
            return None;
        }
        let wanted = (quantile * count as f64).ceil() as u64;
        let mut seen = 0;
        let mut counts = self.counts.iter();
        let bound = self.bounds.iter().find(|_| {
            seen += counts.next().unwrap_or(&0);
            seen >= wanted
        });
        bound.copied()
    }

    /// Returns the values that were recorded after `earlier`, a snapshot of the same histogram.
    pub fn since(mut self, earlier: &HistogramSnapshot) -> HistogramSnapshot {
        for (count, before) in self.counts.iter_mut().zip(&earlier.counts) {
            *count = count.saturating_sub(*before);
        }
        self.sum = self.sum.saturating_sub(earlier.sum);
        self
    }

    /// Adds the counts of another histogram with the same bounds.
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
    fn a_bound_is_inclusive() {
        let sizes = BatchSizeHistogram::default();
        for size in [0, 1, 2, 3, 128, 129] {
            sizes.record(size);
        }
        let read = sizes.snapshot();
        assert_eq!(read.counts, [2, 1, 1, 0, 0, 0, 0, 1, 1]);
        assert_eq!((read.count(), read.sum), (6, 263));
    }

    #[test]
    fn a_quantile_is_the_upper_bound_of_its_bucket() {
        let sizes = BatchSizeHistogram::default();
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
    fn bounds_ascend_and_include_6_and_20_ms() {
        assert!(DURATION_BOUNDS_US.is_sorted() && BATCH_SIZE_BOUNDS.is_sorted());
        assert!(DURATION_BOUNDS_US.contains(&6_000) && DURATION_BOUNDS_US.contains(&20_000));
    }

    #[test]
    fn a_duration_above_the_last_bound_is_counted() {
        let waits = DurationHistogram::default();
        waits.record_duration_with(Duration::from_secs(3_600), false);
        assert_eq!(waits.snapshot().counts.last(), Some(&1));
    }

    #[test]
    fn histograms_with_the_same_bounds_add_up() {
        let (one, other) = (BatchSizeHistogram::default(), BatchSizeHistogram::default());
        one.record(1);
        other.record(1);
        other.record(100);
        let mut both = one.snapshot();
        both.merge(&other.snapshot());
        assert_eq!((both.count(), both.sum, both.counts[0]), (3, 102, 2));
    }
}
