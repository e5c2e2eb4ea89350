//! Clock of the process: the only code that reads the operating system's clocks.
//!
//! Limits use the wall clock, so that windows are the same on all replicas and after a restart.
//! Deadlines use the monotonic clock. A request reads each clock once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::domain::Micros;

/// Source of the current time.
#[derive(Clone, Debug, Default)]
pub enum Clock {
    /// The operating system's wall clock and monotonic clock.
    #[default]
    System,
    /// A wall clock that a test sets. The monotonic clock is the operating system's, ahead of it by
    /// the time by which the test has advanced the clock.
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
        match self {
            Clock::System => Instant::now(),
            Clock::Manual(clock) => Instant::now() + clock.advanced(),
        }
    }
}

/// Clock for tests. Its wall clock changes only when the test changes it. Clones share the same time.
#[derive(Clone, Debug, Default)]
pub struct ManualClock(Arc<ManualTime>);

#[derive(Debug, Default)]
struct ManualTime {
    wall: AtomicU64,
    advanced: AtomicU64,
}

impl ManualClock {
    /// Creates a clock set to `now`.
    pub fn at(now: Micros) -> Self {
        let clock = ManualClock::default();
        clock.set(now);
        clock
    }

    /// Sets the wall clock to `now`, which may be earlier than its current time.
    pub fn set(&self, now: Micros) {
        self.0.wall.store(now.0, Ordering::Relaxed);
    }

    /// Lets the time `by` pass, on the wall clock and on the monotonic clock.
    pub fn advance(&self, by: Micros) {
        self.0.wall.fetch_add(by.0, Ordering::Relaxed);
        self.0.advanced.fetch_add(by.0, Ordering::Relaxed);
    }

    /// Returns the time that the wall clock is set to.
    pub fn get(&self) -> Micros {
        Micros(self.0.wall.load(Ordering::Relaxed))
    }

    fn advanced(&self) -> Duration {
        Duration::from_micros(self.0.advanced.load(Ordering::Relaxed))
    }
}
