//! One trial: a Tidegate under load, first without a fault, then with it, then healed; the record
//! of its calls and its own metrics, by phase.

use std::time::{Duration, Instant};

use crate::grpc_caller::CallResult;
use crate::metric_samples::{self, MetricSeries, Sample};
use crate::open_loop_load::{CallPlan, CallRecord, Load, in_turn};
use crate::support::proof;
use crate::support::wait::until_so as until;
use crate::tidegate_replica::Tidegate;

/// What each counter of a trial may admit.
pub fn limit() -> u64 {
    either(20, 60)
}

/// Counters of a trial: so many that refusals begin in mid-fault.
pub fn keys() -> u32 {
    either(10, 34)
}

/// Whether times are measured and judged: in the whole proof, which has an optimised build to itself.
/// A part of it has too few runs of a row for a median.
pub fn at_length() -> bool {
    proof::times(0, 100) >= 100
}

/// `brief` in `make test`, `long` in the proof.
pub fn either<T>(brief: T, long: T) -> T {
    if at_length() { long } else { brief }
}

/// Calls a second.
pub fn rate() -> u64 {
    either(400, 1_000)
}

/// The rules of every trial: decided locally without Redis, or let pass; one that nobody reaches; one
/// that is used up early; a bucket.
pub fn policy() -> String {
    let rule = |key: &str, limit: u64, more: &str| {
        format!(
            "  - key: {key}\n    rate_limit: {{unit: year, requests_per_unit: {limit}{more}}}\n"
        )
    };
    let mut text = "domain: faults\ndescriptors:\n".to_owned();
    text += &rule("local", limit(), "");
    text += &rule("allow", limit(), ", on_store_failure: allow");
    text += &rule("wide", 1_000_000_000, "");
    text += &rule("narrow", limit(), "");
    text += "  - key: bucket\n    rate_limit: {unit: second, requests_per_unit: 10, burst: 20, \
             algorithm: token_bucket}\n";
    text
}

/// A trial under way.
pub struct Trial {
    pub load: Load,
    pub figures: MetricSeries,
    injected: Option<Duration>,
    healed: Option<Duration>,
}

/// What came of it.
pub struct Outcome {
    pub book: Vec<CallRecord>,
    pub samples: Vec<Sample>,
    pub injected: Duration,
    pub healed: Option<Duration>,
}

impl Trial {
    /// The usual load: every counter in turn.
    pub fn start(tidegate: &Tidegate) -> Trial {
        Trial::with(&[tidegate], rate(), &in_turn("local", keys()))
    }

    /// Another one. The figures are the first one's.
    pub fn with(tidegates: &[&Tidegate], rate: u64, asks: &CallPlan) -> Trial {
        let began = Instant::now();
        let targets: Vec<_> = tidegates.iter().map(|tidegate| tidegate.port("grpc")).collect();
        let load = Load::start(began, &targets, rate, asks);
        let figures = MetricSeries::start(began, tidegates[0].port("http"));
        Trial { load, figures, injected: None, healed: None }
    }

    /// So many more calls are answered.
    pub fn calls(&self, more: u64) {
        let before = self.load.booked() as u64;
        until("more answers", || self.load.booked() as u64 >= before + more);
    }

    /// The calm before: half of what the limits admit is used. In the proof the very first calls,
    /// which find a cold process, are followed by more.
    pub fn calm(&self) {
        self.calls(u64::from(keys()) * limit() * 6 / 10);
    }

    /// Here it begins.
    pub fn inject(&mut self, fault: impl FnOnce()) {
        self.injected = Some(self.load.now());
        fault();
    }

    /// As many calls as the limits admit twice: whatever is too much is seen.
    pub fn fault(&self) {
        self.calls(u64::from(keys()) * limit() * 8 / 10);
    }

    /// Here it is over.
    pub fn heal(&mut self, cure: impl FnOnce()) {
        cure();
        self.healed = Some(self.load.now());
    }

