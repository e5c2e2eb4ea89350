//! Says in the log when requests pass (or are denied) without a decision, why, and when that ends.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

use crate::decision::Failure;
use crate::diagnosis::Endpoint;

/// Failures that begin within this time after those that were logged are not logged: where single calls fail
/// among others, the log has two lines a minute.
const QUIET: Duration = Duration::from_secs(60);

/// Which failures are logged: of each kind the first.
#[derive(Debug, Default)]
struct Outage {
    failed_calls: u64,
    since: Option<Instant>,
    kinds: HashSet<Kind>,
    logged_at: Option<Instant>,
}

/// There are 19 of them, which bounds the lines of an outage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Busy,
    Timeout,
    Status(i32),
}

impl Kind {
    fn of(failure: &Failure) -> Kind {
        match failure {
            Failure::Busy => Kind::Busy,
            Failure::Timeout => Kind::Timeout,
            Failure::Status(code, _) => Kind::Status(i32::from(*code)),
        }
    }
}

impl Outage {
    /// Counts a failed call; returns whether to log it.
    fn fail(&mut self, kind: Kind, now: Instant) -> bool {
        self.failed_calls += 1;
        self.since.get_or_insert(now);
        if self.kinds.is_empty() {
            if self.logged_at.is_some_and(|it| now.saturating_duration_since(it) < QUIET) {
                return false;
            }
            self.logged_at = Some(now);
        }
        self.kinds.insert(kind)
    }

    /// There is a decision again. Returns the failed calls and the time since the first, if they were logged;
    /// others are counted with the next.
    fn end(&mut self, now: Instant) -> Option<(u64, Duration)> {
        let since = self.since.take()?;
        if self.kinds.is_empty() {
            return None;
        }
        self.kinds.clear();
        Some((std::mem::take(&mut self.failed_calls), now.saturating_duration_since(since)))
    }
}

/// Logs failures and their end. A diagnosis takes a few seconds, so it runs in the background.
#[derive(Debug)]
pub(crate) struct Degraded {
    pub(crate) endpoint: Endpoint,
    pub(crate) domain: String,
    fails_open: bool,
    runtime: Handle,
    /// Read for each decision, so that only failures, and the first decision after them, take the lock.
    active: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    outage: Outage,
    pending: Vec<Pending>,
    tokens: u64,
    /// Reasons in the log since the outage began: two kinds of failures can have the same.
    logged: HashSet<String>,
}

/// A failure that is being diagnosed.
#[derive(Clone, Debug)]
struct Pending {
    token: u64,
    failure: Failure,
    path: &'static str,
}

impl Degraded {
    pub(crate) fn new(
        endpoint: Endpoint,
        domain: String,
        fails_open: bool,
        runtime: Handle,
    ) -> Self {
        let (active, state) = (AtomicBool::new(false), Mutex::default());
        Degraded { endpoint, domain, fails_open, runtime, active, state }
    }

    pub(crate) fn fail(self: &Arc<Self>, failure: &Failure, path: &'static str) {
        let mut state = self.lock();
        self.active.store(true, Ordering::Relaxed);
        if !state.outage.fail(Kind::of(failure), Instant::now()) {
            return;
        }
        state.tokens += 1;
        let pending = Pending { token: state.tokens, failure: failure.clone(), path };
        state.pending.push(pending.clone());
        // Not held while spawning: where the runtime has ended, the task is dropped there, and reports.
        drop(state);
        let report = Report { degraded: Arc::clone(self), token: pending.token };
        self.runtime.spawn(async move {
            let endpoint = &report.degraded.endpoint;
            let reason = endpoint.diagnose(&pending.failure, path, endpoint.timeout).await;
            report.degraded.log(&mut report.degraded.lock(), Some(report.token), Some(&reason));
        });
    }

    /// There is a decision again, if there was none before.
    pub(crate) fn end(&self) {
        if !self.active.load(Ordering::Relaxed) {
            return;
        }
        let mut state = self.lock();
        self.active.store(false, Ordering::Relaxed);
        self.log(&mut state, None, None);
        state.logged.clear();
        if let Some((failed_calls, outage)) = state.outage.end(Instant::now()) {
            // A warning like the start, so that no filter keeps only one of them.
            tracing::warn!(
                failed_calls,
                seconds = outage.as_secs_f64(),
                address = self.endpoint.address(),
                domain = self.domain,
                "no longer degraded: the rate limit service decides again"
            );
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Logs what is pending: with this token, or all. Under the lock, so that an end follows its start.
    fn log(&self, state: &mut State, token: Option<u64>, reason: Option<&str>) {
        let found = state.pending.extract_if(.., |it| token.is_none_or(|token| it.token == token));
        for pending in found {
            let endpoint = &self.endpoint;
            let known = || endpoint.reason(&pending.failure, pending.path, endpoint.timeout);
            let reason = reason.map_or_else(known, str::to_owned);
            if !state.logged.insert(reason.clone()) {
                continue;
            }
            let (address, domain) = (endpoint.address(), &self.domain);
            if self.fails_open {
                tracing::warn!(
                    reason,
                    address,
                    domain,
                    "degraded: requests pass without a decision"
                );
            } else {
                tracing::warn!(
                    reason,
                    address,
                    domain,
                    "degraded: requests are denied without a decision"
                );
            }
        }
    }
}

/// Logs the failure without its diagnosis, if the runtime ends before that.
struct Report {
    degraded: Arc<Degraded>,
    token: u64,
}

impl Drop for Report {
    fn drop(&mut self) {
        self.degraded.log(&mut self.degraded.lock(), Some(self.token), None);
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    #[test]
    fn single_failures_among_decisions_are_logged_once_a_minute() {
        let (mut outage, start) = (Outage::default(), Instant::now());
        let mut lines = Vec::new();
        for second in 0..120 {
            let now = start + Duration::from_secs(second);
            if outage.fail(Kind::Timeout, now) {
                lines.push((second, 0));
            }
            if let Some((failed_calls, _)) = outage.end(now) {
                lines.push((second, failed_calls));
            }
        }
        assert_eq!(lines, [(0, 0), (0, 1), (60, 0), (60, 60)]);
    }

    #[test]
    fn failures_that_go_on_are_logged_when_the_quiet_minute_is_over() {
        let (mut outage, start) = (Outage::default(), Instant::now());
        let at = |second| start + Duration::from_secs(second);
        assert!(outage.fail(Kind::Timeout, at(0)));
        assert_eq!(outage.end(at(1)), Some((1, Duration::from_secs(1))));
        assert!(!outage.fail(Kind::Timeout, at(2)));
        assert!(!outage.fail(Kind::Timeout, at(59)));
        assert!(outage.fail(Kind::Timeout, at(60)));
        assert!(!outage.fail(Kind::Timeout, at(300)));
        assert_eq!(outage.end(at(302)), Some((4, Duration::from_secs(300))));
        assert_eq!(outage.end(at(303)), None);
    }

    #[test]
    fn each_kind_of_failure_is_logged_once_in_an_outage() {
        let (mut outage, now) = (Outage::default(), Instant::now());
        for _ in 0..3 {
            let logged = [Kind::Timeout, Kind::Busy, Kind::Status(Code::Unavailable.into())]
                .map(|kind| outage.fail(kind, now));
            assert_eq!(logged, [outage.failed_calls == 3; 3]);
        }
    }
}
