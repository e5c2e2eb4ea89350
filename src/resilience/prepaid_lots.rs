//! Table of prepaid hits. Measures the rate of each counter, computes the size of the lots to
//! charge in advance, and holds the lots until they are spent or expire.
//!
//! A lot covers [`LOT_DURATION`] at the counter's current rate on this replica. After a lot is
//! charged, the prepaid hits of the counter on this replica are at most [a
//! quarter](AVAILABLE_DIVISOR) of the hits that the limit had left at the store's last answer,
//! divided by the number of replicas. Therefore, no lot is charged near the limit. A lot expires
//! after [`LOT_LIFETIME_MAX`], or earlier if its window may have ended by the server's clock.
//!
//! All times are in microseconds of a monotonic clock of this process, except in a charge record,
//! which uses the store's clock.
//!
//! Not here: charging and refunding lots (`prepaid_hits`).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard};

use crate::domain::{
    Algorithm, ChargeRecord, Check, CounterKey, Hits, Limit, Lock, Micros, Outcome, Receipt,
};

/// Time for which a lot lasts at the counter's current rate: 50 ms. Each hot counter causes about
/// forty charges per second, which cost Redis little, and a lot is usually spent long before it
/// expires.
const LOT_DURATION: Micros = Micros(50_000);

/// Maximum lifetime of a lot, measured from the time at which its charge was sent.
const LOT_LIFETIME_MAX: Micros = Micros(100_000);

/// Minimum number of prepaid hits that a replica holds after a lot is charged. If it would hold
/// fewer, no lot is charged, because a single prepaid hit saves hardly any calls to the store.
const HELD_HITS_MIN: u64 = 2;

/// Divisor of the number of hits that the limit had left at the store's last answer. All replicas
/// together prepay at most a quarter of these hits.
const AVAILABLE_DIVISOR: u64 = 4;

/// Divisor of a lot's size. The quotient is the refill threshold: the next lot is charged when at
/// most half a lot is left. Other calls spend this half while one call waits for the store;
/// otherwise, all calls would go to the store. Half a lot lasts 25 ms, which is longer than a busy
/// server takes to reply.
const REFILL_DIVISOR: u64 = 2;

/// Maximum time by which the server's clock may be ahead of this replica's estimate of it. Two
/// clocks that are slewed by 500 ppm in opposite directions drift apart by only 0.1 ms within
/// [`LOT_LIFETIME_MAX`].
const CLOCK_DRIFT_MAX: Micros = Micros(1_000);

/// Time since the last use of a counter after which its prepaid account may be removed to make room
/// for the account of another counter.
const ACCOUNT_IDLE_MAX: Micros = Micros(100_000);

/// Number of sets in the table of prepaid hits. Each set has at most [`ACCOUNTS_PER_SET`] accounts,
/// one per counter. The table therefore has room for 1,024 counters and takes a third of a
/// megabyte. A counter whose set is full gets no prepaid hits.
const SET_COUNT: usize = 256;

/// Maximum number of accounts per set. A lookup compares all of them.
const ACCOUNTS_PER_SET: usize = 4;

/// Table of the prepaid hits of this replica, by counter.
#[derive(Debug)]
pub(super) struct PrepaidLots {
    /// Sets of accounts, each with its own mutex, because an account is too large for an atomic. A
    /// call holds the lock of its counter's set for a few comparisons and additions.
    sets: Box<[Lock<PrepaidAccounts>]>,
    replica_count: AtomicU64,
    next_id: AtomicU64,
}

/// Accounts of one set, at most [`ACCOUNTS_PER_SET`]. Allocated when the first account is added.
type PrepaidAccounts = Vec<PrepaidAccount>;

/// Identifier of a lot, unique in the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LotId(u64);

/// Prepaid lots of one counter under one limit, with the counter's rate and its last known state.
#[derive(Debug)]
struct PrepaidAccount {
    counter: CounterKey,
    /// Limit whose address identifies the account, together with the counter. A new policy has new
    /// limits, so its calls never spend hits that were charged under a limit of the old policy.
    limit: Arc<Limit>,
    /// Lot that is being spent, and the next lot, which is charged before the first one is used up.
    /// An unused element is [`Lot::EMPTY`].
    lots: [Lot; 2],
    /// Whether a call is currently charging the next lot.
    is_refilling: bool,
    /// Number of hits that the limit had left, according to the store's last answer.
    store_available: Hits,
    /// Time at which the counter resets, according to the store's last answer.
    reset_at: Micros,
    rate: RateMeter,
    used_at: Micros,
}

