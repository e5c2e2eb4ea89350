//! Calendar windows: days, weeks, months and years in a time zone.
//!
//! Not here: time zone data and the implementation of [`CalendarWindows`] (`policy`).

use std::fmt;
use std::sync::Arc;

use super::{Micros, Unit};

/// Start (inclusive) and end (exclusive) of a rate limit window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowBounds {
    /// Start of the window (inclusive), in microseconds since the Unix epoch.
    pub start: Micros,
    /// End of the window (exclusive), in microseconds since the Unix epoch; later than `start`.
    pub end: Micros,
}

/// Computes the calendar windows of one unit in one time zone.
///
/// Consecutive windows have no gaps between them. `window_at` is called on the request path, so an
/// implementation must not wait, lock or allocate.
pub trait CalendarWindows: Send + Sync {
    /// Returns the window that contains the time `at`.
    fn window_at(&self, at: Micros) -> WindowBounds;
}

/// Calendar of a rate limit: the unit of its windows, such as a month, and the time zone.
#[derive(Clone)]
pub struct Calendar {
    unit: Unit,
    zone: Box<str>,
    windows: Arc<dyn CalendarWindows>,
}

impl Calendar {
    /// Creates a calendar. `zone` must be the IANA name of the time zone that `windows` uses.
    pub fn new(unit: Unit, zone: &str, windows: Arc<dyn CalendarWindows>) -> Calendar {
        Calendar { unit, zone: zone.into(), windows }
    }

    /// Returns the unit, which is the length of each window: day, week, month or year.
    pub fn unit(&self) -> Unit {
        self.unit
    }

    /// Returns the IANA name of the time zone, such as `Europe/Berlin`.
    pub fn time_zone(&self) -> &str {
        &self.zone
    }

    /// Returns the window that contains the time `at`.
    pub fn window_at(&self, at: Micros) -> WindowBounds {
        self.windows.window_at(at)
    }

    /// Returns four boundaries: the starts of the previous, the current and the next window, and
    /// the end of the next window. A store whose clock is at most one window ahead of or behind
    /// `now` can find its current window between these boundaries.
    pub fn boundaries_around(&self, now: Micros) -> [Micros; 4] {
        let present = self.window_at(now);
        let previous = self.window_at(present.start.saturating_sub(Micros(1)));
        let next = self.window_at(present.end);
        [previous.start.min(present.start), present.start, present.end, next.end]
    }
}

/// Compares only the unit and the time zone, because they determine the windows.
impl PartialEq for Calendar {
    fn eq(&self, other: &Self) -> bool {
        (self.unit, &self.zone) == (other.unit, &other.zone)
    }
}

impl Eq for Calendar {}

impl fmt::Debug for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Calendar({} in {})", self.unit.as_str(), self.zone)
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{DAY, utc_days};
    use super::*;

    #[test]
    fn the_boundaries_begin_one_window_before_and_end_one_window_after_the_current_one() {
        for (now, days) in [
            (5 * DAY.0, [4, 5, 6, 7]),
            (6 * DAY.0 - 1, [4, 5, 6, 7]),
            // No window precedes the one of the Unix epoch.
            (0, [0, 0, 1, 2]),
        ] {
            let expected = days.map(|day| Micros(day * DAY.0));
            assert_eq!(utc_days().boundaries_around(Micros(now)), expected, "{now}");
        }
    }
}
