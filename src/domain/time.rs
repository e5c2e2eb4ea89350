//! The two units that everything is counted in: microseconds and hits.
//!
//! Not here: reading a clock (`clock`), arithmetic of limits (`algorithm`).

use std::fmt;

/// Microseconds: a length of time, or a point in time counted from the Unix epoch.
///
/// Range: whole microseconds, `0..=u64::MAX`; every product the algorithms form stays below 2^53
/// because the policy refuses larger limits. Conversions to coarser units round *up*, so that a
/// wait told to a caller is never shorter than the truth.
///
/// ```
/// use tidegate::domain::Micros;
/// assert_eq!(Micros(1_000_001).ceil_secs(), 2);
/// assert_eq!(Micros(1_001).ceil_millis(), 2);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Micros(pub u64);

impl Micros {
    /// Nothing: the epoch, or no wait at all.
    pub const ZERO: Micros = Micros(0);
    /// One second.
    pub const SECOND: Micros = Micros(1_000_000);

    /// That many whole seconds; saturates at the largest value.
    pub const fn from_secs(seconds: u64) -> Self {
        Micros(seconds.saturating_mul(1_000_000))
    }

    /// Whole seconds, rounded up.
    pub const fn ceil_secs(self) -> u64 {
        self.0.div_ceil(1_000_000)
    }

    /// Whole milliseconds, rounded up.
    pub const fn ceil_millis(self) -> u64 {
        self.0.div_ceil(1_000)
    }

    /// The sum, or the largest value.
    pub const fn saturating_add(self, other: Micros) -> Self {
        Micros(self.0.saturating_add(other.0))
    }

    /// The difference, or zero where `other` is later: a clock that stepped back counts as one
    /// that stood still.
    pub const fn saturating_sub(self, other: Micros) -> Self {
        Micros(self.0.saturating_sub(other.0))
    }
}

/// Hits: what limits count. One request of a caller is one hit unless it says otherwise.
///
/// Range: `0..=u64::MAX` on the wire; a store never sees more than its limit's capacity charged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hits(pub u64);

impl Hits {
    /// No hits: as a cost, a peek.
    pub const ZERO: Hits = Hits(0);
    /// A single hit.
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
    fn a_wait_is_rounded_up_never_down() {
        assert_eq!(Micros(1).ceil_secs(), 1);
        assert_eq!(Micros(1_000_000).ceil_secs(), 1);
        assert_eq!(Micros(0).ceil_secs(), 0);
        assert_eq!(Micros(u64::MAX).ceil_secs(), u64::MAX / 1_000_000 + 1);
    }

    #[test]
    fn a_step_back_in_time_counts_as_no_time() {
        assert_eq!(Micros(3).saturating_sub(Micros(5)), Micros::ZERO);
    }
}
