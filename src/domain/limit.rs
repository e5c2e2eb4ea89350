//! Compiled limits: the parameters of each algorithm and their valid ranges.
//!
//! Not here: parsing and validation (`policy`), the arithmetic (`algorithm`, `lua`).

use std::num::NonZeroU32;

use super::named_enum::named_enum;
use super::{Calendar, Hits, Micros};

named_enum! {
    /// Time unit of a rate, as in policy files and on the wire. Except in calendar windows, a month is
    /// 30 days and a year is 365 days, as in envoyproxy/ratelimit.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum Unit {
        /// One second.
        Second => "second",
        /// One minute (60 seconds).
        Minute => "minute",
        /// One hour (3,600 seconds).
        Hour => "hour",
        /// One day (86,400 seconds).
        Day => "day",
        /// One week (604,800 seconds). Except in calendar windows, weeks start on Thursday, 00:00 UTC,
        /// because they are aligned to the Unix epoch.
        Week => "week",
        /// One month, counted as 30 days.
        Month => "month",
        /// One year, counted as 365 days.
        Year => "year",
    }
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
}

/// Rate of a limit as written in the policy, without the burst. Responses report it as
/// `current_limit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    /// Hits per window; for concurrency limits, the number of slots.
    pub requests_per_unit: u32,
    /// Time unit of the window; `None` (UNKNOWN on the wire) for concurrency limits, which have no
    /// window.
    pub unit: Option<Unit>,
    /// Number of units in a window; at least 1.
    pub unit_multiplier: u32,
}

impl Rate {
    /// Returns the length of the window; zero if the rate has no unit.
    pub fn window(&self) -> Micros {
        self.unit.map_or(Micros::ZERO, |unit| {
            Micros::from_secs(unit.seconds().saturating_mul(u64::from(self.unit_multiplier)))
        })
    }
}

/// Exclusive upper bound of `burst * emission` for a bucket stored as an arrival time, where
/// `emission` is the time in which one hit refills, in microseconds. Below this bound, the product
/// plus any timestamp of this century is an exact integer in Lua, whose numbers are doubles.
const ARRIVAL_TIME_BOUND: u64 = 1 << 52;

/// Exclusive upper bound of two products: `burst * window` for a bucket stored as credits, with the
/// window in microseconds, and `hits * ticks` for a sliding window, with the window's length in
/// ticks. The bound is 2^53, the first integer that a double cannot distinguish from its successor.
const CREDITS_BOUND: u64 = 1 << 53;

/// Reciprocal of the maximum rate error (0.1 %) of a bucket stored as an arrival time. Such a
/// bucket rounds the time to refill one hit up to whole microseconds, which slows the refill. If
/// the error would be larger, the bucket is stored as credits, which are exact but take more space.
const RATE_ERROR_RECIPROCAL: u128 = 1_000;

/// Maximum number of entries in the sliding log or slot table of one counter. Each check scans all
/// entries.
const STORED_ENTRIES_MAX: u64 = 10_000;

/// Upper bound on the time by which a calendar window can exceed the length of its [`Unit`], for
/// example in a month of 31 days, a leap year, or a day of 25 hours.
const CALENDAR_MARGIN: Micros = Micros::from_secs(2 * 86_400);

/// Compiled limit: an algorithm with its parameters, and the options common to all algorithms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Algorithm that counts hits, with its parameters.
    pub algorithm: Algorithm,
    /// Rate as written in the policy. Responses report it.
    pub rate: Rate,
    /// Charge mode: whether hits are charged even if the check is refused.
    pub charge: Charge,
    /// Action taken on the limit's checks if the store does not respond in time.
    pub on_store_failure: OnStoreFailure,
    /// Whether a replica may take hits from a hot counter in the remote store in advance (`prepay:
    /// auto` in the policy). True only for fixed windows, sliding windows and token buckets with
    /// [`Charge::Admitted`].
    pub prepay: bool,
    /// Time for which a refusal blocks the counter's key, in seconds (`block` in the policy); `None`
    /// if refusals block nothing. Never set for concurrency and hybrid limits.
    pub block_seconds: Option<NonZeroU32>,
    /// How long calls may hold hits before they settle them (`reserve` in the policy); `None` if they
    /// may not. Only for fixed windows and token buckets.
    pub reserve: Option<Reserve>,
    /// Hash that identifies the limit. It is the same on every replica and for all counters of the
    /// limit. Its highest bit marks a request override that counts apart. When
    /// the memory store is full, it gives each id a fair share of its capacity.
    pub limit_id: u64,
}

