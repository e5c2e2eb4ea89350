//! Units of measurement: microseconds and hits.
//!
//! Not here: reading a clock (`clock`), the arithmetic of limits (`algorithm`).

use std::fmt;

/// Duration, or time since the Unix epoch, in microseconds.
///
/// Conversions to coarser units round *up*, so that a reported wait is never too short. The policy
/// compiler bounds the parameters of every limit, so that all products in the `algorithm` module
/// stay below 2^53.
///
/// ```
/// use tidegate::domain::Micros;
/// assert_eq!(Micros(1_000_001).ceil_secs(), 2);
/// assert_eq!(Micros(1_001).ceil_millis(), 2);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Micros(pub u64);

impl Micros {
    /// Zero microseconds. As a point in time, this is 1970-01-01 00:00 UTC.
    pub const ZERO: Micros = Micros(0);
    /// One second as a duration.
    pub const SECOND: Micros = Micros(1_000_000);

    /// Converts from whole seconds; saturates at `u64::MAX` microseconds.
    pub const fn from_secs(seconds: u64) -> Self {
        Micros(seconds.saturating_mul(1_000_000))
    }

    /// Converts a duration or a time to whole seconds, rounded up.
    pub const fn ceil_secs(self) -> u64 {
        self.0.div_ceil(1_000_000)
    }

    /// Converts a duration or a time to whole milliseconds, rounded up.
    pub const fn ceil_millis(self) -> u64 {
        self.0.div_ceil(1_000)
    }

    /// Adds `other`; saturates at `u64::MAX` microseconds.
    pub const fn saturating_add(self, other: Micros) -> Self {
        Micros(self.0.saturating_add(other.0))
    }

    /// Subtracts `other`. Returns zero if `other` is larger, so that a clock that steps back
    /// yields an elapsed time of zero.
    pub const fn saturating_sub(self, other: Micros) -> Self {
        Micros(self.0.saturating_sub(other.0))
    }
}

/// Number of hits, the unit in which limits count. A request counts as one hit unless it specifies
/// another number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hits(pub u64);

impl Hits {
    /// Zero hits. A request of zero hits checks its limits without charging them (a peek).
    pub const ZERO: Hits = Hits(0);
    /// One hit, the default cost of a request.
    pub const ONE: Hits = Hits(1);
}

impl fmt::Display for Hits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversions_round_up() {
        assert_eq!(Micros(1).ceil_secs(), 1);
        assert_eq!(Micros(1_000_000).ceil_secs(), 1);
        assert_eq!(Micros(0).ceil_secs(), 0);
        assert_eq!(Micros(u64::MAX).ceil_secs(), u64::MAX / 1_000_000 + 1);
    }

    #[test]
    fn no_time_has_elapsed_if_the_clock_steps_back() {
        assert_eq!(Micros(3).saturating_sub(Micros(5)), Micros::ZERO);
    }
}
