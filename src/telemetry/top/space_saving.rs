//! Sketches of the most rejected keys of one limit, by Space-Saving (Metwally, Agrawal, El Abbadi,
//! "Efficient computation of frequent and top-k elements in data streams", 2005).
//!
//! Each sliding window is a sequence of time buckets. In a bucket with n rejections, every key with
//! more than n / 32 of them is present; its count is never too low, and too high by at most `error`.
//! Not here: the request path.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::refusal_note::RefusalNote;
use crate::domain::Micros;

/// Maximum number of keys tracked per bucket: more than three times the number that is listed, so that
/// the listed counts are accurate.
pub(super) const KEYS_MAX: usize = 32;

/// The length of a window: so many buckets of this length. It covers up to one bucket less, because
/// the present bucket is not complete.
#[derive(Clone, Copy, Debug)]
pub(super) struct WindowShape {
    pub(super) bucket: Micros,
    /// How many, the present one included.
    pub(super) buckets: u64,
}

impl WindowShape {
    /// The longest time that the window covers, in seconds.
    pub(super) fn seconds(self) -> u64 {
        self.bucket.ceil_secs().saturating_mul(self.buckets)
    }
}

/// The last ten seconds.
pub(super) const NOW: WindowShape = WindowShape { bucket: Micros::from_secs(1), buckets: 10 };
/// The last hour.
pub(super) const HOUR: WindowShape = WindowShape { bucket: Micros::from_secs(300), buckets: 12 };
/// The last day.
pub(super) const DAY: WindowShape = WindowShape { bucket: Micros::from_secs(7_200), buckets: 12 };

/// The windows of one limit.
#[derive(Debug)]
pub(super) struct KeyWindows {
    pub(super) now: KeyWindow,
    pub(super) hour: KeyWindow,
    pub(super) day: KeyWindow,
}

impl Default for KeyWindows {
    fn default() -> Self {
        KeyWindows {
            now: KeyWindow::new(NOW),
            hour: KeyWindow::new(HOUR),
            day: KeyWindow::new(DAY),
        }
    }
}

impl KeyWindows {
    /// Counts a rejection in every window.
    pub(super) fn add(&mut self, now: Micros, note: &RefusalNote) {
        // Most keys that are rejected now were rejected in the last hours too, so the text is formatted
        // once and shared.
        let text = self.day.text(note.counter).unwrap_or_else(|| note.display().into());
        for window in [&mut self.now, &mut self.hour, &mut self.day] {
            window.add(now, note.counter, &text);
        }
    }
}

/// A sliding window.
#[derive(Debug)]
pub(super) struct KeyWindow {
    shape: WindowShape,
    /// The present bucket is the last. Buckets without rejections are absent.
    buckets: VecDeque<TimeBucket>,
}

#[derive(Debug)]
struct TimeBucket {
    /// Its start, in bucket lengths since the Unix epoch.
    number: u64,
    refused: u64,
    keys: Vec<KeyCount>,
}

#[derive(Debug)]
struct KeyCount {
    counter: u128,
    text: Arc<str>,
    /// Never too low.
    count: u64,
    /// How much `count` may be too high.
    error: u64,
}

/// A key's count over a whole window.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct KeyTotal {
    pub(super) counter: u128,
    pub(super) text: Arc<str>,
    /// The least possible number of rejections.
    pub(super) least: u64,
    /// The greatest possible number.
    pub(super) most: u64,
}

impl KeyWindow {
    pub(super) fn new(shape: WindowShape) -> Self {
        KeyWindow { shape, buckets: VecDeque::new() }
    }

    pub(super) fn add(&mut self, now: Micros, counter: u128, text: &Arc<str>) {
        let number = now.0 / self.shape.bucket.0;
        // If the clock was set back a little, counting continues in the latest bucket.
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

    /// The number of rejections, and the keys with the greatest certain counts, at most `keys_max`.
    pub(super) fn top(&self, now: Micros, keys_max: usize) -> (u64, Vec<KeyTotal>) {
        let number = now.0 / self.shape.bucket.0;
        let buckets = || {
            let is_current =
                |bucket: &&TimeBucket| bucket.number.abs_diff(number) < self.shape.buckets;
            self.buckets.iter().filter(is_current)
        };
        let mut keys: HashMap<u128, KeyTotal> = HashMap::new();
        // A key that is absent from every bucket may have had this many rejections.
        let absent: u64 = buckets().map(TimeBucket::least).sum();
        for bucket in buckets() {
            for key in &bucket.keys {
                let total = keys.entry(key.counter).or_insert_with(|| KeyTotal {
                    counter: key.counter,
                    text: Arc::clone(&key.text),
                    least: 0,
                    most: absent,
                });
                total.least += key.count - key.error;
                total.most += key.count - bucket.least();
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

    /// The greatest count that a key absent from this bucket may have had: the lowest present one if
    /// the bucket is full, else 0.
    fn least(&self) -> u64 {
        if self.keys.len() < KEYS_MAX {
            return 0;
        }
        self.keys.iter().map(|key| key.count).min().unwrap_or(0)
    }
}