impl Limit {
    /// Bit of a [`limit_id`](Self::limit_id) that is set for request overrides only.
    pub const OVERRIDE_BIT: u64 = 1 << 63;

    /// Returns the limit that bills are charged against: this limit with [`Charge::Always`].
    /// Returns `None` unless `charge` is [`Charge::Billed`]. A bill is a `hits_addend` above 0 that
    /// a descriptor sets itself.
    pub fn bill_limit(&self) -> Option<Limit> {
        match self.charge {
            Charge::Admitted | Charge::Always => None,
            Charge::Billed => Some(Limit { charge: Charge::Always, ..self.clone() }),
        }
    }

    /// Returns the length of the limit's blocks; `None` without `block`.
    pub fn block_length(&self) -> Option<Micros> {
        self.block_seconds.map(|seconds| Micros::from_secs(seconds.get().into()))
    }

    /// Returns the charge mode that says how much debt a counter can have: with
    /// [`reserve`](Self::reserve), a settle charges as a bill does.
    pub fn debt_charge(&self) -> Charge {
        match (self.charge, self.reserve) {
            (Charge::Admitted, Some(_)) => Charge::Billed,
            (charge, _) => charge,
        }
    }

    /// Returns the highest cost that a single check can have and still pass, in hits. This is the
    /// limit of a window, the burst of a bucket, or the number of concurrency slots.
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

    /// Returns the hits that are available in an unused counter: the capacity or, for a consumer
    /// class, the part of it that is not kept from the class by a floor or by the shares of others.
    pub fn available_when_unused(&self) -> Hits {
        let Hits(capacity) = self.capacity();
        match &self.algorithm {
            Algorithm::Bucket(bucket) => {
                Hits(capacity.saturating_sub(bucket.floor.0.saturating_sub(1)))
            }
            Algorithm::Hybrid(hybrid) => {
                // In hundredths of a hit, because shares are percentages.
                let shares: u32 = hybrid.shares.iter().sum();
                let own = hybrid.shares.get(hybrid.class).copied().unwrap_or(0);
                let pool = capacity.saturating_mul(100_u32.saturating_sub(shares).into());
                let floor = pool.saturating_mul(hybrid.floor_percent.into()).div_ceil(10_000);
                let spare = pool.saturating_sub(floor.saturating_sub(1).saturating_mul(100));
                Hits(capacity.saturating_mul(own.into()).saturating_add(spare) / 100)
            }
            Algorithm::FixedWindow(_)
            | Algorithm::SlidingWindow(_)
            | Algorithm::SlidingLog(_)
            | Algorithm::Concurrency(_) => Hits(capacity),
        }
    }

    /// Returns the end of the window that starts at `start`; `None` if the algorithm has no aligned
    /// windows.
    pub fn window_end(&self, start: Micros) -> Option<Micros> {
        match &self.algorithm {
            Algorithm::FixedWindow(FixedWindow { window: Window::Epoch { length }, .. })
            | Algorithm::SlidingWindow(SlidingWindow { length, .. }) => {
                Some(start.saturating_add(*length))
            }
            Algorithm::FixedWindow(FixedWindow { window: Window::Calendar(calendar), .. }) => {
                Some(calendar.window_at(start).end)
            }
            Algorithm::SlidingLog(_)
            | Algorithm::Bucket(_)
            | Algorithm::Hybrid(_)
            | Algorithm::Concurrency(_) => None,
        }
    }