/// Lot of prepaid hits: hits of one counter that a single call charged in advance.
#[derive(Clone, Copy, Debug)]
struct Lot {
    id: LotId,
    hits_left: u64,
    /// Store's record of the charge for this lot, with times by the store's clock.
    charge: ChargeRecord,
    spend_until: Micros,
    /// Session number of the store when the hits were charged. The number changes when a connection
    /// is lost or the store may have lost counters.
    session: u64,
    /// Whether the lot expires with its fixed window. If so, its unspent hits are not refunded,
    /// because the counter has moved on to the next window.
    ends_with_window: bool,
}

impl Lot {
    const EMPTY: Lot = Lot {
        id: LotId(0),
        hits_left: 0,
        charge: ChargeRecord { hits: Hits::ZERO, at: Micros::ZERO, window: Micros::ZERO, entry: 0 },
        spend_until: Micros::ZERO,
        session: 0,
        ends_with_window: false,
    };

    fn is_spendable(&self, session: u64, now: Micros) -> bool {
        self.hits_left > 0 && now < self.spend_until && self.session == session
    }

    /// Returns whether another lot may replace this one, because no hits are left that can be spent
    /// or refunded.
    fn is_replaceable(&self, session: u64, now: Micros) -> bool {
        let is_lost = self.ends_with_window || self.session != session;
        self.hits_left == 0 || is_lost && !self.is_spendable(session, now)
    }
}

/// Meter of the rate at which this replica admits hits of one counter.
#[derive(Clone, Copy, Debug)]
struct RateMeter {
    period_start: Micros,
    hits: u64,
    /// Number of hits per [`LOT_DURATION`], measured over the last period of at least that length.
    hits_per_lot_duration: u64,
}

impl RateMeter {
    fn add_hits(&mut self, hits: Hits, now: Micros) {
        self.advance_period(now);
        self.hits = self.hits.saturating_add(hits.0);
    }

    /// Starts a new measurement period if the current one has lasted at least [`LOT_DURATION`].
    fn advance_period(&mut self, now: Micros) {
        let elapsed = now.saturating_sub(self.period_start);
        if elapsed >= LOT_DURATION {
            let hits = u128::from(self.hits) * u128::from(LOT_DURATION.0) / u128::from(elapsed.0);
            // Fits: the period is at least as long as `LOT_DURATION`.
            self.hits_per_lot_duration = u64::try_from(hits).unwrap_or(u64::MAX);
            (self.period_start, self.hits) = (now, 0);
        }
    }
}

/// Result of an attempt to spend prepaid hits on a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SpendResult {
    /// Lot whose hits were spent, and the outcome of the check.
    Spent(LotId, Outcome),
    /// No hits were spent, and the store must decide the check. If `lot_size` is not 0, the call
    /// must also charge a lot of this size, and then call [`PrepaidLots::end_refill`].
    NotSpent {
        /// Number of hits to charge in advance, beyond the cost of the check; may be 0.
        lot_size: u64,
    },
}

/// Identifier, counter, and expiry time of a lot that was added to [`PrepaidLots`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AddedLot {
    pub(super) counter: CounterKey,
    pub(super) id: LotId,
    /// Time at which the lot expires and its unspent hits must be refunded.
    pub(super) spend_until: Micros,
}

impl PrepaidLots {
    /// Creates an empty table. `replicas` is the number of replicas that share the limits.
    pub(super) fn new(replicas: u32) -> PrepaidLots {
        PrepaidLots {
            sets: (0..SET_COUNT).map(|_| Lock::default()).collect(),
            replica_count: AtomicU64::new(u64::from(replicas.max(1))),
            next_id: AtomicU64::new(1),
        }
    }

    /// Changes the number of replicas that share the limits.
    pub(super) fn set_replicas(&self, replicas: u32) {
        self.replica_count.store(u64::from(replicas), Ordering::Relaxed);
    }

