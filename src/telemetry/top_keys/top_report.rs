//! Report of the most frequent keys, and the sum of those of several replicas. The structs are
//! serialized as the JSON of `/top`, so renaming a field changes the interface.

use std::cmp::Reverse;
use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::space_saving::{KeyTotal, WINDOW_SHAPES};
use super::{LimitResolver, MILLION, TRACKED_LIMITS_MAX, TopBy, TopKeys, TopList};
use crate::domain::Micros;

/// Maximum number of keys of a limit in a report. More than are listed in the end, because each key
/// that a replica leaves out loosens the bounds of the sums over replicas.
const REPORTED_KEYS_MAX: usize = 64;

/// Maximum number of keys of a report in each window, 640, of which each limit has its part. With at
/// most 500 bytes per key, three windows stay below 1 MiB, which is what a replica accepts from another.
const WINDOW_KEYS_MAX: usize = 640;

/// Response of `/top`: the first keys of each limit in three windows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopReport {
    /// What the counts count.
    pub by: TopBy,
    /// Display format of descriptor values: `shortened` or `hashed`.
    pub values: String,
    /// Number of checks since startup that are missing from the lists. Possible reasons: they
    /// arrived faster than they could be recorded, more than 64 limits had some, or the rule
    /// was removed from the policy.
    pub unrecorded: u64,
    /// Number of passed checks of which one is now recorded. If it was 1 throughout a window, counts
    /// are exact within their bounds. Otherwise they are estimates: those of n calls have a standard
    /// deviation of at most √(n × `one_in`) calls.
    pub one_in: u64,
    /// Events in a sliding window over the last ten seconds.
    pub now: TopWindow,
    /// Events in a sliding window over the last hour.
    pub last_hour: TopWindow,
    /// Events in a sliding window over the last 24 hours.
    pub last_day: TopWindow,
}

/// Events of all limits within one sliding window.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopWindow {
    /// Maximum length of the window in seconds. Because the newest bucket is still filling, the
    /// window can be shorter by up to one bucket: a tenth of the window for `now`, a twelfth for
    /// the other windows.
    pub seconds: u64,
    /// Limits with events, most events first.
    pub limits: Vec<TopLimit>,
}

/// Events of one limit within a window.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopLimit {
    /// Name of the limit's domain.
    pub domain: String,
    /// Path of the rule, as in metrics; `(override)` for request overrides.
    pub rule: String,
    /// Name of the limit within its rule; `None` if unnamed.
    pub limit: Option<String>,
    /// Whether the refusals did not reject their calls, because of shadow mode or because a quota
    /// group of the call passes. A limit with refusals of both kinds is listed twice.
    pub shadow: bool,
    /// Number of events of all keys in the window.
    pub count: u64,
    /// Upper bound of the number of events of a key that is not in `keys`.
    pub absent_at_most: u64,
    /// First keys: those with most events, or for `near` those that use most of their limit.
    pub keys: Vec<TopKey>,
}

/// Events of one key within a window.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopKey {
    /// Descriptor entries of the counter, with control characters and invalid UTF-8 escaped. If
    /// values are hashed, contains only the keys of the entries.
    pub key: String,
    /// Identity of the counter, 32 hexadecimal digits, as printed by `tidegate explain`.
    pub counter: String,
    /// Lower bound of the number of events.
    pub count: u64,
    /// Upper bound of the number of events.
    pub count_at_most: u64,
    /// Share of the limit that was used after the key's latest recorded check, in percent, rounded
    /// down; 0 in the list of rejections.
    pub used_percent: u32,
}

impl TopKeys {
    /// Returns a report of the first keys of each limit, as of `now`.
    pub fn report(&self, by: TopBy, now: Micros, resolve: LimitResolver<'_>) -> TopReport {
        let lists = &mut *self.lists.lock();
        self.drain_into(lists, now, resolve);
        let list = &lists.each[by as usize];
        let [now, last_hour, last_day] =
            std::array::from_fn(|at| self.build_window(list, by, at, now));
        let mut report = TopReport {
            by,
            values: self.value_display.as_str().to_owned(),
            unrecorded: self.dropped(by) + list.unplaced,
            one_in: if by == TopBy::Rejected { 1 } else { self.one_in() },
            now,
            last_hour,
            last_day,
        };
        report.keep_first(REPORTED_KEYS_MAX.min(WINDOW_KEYS_MAX / list.entries.len().max(1)));
        report
    }

