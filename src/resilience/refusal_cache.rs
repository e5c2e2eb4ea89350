//! Cache of refusals: repeats the refusal of a check without calling the store, until its
//! `retry_after` has passed, but for at most one second. After one second, a single call checks
//! with the store again, and the refusal is repeated to other calls for at most another 100 ms
//! meanwhile. A hot key over its limit therefore causes about one store call per second in each
//! process.
//!
//! The cache never admits a call. If another process refunds hits, the cache may still refuse calls
//! for up to 1.1 seconds.
//!
//! A bucket that refills a check's hits within 100 ms is often saturated for longer: a refusal then
//! ends before or soon after the store's answer arrives. Once it has ended, a single call checks
//! with the store for each refill, and the others are refused. The hits of that call are expected
//! to be taken. If they are not, because another check rejects the call or another process takes
//! what has refilled, other calls are refused for at most another refill.
//!
//! An entry is keyed by counter, limit and cost. A refusal is not cached if it does not predict the
//! result of the next call. This applies to the refusals of:
//!
//! - peeks, bills (`charge: billed`), and checks with `charge: always`
//! - concurrency limits, limits with `reserve`, whose holds other calls settle, and counters that occur
//!   twice in the call
//!
//! The first refusal of a counter whose refusals may be [transient] is repeated only for 50 ms.
//! After that, one call checks with the store again. If it is refused, too, its refusal is repeated
//! like any other.
//!
//! [transient]: crate::store::Store::has_transient_refusals
//!
//! A refund or a charge in this process removes the entries of its counter; a policy reload clears
//! the cache.
//!
//! The cache uses `Call::now`, the clock of this process, rather than the store's clock.

use std::cell::LazyCell;
use std::sync::atomic::{AtomicU64, Ordering};

use super::known_counters::{Known, KnownCounters};
use super::last_known::LastKnownCounters;
use super::remaining_checks::RemainingChecks;
use super::stack_stats::StackStats;
use crate::domain::{
    Algorithm, Answer, Call, Charge, Check, CounterKey, Hits, Limit, Micros, Op, Outcome, Receipt,
    Refill, RepeatedCounters, Verdict, Window,
};

/// Maximum age at which a cached refusal becomes stale. A refund made by another process may take
/// this long, plus [`REVALIDATION_MAX`], to become visible in this one.
const TTL_MAX: Micros = Micros::SECOND;

/// Maximum age at which the first refusal of a counter becomes stale if the counter's refusals may
/// be [transient](crate::store::Store::has_transient_refusals): other calls may refund hits within a
/// round trip, so that the next call passes.
const TRANSIENT_TTL: Micros = Micros(50_000);

/// Time for which a stale entry still rejects calls while a single call checks with the store
/// again. Otherwise, every caller would hit the store at once (thundering herd). The value equals
/// the [default budget](super::deadline::BUDGET_DEFAULT) of a store call.
const REVALIDATION_MAX: Micros = Micros(100_000);

/// Number of sets, each with at most [`REFUSALS_PER_SET`] refusals. All 4,096 refusals take less than
/// a megabyte. Only a key that is refused repeatedly within a second benefits from the cache, and the
/// eviction of a refusal costs only one more call to the store.
const SET_COUNT: usize = 512;

/// Maximum number of refusals per set. A lookup compares all of them.
const REFUSALS_PER_SET: usize = 8;

type Refusals = KnownCounters<CachedRefusal, SET_COUNT, REFUSALS_PER_SET>;

/// Cache that repeats refusals until a retry could be admitted. Lets a call check with the store again
/// after at most one second. Also holds the last known states of counters.
#[derive(Debug)]
pub(super) struct RefusalCache {
    /// Whether refusals are cached. If false, every call goes to the store.
    enabled: bool,
    refusals: Refusals,
    /// Time at which the last refusal of each set expires, in microseconds since the Unix epoch; zero
    /// if the set has never had one. A lookup locks the set only if it has a refusal.
    last_expiries: Box<[AtomicU64]>,
    last_known: LastKnownCounters,
}

