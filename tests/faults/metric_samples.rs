//! Samples of a Tidegate's own metrics, every few milliseconds during a trial.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::support::http::{Reply, try_get};
use crate::trial::either;

/// Between two samples: what is detected within tens of milliseconds is seen. Where no times are
/// judged, an unoptimised build has better things to do than to tell its metrics.
fn every() -> Duration {
    either(Duration::from_millis(25), Duration::from_millis(5))
}

/// Redis decides again once it decided nearly all of so long a time; a starved machine makes one
/// call in a hundred late by itself.
const STEADY: Duration = Duration::from_millis(250);
const NEARLY_ALL: f64 = 0.98;

/// One look.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sample {
    /// Since the bench began; when the answer was there.
    pub at: Duration,
    /// Decisions by Redis (also cached ones) and by the stand-in.
    pub redis: u64,
    pub local: u64,
    pub breakers_open: u64,
    pub connections: u64,
}

/// The samples of one Tidegate.
pub struct MetricSeries {
    address: SocketAddr,
    samples: Arc<Mutex<Vec<Sample>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl MetricSeries {
    pub fn start(began: Instant, address: SocketAddr) -> MetricSeries {
        let (samples, stop): (Arc<Mutex<Vec<Sample>>>, Arc<AtomicBool>) = Default::default();
        let (held, told) = (Arc::clone(&samples), Arc::clone(&stop));
        let thread = thread::spawn(move || {
            while !told.load(Ordering::SeqCst) {
                if let Some(Reply { status: 200, body, .. }) = try_get(address, "/metrics") {
                    let sample = Sample { at: began.elapsed(), ..read(&body) };
                    held.lock().unwrap().push(sample);
                }
                thread::sleep(every());
            }
        });
        MetricSeries { address, samples, stop, thread: Some(thread) }
    }

    /// The latest sample.
    pub fn latest(&self) -> Sample {
        self.samples.lock().unwrap().last().copied().unwrap_or_default()
    }

    /// One metric now, summed over its labels.
    pub fn metric(&self, name: &str) -> u64 {
        try_get(self.address, "/metrics").map_or(0, |reply| sum(&reply.body, name))
    }

    /// Ends it; all samples.
    pub fn end(mut self) -> Vec<Sample> {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the samples end in order");
        }
        std::mem::take(&mut *self.samples.lock().unwrap())
    }
}

impl Drop for MetricSeries {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
    }
}

/// A metric, summed over its labels.
pub fn sum(text: &str, name: &str) -> u64 {
    let full = format!("tidegate_{name}");
    let of = |line: &str| {
        let rest = line.strip_prefix(&full)?;
        rest.starts_with(['{', ' ']).then(|| rest.rsplit(' ').next()?.parse::<f64>().ok())?
    };
    text.lines().filter_map(of).sum::<f64>() as u64
}

fn read(text: &str) -> Sample {
    let decided = |source: &str| -> u64 {
        let source = format!("source=\"{source}\"");
        let lines = text
            .lines()
            .filter(|line| line.starts_with("tidegate_decisions_total{") && line.contains(&source));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
    };
    Sample {
        at: Duration::ZERO,
        redis: decided("redis") + decided("cached"),
        local: decided("local") + decided("shed"),
        breakers_open: sum(text, "redis_breakers_open"),
        connections: sum(text, "redis_connections"),
    }
}

/// Calls that the stand-in answers of its own accord once it knows.
const ACTED: u64 = 5;

/// How long after `from` a breaker was seen open, a connection known to be lost, or calls were
/// answered without Redis.
pub fn detected(samples: &[Sample], from: Duration) -> Option<Duration> {
    let before = samples.iter().rev().find(|sample| sample.at <= from)?;
    let knows = |sample: &&Sample| {
        sample.at > from
            && (sample.breakers_open > before.breakers_open
                || sample.connections < before.connections
                || sample.local >= before.local + ACTED)
    };
    samples.iter().find(knows).map(|sample| sample.at - from)
}

/// How long after `from` Redis decided nearly everything again, and went on doing so.
pub fn recovered(samples: &[Sample], from: Duration) -> Option<Duration> {
    let after: Vec<&Sample> = samples.iter().filter(|sample| sample.at >= from).collect();
    let steady = |at: usize| {
        let first = after[at];
        let last = after[at..].iter().find(|sample| sample.at >= first.at + STEADY)?;
        let (redis, local) = (last.redis - first.redis, last.local - first.local);
        let share = redis as f64 / (redis + local).max(1) as f64;
        (redis > 0 && share >= NEARLY_ALL).then(|| first.at - from)
    };
    (0..after.len()).find_map(steady)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(at: u64, redis: u64, local: u64, breakers_open: u64) -> Sample {
        Sample { at: Duration::from_millis(at), redis, local, breakers_open, connections: 2 }
    }

    #[test]
    fn a_metric_is_summed_over_its_labels_and_no_other_is_taken_for_it() {
        let text = "# HELP tidegate_a x\ntidegate_a_total{x=\"1\"} 2\ntidegate_a_total{x=\"2\"} 3\n\
                    tidegate_a_total_more 7\n";
        assert_eq!(sum(text, "a_total"), 5);
    }

    #[test]
    fn detection_and_recovery_are_read_off_the_samples() {
        let mut samples = vec![sample(100, 10, 0, 0), sample(120, 12, 3, 0), sample(140, 12, 9, 1)];
        samples.extend((15..40).map(|at| sample(at * 10, 12, at * 10, 1)));
        samples.extend((40..90).map(|at| sample(at * 10, 12 + at, 390, 0)));
        let from = Duration::from_millis(110);
        assert_eq!(detected(&samples, from), Some(Duration::from_millis(30)));
        let again = recovered(&samples, Duration::from_millis(200)).unwrap();
        assert_eq!(again, Duration::from_millis(190));
    }
}
