//! Latencies of the last minute: histograms count since the process started, so one freeze would
//! otherwise show in the highest percentiles forever.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::domain::{HistogramSnapshot, Lock};

/// Time that [`RecentLatency`] looks back, 60 s.
const LOOKBACK: Duration = Duration::from_secs(60);

/// Minimum time between two kept snapshots, 1 s. At most 61 snapshots of 26 counts are kept.
const INTERVAL: Duration = Duration::from_secs(1);

/// Snapshots of a histogram, oldest first: one that is at least a minute old, if there is one, and
/// the later ones.
#[derive(Debug, Default)]
pub(super) struct RecentLatency(Lock<VecDeque<(Instant, HistogramSnapshot)>>);

impl RecentLatency {
    /// Keeps a snapshot, unless the last one is younger than a second.
    pub(super) fn keep(&self, now: Instant, read: impl FnOnce() -> HistogramSnapshot) {
        let mut kept = self.0.lock();
        let age = |at: &Instant| now.saturating_duration_since(*at);
        if kept.back().is_some_and(|(at, _)| age(at) < INTERVAL) {
            return;
        }
        kept.push_back((now, read()));
        while kept.get(1).is_some_and(|(at, _)| age(at) >= LOOKBACK) {
            kept.pop_front();
        }
    }

    /// Returns the values of `latest` that were recorded in the last minute, or in up to a second
    /// more. Returns `latest` while no snapshot is a minute old, because the process is younger.
    pub(super) fn last_minute(&self, now: Instant, latest: HistogramSnapshot) -> HistogramSnapshot {
        let kept = self.0.lock();
        let is_old = |at: &Instant| now.saturating_duration_since(*at) >= LOOKBACK;
        match kept.iter().rev().find(|(at, _)| is_old(at)) {
            Some((_, earlier)) => latest.since(earlier),
            None => latest,
        }
    }
}

/// Returns a percentile of durations, at most the last bound, in milliseconds.
pub(super) fn percentile_ms(durations: &HistogramSnapshot, fraction: f64) -> f64 {
    let bound_max = durations.bounds.last().copied().unwrap_or_default();
    let us = durations.quantile(fraction).unwrap_or(bound_max);
    Duration::from_micros(us).as_secs_f64() * 1e3
}