#[derive(Clone, Copy, Debug, Default)]
struct CachedRefusal {
    /// Time at which the refusal was cached, in microseconds since the Unix epoch.
    cached_at: Micros,
    /// Whether this is the first refusal of a counter whose refusals may be transient. If so, it is
    /// cached only for [`TRANSIENT_TTL`].
    is_first_rejection: bool,
    /// Time at which the entry becomes stale. From then on, one call may check with the store
    /// again, which makes the entry fresh until the store's answer can be expected.
    stale_at: Micros,
    /// Time of the call that checks with the store again; zero if there was none.
    revalidated_at: Micros,
    expires_at: Micros,
    retry_at: Micros,
    /// Time after which a bucket can take the next hits of this cost; zero for other algorithms, and
    /// if it is longer than [`REVALIDATION_MAX`].
    refill: Micros,
    /// Time from `retry_at` until the bucket is full and loses what it refills.
    refill_max: Micros,
    reset_at: Micros,
    available: Hits,
}

impl Known for CachedRefusal {
    type Key = RefusalKey;

    fn is_useful(&self, now: Micros) -> bool {
        self.expires_at > now
            || self.is_first_rejection && self.cached_at <= now && now < self.retry_at
    }

    fn stale_at(&self) -> Micros {
        self.stale_at
    }
}

impl CachedRefusal {
    /// Lets a call check with the store again. The next call may do so after [`REVALIDATION_MAX`]
    /// or, if this call is likely to take what a bucket has refilled, after the next refill.
    fn start_revalidation(&mut self, now: Micros) {
        if now >= self.retry_at {
            let lost = now.saturating_sub(self.retry_at).saturating_sub(self.refill_max);
            self.delay_retry(lost.saturating_add(self.refill));
        }
        self.stale_at = now.saturating_add(REVALIDATION_MAX).min(self.retry_at);
        self.revalidated_at = now;
    }

    fn delay_retry(&mut self, delay: Micros) {
        for at in [&mut self.retry_at, &mut self.reset_at, &mut self.expires_at] {
            *at = at.saturating_add(delay);
        }
    }

    /// Lets another call check with the store, because the call that was to do so did not.
    fn cancel_revalidation(&mut self) {
        if self.is_charged_ahead() {
            for at in [&mut self.retry_at, &mut self.reset_at, &mut self.expires_at] {
                *at = at.saturating_sub(self.refill);
            }
        }
        self.stale_at = self.revalidated_at;
        self.revalidated_at = Micros::ZERO;
    }

    /// Returns whether `retry_at` takes into account the hits of the call that revalidates the
    /// entry.
    fn is_charged_ahead(&self) -> bool {
        self.refill > Micros::ZERO
            && self.revalidated_at.saturating_add(self.refill) >= self.retry_at
    }
}

/// Key of a cached refusal: the counter, the parameters of the limit, and the cost of the check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct RefusalKey {
    counter: CounterKey,
    cost: Hits,
    limit: [u64; 5],
}

impl RefusalCache {
    /// Creates a cache. If `enabled` is false, it caches no refusals.
    pub(super) fn new(enabled: bool) -> Self {
        let last_expiries = (0..SET_COUNT).map(|_| AtomicU64::new(0)).collect();
        let (refusals, last_known) = (KnownCounters::new(), LastKnownCounters::new());
        RefusalCache { enabled, refusals, last_expiries, last_known }
    }

    /// Removes all cached refusals. Must be called after a policy reload.
    pub(super) fn clear(&self) {
        self.refusals.clear();
    }

