//! The one place that asks the operating system for the time.
//!
//! Limits count by the wall clock (so that replicas and restarts agree on windows), deadlines by
//! the monotonic one. Both are read once per request. Not here: what is done with the time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::domain::Micros;

/// Where the time comes from.
#[derive(Clone, Debug, Default)]
pub enum Clock {
    /// The machine's clock.
    #[default]
    System,
    /// A clock that a test sets.
    Manual(ManualClock),
}

impl Clock {
    /// The wall clock, in microseconds since the Unix epoch. A machine set before 1970 reads zero.
    #[allow(clippy::disallowed_methods, reason = "this is the place that reads the clock")]
    pub fn now(&self) -> Micros {
        match self {
            Clock::System => {
                let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                Micros(u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
            }
            Clock::Manual(clock) => clock.get(),
        }
    }

    /// The monotonic clock, for deadlines.
    #[allow(clippy::disallowed_methods, reason = "this is the place that reads the clock")]
    pub fn monotonic(&self) -> Instant {
        Instant::now()
    }
}

/// A clock for tests: it stands still until it is set.
#[derive(Clone, Debug, Default)]
pub struct ManualClock(Arc<AtomicU64>);

impl ManualClock {
    /// A clock that shows `now`.
    pub fn at(now: Micros) -> Self {
        ManualClock(Arc::new(AtomicU64::new(now.0)))
    }

    /// Sets the time, forward or back.
    pub fn set(&self, now: Micros) {
        self.0.store(now.0, Ordering::Relaxed);
    }

    /// Moves the time forward.
    pub fn advance(&self, by: Micros) {
        self.0.fetch_add(by.0, Ordering::Relaxed);
    }

    /// The time it shows.
    pub fn get(&self) -> Micros {
        Micros(self.0.load(Ordering::Relaxed))
    }
}
