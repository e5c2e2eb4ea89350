//! Computes calendar windows in a time zone, using the bundled time zone database. A day starts at
//! its first instant in the zone, and a week starts on Monday. A day with a clock change usually
//! has 23 or 25 hours.
//!
//! Not here: `align`, `time_zone`, and `anchor` in policy files (`compile`), counting
//! (`algorithm`).

use std::sync::{Arc, LazyLock};

use jiff::civil::{Date, Weekday};
use jiff::tz::{TimeZone, TimeZoneDatabase};
use jiff::{Span as Length, Timestamp};

use crate::domain::{Anchor, Calendar, CalendarWindows, Micros, Unit, WindowBounds};

/// Bundled time zone database. The system's database is never used, so that windows are the same on
/// every machine.
static ZONES: LazyLock<TimeZoneDatabase> = LazyLock::new(TimeZoneDatabase::bundled);

/// Maximum number of consecutive dates that a time zone is assumed to skip, which bounds a loop.
/// Samoa once skipped one date; the other three are a margin.
const SKIPPED_DATES_MAX: usize = 4;

/// Returns the calendar windows of a unit in the time zone with this IANA name (case-insensitive).
/// Returns `None` if the zone is unknown or the unit is shorter than a day.
///
/// Looking up a window takes about a third of a microsecond and does not allocate.
///
/// ```
/// use tidegate::domain::{Micros, Unit};
/// let days = tidegate::policy::calendar(Unit::Day, "Europe/Berlin").unwrap();
/// // 2026-03-29, when clocks there went forward.
/// let day = days.window_at(Micros(1_774_780_000_000_000));
/// assert_eq!(day.end.0 - day.start.0, 23 * 3_600_000_000);
/// ```
pub fn calendar(unit: Unit, zone: &str) -> Option<Calendar> {
    anchored_calendar(unit, zone, Anchor::FIRST_DAY)
}

/// Returns the same as [`calendar`], but months or years start on the date `anchor`.
pub fn anchored_calendar(unit: Unit, zone: &str, anchor: Anchor) -> Option<Calendar> {
    if !matches!(unit, Unit::Day | Unit::Week | Unit::Month | Unit::Year) {
        return None;
    }
    let zone_found = ZONES.get(zone).ok()?;
    let name = zone_found.iana_name().unwrap_or(zone).to_owned();
    let windows = Arc::new(ZonedWindows { unit, anchor, zone: zone_found });
    Some(Calendar::new(unit, &name, anchor, windows))
}

/// Reads the `anchor` of a month (`1` to `31`) or a year (`MM-DD`). Returns `None` if the text is
/// anything else, or if windows of the unit have no anchor.
///
/// ```
/// use tidegate::domain::{Anchor, Unit};
/// use tidegate::policy::parse_anchor;
/// assert_eq!(parse_anchor(Unit::Month, "31"), Some(Anchor { month: 1, day: 31 }));
/// assert_eq!(parse_anchor(Unit::Year, "02-29"), Some(Anchor { month: 2, day: 29 }));
/// assert_eq!(parse_anchor(Unit::Year, "04-31"), None);
/// ```
pub fn parse_anchor(unit: Unit, text: &str) -> Option<Anchor> {
    let (month, day) = match unit {
        Unit::Month => ("1", text),
        Unit::Year => text.split_once('-')?,
        _ => return None,
    };
    // 2000 was a leap year, and January has 31 days.
    let date = Date::new(2000, month.parse().ok()?, day.parse().ok()?).ok()?;
    let anchor = Anchor { month: date.month(), day: date.day() };
    // Rejects other spellings, such as `+1` and `4-1`.
    (anchor.format(unit) == text).then_some(anchor)
}

/// Calendar windows of one unit in one time zone.
struct ZonedWindows {
    unit: Unit,
    /// Date on which months or years start.
    anchor: Anchor,
    zone: TimeZone,
}

impl ZonedWindows {
    fn find_window(&self, at: Micros) -> Option<WindowBounds> {
        let instant = Timestamp::from_microsecond(i64::try_from(at.0).ok()?).ok()?;
        let mut first = self.first_date(self.zone.to_datetime(instant).date())?;
        let mut start = self.first_instant(first)?;
        // If clocks were set back across midnight, some instants of the new window still have the
        // previous date, so the window found may already be over. A skipped date has no window.
        for _ in 0..=SKIPPED_DATES_MAX {
            let next = self.next_date(first)?;
            let end = self.first_instant(next)?;
            if at < end {
                return (start <= at).then_some(WindowBounds { start, end });
            }
            (first, start) = (next, end);
        }
        None
    }