    /// Lists the keys in the windows at one position of [`WINDOW_SHAPES`].
    fn build_window(&self, list: &TopList, by: TopBy, at: usize, now: Micros) -> TopWindow {
        let is_listed = |key: &KeyTotal| {
            by != TopBy::Near || f64::from(key.used_ppm()) >= self.near_ratio * MILLION
        };
        let build_key = |key: KeyTotal| TopKey {
            key: key.label.text.to_string(),
            counter: format!("{:032x}", key.counter),
            count: key.lower_bound,
            count_at_most: key.upper_bound,
            used_percent: key.used_ppm() / 10_000,
        };
        let limits = list.entries.iter().map(|limit| {
            let totals = limit.windows.0[at].totals(now);
            let (keys, left_out): (Vec<_>, Vec<_>) = totals.keys.into_iter().partition(is_listed);
            let left_out = left_out.iter().map(|key| key.upper_bound);
            TopLimit {
                domain: limit.name.domain.to_string(),
                rule: limit.name.rule.to_string(),
                limit: (!limit.name.limit.is_empty()).then(|| limit.name.limit.to_string()),
                shadow: limit.id.1,
                count: totals.total,
                absent_at_most: left_out.fold(totals.absent_at_most, u64::max),
                keys: keys.into_iter().map(build_key).collect(),
            }
        });
        let limits = limits.filter(|limit| !limit.keys.is_empty()).collect();
        TopWindow { seconds: WINDOW_SHAPES[at].seconds(), limits }
    }
}

impl TopReport {
    fn windows(&mut self) -> [&mut TopWindow; 3] {
        [&mut self.now, &mut self.last_hour, &mut self.last_day]
    }

    /// Adds the report of another replica.
    ///
    /// The bounds of a key are the sums of its bounds in both reports. A report that does not list the
    /// key adds 0 to the lower bound, and its `absent_at_most` to the upper bound: the lowest count of
    /// its full sketches, or the upper bound of a key that it leaves out, whichever is more. The true
    /// number over all replicas thus lies between the bounds, and a key that no report lists has at
    /// most `absent_at_most` events. If a replica has n events in a time bucket that tracks k keys, this
    /// bucket adds at most n / k to the difference of the bounds.
    ///
    /// Keys are the same if their `counter` is, so all replicas need one key secret. The used share of
    /// a key is its highest on any replica.
    pub fn merge(&mut self, mut other: TopReport) {
        self.unrecorded = self.unrecorded.saturating_add(other.unrecorded);
        self.one_in = self.one_in.max(other.one_in);
        for (window, theirs) in self.windows().into_iter().zip(other.windows()) {
            for limit in theirs.limits.drain(..).take(TRACKED_LIMITS_MAX) {
                match window.limits.iter_mut().find(|own| own.id() == limit.id()) {
                    Some(own) => own.merge(limit),
                    None => window.limits.push(limit),
                }
            }
        }
    }

    /// Sorts limits and keys, and removes the keys of each limit after the first `keys_max`.
    pub fn keep_first(&mut self, keys_max: usize) {
        let by = self.by;
        for window in self.windows() {
            window.limits.iter_mut().for_each(|limit| limit.keep_first(by, keys_max));
            window.limits.sort_by_key(|limit| Reverse(limit.count));
        }
    }
}

impl TopLimit {
    fn id(&self) -> (&str, &str, Option<&str>, bool) {
        (&self.domain, &self.rule, self.limit.as_deref(), self.shadow)
    }

    fn merge(&mut self, other: TopLimit) {
        let keys = other.keys.into_iter().map(|key| (key.counter.clone(), key));
        let mut keys: HashMap<String, TopKey> = keys.collect();
        for key in &mut self.keys {
            let theirs = keys.remove(&key.counter);
            let at_most = theirs.as_ref().map_or(other.absent_at_most, |key| key.count_at_most);
            key.count_at_most = key.count_at_most.saturating_add(at_most);
            key.count = key.count.saturating_add(theirs.as_ref().map_or(0, |key| key.count));
            key.used_percent = key.used_percent.max(theirs.map_or(0, |key| key.used_percent));
        }
        self.keys.extend(keys.into_values().map(|key| TopKey {
            count_at_most: key.count_at_most.saturating_add(self.absent_at_most),
            ..key
        }));
        self.count = self.count.saturating_add(other.count);
        self.absent_at_most = self.absent_at_most.saturating_add(other.absent_at_most);
    }

    fn keep_first(&mut self, by: TopBy, keys_max: usize) {
        self.keys.sort_by_cached_key(|key| {
            let used = if by == TopBy::Near { key.used_percent } else { 0 };
            (Reverse((used, key.count, key.count_at_most)), key.counter.clone())
        });
        let left_out = self.keys.iter().skip(keys_max).map(|key| key.count_at_most);
        self.absent_at_most = left_out.fold(self.absent_at_most, u64::max);
        self.keys.truncate(keys_max);
    }
}
