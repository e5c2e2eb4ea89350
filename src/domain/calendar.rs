//! Calendar windows: days, weeks, months and years in a time zone.
//!
//! Not here: the time zone database (`policy`).

use std::fmt;
use std::sync::Arc;

use super::{Micros, Unit};

/// Start and end of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowBounds {
    /// The window's first microsecond.
    pub start: Micros,
    /// The first microsecond after the window; later than `start`.
    pub end: Micros,
}

/// Computes the windows of one unit in one time zone.
///
/// The windows follow each other without gaps. Called on the request path: an implementation must not
/// wait, lock or allocate.
pub trait CalendarWindows: Send + Sync {
    /// Returns the window that contains a time.
    fn window_at(&self, at: Micros) -> WindowBounds;
}

/// CalendarWindows of one calendar unit in one time zone.
#[derive(Clone)]
pub struct Calendar {
    unit: Unit,
    zone: Box<str>,
    windows: Arc<dyn CalendarWindows>,
}

impl Calendar {
    /// CalendarWindows of `unit` in the zone of that IANA name.
    pub fn new(unit: Unit, zone: &str, windows: Arc<dyn CalendarWindows>) -> Calendar {
        Calendar { unit, zone: zone.into(), windows }
    }

    /// Returns the unit: day, week, month or year.
    pub fn unit(&self) -> Unit {
        self.unit
    }

    /// Returns the time zone's IANA name.
    pub fn zone(&self) -> &str {
        &self.zone
    }

    /// Returns the window that contains a time.
    pub fn window_at(&self, at: Micros) -> WindowBounds {
        self.windows.window_at(at)
    }

    /// Returns the starts of the previous, the current and the next window, and the end of the next
    /// one. A store with its own clock finds its window among them, if that clock is at most one
    /// window away from `now`.
    pub fn boundaries_around(&self, now: Micros) -> [Micros; 4] {
        let present = self.window_at(now);
        let previous = self.window_at(present.start.saturating_sub(Micros(1)));
        let next = self.window_at(present.end);
        [previous.start.min(present.start), present.start, present.end, next.end]
    }
}

/// Calendars are equal if unit and time zone are.
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