    /// Returns the duration that a status reports for a refusal that waiting does not end, because
    /// the limit is 0 or the hits exceed the capacity. Envoy turns an absent or zero duration into
    /// `retry-after: 1`. `reset_after` is that of the refusal's outcome.
    ///
    /// This is the end of a fixed window, one whole sliding window, or the time until a bucket is
    /// full. A full bucket reports its whole refill time, and a bucket of capacity 0 its unit.
    /// Returns `None` for concurrency limits, which have no window.
    pub fn blocked_duration(&self, reset_after: Micros) -> Option<Micros> {
        let refill = match &self.algorithm {
            Algorithm::FixedWindow(_) => return Some(reset_after),
            Algorithm::SlidingWindow(_) | Algorithm::SlidingLog(_) => {
                return Some(self.rate.window());
            }
            Algorithm::Concurrency(_) => return None,
            Algorithm::Bucket(bucket) => bucket.refill.time_to_refill(bucket.burst),
            Algorithm::Hybrid(hybrid) => refill_time(hybrid.burst, hybrid.hits, hybrid.window),
        };
        let nonzero = |duration: &Micros| *duration > Micros::ZERO;
        [reset_after, refill].into_iter().find(nonzero).or(Some(self.rate.window()))
    }

    /// Returns an upper bound on how long a charge can affect later checks. This is the time until
    /// the charged window has ended, until a bucket with the largest possible debt is full again,
    /// or until a slot's lease has ended. A charge to a sliding window also affects the next
    /// window.
    pub fn charge_lifetime(&self) -> Micros {
        let lifetime = match &self.algorithm {
            Algorithm::FixedWindow(FixedWindow { window: Window::Epoch { length }, .. }) => *length,
            Algorithm::FixedWindow(FixedWindow { window: Window::Calendar(calendar), .. }) => {
                Micros::from_secs(calendar.unit().seconds()).saturating_add(CALENDAR_MARGIN)
            }
            Algorithm::SlidingWindow(window) => Micros(window.length.0.saturating_mul(2)),
            Algorithm::SlidingLog(log) => log.length,
            Algorithm::Bucket(bucket) => bucket.refill.time_to_refill(bucket.debt_burst),
            Algorithm::Hybrid(hybrid) => refill_time(hybrid.burst, hybrid.hits, hybrid.window),
            Algorithm::Concurrency(slots) => slots.lease,
        };
        match self.debt_charge() {
            Charge::Admitted => lifetime,
            // A bucket may owe one more capacity. For the other algorithms, this is only too long.
            Charge::Billed | Charge::Always => Micros(lifetime.0.saturating_mul(2)),
        }
    }
}

/// Longest time for which calls may hold hits of a limit. Takes four bytes, also as an `Option`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserve(std::num::NonZeroU32);

impl Reserve {
    /// Creates the value from seconds; `None` for 0.
    pub fn from_secs(ttl_secs: u32) -> Option<Reserve> {
        std::num::NonZeroU32::new(ttl_secs).map(Reserve)
    }

    /// Returns the time after which a hold ends, in seconds; at least 1.
    pub fn ttl_secs(self) -> u32 {
        self.0.get()
    }
}

/// Returns the time to refill `burst` hits at a rate of `hits` per `window`, rounded up.
fn refill_time(burst: Hits, hits: Hits, window: Micros) -> Micros {
    Micros(burst.0.saturating_mul(window.0).div_ceil(hits.0.max(1)))
}

