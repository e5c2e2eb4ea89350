//! Calendar windows: days, weeks, months and years as the clocks of a time zone have them.
//!
//! Not here: the zones themselves (`policy::calendar` has a database of them).

use std::fmt;
use std::sync::Arc;

use super::{Micros, Unit};

/// Where one window begins and where the next one does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowBounds {
    /// The window's first microsecond.
    pub start: Micros,
    /// The next window's first microsecond; later than `start`.
    pub end: Micros,
}

/// Knows the windows of one unit in one time zone.
///
/// The windows follow each other without gaps. Called on the request path: an implementation must
/// not wait, lock or allocate.
pub trait CalendarWindows: Send + Sync {
    /// The window that holds a time.
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

    /// The unit: day, week, month or year.
    pub fn unit(&self) -> Unit {
        self.unit
    }

    /// The zone's IANA name.
    pub fn zone(&self) -> &str {
        &self.zone
    }

    /// The window that holds a time.
    pub fn window_at(&self, at: Micros) -> WindowBounds {
        self.windows.window_at(at)
    }

    /// The beginnings of the previous, the present and the next window, and the end of that one:
    /// what a store with a clock of its own needs to find its window, if that clock is not further
    /// than a window away from `now`.
    pub fn around(&self, now: Micros) -> [Micros; 4] {
        let present = self.window_at(now);
        let previous = self.window_at(present.start.saturating_sub(Micros(1)));
        let next = self.window_at(present.end);
        [previous.start.min(present.start), present.start, present.end, next.end]
    }
}

/// Two calendars of one unit and zone are the same.
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