    /// Refuses the checks of a call that have a cached refusal, and returns the others, of which there
    /// are none if the refusals decide the call. Returns `None`, without an allocation, if there is no
    /// refusal. Removes the cached refusals of counters that the call refunds.
    pub(super) fn answer<'a>(
        &self,
        call: &Call<'a>,
        stats: &StackStats,
    ) -> Option<Box<RemainingChecks<'a>>> {
        for check in call.checks.iter().filter(|check| check.is_refund()) {
            self.remove(&check.key, call.now);
        }
        let mut answers: Vec<Answer> = Vec::new();
        for (at, check) in call.checks.iter().enumerate() {
            let Some(outcome) = self.get(check, call.now) else { continue };
            stats.cached_refusals.fetch_add(1, Ordering::Relaxed);
            answers.resize(call.checks.len(), Answer::NotAsked);
            answers[at] = Answer::Decided(outcome);
        }
        (!answers.is_empty()).then(|| Box::new(self.select_remaining(call, answers, stats)))
    }

    fn select_remaining<'a>(
        &self,
        call: &Call<'a>,
        answers: Vec<Answer>,
        stats: &StackStats,
    ) -> RemainingChecks<'a> {
        // A refused check charges nothing, so the store can decide the other checks without it.
        let remaining = RemainingChecks::new(call, answers);
        for (at, check) in call.checks.iter().enumerate() {
            let is_open = matches!(remaining.known[at], Answer::NotAsked);
            if is_open && !remaining.positions.contains(&at) {
                self.cancel_revalidation(check, call.now);
            }
        }
        if remaining.positions.is_empty() {
            stats.cached_calls.fetch_add(1, Ordering::Relaxed);
        }
        remaining
    }

    /// Returns the time at which the last refusal in the set of a counter expires.
    fn last_expiry(&self, counter: &CounterKey) -> &AtomicU64 {
        &self.last_expiries[Refusals::set_index(counter)]
    }

    /// Removes the cached refusals of counters to which hits are refunded.
    pub(super) fn forget(&self, receipts: &[Receipt]) {
        for receipt in receipts {
            // A receipt carries the store's time, not this process's; zero matches all entries.
            self.remove(&receipt.key, Micros::ZERO);
        }
    }

    /// Removes all cached refusals of one counter.
    fn remove(&self, key: &CounterKey, now: Micros) {
        self.retain(key, now, |_, _| false);
    }

    /// Keeps only those cached refusals of a counter for which `is_kept` returns true.
    fn retain(
        &self,
        counter: &CounterKey,
        now: Micros,
        mut is_kept: impl FnMut(&RefusalKey, &mut CachedRefusal) -> bool,
    ) {
        if self.last_expiry(counter).load(Ordering::Relaxed) > now.0 {
            let mut set = self.refusals.lock(counter);
            set.retain(|key, refusal| key.counter != *counter || is_kept(key, refusal));
        }
    }

    /// Removes the refusals that the outcome of a check makes outdated: after a charge, those whose
    /// retry times do not take it into account; otherwise, those of costs that would pass.
    fn remove_outdated(&self, check: &Check<'_>, outcome: &Outcome, now: Micros) {
        let is_charged = outcome.charged > Hits::ZERO;
        self.retain(&check.key, now, |key, held| {
            let is_expected = || {
                held.is_charged_ahead()
                    && outcome.charged == check.cost()
                    && RefusalKey::for_check(check) == Some(*key)
            };
            key.cost > outcome.available && (!is_charged || is_expected())
        });
    }

    /// Lets another call check a stale refusal with the store, if the call at `now` was to do so and
    /// did not, because another check had already rejected it.
    fn cancel_revalidation(&self, check: &Check<'_>, now: Micros) {
        self.retain(&check.key, now, |_, held| {
            if held.revalidated_at == now {
                held.cancel_revalidation();
            }
            true
        });
    }

    /// Returns the cached refusal of a check, or `None` if the store must decide it. If the entry
    /// is stale, only the first caller gets `None` and calls the store; the others still get the
    /// refusal.
    fn get(&self, check: &Check<'_>, now: Micros) -> Option<Outcome> {
        let last_expiry = self.last_expiry(&check.key);
        if last_expiry.load(Ordering::Relaxed) <= now.0 {
            return None;
        }
        let key = RefusalKey::for_check(check)?;
        let mut set = self.refusals.lock(&check.key);
        let refusal = set.get(&key)?;
        // If the clock has stepped back behind the time of the refusal, ask the store.
        if now < refusal.cached_at || now >= refusal.expires_at {
            return None;
        }
        if now >= refusal.stale_at {
            refusal.start_revalidation(now);
            last_expiry.fetch_max(refusal.expires_at.0, Ordering::Relaxed);
            return None;
        }
        let refused = Outcome::refuse_for(refusal.retry_at.saturating_sub(now));
        let reset_after = refusal.reset_at.saturating_sub(now);
        Some(Outcome { available: refusal.available, reset_after, ..refused })
    }

    /// Caches a refusal, unless it does not predict the result of the next call.
    ///
    /// If the counter's refusals may be transient, the first one is repeated only for
    /// [`TRANSIENT_TTL`]. Its entry is kept until `retry_after` has passed, so that a second
    /// refusal is recognized and cached for the full time. A refusal of a call that was made while
    /// the first one was repeated is no second refusal, because the same hits may have caused both.
    fn insert(
        &self,
        check: &Check<'_>,
        outcome: &Outcome,
        now: Micros,
        is_transient: impl FnOnce() -> bool,
    ) {
        let (Some(retry), Some(key)) = (outcome.retry_after, RefusalKey::for_check(check)) else {
            return;
        };
        if !self.enabled {
            return;
        }
        let mut set = self.refusals.lock(&check.key);
        // The refusal of a later call may have been received first.
        let latest = now.saturating_add(REVALIDATION_MAX);
        let old =
            set.get(&key).copied().filter(|old| old.cached_at <= latest && now < old.retry_at);
        let is_repeated = old.is_some_and(|old| {
            !old.is_first_rejection || now >= old.cached_at.saturating_add(TRANSIENT_TTL)
        });
        let is_first = !is_repeated && is_transient();
        let ttl = if is_first { TRANSIENT_TTL } else { TTL_MAX };
        // Calls that were made since then ask for the next hits of a bucket.
        let ahead = old.filter(|old| old.is_charged_ahead());
        let retry_at = now.saturating_add(retry);
        let retry_at = ahead.map_or(retry_at, |old| old.retry_at.max(retry_at));
        let stale_at = now.saturating_add(ttl).min(retry_at);
        let (refill, refill_max) = refill_times(check);
        let expires = match refill {
            Micros::ZERO => stale_at.saturating_add(REVALIDATION_MAX).min(retry_at),
            _ => retry_at.saturating_add(REVALIDATION_MAX),
        };
        let refusal = CachedRefusal {
            cached_at: now,
            is_first_rejection: is_first,
            stale_at,
            revalidated_at: ahead.map_or(Micros::ZERO, |old| old.revalidated_at),
            expires_at: expires,
            retry_at,
            refill,
            refill_max,
            reset_at: now.saturating_add(outcome.reset_after),
            available: outcome.available,
        };
        set.insert(key, refusal, now);
        self.last_expiry(&check.key).fetch_max(expires.0, Ordering::Relaxed);
    }

    /// Updates the cache with the store's answers. Caches the refusals, and removes the entries of
    /// the counters that were charged, because their retry times have changed. Records the states of
    /// all counters in [`LastKnownCounters`]. `is_transient` states whether the store may refuse a
    /// check because of hits that another call is about to refund.
    pub(super) fn learn(
        &self,
        call: &Call<'_>,
        answers: &[Answer],
        is_transient: impl Fn(&Check<'_>) -> bool,
    ) {
        // Found only if a check is refused.
        let repeated = LazyCell::new(|| RepeatedCounters::from_checks(call.checks));
        for (check, answer) in call.checks.iter().zip(answers) {
            let outcome = match answer {
                Answer::Decided(outcome) => outcome,
                Answer::NotAsked | Answer::LastKnown { .. } => {
                    self.cancel_revalidation(check, call.now);
                    continue;
                }
                Answer::Unanswered { .. } => continue,
            };
            if outcome.charged > Hits::ZERO || outcome.verdict == Verdict::Pass {
                self.remove_outdated(check, outcome, call.now);
            }
            if outcome.verdict == Verdict::Refuse && !repeated.contains(&check.key) {
                self.insert(check, outcome, call.now, || is_transient(check));
            }
            self.last_known.record(check, outcome, call.now);
        }
    }

    /// Replaces the answers of checks that were not asked with the last known states of their
    /// counters.
    pub(super) fn fill_in_last_known(&self, call: &Call<'_>, answers: &mut [Answer]) {
        for (check, answer) in call.checks.iter().zip(answers) {
            if matches!(answer, Answer::NotAsked) {
                *answer = self.last_known.answer(check, call.now);
            }
        }
    }
}

