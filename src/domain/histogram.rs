//! Numbers sorted into buckets, so that a share of them can be told without keeping each.
//!
//! Not here: what is measured, and under which name it is shown (`telemetry`).

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds of waiting times, in microseconds. Close together around the two budgets that a
/// decision has, 6 ms for the store and Envoy's 20 ms for all of it, so that the share of calls
/// beyond either can be read off; wide elsewhere, since each bound is a series for each node.
pub const WAITS_US: [u64; 25] = [
    25, 50, 100, 150, 200, 300, 400, 500, 750, 1_000, 1_500, 2_000, 3_000, 4_000, 5_000, 6_000,
    7_000, 8_000, 10_000, 15_000, 20_000, 25_000, 50_000, 100_000, 1_000_000,
];

/// Upper bounds of how many items one write carries; a connection never writes more than 128.
pub const SIZES: [u64; 8] = [1, 2, 4, 8, 16, 32, 64, 128];

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
pub type Waits = Histogram<{ WAITS_US.len() }>;

/// Sizes of writes.
pub type Sizes = Histogram<{ SIZES.len() }>;

impl Default for Waits {
    fn default() -> Self {
        Histogram::new(&WAITS_US)
    }
}

impl Default for Sizes {
    fn default() -> Self {
        Histogram::new(&SIZES)
    }
}

impl<const N: usize> Histogram<N> {
    /// Empty buckets with these upper bounds, which ascend.
    pub fn new(bounds: &'static [u64; N]) -> Self {
        let counts = std::array::from_fn(|_| AtomicU64::new(0));
        Histogram { bounds, counts, above: AtomicU64::new(0), sum: AtomicU64::new(0) }
    }

    /// One more number. A bound belongs to the bucket below it.
    pub fn note(&self, number: u64) {
        self.note_as(number, false);
    }

    /// The same; `alone`: no other thread notes anything, see [`add_to`].
    fn note_as(&self, number: u64, alone: bool) {
        let at = self.bounds.partition_point(|bound| *bound < number);
        add_to(self.counts.get(at).unwrap_or(&self.above), 1, alone);
        add_to(&self.sum, number, alone);
    }

    /// What was noted so far. Not one moment: a number that is noted meanwhile may be in the sum
    /// and not in its bucket.
    pub fn read(&self) -> Distribution {
        let read = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        let counts = self.counts.iter().chain([&self.above]).map(read).collect();
        Distribution { bounds: self.bounds, counts, sum: read(&self.sum) }
    }
}

impl Waits {
    /// One more wait, to the microsecond, rounded down.
    pub fn took(&self, wait: Duration) {
        self.took_as(wait, false);
    }

    /// The same; `alone`: no other thread notes anything, see [`add_to`].
    pub fn took_as(&self, wait: Duration, alone: bool) {
        self.note_as(u64::try_from(wait.as_micros()).unwrap_or(u64::MAX), alone);
    }
}

/// Adds to a cell. `alone`: no other thread ever writes it, so that a load and a store do, which cost
/// less than an addition that every thread may make; others may read it.
pub fn add_to(cell: &AtomicU64, number: u64, alone: bool) {
    if alone {
        cell.store(cell.load(Ordering::Relaxed).wrapping_add(number), Ordering::Relaxed);
    } else {
        cell.fetch_add(number, Ordering::Relaxed);
    }
}

/// What a histogram held when it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Distribution {
    /// Upper bounds, ascending; each belongs to its bucket.
    pub bounds: &'static [u64],
    /// Per bucket, and at the end what was above the last bound: one more than bounds.
    pub counts: Vec<u64>,
    /// Of all numbers.
    pub sum: u64,
}

impl Distribution {
    /// How many numbers.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The lowest bound that at least this share (0 to 1) of the numbers does not exceed: a true
    /// upper bound of the quantile, above it by less than one bucket. `None` where there are no
    /// numbers, or where only the bucket without an upper bound would do.
    pub fn below(&self, share: f64) -> Option<u64> {
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
    pub fn add(&mut self, other: &Distribution) {
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
        let sizes = Sizes::default();
        for size in [0, 1, 2, 3, 128, 129] {
            sizes.note(size);
        }
        let read = sizes.read();
        assert_eq!(read.counts, [2, 1, 1, 0, 0, 0, 0, 1, 1]);
        assert_eq!((read.count(), read.sum), (6, 263));
    }

    #[test]
    fn a_quantile_is_the_bound_that_it_does_not_exceed() {
        let sizes = Sizes::default();
        assert_eq!(sizes.read().below(0.5), None);
        for size in 1..=100 {
            sizes.note(size);
        }
        let read = sizes.read();
        assert_eq!(
            [0.0, 0.5, 0.64, 0.65, 1.0].map(|share| read.below(share)),
            [1, 64, 64, 128, 128].map(Some)
        );
        sizes.note(1_000);
        assert_eq!(sizes.read().below(1.0), None, "above every bound");
    }

    #[test]
    fn bounds_ascend_and_both_budgets_are_among_them() {
        assert!(WAITS_US.is_sorted() && SIZES.is_sorted());
        assert!(WAITS_US.contains(&6_000) && WAITS_US.contains(&20_000));
    }

    #[test]
    fn a_wait_beyond_every_bound_is_counted_above_them() {
        let waits = Waits::default();
        waits.took(Duration::from_secs(3_600));
        assert_eq!(waits.read().counts.last(), Some(&1));
    }

    #[test]
    fn distributions_of_the_same_bounds_add_up() {
        let (one, other) = (Sizes::default(), Sizes::default());
        one.note(1);
        other.note(1);
        other.note(100);
        let mut both = one.read();
        both.add(&other.read());
        assert_eq!((both.count(), both.sum, both.counts[0]), (3, 102, 2));
    }
}