/// Rate limiting algorithm with its parameters. docs/ALGORITHMS.md states what each algorithm
/// guarantees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// Counts the hits of each window. Windows are aligned to the epoch or the calendar, not to a
    /// client's first request.
    FixedWindow(FixedWindow),
    /// Counts the hits of the current window, plus those of the previous window in proportion to
    /// its overlap with the sliding interval.
    SlidingWindow(SlidingWindow),
    /// Records the time of every charge, so that the limit is exact in every interval of the
    /// window's length, wherever the interval starts.
    SlidingLog(SlidingLog),
    /// Token bucket or leaky bucket: one algorithm with two names.
    Bucket(Bucket),
    /// Guarantees each consumer class a share of the bucket, and lets all classes draw from a
    /// common pool.
    Hybrid(Hybrid),
    /// Limits the number of requests in flight.
    Concurrency(Concurrency),
}

impl Algorithm {
    /// Returns the largest number of hits per window, or of slots, that the algorithm can count
    /// exactly. The burst of a bucket has a bound of its own, [`Refill::burst_max`].
    pub fn hits_max(&self) -> u64 {
        match self {
            Algorithm::FixedWindow(_) | Algorithm::Bucket(_) | Algorithm::Hybrid(_) => {
                u32::MAX.into()
            }
            Algorithm::SlidingWindow(window) => (CREDITS_BOUND - 1) / window.window_ticks(),
            Algorithm::SlidingLog(_) | Algorithm::Concurrency(_) => STORED_ENTRIES_MAX,
        }
    }

    /// Returns whether a counter can hold more hits than the limit. False for concurrency limits,
    /// whose slots are either in use or free, and for hybrid limits, whose shares cannot go into
    /// debt.
    pub fn keeps_debt(&self) -> bool {
        match self {
            Algorithm::FixedWindow(_)
            | Algorithm::SlidingWindow(_)
            | Algorithm::SlidingLog(_)
            | Algorithm::Bucket(_) => true,
            Algorithm::Hybrid(_) | Algorithm::Concurrency(_) => false,
        }
    }
}

/// Fixed-window limit: at most `hits` in each window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FixedWindow {
    /// Hits per window, at most `u32::MAX`; 0 refuses everything.
    pub hits: Hits,
    /// Length of the windows, and whether they are aligned to the Unix epoch or the calendar.
    pub window: Window,
}

/// Length and alignment of a fixed window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Window {
    /// Windows of a fixed length, at least one second, aligned to the Unix epoch.
    Epoch {
        /// Length of each window; at least one second.
        length: Micros,
    },
    /// Calendar days, weeks, months or years in a time zone.
    Calendar(Calendar),
}

/// Bucket that holds up to `burst` hits and refills at a constant rate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Capacity of the bucket, in hits; 0 refuses everything.
    pub burst: Hits,
    /// Capacity of which a used-up counter can owe all, in hits; at least `burst`. A larger debt is
    /// clamped. More than `burst` only if the counter is also that of another limit, whose debt must
    /// not be clamped: if the limit is a fraction of the rule's, whose burst was rounded down, or a
    /// request override.
    pub debt_burst: Hits,
    /// Refill rate of the bucket. The stored state has the same format for both [`Refill`]
    /// variants.
    pub refill: Refill,
    /// Floor of a consumer class that shares the bucket with other classes, in hits. A hit passes
    /// only if the bucket holds at least this many hits before that hit is charged. The floor is at
    /// most `burst`, and 0 for a bucket without classes.
    pub floor: Hits,
    /// Whether the algorithm in the policy is `leaky_bucket` rather than `token_bucket`. Affects
    /// only the name of the algorithm in counter keys and listings.
    pub leaky: bool,
}

/// Sliding-window limit: approximately at most `hits` in any interval of `length`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlidingWindow {
    /// Hits per window; 0 refuses everything. `hits` times the window's length in
    /// [ticks](Self::window_ticks) is below 2^53.
    pub hits: Hits,
    /// Length of each window, at least one second. Windows are aligned to the Unix epoch.
    pub length: Micros,
}

/// Sliding-log limit: at most `hits` in any interval of `length`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlidingLog {
    /// Maximum number of hits in any interval of `length`, at most 10,000; 0 refuses everything.
    pub hits: Hits,
    /// Length of the sliding interval; at least one second.
    pub length: Micros,
}