    fn lock_set(&self, counter: &CounterKey) -> MutexGuard<'_, PrepaidAccounts> {
        // The identity is a hash, so its lowest bits choose the set.
        let set = &self.sets[(counter.identity as usize) % SET_COUNT];
        set.lock()
    }

    /// Spends prepaid hits on a check if a single lot has enough of them. If `may_charge_lot` is
    /// true and few hits are left, spends none and returns the size of the next lot to charge. Only
    /// one call at a time charges a lot of the counter. `session` is the current session number of
    /// the store.
    pub(super) fn spend(
        &self,
        check: &Check<'_>,
        may_charge_lot: bool,
        session: u64,
        now: Micros,
    ) -> SpendResult {
        let mut set = self.lock_set(&check.key);
        let Some(account) = find_account(&mut set, check) else {
            return SpendResult::NotSpent { lot_size: 0 };
        };
        let cost = check.cost();
        account.used_at = now;
        account.rate.advance_period(now);
        if may_charge_lot && !account.is_refilling {
            let lot =
                account.next_lot_size(self.replica_count.load(Ordering::Relaxed), session, now);
            if lot >= cost.0 && lot > 0 {
                account.is_refilling = true;
                return SpendResult::NotSpent { lot_size: lot };
            }
        }
        let live = |lot: &&mut Lot| lot.is_spendable(session, now) && lot.hits_left >= cost.0;
        let Some(lot) = account.lots.iter_mut().filter(live).min_by_key(|lot| lot.id) else {
            return SpendResult::NotSpent { lot_size: 0 };
        };
        lot.hits_left -= cost.0;
        let (id, taken) = (lot.id, ChargeRecord { hits: cost, ..lot.charge });
        account.rate.add_hits(cost, now);
        let available =
            account.store_available.0.saturating_add(account.spendable_hits(session, now));
        let outcome = Outcome {
            charged: cost,
            reset_after: account.reset_at.saturating_sub(now),
            taken: Some(taken),
            ..Outcome::pass(Hits(available).min(check.limit.capacity()))
        };
        SpendResult::Spent(id, outcome)
    }

    /// Puts the hits of a rejected call back into the lot from which they were spent. Returns false
    /// if the lot no longer exists; the hits must then be refunded.
    pub(super) fn put_back(&self, check: &Check<'_>, id: LotId) -> bool {
        let mut set = self.lock_set(&check.key);
        let mut lots = set.iter_mut().flat_map(|account| &mut account.lots);
        let Some(lot) = lots.find(|lot| lot.id == id) else { return false };
        lot.hits_left += check.cost().0;
        true
    }

    /// Records the outcome of a check that the store decided. If the call also charged a lot, the
    /// caller must first subtract the lot from `outcome`. Adds an account for the counter if hits
    /// were charged and the counter's set has room.
    pub(super) fn record_outcome(&self, check: &Check<'_>, outcome: &Outcome, now: Micros) {
        let mut set = self.lock_set(&check.key);
        if find_account(&mut set, check).is_none() {
            if outcome.charged == Hits::ZERO || !make_room(&mut set, now) {
                return;
            }
            set.push(PrepaidAccount {
                counter: check.key,
                limit: Arc::clone(check.limit),
                lots: [Lot::EMPTY; 2],
                is_refilling: false,
                store_available: Hits::ZERO,
                reset_at: Micros::ZERO,
                rate: RateMeter { period_start: now, hits: 0, hits_per_lot_duration: 0 },
                used_at: now,
            });
        }
        let Some(account) = find_account(&mut set, check) else { return };
        account.store_available = outcome.available;
        account.reset_at = now.saturating_add(outcome.reset_after);
        account.rate.add_hits(outcome.charged, now);
    }

    /// Adds a lot with the hits that the store charged beyond the cost of a check. `outcome` is the
    /// store's outcome, and `sent` is the time at which the charge was sent. Returns `None` if the
    /// hits can never be spent; they must then be refunded immediately.
    pub(super) fn add_lot(
        &self,
        check: &Check<'_>,
        outcome: &Outcome,
        session: u64,
        sent: Micros,
    ) -> Option<AddedLot> {
        let taken = outcome.taken?;
        let left = outcome.charged.0.checked_sub(check.cost().0)?;
        let mut set = self.lock_set(&check.key);
        let account = find_account(&mut set, check)?;
        let life = lot_lifetime(check.limit, &taken)?;
        let ends_with_window =
            life < LOT_LIFETIME_MAX && matches!(check.limit.algorithm, Algorithm::FixedWindow(_));
        let place = account.lots.iter_mut().find(|lot| lot.is_replaceable(session, sent))?;
        let id = LotId(self.next_id.fetch_add(1, Ordering::Relaxed));
        let spend_until = sent.saturating_add(life);
        let charge = ChargeRecord { hits: Hits(left), ..taken };
        *place = Lot { id, hits_left: left, charge, spend_until, session, ends_with_window };
        Some(AddedLot { counter: check.key, id, spend_until })
    }

    /// Records that the call has finished charging a lot to the check's counter, so that another
    /// call may charge the next one.
    pub(super) fn end_refill(&self, check: &Check<'_>) {
        if let Some(account) = find_account(&mut self.lock_set(&check.key), check) {
            account.is_refilling = false;
        }
    }

    /// Removes a lot. Returns the receipt for its unspent hits, or `None` if there is nothing to
    /// refund. This is the case if no hits are left, if the window has ended, or if the session
    /// number has changed, so that the server in use may not have the charge.
    pub(super) fn remove_lot(&self, lot: &AddedLot, session: u64) -> Option<Receipt> {
        let mut set = self.lock_set(&lot.counter);
        let account =
            set.iter_mut().find(|account| account.lots.iter().any(|held| held.id == lot.id))?;
        let held = account.lots.iter_mut().find(|held| held.id == lot.id)?;
        let ended = std::mem::replace(held, Lot::EMPTY);
        let is_due = ended.hits_left > 0 && ended.session == session && !ended.ends_with_window;
        is_due.then(|| Receipt {
            key: account.counter,
            limit: Arc::clone(&account.limit),
            taken: ChargeRecord { hits: Hits(ended.hits_left), ..ended.charge },
        })
    }

    /// Makes all current lots unspendable, because the policy has changed. Their unspent hits are
    /// still refunded at the times at which the lots would have expired.
    pub(super) fn stop_spending(&self) {
        for set in &self.sets {
            let mut set = set.lock();
            for lot in set.iter_mut().flat_map(|account| &mut account.lots) {
                lot.spend_until = Micros::ZERO;
            }
        }
    }
}

