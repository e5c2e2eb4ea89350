//! Clock of the process: the only code that reads the operating system's clocks.
//!
//! Limits use the wall clock, so that windows are the same on all replicas and after a restart.
//! Deadlines use the monotonic clock. A request reads each clock once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::domain::Micros;

/// Source of the current time.
#[derive(Clone, Debug, Default)]
pub enum Clock {
    /// The operating system's wall clock and monotonic clock.
    #[default]
    System,
    /// A wall clock that a test sets. The monotonic clock is still the operating system's.
    Manual(ManualClock),
}

impl Clock {
    /// Returns the wall-clock time, in microseconds since the Unix epoch, or zero if the clock is
    /// set to a date before 1970.
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

    /// Returns the current monotonic time. It is used for deadlines, because the wall clock may be set
    /// back.
    #[allow(clippy::disallowed_methods, reason = "this is the place that reads the clock")]
    pub fn monotonic_now(&self) -> Instant {
        Instant::now()
    }
}

/// Wall clock for tests, which changes only when the test sets it. Clones share the same time.
#[derive(Clone, Debug, Default)]
pub struct ManualClock(Arc<AtomicU64>);

impl ManualClock {
    /// Creates a clock set to `now`.
    pub fn at(now: Micros) -> Self {
        ManualClock(Arc::new(AtomicU64::new(now.0)))
    }

    /// Sets the clock to `now`, which may be earlier than its current time.
    pub fn set(&self, now: Micros) {
        self.0.store(now.0, Ordering::Relaxed);
    }

    /// Moves the clock forward by the duration `by`.
    pub fn advance(&self, by: Micros) {
        self.0.fetch_add(by.0, Ordering::Relaxed);
    }

    /// Returns the time that the clock is set to.
    pub fn get(&self) -> Micros {
        Micros(self.0.load(Ordering::Relaxed))
    }
}