/// Concurrency limit: at most `slots` requests in flight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Concurrency {
    /// Maximum number of requests in flight, at most 10,000; 0 refuses everything.
    pub slots: Hits,
    /// Time after which a slot becomes free even if it was not released.
    pub lease: Micros,
}

/// Hybrid limit as it applies to one consumer class. Each class has a guaranteed share of the
/// bucket. Refill that a full share cannot hold, and refill that is assigned to no share, goes to a
/// common pool. All classes of a rule use one counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hybrid {
    /// Total capacity of all class shares and the common pool, in hits (B in docs/ALGORITHMS.md).
    pub burst: Hits,
    /// Capacity whose refill the counter outlives, in hits; at least `burst`. More than `burst` only
    /// if the limit is a fraction of the rule's and rounding shortened the refill: the counter is
    /// also that of the whole limit, for which an expired counter is a full one.
    pub expiry_burst: Hits,
    /// Total number of hits refilled per window, for all class shares and the common pool (L in
    /// docs/ALGORITHMS.md); at least 1.
    pub hits: Hits,
    /// Window in which `hits` are refilled (W in docs/ALGORITHMS.md). The product of 100, `burst`,
    /// and the window's length in ticks is below 2^51. A tick is 1 µs, 1 ms, or 1 s, depending on
    /// the window.
    pub window: Micros,
    /// Share of `burst` and `hits` guaranteed to each class, in percent; at most 100 in total.
    pub shares: std::sync::Arc<[u32]>,
    /// Index in `shares` of the consumer class that this limit applies to.
    pub class: usize,
    /// Minimum fill level of the common pool at which this class may still draw hits from it, as a
    /// percentage of the pool's capacity. The level is rounded up to a whole hit.
    pub floor_percent: u32,
}

/// Refill rate of a bucket.
///
/// The bounds of each variant keep every product exact in a double, the number type of Lua. If the
/// limit [keeps debt](Charge::keeps_debt), the debt may reach twice the capacity, so half of each
/// bound applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refill {
    /// Refills one hit every `emission`. The state is the theoretical arrival time (GCRA), in
    /// whole microseconds. This variant is used if the time per hit is a whole number of
    /// microseconds, or if rounding this time *up* changes the rate by less than 0.1 %. The
    /// product of `burst` and `emission` is below 2^52.
    Arrival {
        /// Time to refill one hit, in microseconds; at least 1.
        emission: Micros,
    },
    /// Refills exactly `hits` per `window`. One hit costs as many credits as the window has
    /// microseconds, and every microsecond adds `hits` credits. The state is the theoretical
    /// arrival time in whole microseconds, with a remainder in credits that is below `hits`. The
    /// product of `burst` and `window` is below 2^53.
    Credits {
        /// Hits refilled per window; at least 1.
        hits: Hits,
        /// Window in which `hits` are refilled.
        window: Micros,
    },
}

impl Refill {
    /// Returns the refill rate of a bucket that refills `hits`, at least 1, per `window`.
    pub fn per_window(hits: Hits, window: Micros) -> Refill {
        let emission = window.0.div_ceil(hits.0);
        let rounding_error = u128::from(emission) * u128::from(hits.0) - u128::from(window.0);
        if rounding_error * RATE_ERROR_RECIPROCAL < u128::from(window.0) {
            Refill::Arrival { emission: Micros(emission) }
        } else {
            Refill::Credits { hits, window }
        }
    }

    /// Returns the largest burst at this rate that the arithmetic represents exactly, in hits.
    pub fn burst_max(self, charge: Charge) -> u64 {
        // Debt doubles the range of the state.
        let debt_factor = if charge.keeps_debt() { 2 } else { 1 };
        match self {
            Refill::Arrival { emission } => (ARRIVAL_TIME_BOUND / debt_factor - 1) / emission.0,
            Refill::Credits { window, .. } => (CREDITS_BOUND / debt_factor - 1) / window.0,
        }
    }

