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

/// Date on which the months or years of a calendar start, such as a billing date. In a month that is
/// too short for it, the last day takes its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Anchor {
    /// Month in which a year starts, 1 to 12; 1 for windows of other units.
    pub month: i8,
    /// Day of the month, 1 to 31.
    pub day: i8,
}

impl Anchor {
    /// First day of the month or year, the default.
    pub const FIRST_DAY: Anchor = Anchor { month: 1, day: 1 };

    /// Formats the anchor of a year as `04-01`, and that of a month as `15`.
    pub fn format(self, unit: Unit) -> String {
        match unit {
            Unit::Year => format!("{:02}-{:02}", self.month, self.day),
            _ => self.day.to_string(),
        }
    }
}

/// Calendar of a rate limit: the unit of its windows, such as a month, the time zone, and the date
/// on which windows start.
#[derive(Clone)]
pub struct Calendar {
    unit: Unit,
    anchor: Anchor,
    zone: Box<str>,
    windows: Arc<dyn CalendarWindows>,
}

impl Calendar {
    /// Creates a calendar. `zone` must be the IANA name of the time zone that `windows` uses, and
    /// `anchor` the date on which its windows start.
    pub fn new(unit: Unit, zone: &str, anchor: Anchor, windows: Arc<dyn CalendarWindows>) -> Self {
        Calendar { unit, anchor, zone: zone.into(), windows }
    }

    /// Returns the unit, which is the length of each window: day, week, month or year.
    pub fn unit(&self) -> Unit {
        self.unit
    }

    /// Returns the IANA name of the time zone, such as `Europe/Berlin`.
    pub fn time_zone(&self) -> &str {
        &self.zone
    }

    /// Returns the date on which windows start, as in policy files (`15`, `04-01`); `None` if it is
    /// the first day, the default.
    pub fn anchor(&self) -> Option<String> {
        (self.anchor != Anchor::FIRST_DAY).then(|| self.anchor.format(self.unit))
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

/// Compares only the unit, the anchor, and the time zone, because they determine the windows.
impl PartialEq for Calendar {
    fn eq(&self, other: &Self) -> bool {
        (self.unit, self.anchor, &self.zone) == (other.unit, other.anchor, &other.zone)
    }
}

impl Eq for Calendar {}

impl fmt::Debug for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let from = self.anchor().map(|anchor| format!(" from {anchor}")).unwrap_or_default();
        write!(f, "Calendar({} in {}{from})", self.unit.as_str(), self.zone)
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
