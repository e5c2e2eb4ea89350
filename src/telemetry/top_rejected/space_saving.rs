//! Sketches of the most rejected keys of one limit, by the Space-Saving algorithm (Metwally,
//! Agrawal, El Abbadi, "Efficient computation of frequent and top-k elements in data streams",
//! 2005).
//!
//! A sliding window is a sequence of time buckets. A bucket with n rejections contains every key
//! that was rejected more than n / 32 times. The count of a key is never too low, and too high by
//! at most the key's `error`.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::refusal_record::RefusalRecord;
use crate::domain::Micros;

/// Maximum number of keys tracked per time bucket. This is more than three times the number of
/// keys that are listed, which keeps the listed counts accurate.
pub(super) const BUCKET_KEYS_MAX: usize = 32;

/// Length and number of the time buckets of a sliding window. The newest bucket is still filling,
/// so the window can be up to one bucket shorter than `bucket_length` × `bucket_count`.
#[derive(Clone, Copy, Debug)]
pub(super) struct WindowShape {
    pub(super) bucket_length: Micros,
    /// Number of buckets, including the newest one.
    pub(super) bucket_count: u64,
}

impl WindowShape {
    /// Returns the maximum time that the window covers, in seconds.
    pub(super) fn seconds(self) -> u64 {
        self.bucket_length.ceil_secs().saturating_mul(self.bucket_count)
    }
}

/// Shapes of the windows of a limit: the last ten seconds, hour, and day.
pub(super) const WINDOW_SHAPES: [WindowShape; 3] = [
    WindowShape { bucket_length: Micros::from_secs(1), bucket_count: 10 },
    WindowShape { bucket_length: Micros::from_secs(300), bucket_count: 12 },
    WindowShape { bucket_length: Micros::from_secs(7_200), bucket_count: 12 },
];

/// Windows with the most rejected keys of one limit, in the order of [`WINDOW_SHAPES`].
#[derive(Debug)]
pub(super) struct KeyWindows(pub(super) [KeyWindow; WINDOW_SHAPES.len()]);

impl Default for KeyWindows {
    fn default() -> Self {
        KeyWindows(WINDOW_SHAPES.map(KeyWindow::new))
    }
}

impl KeyWindows {
    /// Counts a rejection in all windows.
    pub(super) fn add(&mut self, now: Micros, record: &RefusalRecord) {
        // Reuse the formatted text: most keys that are rejected now were also rejected in the last
        // hours.
        let [.., day] = &self.0;
        let text = day.find_text(record.counter).unwrap_or_else(|| record.display().into());
        for window in &mut self.0 {
            window.add(now, record.counter, &text);
        }
    }
}

/// Sliding window over the rejections of one limit.
#[derive(Debug)]
pub(super) struct KeyWindow {
    shape: WindowShape,
    /// Buckets in chronological order, newest last. Buckets without rejections are absent.
    buckets: VecDeque<TimeBucket>,
}

#[derive(Debug)]
struct TimeBucket {
    /// Start of the bucket, in bucket lengths since the Unix epoch.
    number: u64,
    rejections: FrequentKeys<Arc<str>>,
}

/// Counts of the most frequent of any number of keys, each with a label.
#[derive(Debug)]
pub(crate) struct FrequentKeys<T> {
    keys_max: usize,
    /// Number of all events, also of keys that are no longer tracked.
    total: u64,
    keys: Vec<KeyCount<T>>,
}

#[derive(Debug)]
struct KeyCount<T> {
    id: u128,
    label: T,
    /// Estimated number of events of the key; never too low, and at most `error` too high.
    count: u64,
    /// Maximum amount by which `count` is too high.
    error: u64,
}

/// Lower and upper bound of the number of rejections of a key over a whole window.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct KeyTotal {
    pub(super) counter: u128,
    pub(super) text: Arc<str>,
    /// Lower bound of the number of rejections.
    pub(super) lower_bound: u64,
    /// Upper bound of the number of rejections.
    pub(super) upper_bound: u64,
}

impl KeyWindow {
    pub(super) fn new(shape: WindowShape) -> Self {
        KeyWindow { shape, buckets: VecDeque::new() }
    }