impl RefusalKey {
    /// Returns the cache key for a check, or `None` if refusals of this check are never cached.
    fn for_check(check: &Check<'_>) -> Option<RefusalKey> {
        let Op::Take { cost: cost @ Hits(1..) } = check.op else { return None };
        let limit = check.limit;
        if limit.charge == Charge::Always || limit.reserve.is_some() || check.holder.is_some() {
            return None;
        }
        Some(RefusalKey { counter: check.key, cost, limit: limit_key(check.limit)? })
    }
}

/// Returns the time in which a bucket refills the hits of the check, and the time from a retry that
/// would pass until the bucket is full. Returns zeros for other algorithms, and if the hits take
/// longer than [`REVALIDATION_MAX`] to refill. Rounds up.
fn refill_times(check: &Check<'_>) -> (Micros, Micros) {
    let bucket = match &check.limit.algorithm {
        // A block does not end with the next hit.
        Algorithm::Bucket(bucket) if check.limit.block_seconds.is_none() => bucket,
        Algorithm::Bucket(_)
        | Algorithm::FixedWindow(_)
        | Algorithm::SlidingWindow(_)
        | Algorithm::SlidingLog(_)
        | Algorithm::Hybrid(_)
        | Algorithm::Concurrency(_) => return (Micros::ZERO, Micros::ZERO),
    };
    let time = |hits: u64| match bucket.refill {
        Refill::Arrival { emission } => Micros(emission.0.saturating_mul(hits)),
        Refill::Credits { hits: rate, window } => {
            Micros(window.0.saturating_mul(hits).div_ceil(rate.0.max(1)))
        }
    };
    let cost = check.cost().0;
    let needed = cost.saturating_add(bucket.floor.0.max(1) - 1);
    match time(cost) {
        refill if refill <= REVALIDATION_MAX => {
            (refill, time(bucket.burst.0.saturating_sub(needed)))
        }
        _ => (Micros::ZERO, Micros::ZERO),
    }
}

