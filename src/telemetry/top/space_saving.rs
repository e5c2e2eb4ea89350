//! The sketches of one limit: for each span of time some panes, in each pane the keys that were
//! refused most, by Space-Saving (Metwally, Agrawal, El Abbadi, "Efficient computation of frequent
//! and top-k elements in data streams", 2005).
//!
//! In a pane of n refusals every key with more than n / 32 of them is there, its count never too
//! low and too high by no more than its `error`. Not here: the request path.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::refusal_note::Note;
use crate::domain::Micros;

/// Keys that a pane keeps: more than three times as many as are listed.
pub(super) const KEYS_MAX: usize = 32;

/// A span of time, as panes that come and go: the shorter they are the nearer the span is to what
/// its name says, and the more of them there are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// The length of a pane.
    pub(super) pane: Micros,
    /// How many, the present one included.
    pub(super) panes: u64,
}

impl Shape {
    /// What the panes cover at most, in seconds.
    pub(super) fn seconds(self) -> u64 {
        self.pane.ceil_secs().saturating_mul(self.panes)
    }
}

/// The last ten seconds.
pub(super) const NOW: Shape = Shape { pane: Micros::from_secs(1), panes: 10 };
/// The last hour.
pub(super) const HOUR: Shape = Shape { pane: Micros::from_secs(300), panes: 12 };
/// The last day.
pub(super) const DAY: Shape = Shape { pane: Micros::from_secs(7_200), panes: 12 };

/// All spans of a limit.
#[derive(Debug)]
pub(super) struct Spans {
    pub(super) now: Span,
    pub(super) hour: Span,
    pub(super) day: Span,
}

impl Default for Spans {
    fn default() -> Self {
        Spans { now: Span::new(NOW), hour: Span::new(HOUR), day: Span::new(DAY) }
    }
}

impl Spans {
    /// Counts a refusal.
    pub(super) fn add(&mut self, now: Micros, note: &Note) {
        // Whoever is refused now was refused in the last hours too, mostly: its text is written
        // once and shared.
        let text = self.day.text(note.counter).unwrap_or_else(|| note.shown().into());
        for span in [&mut self.now, &mut self.hour, &mut self.day] {
            span.add(now, note.counter, &text);
        }
    }
}

/// A span of time.
#[derive(Debug)]
pub(super) struct Span {
    shape: Shape,
    /// The present pane is the last one. Panes in which nothing was refused are not there.
    panes: VecDeque<Pane>,
}

#[derive(Debug)]
struct Pane {
    /// When it began, in panes since 1970.
    number: u64,
    refused: u64,
    keys: Vec<Counted>,
}

#[derive(Debug)]
struct Counted {
    counter: u128,
    text: Arc<str>,
    /// Never too low.
    count: u64,
    /// By so much it may be too high.
    error: u64,
}

/// A key, over a whole span.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) counter: u128,
    pub(super) text: Arc<str>,
    /// RefusalEvent at least so often.
    pub(super) least: u64,
    /// And at most so often.
    pub(super) most: u64,
}

impl Span {
    pub(super) fn new(shape: Shape) -> Self {
        Span { shape, panes: VecDeque::new() }
    }

    pub(super) fn add(&mut self, now: Micros, counter: u128, text: &Arc<str>) {
        let number = now.0 / self.shape.pane.0;
        // A clock that was set back goes on in the pane it was in, unless that is far away.
        self.panes.retain(|pane| pane.number.abs_diff(number) < self.shape.panes);
        if self.panes.back().is_none_or(|pane| pane.number < number) {
            self.panes.push_back(Pane { number, refused: 0, keys: Vec::new() });
        }
        if let Some(pane) = self.panes.back_mut() {
            pane.add(counter, text);
        }
    }

    fn text(&self, counter: u128) -> Option<Arc<str>> {
        let mut keys = self.panes.iter().rev().flat_map(|pane| &pane.keys);
        keys.find(|key| key.counter == counter).map(|key| Arc::clone(&key.text))
    }

    /// How many refusals there were, and the keys that had most of them for certain.
    pub(super) fn read(&self, now: Micros, most: usize) -> (u64, Vec<Key>) {
        let number = now.0 / self.shape.pane.0;
        let panes =
            || self.panes.iter().filter(|pane| pane.number.abs_diff(number) < self.shape.panes);
        let mut keys: HashMap<u128, Key> = HashMap::new();
        // A key that a pane does not have was refused there at most so often.
        let unseen: u64 = panes().map(Pane::least).sum();
        for pane in panes() {
            for counted in &pane.keys {
                let key = keys.entry(counted.counter).or_insert_with(|| Key {
                    counter: counted.counter,
                    text: Arc::clone(&counted.text),
                    least: 0,
                    most: unseen,
                });
                key.least += counted.count - counted.error;
                key.most += counted.count - pane.least();
            }
        }
        let mut keys: Vec<Key> = keys.into_values().collect();
        keys.sort_unstable_by(|a, b| {
            (b.least, b.most).cmp(&(a.least, a.most)).then(a.counter.cmp(&b.counter))
        });
        keys.truncate(most);
        (panes().map(|pane| pane.refused).sum(), keys)
    }
}

impl Pane {
    fn add(&mut self, counter: u128, text: &Arc<str>) {
        self.refused += 1;
        if let Some(key) = self.keys.iter_mut().find(|key| key.counter == counter) {
            key.count += 1;
            return;
        }
        let text = Arc::clone(text);
        if self.keys.len() < KEYS_MAX {
            self.keys.push(Counted { counter, text, count: 1, error: 0 });
        } else if let Some(least) = self.keys.iter_mut().min_by_key(|key| key.count) {
            let error = least.count;
            *least = Counted { counter, text, count: error + 1, error };
        }
    }

    /// The lowest count where some keys may have had to go; no key that went had more.
    fn least(&self) -> u64 {
        if self.keys.len() < KEYS_MAX {
            return 0;
        }
        self.keys.iter().map(|key| key.count).min().unwrap_or(0)
    }
}
