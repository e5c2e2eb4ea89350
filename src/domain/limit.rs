//! A limit, compiled: the numbers that an algorithm needs, already checked against its bounds.
//!
//! Not here: where the numbers come from (`policy`), what is done with them (`algorithm`, `lua`).

use super::{Calendar, Hits, Micros};

/// The unit of a rate, as in policy files and on the wire. Months and years are fixed lengths (30
/// and 365 days), as envoyproxy/ratelimit has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// 1 second.
    Second,
    /// 60 seconds.
    Minute,
    /// 3,600 seconds.
    Hour,
    /// 86,400 seconds.
    Day,
    /// 604,800 seconds; epoch-aligned weeks start on Thursday, UTC.
    Week,
    /// 30 days.
    Month,
    /// 365 days.
    Year,
}

impl Unit {
    /// The unit's length in seconds.
    pub const fn seconds(self) -> u64 {
        match self {
            Unit::Second => 1,
            Unit::Minute => 60,
            Unit::Hour => 3_600,
            Unit::Day => 86_400,
            Unit::Week => 604_800,
            Unit::Month => 30 * 86_400,
            Unit::Year => 365 * 86_400,
        }
    }

    /// The word that policy files use, in lower case.
    pub const fn word(self) -> &'static str {
        match self {
            Unit::Second => "second",
            Unit::Minute => "minute",
            Unit::Hour => "hour",
            Unit::Day => "day",
            Unit::Week => "week",
            Unit::Month => "month",
            Unit::Year => "year",
        }
    }
}

/// A rate as it was written: what a status shows as `current_limit`. Burst is not part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    /// Hits per window; for concurrency the number of slots.
    pub requests_per_unit: u32,
    /// The window's unit; `None` for concurrency, which has none (UNKNOWN on the wire).
    pub unit: Option<Unit>,
    /// The window is that many units; at least 1.
    pub unit_multiplier: u32,
}

impl Rate {
    /// The window's length; zero where there is no unit.
    pub fn window(&self) -> Micros {
        self.unit.map_or(Micros::ZERO, |unit| {
            Micros::from_secs(unit.seconds().saturating_mul(u64::from(self.unit_multiplier)))
        })
    }
}

/// A limit, ready to be counted against.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// What is counted and how.
    pub algorithm: Algorithm,
    /// The rate as written.
    pub rate: Rate,
    /// Whether hits are counted only when admitted.
    pub charge: Charge,
    /// What to answer when the store cannot be asked in time.
    pub on_store_failure: OnStoreFailure,
    /// The same number for all counters of one rule and window, and for no other. It groups the
    /// shared overflow counters of a full memory store.
    pub limit_id: u64,
}

impl Limit {
    /// The most hits that can ever be taken at once: the window's limit, or a bucket's burst.
    pub fn capacity(&self) -> Hits {
        match &self.algorithm {
            Algorithm::FixedWindow(w) => w.hits,
            Algorithm::SlidingWindow(w) => w.hits,
            Algorithm::SlidingLog(w) => w.hits,
            Algorithm::Bucket(b) => b.burst,
            Algorithm::Hybrid(h) => h.burst,
            Algorithm::Concurrency(c) => c.slots,
        }
    }
}

/// The algorithm with its numbers. ALGORITHMS in the README states what each one promises.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// So many hits in each window; a window ends for everybody at the same time.
    FixedWindow(FixedWindow),
    /// The two-window counter.
    SlidingWindow(SlidingWindow),
    /// Every hit remembered.
    SlidingLog(SlidingLog),
    /// Token bucket, or leaky bucket: the same bucket seen as a level.
    Bucket(Bucket),
    /// A bucket divided among classes: a share each, and a common pool with floors.
    Hybrid(Hybrid),
    /// So many in flight.
    Concurrency(Concurrency),
}

/// Fixed window: `hits` in each window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FixedWindow {
    /// Hits per window, at most `u32::MAX`; 0 refuses everything.
    pub hits: Hits,
    /// Where windows begin and end.
    pub window: Window,
}