/// Returns the parameters of a limit, which distinguish limits that share a counter. Returns
/// `None` for a concurrency limit, whose refusals are not cached because any call may free a slot.
fn limit_key(limit: &Limit) -> Option<[u64; 5]> {
    Some(match &limit.algorithm {
        Algorithm::FixedWindow(window) => match window.window {
            Window::Epoch { length } => [0, window.hits.0, length.0, 0, 0],
            // Unit and time zone are part of the counter key.
            Window::Calendar(_) => [3, window.hits.0, 0, 0, 0],
        },
        Algorithm::SlidingWindow(window) => [4, window.hits.0, window.length.0, 0, 0],
        Algorithm::SlidingLog(log) => [5, log.hits.0, log.length.0, 0, 0],
        Algorithm::Bucket(bucket) => match bucket.refill {
            Refill::Arrival { emission } => [1, bucket.burst.0, emission.0, 0, bucket.floor.0],
            Refill::Credits { hits, window } => {
                [2, bucket.burst.0, hits.0, window.0, bucket.floor.0]
            }
        },
        // The shares of the classes change only with the policy, and a reload clears the cache.
        Algorithm::Hybrid(classes) => {
            let class = (classes.class as u64) << 32 | u64::from(classes.floor_percent);
            [6, classes.burst.0, classes.hits.0, classes.window.0, class]
        }
        Algorithm::Concurrency(_) => return None,
    })
}