impl PrepaidAccount {
    /// Returns the number of prepaid hits that can still be spent.
    fn spendable_hits(&self, session: u64, now: Micros) -> u64 {
        self.lots.iter().filter(|lot| lot.is_spendable(session, now)).map(|lot| lot.hits_left).sum()
    }

    /// Returns the number of hits to charge in advance now. Returns 0 if enough prepaid hits are
    /// left, if the counter is near its limit, or if there is no room for another lot.
    fn next_lot_size(&self, replicas: u64, session: u64, now: Micros) -> u64 {
        if !self.lots.iter().any(|lot| lot.is_replaceable(session, now)) {
            return 0;
        }
        let share = self.store_available.0 / (AVAILABLE_DIVISOR.saturating_mul(replicas));
        let target = self.rate.hits_per_lot_duration.min(share);
        let held = self.spendable_hits(session, now);
        if target < HELD_HITS_MIN || held > target / REFILL_DIVISOR {
            return 0;
        }
        target - held
    }
}

/// Returns the lifetime of a lot, measured from the time at which its charge was sent. The lot
/// expires before its window ends by the server's clock, which shows at most the time of the
/// charge, plus the time since it was sent, plus [`CLOCK_DRIFT_MAX`]. Returns `None` if the
/// server's clock has stepped back to a time before the window.
fn lot_lifetime(limit: &Limit, taken: &ChargeRecord) -> Option<Micros> {
    let Some(end) = limit.window_end(taken.window) else { return Some(LOT_LIFETIME_MAX) };
    let left = end.saturating_sub(taken.at.saturating_add(CLOCK_DRIFT_MAX));
    (taken.at >= taken.window).then(|| LOT_LIFETIME_MAX.min(left))
}

fn find_account<'a>(
    set: &'a mut PrepaidAccounts,
    check: &Check<'_>,
) -> Option<&'a mut PrepaidAccount> {
    set.iter_mut()
        .find(|account| account.counter == check.key && Arc::ptr_eq(&account.limit, check.limit))
}

/// Removes an idle account if the set is full. Returns whether the set has room for an account.
fn make_room(set: &mut PrepaidAccounts, now: Micros) -> bool {
    if set.len() < ACCOUNTS_PER_SET {
        return true;
    }
    let is_idle = |account: &PrepaidAccount| {
        !account.is_refilling
            && account.lots.iter().all(|lot| lot.hits_left == 0)
            && now.saturating_sub(account.used_at) >= ACCOUNT_IDLE_MAX
    };
    match set.iter().position(is_idle) {
        Some(place) => {
            set.swap_remove(place);
            true
        }
        None => false,
    }
}

#[cfg(test)]
mod tests;