/// Where windows begin and end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Window {
    /// Windows of one length, aligned to the Unix epoch; the length is at least one second.
    Epoch {
        /// Length of each window.
        length: Micros,
    },
    /// Days, weeks, months or years as a time zone has them.
    Calendar(Calendar),
}

/// A bucket: `burst` hits fit in; it refills evenly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Capacity B in hits; 0 refuses everything.
    pub burst: Hits,
    /// How it refills, which also says what its state is.
    pub refill: Refill,
    /// A hit passes only while at least so many are there before it is taken: the threshold of a
    /// consumer class that shares the bucket with others. 0 for a bucket without classes; at most
    /// `burst`.
    pub floor: Hits,
    /// Written as a leaky bucket: the same arithmetic, under its own name in keys and listings.
    pub leaky: bool,
}

/// Sliding window: `hits` in about any interval of `length`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlidingWindow {
    /// Hits per window; `hits * window_ticks < 2^53`. 0 refuses everything.
    pub hits: Hits,
    /// The window; epoch-aligned, at least one second.
    pub length: Micros,
}

/// Sliding log: `hits` in any interval of `length`, exactly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlidingLog {
    /// Hits per window, at most 10,000; 0 refuses everything.
    pub hits: Hits,
    /// The window, at least one second.
    pub length: Micros,
}

/// Concurrency: `slots` in flight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Concurrency {
    /// How many may be in flight, at most 10,000; 0 refuses everything.
    pub slots: Hits,
    /// A slot that is not returned frees itself after this long.
    pub lease: Micros,
}

/// One class's view of a bucket that is divided among classes: each has a share of its own, and
/// what a full share would get, and what the shares leave over, flows into a common pool. All
/// classes of a rule count on one state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hybrid {
    /// B: the capacity of shares and pool together, in hits.
    pub burst: Hits,
    /// L: hits that come back in each window, shares and pool together; at least 1.
    pub hits: Hits,
    /// W: the window. `100 * burst * window_ticks < 2^51`.
    pub window: Micros,
    /// The classes' guaranteed shares of B and of L, in per cent; together at most 100.
    pub shares: std::sync::Arc<[u32]>,
    /// Which of them this class is.
    pub class: usize,
    /// The class may take from the pool only while it holds at least this part of what it can hold,
    /// in per cent, rounded up to a whole hit.
    pub floor_percent: u32,
}

/// How a bucket refills.
///
/// The bounds stated below keep every product exact in doubles, which is what Lua computes with.
/// Under [`Charge::Always`] the debt may be twice as long, so there half of each bound applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refill {
    /// One hit every `emission`: the state is a single integer, the theoretical arrival time.
    /// Chosen where the window divides evenly by the hits, or rounding the emission interval *up*
    /// to a whole microsecond changes the rate by less than 0.1 %. `burst * emission < 2^52`.
    Arrival {
        /// Microseconds per hit, at least 1.
        emission: Micros,
    },
    /// `hits` per `window`, exactly: the state is integer credits (one hit = `window` credits in
    /// microseconds, `hits` credits come back each microsecond). `burst * window < 2^53`.
    Credits {
        /// L: hits that come back in each window; at least 1.
        hits: Hits,
        /// W: the window.
        window: Micros,
    },
}

/// When hits are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Charge {
    /// Only when the check passes (and, under all-or-nothing, the call is admitted).
    #[default]
    Admitted,
    /// Always, even beyond the limit and whatever becomes of the call: the hits were used already.
    Always,
}

/// What a rule answers when the store cannot be asked in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnStoreFailure {
    /// Decide on the local memory store, with this replica's share of the limit.
    #[default]
    Local,
    /// Let pass.
    Allow,
    /// Refuse: OVER_LIMIT.
    Deny,
    /// Answer UNAVAILABLE, so that the caller's own failure mode decides.
    Error,
}
