//! Sketches of the most rejected keys of one limit, by the Space-Saving algorithm (Metwally,
//! Agrawal, El Abbadi, "Efficient computation of frequent and top-k elements in data streams",
//! 2005).
//!
//! A sliding window is a sequence of time buckets. A bucket with n rejections contains every key
//! with more than n / 32 of them. A key's count is never too low, and at most `error` too high.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::refusal_note::RefusalNote;
use crate::domain::Micros;

/// Maximum number of keys tracked per time bucket. This is more than three times the number of
/// keys that are listed, which keeps the listed counts accurate.
pub(super) const KEYS_MAX: usize = 32;

/// Shape of a sliding window: the length and the number of its time buckets. The newest bucket is
/// still filling, so the window can be shorter than `bucket` × `buckets` by up to one bucket.
#[derive(Clone, Copy, Debug)]
pub(super) struct WindowShape {
    pub(super) bucket: Micros,
    /// Number of buckets, including the current one.
    pub(super) buckets: u64,
}

impl WindowShape {
    /// Returns the maximum time that the window covers, in seconds.
    pub(super) fn seconds(self) -> u64 {
        self.bucket.ceil_secs().saturating_mul(self.buckets)
    }
}

/// Sliding window over the last ten seconds: ten buckets of 1 s.
pub(super) const LAST_TEN_SECONDS: WindowShape =
    WindowShape { bucket: Micros::from_secs(1), buckets: 10 };
/// Sliding window over the last hour: twelve buckets of 5 min.
pub(super) const LAST_HOUR: WindowShape =
    WindowShape { bucket: Micros::from_secs(300), buckets: 12 };
/// Sliding window over the last 24 hours: twelve buckets of 2 h.
pub(super) const LAST_DAY: WindowShape =
    WindowShape { bucket: Micros::from_secs(7_200), buckets: 12 };

/// Sliding windows over the rejections of one limit: ten seconds, an hour, a day.
#[derive(Debug)]
pub(super) struct KeyWindows {
    pub(super) now: KeyWindow,
    pub(super) hour: KeyWindow,
    pub(super) day: KeyWindow,
}

impl Default for KeyWindows {
    fn default() -> Self {
        KeyWindows {
            now: KeyWindow::new(LAST_TEN_SECONDS),
            hour: KeyWindow::new(LAST_HOUR),
            day: KeyWindow::new(LAST_DAY),
        }
    }
}

impl KeyWindows {
    /// Counts a rejection in all windows.
    pub(super) fn add(&mut self, now: Micros, note: &RefusalNote) {
        // Reuse the formatted text: most keys that are rejected now were also rejected in the last
        // hours.
        let text = self.day.text(note.counter).unwrap_or_else(|| note.display().into());
        for window in [&mut self.now, &mut self.hour, &mut self.day] {
            window.add(now, note.counter, &text);
        }
    }
}

/// Sliding window over the rejections of one limit.
#[derive(Debug)]
pub(super) struct KeyWindow {
    shape: WindowShape,
    /// Buckets in chronological order; the last one is the newest. Buckets without rejections are
    /// absent.
    buckets: VecDeque<TimeBucket>,
}

#[derive(Debug)]
struct TimeBucket {
    /// Start of the bucket, in bucket lengths since the Unix epoch.
    number: u64,
    refused: u64,
    keys: Vec<KeyCount>,
}

#[derive(Debug)]
struct KeyCount {
    counter: u128,
    text: Arc<str>,
    /// Number of rejections of the key; never too low, and at most `error` too high.
    count: u64,
    /// Maximum amount by which `count` is too high.
    error: u64,
}

/// Number of rejections of a key over a whole window, as a range.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct KeyTotal {
    pub(super) counter: u128,
    pub(super) text: Arc<str>,
    /// Lower bound of the number of rejections.
    pub(super) least: u64,
    /// Upper bound of the number of rejections.
    pub(super) most: u64,
}

impl KeyWindow {
    pub(super) fn new(shape: WindowShape) -> Self {
        KeyWindow { shape, buckets: VecDeque::new() }
    }

    pub(super) fn add(&mut self, now: Micros, counter: u128, text: &Arc<str>) {
        let number = now.0 / self.shape.bucket.0;
        // If the clock was set back slightly, keep counting in the newest bucket.
        self.buckets.retain(|bucket| bucket.number.abs_diff(number) < self.shape.buckets);
        if self.buckets.back().is_none_or(|bucket| bucket.number < number) {
            self.buckets.push_back(TimeBucket { number, refused: 0, keys: Vec::new() });
        }
        if let Some(bucket) = self.buckets.back_mut() {
            bucket.add(counter, text);
        }
    }

    fn text(&self, counter: u128) -> Option<Arc<str>> {
        let mut keys = self.buckets.iter().rev().flat_map(|bucket| &bucket.keys);
        keys.find(|key| key.counter == counter).map(|key| Arc::clone(&key.text))
    }

    /// Returns the number of rejections in the window, and the most rejected keys: up to
    /// `keys_max` keys, sorted by the lower bound of their number of rejections, highest first.
    pub(super) fn top(&self, now: Micros, keys_max: usize) -> (u64, Vec<KeyTotal>) {
        let number = now.0 / self.shape.bucket.0;
        let buckets = || {
            let is_current =
                |bucket: &&TimeBucket| bucket.number.abs_diff(number) < self.shape.buckets;
            self.buckets.iter().filter(is_current)
        };
        let mut keys: HashMap<u128, KeyTotal> = HashMap::new();
        // Upper bound of the rejections of a key that is absent from all buckets.
        let absent: u64 = buckets().map(TimeBucket::absent_count_max).sum();
        for bucket in buckets() {
            for key in &bucket.keys {
                let total = keys.entry(key.counter).or_insert_with(|| KeyTotal {
                    counter: key.counter,
                    text: Arc::clone(&key.text),
                    least: 0,
                    most: absent,
                });
                total.least += key.count - key.error;
                total.most += key.count - bucket.absent_count_max();
            }
        }
        let mut keys: Vec<KeyTotal> = keys.into_values().collect();
        keys.sort_unstable_by(|a, b| {
            (b.least, b.most).cmp(&(a.least, a.most)).then(a.counter.cmp(&b.counter))
        });
        keys.truncate(keys_max);
        (buckets().map(|bucket| bucket.refused).sum(), keys)
    }
}

impl TimeBucket {
    fn add(&mut self, counter: u128, text: &Arc<str>) {
        self.refused += 1;
        if let Some(key) = self.keys.iter_mut().find(|key| key.counter == counter) {
            key.count += 1;
            return;
        }
        let text = Arc::clone(text);
        if self.keys.len() < KEYS_MAX {
            self.keys.push(KeyCount { counter, text, count: 1, error: 0 });
        } else if let Some(least) = self.keys.iter_mut().min_by_key(|key| key.count) {
            let error = least.count;
            *least = KeyCount { counter, text, count: error + 1, error };
        }
    }

    /// Returns the maximum number of rejections of a key that is absent from the bucket: the
    /// lowest count in the bucket if it is full, otherwise 0.
    fn absent_count_max(&self) -> u64 {
        if self.keys.len() < KEYS_MAX {
            return 0;
        }
        self.keys.iter().map(|key| key.count).min().unwrap_or(0)
    }
}
