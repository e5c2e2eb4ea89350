//! Compiled limits: the numbers that each algorithm needs, within its bounds.
//!
//! Not here: parsing and validation (`policy`), the arithmetic (`algorithm`, `lua`).

use super::{Calendar, Hits, Micros};

/// Unit of a rate, as in policy files and on the wire. As in envoyproxy/ratelimit, months and years
/// have fixed lengths (30 and 365 days).
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
    /// Returns the unit's length in seconds.
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

    /// Returns the word used in policy files, in lower case.
    pub const fn as_str(self) -> &'static str {
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

/// Rate as written in the policy, without the burst; a status shows it as `current_limit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    /// Hits per window; for concurrency the number of slots.
    pub requests_per_unit: u32,
    /// The window's unit; `None` for concurrency, which has none (UNKNOWN on the wire).
    pub unit: Option<Unit>,
    /// Units per window; at least 1.
    pub unit_multiplier: u32,
}

impl Rate {
    /// Returns the window's length; zero without a unit.
    pub fn window(&self) -> Micros {
        self.unit.map_or(Micros::ZERO, |unit| {
            Micros::from_secs(unit.seconds().saturating_mul(u64::from(self.unit_multiplier)))
        })
    }
}

/// A compiled limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// The algorithm, with its numbers.
    pub algorithm: Algorithm,
    /// The rate as written.
    pub rate: Rate,
    /// When hits are charged.
    pub charge: Charge,
    /// The answer if the store does not respond in time.
    pub on_store_failure: OnStoreFailure,
    /// Identifies the rule and window; the same for all their counters. Selects the overflow counter in
    /// a full memory store.
    pub limit_id: u64,
}

impl Limit {
    /// Returns the largest cost that can pass: a window's limit, a bucket's burst, or the number of
    /// slots.
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

/// Algorithm with its numbers; docs/ALGORITHMS.md states the guarantees of each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// Hits per window; windows are aligned, not per client.
    FixedWindow(FixedWindow),
    /// Hits of the current window and a share of the previous one's.
    SlidingWindow(SlidingWindow),
    /// The time of every take.
    SlidingLog(SlidingLog),
    /// Token bucket, or leaky bucket: the same bucket seen as a level.
    Bucket(Bucket),
    /// A bucket per consumer class, and a common pool with floors.
    Hybrid(Hybrid),
    /// Requests in flight.
    Concurrency(Concurrency),
}

/// Fixed window: at most `hits` in each window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FixedWindow {
    /// Hits per window, at most `u32::MAX`; 0 refuses everything.
    pub hits: Hits,
    /// The windows.
    pub window: Window,
}

/// How windows are aligned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Window {
    /// Windows of one length, aligned to the Unix epoch; the length is at least one second.
    Epoch {
        /// Length of each window.
        length: Micros,
    },
    /// Days, weeks, months or years in a time zone.
    Calendar(Calendar),
}

/// Bucket of `burst` hits that refills evenly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Capacity B in hits; 0 refuses everything.
    pub burst: Hits,
    /// Refill rate, which also selects the form of the state.
    pub refill: Refill,
    /// Threshold of a consumer class that shares the bucket with others: a hit passes only if at least
    /// this many hits are available before it is taken. At most `burst`; 0 without classes.
    pub floor: Hits,
    /// Whether the policy calls it a leaky bucket: same arithmetic, another name in keys and listings.
    pub leaky: bool,
}

/// Sliding window: approximately `hits` in any interval of `length`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlidingWindow {
    /// Hits per window; `hits * window_ticks < 2^53`. 0 refuses everything.
    pub hits: Hits,
    /// The window; epoch-aligned, at least one second.
    pub length: Micros,
}

/// Sliding log: at most `hits` in any interval of `length`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlidingLog {
    /// Hits per window, at most 10,000; 0 refuses everything.
    pub hits: Hits,
    /// The window, at least one second.
    pub length: Micros,
}

/// Concurrency: at most `slots` requests in flight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Concurrency {
    /// Requests in flight, at most 10,000; 0 refuses everything.
    pub slots: Hits,
    /// Time after which a slot that was not returned becomes free.
    pub lease: Micros,
}

/// Hybrid limit as it applies to one consumer class. Each class has a guaranteed share of the bucket.
/// The refill of a full share, and the part of the refill that belongs to no share, go to a common
/// pool. All classes of a rule use one counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hybrid {
    /// B: the capacity of shares and pool together, in hits.
    pub burst: Hits,
    /// L: hits refilled per window, shares and pool together; at least 1.
    pub hits: Hits,
    /// W: the window. `100 * burst * window_ticks < 2^51`.
    pub window: Micros,
    /// Guaranteed shares of B and of L per class, in per cent; at most 100 in total.
    pub shares: std::sync::Arc<[u32]>,
    /// Index of this class in `shares`.
    pub class: usize,
    /// The class may take from the pool only while the pool holds at least this percentage of its
    /// capacity, rounded up to a whole hit.
    pub floor_percent: u32,
}

/// Refill of a bucket.
///
/// The bounds below keep every product exact in doubles, Lua's numbers. Under [`Charge::Always`] the
/// debt may be twice as large, so half of each bound applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refill {
    /// One hit every `emission`: the state is a single integer, the theoretical arrival time.
    /// Used if the window divides evenly by the hits, or if rounding the emission interval *up*
    /// to a whole microsecond changes the rate by less than 0.1 %. `burst * emission < 2^52`.
    Arrival {
        /// Microseconds per hit, at least 1.
        emission: Micros,
    },
    /// `hits` per `window`, exactly: the state is integer credits (one hit = `window` credits in
    /// microseconds; `hits` credits are refilled per microsecond). `burst * window < 2^53`.
    Credits {
        /// L: hits refilled per window; at least 1.
        hits: Hits,
        /// W: the window.
        window: Micros,
    },
}

/// When hits are charged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Charge {
    /// Only if the check passes and, under all-or-nothing, the call is admitted.
    #[default]
    Admitted,
    /// Always, even beyond the limit and if the call is rejected: the hits have been used already.
    Always,
}

/// Answer of a rule if the store does not respond in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnStoreFailure {
    /// Decide on the local store, with this replica's share of the limit.
    #[default]
    Local,
    /// Pass.
    Allow,
    /// Refuse.
    Deny,
    /// Answer the call with UNAVAILABLE, so that the caller's own failure mode applies.
    Error,
}
