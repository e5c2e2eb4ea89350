//! Sketches of the most frequent keys of one limit, by the Space-Saving algorithm (Metwally,
//! Agrawal, El Abbadi, "Efficient computation of frequent and top-k elements in data streams",
//! 2005). What is counted (rejections, hits) depends on the list.
//!
//! A sliding window is a sequence of time buckets. A bucket with n events that tracks k keys contains
//! every key with more than n / k of them. The count of a key is never too low, and too high by at most the key's
//! `error`.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::key_record::KeyRecord;
use crate::domain::Micros;

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

/// What is known of a key. All buckets that track the key share it.
#[derive(Debug, Default)]
pub(super) struct KeyLabel {
    /// Descriptor entries of the key, escaped.
    pub(super) text: Box<str>,
    /// Share of the limit that was used after the key's latest recorded check, in millionths.
    used_ppm: AtomicU32,
}

/// Windows with the most frequent keys of one limit, in the order of [`WINDOW_SHAPES`].
#[derive(Debug)]
pub(super) struct KeyWindows(pub(super) [KeyWindow; WINDOW_SHAPES.len()]);

impl KeyWindows {
    /// Creates empty windows whose buckets track at most `keys_max` keys each.
    pub(super) fn new(keys_max: usize) -> Self {
        KeyWindows(WINDOW_SHAPES.map(|shape| KeyWindow {
            shape,
            keys_max,
            buckets: VecDeque::new(),
        }))
    }

    /// Counts events of a record's key in all windows.
    pub(super) fn add(&mut self, now: Micros, record: &KeyRecord, weight: u64, used_ppm: u32) {
        // Reuse the formatted text: most keys were also seen in the last hours.
        let label = self.find_label(record.counter).unwrap_or_else(|| {
            Arc::new(KeyLabel { text: record.display().into(), ..KeyLabel::default() })
        });
        label.used_ppm.store(used_ppm, Ordering::Relaxed);
        for window in &mut self.0 {
            window.add(now, record.counter, weight, &label);
        }
    }

    /// Notes the used share of a key after its latest check, if the key is tracked.
    pub(super) fn set_used(&self, counter: u128, used_ppm: u32) {
        if let Some(label) = self.find_label(counter) {
            label.used_ppm.store(used_ppm, Ordering::Relaxed);
        }
    }

    fn find_label(&self, counter: u128) -> Option<Arc<KeyLabel>> {
        self.0.iter().find_map(|window| window.find_label(counter))
    }
}

/// Sliding window over the events of one limit.
#[derive(Debug)]
pub(super) struct KeyWindow {
    shape: WindowShape,
    /// Maximum number of keys tracked per bucket.
    keys_max: usize,
    /// Buckets in chronological order, newest last. Buckets without events are absent.
    buckets: VecDeque<TimeBucket>,
}

#[derive(Debug)]
struct TimeBucket {
    /// Start of the bucket, in bucket lengths since the Unix epoch.
    number: u64,
    keys: FrequentKeys<Arc<KeyLabel>>,
}

/// Counts of the most frequent of any number of keys, each with a label.
#[derive(Debug)]
pub(crate) struct FrequentKeys<T> {
    keys_max: usize,
    /// Number of all events, including those of keys that are no longer tracked.
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

/// Bounds of the number of events of a key over a whole window.
#[derive(Clone, Debug)]
pub(super) struct KeyTotal {
    pub(super) counter: u128,
    pub(super) label: Arc<KeyLabel>,
    pub(super) lower_bound: u64,
    pub(super) upper_bound: u64,
}

impl KeyTotal {
    /// Returns the share of the limit that was used after the key's latest check, in millionths.
    pub(super) fn used_ppm(&self) -> u32 {
        self.label.used_ppm.load(Ordering::Relaxed)
    }
}

/// Events of one limit in a window.
#[derive(Debug)]
pub(super) struct WindowTotal {
    /// Number of events of all keys.
    pub(super) total: u64,
    /// Tracked keys, in no order.
    pub(super) keys: Vec<KeyTotal>,
    /// Upper bound of the number of events of a key that is not among `keys`.
    pub(super) absent_at_most: u64,
}

impl KeyWindow {
    fn add(&mut self, now: Micros, counter: u128, weight: u64, label: &Arc<KeyLabel>) {
        let number = now.0 / self.shape.bucket_length.0;
        // If the clock was set back slightly, keep counting in the newest bucket.
        self.buckets.retain(|bucket| bucket.number.abs_diff(number) < self.shape.bucket_count);
        if self.buckets.back().is_none_or(|bucket| bucket.number < number) {
            self.buckets.push_back(TimeBucket { number, keys: FrequentKeys::new(self.keys_max) });
        }
        if let Some(bucket) = self.buckets.back_mut() {
            bucket.keys.add(counter, weight, || Arc::clone(label));
        }
    }

    fn find_label(&self, counter: u128) -> Option<Arc<KeyLabel>> {
        let mut keys = self.buckets.iter().rev().flat_map(|bucket| &bucket.keys.keys);
        keys.find(|key| key.id == counter).map(|key| Arc::clone(&key.label))
    }

    /// Returns the events of the window, as of `now`.
    pub(super) fn totals(&self, now: Micros) -> WindowTotal {
        let number = now.0 / self.shape.bucket_length.0;
        // Newest first, because its label is the latest.
        let buckets = || {
            let is_current =
                |bucket: &&TimeBucket| bucket.number.abs_diff(number) < self.shape.bucket_count;
            self.buckets.iter().rev().filter(is_current).map(|bucket| &bucket.keys)
        };
        let mut keys: HashMap<u128, KeyTotal> = HashMap::new();
        let absent_at_most =
            buckets().map(FrequentKeys::absent_count_max).fold(0, u64::saturating_add);
        for bucket in buckets() {
            for key in &bucket.keys {
                let total = keys.entry(key.id).or_insert_with(|| KeyTotal {
                    counter: key.id,
                    label: Arc::clone(&key.label),
                    lower_bound: 0,
                    upper_bound: absent_at_most,
                });
                let above_absent = key.count - bucket.absent_count_max();
                total.lower_bound = total.lower_bound.saturating_add(key.count - key.error);
                total.upper_bound = total.upper_bound.saturating_add(above_absent);
            }
        }
        let total = buckets().map(|bucket| bucket.total).fold(0, u64::saturating_add);
        WindowTotal { total, keys: keys.into_values().collect(), absent_at_most }
    }
}

impl<T> FrequentKeys<T> {
    pub(crate) const fn new(keys_max: usize) -> FrequentKeys<T> {
        FrequentKeys { keys_max, total: 0, keys: Vec::new() }
    }

    /// Counts `weight` events of a key. Calls `label` only for a key that is not tracked.
    pub(crate) fn add(&mut self, id: u128, weight: u64, label: impl FnOnce() -> T) {
        self.total = self.total.saturating_add(weight);
        if let Some(key) = self.keys.iter_mut().find(|key| key.id == id) {
            key.count = key.count.saturating_add(weight);
        } else if self.keys.len() < self.keys_max {
            self.keys.push(KeyCount { id, label: label(), count: weight, error: 0 });
        } else if let Some(least) = self.keys.iter_mut().min_by_key(|key| key.count) {
            let error = least.count;
            let count = error.saturating_add(weight);
            *least = KeyCount { id, label: label(), count, error };
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