    /// Returns the first date of the window that contains `date`; `None` if it is out of range.
    fn first_date(&self, date: Date) -> Option<Date> {
        match self.unit {
            Unit::Week => {
                let since_monday = i64::from(date.weekday().since(Weekday::Monday));
                date.checked_sub(Length::new().days(since_monday)).ok()
            }
            Unit::Month | Unit::Year => match self.anchor_near(date)? {
                first if first <= date => Some(first),
                _ => self.anchor_near(date.checked_sub(self.length()).ok()?),
            },
            Unit::Second | Unit::Minute | Unit::Hour | Unit::Day => Some(date),
        }
    }

    /// Returns the first date of the next window, given the first date of a window; `None` if it is
    /// out of range.
    fn next_date(&self, first: Date) -> Option<Date> {
        self.anchor_near(first.checked_add(self.length()).ok()?)
    }

    fn length(&self) -> Length {
        match self.unit {
            Unit::Week => Length::new().weeks(1),
            Unit::Month => Length::new().months(1),
            Unit::Year => Length::new().years(1),
            Unit::Second | Unit::Minute | Unit::Hour | Unit::Day => Length::new().days(1),
        }
    }

    /// Returns the date in the month or year of `date` on which a window starts. A short month cuts
    /// the anchor to its last day. Returns `date` itself for other units.
    fn anchor_near(&self, date: Date) -> Option<Date> {
        let month = match self.unit {
            Unit::Month => date.month(),
            Unit::Year => self.anchor.month,
            Unit::Second | Unit::Minute | Unit::Hour | Unit::Day | Unit::Week => return Some(date),
        };
        let first = Date::new(date.year(), month, 1).ok()?;
        Date::new(date.year(), month, self.anchor.day.min(first.days_in_month())).ok()
    }

    /// Returns the first instant of a date: midnight, or the instant of the clock change if the
    /// change skips midnight. Returns `None` if the instant is before 1970 or out of range.
    fn first_instant(&self, date: Date) -> Option<Micros> {
        let midnight = date.at(0, 0, 0, 0);
        let instant = self.zone.to_ambiguous_timestamp(midnight).compatible().ok()?;
        u64::try_from(instant.as_microsecond()).ok().map(Micros)
    }
}