    /// Returns the time to refill `hits`, rounded up.
    fn time_to_refill(self, hits: Hits) -> Micros {
        match self {
            Refill::Arrival { emission } => Micros(hits.0.saturating_mul(emission.0)),
            Refill::Credits { hits: per_window, window } => refill_time(hits, per_window, window),
        }
    }
}

named_enum! {
    /// Charge mode of a limit: when hits are charged (`charge` in the policy).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum Charge {
        /// Hits are charged only if the check passes and, under all-or-nothing accounting, the call is
        /// admitted.
        #[default]
        Admitted => "admitted",
        /// Bills are charged even if the check is refused or the call is rejected. All other hits are
        /// charged as with `Admitted`. A bill is a `hits_addend` above 0 that a descriptor sets itself:
        /// hits that the caller has already used. Bills are charged against [`Limit::bill_limit`].
        Billed => "billed",
        /// Hits are charged even if the check is refused or the call is rejected, because they have
        /// already been used.
        Always => "always",
    }
}

impl Charge {
    /// Returns whether a counter can hold more hits than the limit under this charge mode.
    pub const fn keeps_debt(self) -> bool {
        match self {
            Charge::Admitted => false,
            Charge::Billed | Charge::Always => true,
        }
    }
}

named_enum! {
    /// Action taken on a rule's checks if the store does not respond in time (`on_store_failure` in
    /// the policy).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum OnStoreFailure {
        /// The local store enforces this replica's share of the limit.
        #[default]
        Local => "local",
        /// The check passes, and its hits are not counted.
        Allow => "allow",
        /// The check is refused, with a `retry_after` of one second.
        Deny => "deny",
        /// The whole call fails with UNAVAILABLE, so that the caller's failure mode applies, such as
        /// Envoy's `failure_mode_deny`.
        Error => "error",
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixtures;
    use super::*;

    #[test]
    fn a_charge_lives_until_its_window_or_lease_ends_or_its_hits_have_refilled() {
        let (hits, length) = (Hits(7), Micros::from_secs(60));
        let (burst, floor) = (Hits(5), Hits::ZERO);
        let bucket = |refill| {
            Algorithm::Bucket(Bucket { burst, debt_burst: burst, refill, floor, leaky: false })
        };
        let window = |window| Algorithm::FixedWindow(FixedWindow { hits, window });
        let (shares, class, floor_percent) = ([100].into(), 0, 0);
        let hybrid = Hybrid {
            burst,
            expiry_burst: burst,
            hits,
            window: length,
            shares,
            class,
            floor_percent,
        };
        for (algorithm, lifetime) in [
            (window(Window::Epoch { length }), 60_000_000),
            // A day may have 25 hours; the margin of two days suffices for every unit.
            (window(Window::Calendar(fixtures::utc_days())), 3 * fixtures::DAY.0),
            (Algorithm::SlidingWindow(SlidingWindow { hits, length }), 120_000_000),
            (Algorithm::SlidingLog(SlidingLog { hits, length }), 60_000_000),
            (bucket(Refill::Arrival { emission: Micros(100_000) }), 500_000),
            // Five of seven hits per minute, rounded up.
            (bucket(Refill::Credits { hits, window: length }), 42_857_143),
            (Algorithm::Hybrid(hybrid), 42_857_143),
            (Algorithm::Concurrency(Concurrency { slots: hits, lease: length }), 60_000_000),
        ] {
            let limit = fixtures::limit(algorithm);
            assert_eq!(limit.charge_lifetime(), Micros(lifetime), "{limit:?}");
            for charge in [Charge::Billed, Charge::Always] {
                let limit = Limit { charge, ..limit.clone() };
                assert_eq!(limit.charge_lifetime(), Micros(2 * lifetime), "{limit:?}");
            }
        }
    }
}