    /// The stand-in decides: some calls more were answered without Redis.
    pub fn until_local(&self) {
        let before = self.figures.latest().local;
        until("the stand-in to decide", || self.figures.latest().local > before);
    }

    /// Redis decides: nearly every call of a while, in the proof for as long as `recovered` looks.
    pub fn until_redis(&self) {
        let mut from = self.figures.latest();
        let wanted = either(20, rate() / 2);
        until("Redis to decide again", || {
            let now = self.figures.latest();
            let (redis, local) = (now.redis - from.redis, now.local - from.local);
            if local > redis / 50 + either(5, 0) {
                from = now;
            }
            redis >= wanted && from.at < now.at
        });
    }

    /// Ends it: every call is answered.
    pub fn end(self) -> Outcome {
        let book = self.load.end();
        let samples = self.figures.end();
        let injected = self.injected.unwrap_or_default();
        Outcome { book, samples, injected, healed: self.healed }
    }
}

impl Outcome {
    /// Calls that fell due before the fault. The first tenth found a cold process.
    pub fn before(&self) -> impl Iterator<Item = &CallRecord> {
        let warm = self.injected / 10;
        self.book.iter().filter(move |entry| entry.due >= warm && entry.due < self.injected)
    }

    /// Calls that fell due while it lasted.
    pub fn during(&self) -> impl Iterator<Item = &CallRecord> {
        let end = self.healed.unwrap_or(Duration::MAX);
        self.book.iter().filter(move |entry| entry.due >= self.injected && entry.due < end)
    }

    /// Of those, the ones that fell due once the service had noticed. Until then a call waits for no
    /// longer than its budget.
    pub fn once_known(&self) -> impl Iterator<Item = &CallRecord> {
        let from = self.injected + self.detected().unwrap_or_default();
        self.during().filter(move |entry| entry.due >= from)
    }

    /// Calls that were not answered with a decision.
    pub fn failed(&self) -> Vec<&CallRecord> {
        let decided =
            |entry: &&CallRecord| !matches!(entry.told, CallResult::Admitted | CallResult::Refused);
        self.book.iter().filter(decided).collect()
    }

    /// No caller saw an error.
    pub fn assert_no_errors(&self) {
        let failed = self.failed();
        assert!(
            failed.is_empty(),
            "{} of {} failed: {:?}",
            failed.len(),
            self.book.len(),
            failed[0]
        );
    }

    /// Decisions by Redis and by the stand-in between two moments.
    pub fn decided(&self, from: Duration, to: Duration) -> (u64, u64) {
        let at = |moment| {
            let sample = self.samples.iter().rev().find(|sample| sample.at <= moment);
            sample.copied().unwrap_or_default()
        };
        let (first, last) = (at(from), at(to));
        (last.redis - first.redis, last.local - first.local)
    }

    /// The share of decisions that the stand-in made while the fault lasted, in percent.
    pub fn local_share(&self) -> u64 {
        let end = self.healed.unwrap_or(Duration::MAX);
        let (redis, local) = self.decided(self.injected, end);
        (local * 100).checked_div(redis + local).unwrap_or(0)
    }

    pub fn detected(&self) -> Option<Duration> {
        metric_samples::detected(&self.samples, self.injected)
    }

    /// Since it was healed, or, where nothing heals it, since it began.
    pub fn recovered(&self) -> Option<Duration> {
        metric_samples::recovered(&self.samples, self.healed.unwrap_or(self.injected))
    }
}

/// The time that 99 of 100 calls did not exceed.
pub fn p99<'e>(entries: impl Iterator<Item = &'e CallRecord>) -> Duration {
    let mut took: Vec<Duration> = entries.map(CallRecord::took).collect();
    took.sort_unstable();
    let rank = (took.len() * 99).div_ceil(100);
    took.get(rank.saturating_sub(1)).copied().unwrap_or_default()
}