impl CalendarWindows for ZonedWindows {
    /// Returns the window that contains `at`. Before the first full window of 1970 and after the
    /// year 9998, windows are in UTC and have the unit's fixed length.
    fn window_at(&self, at: Micros) -> WindowBounds {
        self.find_window(at).unwrap_or_else(|| {
            let length = Micros::from_secs(self.unit.seconds());
            let start = Micros(at.0 - at.0 % length.0);
            WindowBounds { start, end: start.saturating_add(length) }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_micros(text: &str) -> Micros {
        let instant: Timestamp = text.parse().unwrap();
        Micros(u64::try_from(instant.as_microsecond()).unwrap())
    }

    fn format_time(at: Micros) -> String {
        Timestamp::from_microsecond(i64::try_from(at.0).unwrap()).unwrap().to_string()
    }

    fn format_window(unit: Unit, zone: &str, text: &str) -> [String; 2] {
        let span = calendar(unit, zone).unwrap().window_at(parse_micros(text));
        [format_time(span.start), format_time(span.end)]
    }

    fn anchored(unit: Unit, zone: &str, anchor: &str) -> Calendar {
        anchored_calendar(unit, zone, parse_anchor(unit, anchor).unwrap()).unwrap()
    }

    /// Returns the starts of the periods from the one that contains `text`.
    fn starts(calendar: &Calendar, text: &str, count: usize) -> Vec<String> {
        let mut at = parse_micros(text);
        (0..count)
            .map(|_| {
                let window = calendar.window_at(at);
                for inside in [window.start.0, window.end.0 - 1] {
                    assert_eq!(calendar.window_at(Micros(inside)), window);
                }
                at = window.end;
                format_time(window.start)
            })
            .collect()
    }

    #[test]
    fn a_month_starts_on_its_anchor_or_on_the_last_day_of_a_month_that_is_too_short() {
        let berlin = anchored(Unit::Month, "Europe/Berlin", "31");
        assert_eq!(
            starts(&berlin, "2027-02-01T00:00:00Z", 4),
            [
                "2027-01-30T23:00:00Z",
                "2027-02-27T23:00:00Z",
                "2027-03-30T22:00:00Z",
                "2027-04-29T22:00:00Z"
            ]
        );
        let days = |anchor: &str, from: &str, count| {
            let starts = starts(&anchored(Unit::Month, "UTC", anchor), from, count);
            starts.iter().map(|start| start[5..10].to_owned()).collect::<Vec<_>>()
        };
        let all = "01-31 02-28 03-31 04-30 05-31 06-30 07-31 08-31 09-30 10-31 11-30 12-31 01-31";
        assert_eq!(days("31", "2027-01-31T00:00:00Z", 13).join(" "), all);
        let leap = ["2027-12-31T00:00:00Z", "2028-01-31T00:00:00Z", "2028-02-29T00:00:00Z"];
        let utc = anchored(Unit::Month, "UTC", "31");
        assert_eq!(starts(&utc, "2027-12-31T00:00:00Z", 3), leap);
        assert_eq!(days("30", "2027-01-30T00:00:00Z", 4), ["01-30", "02-28", "03-30", "04-30"]);
        assert_eq!(days("29", "2028-01-29T00:00:00Z", 3), ["01-29", "02-29", "03-29"]);
        assert_eq!(days("29", "2100-01-29T00:00:00Z", 3), ["01-29", "02-28", "03-29"]);
        assert_eq!(days("15", "2027-12-14T23:59:59.999999Z", 3), ["11-15", "12-15", "01-15"]);
    }

    #[test]
    fn a_year_starts_on_its_anchor() {
        let fiscal = anchored(Unit::Year, "Asia/Tokyo", "04-01");
        assert_eq!(
            starts(&fiscal, "2027-03-31T14:59:59Z", 2),
            ["2026-03-31T15:00:00Z", "2027-03-31T15:00:00Z"]
        );
        let leap_day = anchored(Unit::Year, "UTC", "02-29");
        let days: Vec<_> = starts(&leap_day, "2027-03-01T00:00:00Z", 6)
            .iter()
            .map(|start| start[..10].to_owned())
            .collect();
        let expected =
            ["2027-02-28", "2028-02-29", "2029-02-28", "2030-02-28", "2031-02-28", "2032-02-29"];
        assert_eq!(days, expected);
    }

    #[test]
    fn a_period_starts_at_the_first_instant_of_its_day() {
        for (zone, anchor, within, start) in [
            ("America/Sao_Paulo", "4", "2018-11-10T00:00:00Z", "2018-11-04T03:00:00Z"),
            // Clocks went back from 00:01 to 23:01, so midnight came twice.
            ("America/Toronto", "2", "2008-11-20T00:00:00Z", "2008-11-02T04:00:00Z"),
            ("America/Havana", "1", "2026-11-20T00:00:00Z", "2026-11-01T04:00:00Z"),
            // 30 December did not exist.
            ("Pacific/Apia", "30", "2012-01-10T00:00:00Z", "2011-12-30T10:00:00Z"),
            ("Pacific/Apia", "31", "2012-01-10T00:00:00Z", "2011-12-30T10:00:00Z"),
        ] {
            let calendar = anchored(Unit::Month, zone, anchor);
            assert_eq!(starts(&calendar, within, 1), [start], "{anchor} in {zone}");
        }
    }

    #[test]
    fn no_instant_between_two_midnights_is_in_the_period_before() {
        let toronto = anchored(Unit::Month, "America/Toronto", "2");
        // 23:30 on the 1st, after the 2nd had begun.
        let again = toronto.window_at(parse_micros("2008-11-02T04:30:00Z"));
        assert_eq!(format_time(again.start), "2008-11-02T04:00:00Z");
    }

    #[test]
    fn every_start_is_the_first_instant_of_a_date_in_every_zone() {
        for name in ZONES.available() {
            let Some(days) = calendar(Unit::Day, name.as_str()) else { continue };
            let zone = ZONES.get(name.as_str()).unwrap();
            let changes = zone.following(Timestamp::UNIX_EPOCH).take_while(|change| {
                change.timestamp() < "2040-01-01T00:00:00Z".parse::<Timestamp>().unwrap()
            });
            for change in changes.filter(|change| change.timestamp().as_second() > 86_400 * 3) {
                let at = Micros(u64::try_from(change.timestamp().as_microsecond()).unwrap());
                let day = days.window_at(at);
                let date = |at: Micros| {
                    let instant = Timestamp::from_microsecond(i64::try_from(at.0).unwrap());
                    zone.to_datetime(instant.unwrap()).date()
                };
                for start in [day.start, day.end] {
                    assert!(date(Micros(start.0 - 1)) < date(start), "{} {at:?}", name.as_str());
                }
            }
        }
    }

    #[test]
    fn an_anchor_is_a_day_of_a_month_or_a_date_of_a_year() {
        for text in ["1", "15", "31"] {
            assert_eq!(parse_anchor(Unit::Month, text).unwrap().format(Unit::Month), text);
        }
        for text in ["01-01", "04-01", "02-29", "12-31"] {
            assert_eq!(parse_anchor(Unit::Year, text).unwrap().format(Unit::Year), text);
        }
        for (unit, text) in [
            (Unit::Month, "0"),
            (Unit::Month, "32"),
            (Unit::Month, "+1"),
            (Unit::Month, "01"),
            (Unit::Month, "04-01"),
            (Unit::Month, ""),
            (Unit::Year, "02-30"),
            (Unit::Year, "13-01"),
            (Unit::Year, "4-1"),
            (Unit::Year, "1"),
            (Unit::Week, "1"),
            (Unit::Day, "1"),
        ] {
            assert_eq!(parse_anchor(unit, text), None, "{text} of a {unit:?}");
        }
    }

    #[test]
    fn the_default_anchor_is_the_first_day() {
        for (unit, text) in [(Unit::Month, "1"), (Unit::Year, "01-01")] {
            let (plain, given) = (calendar(unit, "UTC").unwrap(), anchored(unit, "UTC", text));
            assert_eq!((given.anchor(), &given), (None, &plain));
        }
    }

    #[test]
    fn windows_begin_at_local_midnight() {
        let now = "2026-03-04T23:30:00Z";
        for (unit, zone, start, end) in [
            (Unit::Day, "UTC", "2026-03-04T00:00:00Z", "2026-03-05T00:00:00Z"),
            (Unit::Day, "Europe/Berlin", "2026-03-04T23:00:00Z", "2026-03-05T23:00:00Z"),
            (Unit::Week, "UTC", "2026-03-02T00:00:00Z", "2026-03-09T00:00:00Z"),
            (Unit::Month, "Asia/Kolkata", "2026-02-28T18:30:00Z", "2026-03-31T18:30:00Z"),
            (Unit::Year, "America/New_York", "2026-01-01T05:00:00Z", "2027-01-01T05:00:00Z"),
        ] {
            assert_eq!(format_window(unit, zone, now), [start, end], "{unit:?} in {zone}");
        }
    }

    #[test]
    fn days_with_a_clock_change_are_longer_or_shorter() {
        let hours = |zone, text| {
            let span = calendar(Unit::Day, zone).unwrap().window_at(parse_micros(text));
            (span.end.0 - span.start.0) / 3_600_000_000
        };
        assert_eq!(hours("Europe/Berlin", "2026-03-29T12:00:00Z"), 23);
        assert_eq!(hours("Europe/Berlin", "2026-10-25T12:00:00Z"), 25);
        assert_eq!(hours("America/Sao_Paulo", "2018-11-04T12:00:00Z"), 23, "at midnight itself");
        assert_eq!(hours("Pacific/Apia", "2011-12-30T09:59:00Z"), 24, "before a skipped day");
        assert_eq!(hours("Pacific/Apia", "2011-12-30T10:01:00Z"), 24, "after it");
    }

    #[test]
    fn windows_follow_each_other_without_gaps() {
        for zone in ["America/Toronto", "America/Havana", "Africa/Cairo", "Pacific/Apia", "UTC"] {
            let first_days = [Unit::Day, Unit::Week, Unit::Month, Unit::Year]
                .map(|unit| (unit, calendar(unit, zone).unwrap()));
            let others = [(Unit::Month, "31"), (Unit::Month, "2"), (Unit::Year, "02-29")]
                .map(|(unit, anchor)| (unit, anchored(unit, zone, anchor)));
            for (unit, calendar) in first_days.into_iter().chain(others) {
                let mut span = calendar.window_at(parse_micros("1980-01-01T00:00:00Z"));
                while span.end < parse_micros("2030-01-01T00:00:00Z") {
                    let next = calendar.window_at(span.end);
                    assert_eq!(next.start, span.end, "{unit:?} in {zone}");
                    assert_eq!(
                        calendar.window_at(Micros(span.end.0 - 1)),
                        span,
                        "{unit:?}, {zone}"
                    );
                    span = next;
                }
            }
        }
    }

    #[test]
    fn every_time_is_inside_its_window() {
        let calendar = calendar(Unit::Month, "Asia/Tokyo").unwrap();
        for at in [0, 1, 86_400_000_000 * 40, 1 << 60, u64::MAX - 1] {
            let span = calendar.window_at(Micros(at));
            assert!(span.start.0 <= at && at < span.end.0, "{at}: {span:?}");
        }
    }
}