    pub(super) fn add(&mut self, now: Micros, counter: u128, text: &Arc<str>) {
        let number = now.0 / self.shape.bucket_length.0;
        // If the clock was set back slightly, keep counting in the newest bucket.
        self.buckets.retain(|bucket| bucket.number.abs_diff(number) < self.shape.bucket_count);
        if self.buckets.back().is_none_or(|bucket| bucket.number < number) {
            self.buckets
                .push_back(TimeBucket { number, rejections: FrequentKeys::new(BUCKET_KEYS_MAX) });
        }
        if let Some(bucket) = self.buckets.back_mut() {
            bucket.rejections.add(counter, || Arc::clone(text));
        }
    }

    fn find_text(&self, counter: u128) -> Option<Arc<str>> {
        let mut keys = self.buckets.iter().rev().flat_map(|bucket| &bucket.rejections.keys);
        keys.find(|key| key.id == counter).map(|key| Arc::clone(&key.label))
    }

    /// Returns the number of rejections in the window, and the most rejected keys. There are at
    /// most `keys_max` keys, in descending order of the lower bound of their number of rejections.
    pub(super) fn top(&self, now: Micros, keys_max: usize) -> (u64, Vec<KeyTotal>) {
        let number = now.0 / self.shape.bucket_length.0;
        let buckets = || {
            let is_current =
                |bucket: &&TimeBucket| bucket.number.abs_diff(number) < self.shape.bucket_count;
            self.buckets.iter().filter(is_current).map(|bucket| &bucket.rejections)
        };
        let mut keys: HashMap<u128, KeyTotal> = HashMap::new();
        // Upper bound of the rejections of a key that is absent from all buckets.
        let absent: u64 = buckets().map(FrequentKeys::absent_count_max).sum();
        for bucket in buckets() {
            for key in &bucket.keys {
                let total = keys.entry(key.id).or_insert_with(|| KeyTotal {
                    counter: key.id,
                    text: Arc::clone(&key.label),
                    lower_bound: 0,
                    upper_bound: absent,
                });
                total.lower_bound += key.count - key.error;
                total.upper_bound += key.count - bucket.absent_count_max();
            }
        }
        let mut keys: Vec<KeyTotal> = keys.into_values().collect();
        keys.sort_unstable_by(|a, b| {
            (b.lower_bound, b.upper_bound)
                .cmp(&(a.lower_bound, a.upper_bound))
                .then(a.counter.cmp(&b.counter))
        });
        keys.truncate(keys_max);
        (buckets().map(|bucket| bucket.total).sum(), keys)
    }
}

impl<T> FrequentKeys<T> {
    /// Creates counts of at most `keys_max` keys.
    pub(crate) const fn new(keys_max: usize) -> FrequentKeys<T> {
        FrequentKeys { keys_max, total: 0, keys: Vec::new() }
    }

    /// Counts an event of a key. Calls `label` only for a key that is not tracked.
    pub(crate) fn add(&mut self, id: u128, label: impl FnOnce() -> T) {
        self.total += 1;
        if let Some(key) = self.keys.iter_mut().find(|key| key.id == id) {
            key.count += 1;
        } else if self.keys.len() < self.keys_max {
            self.keys.push(KeyCount { id, label: label(), count: 1, error: 0 });
        } else if let Some(least) = self.keys.iter_mut().min_by_key(|key| key.count) {
            let error = least.count;
            *least = KeyCount { id, label: label(), count: error + 1, error };
        }
    }

    /// Returns the number of all events.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// Returns the labels of at most `keys_max` keys, each with the lower bound of its number of
    /// events, in descending order.
    pub(crate) fn into_top(self, keys_max: usize) -> Vec<(T, u64)> {
        let bound = |key: KeyCount<T>| (key.label, key.count - key.error);
        let mut keys: Vec<_> = self.keys.into_iter().map(bound).collect();
        keys.sort_by_key(|(_, count)| Reverse(*count));
        keys.truncate(keys_max);
        keys
    }

    /// Returns the maximum number of events that a key can have without being tracked: the lowest
    /// count if the table is full, otherwise 0.
    fn absent_count_max(&self) -> u64 {
        if self.keys.len() < self.keys_max {
            return 0;
        }
        self.keys.iter().map(|key| key.count).min().unwrap_or(0)
    }
}
