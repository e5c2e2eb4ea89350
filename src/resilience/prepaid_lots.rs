//! Table of prepaid hits. It measures how hot a counter is, sizes the lots to take in advance, and
//! holds them until they are spent or over.
//!
//! A lot is [`LOT_TIME`] of the counter's rate on this replica, but with all other hits that the
//! replica holds at most [a quarter](AVAILABLE_DIVISOR) of what remained, divided by the replicas. So
//! there is none near the limit. It is spent before the window's end, by the latest time that the
//! server's clock may show, and never longer than [`LIFE_MAX`].
//!
//! Times are those of a monotonic clock of this process, in microseconds, unless they are said to be
//! the store's. Not here: charging and returning lots (`prepaid_hits`).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::domain::{
    Algorithm, ChargeRecord, Check, CounterKey, Hits, Limit, Micros, Outcome, Receipt, Verdict,
};

/// Time for which a lot lasts at the counter's present rate. Forty lots per second cost Redis
/// little, and a lot is spent long before it must be returned.
const LOT_TIME: Micros = Micros(50_000);

/// Longest time for which hits are held, from when their charge was sent.
const LIFE_MAX: Micros = Micros(100_000);

/// Smallest lot. A lot of one hit would save nothing.
const LOT_MIN: u64 = 2;

/// Divisor of the hits that remain. All replicas together hold at most this part of them.
const AVAILABLE_DIVISOR: u64 = 4;

/// Part of a lot that is left when the next one is taken, as a divisor. Callers spend it while one
/// call asks the store; otherwise all of them would. A half lasts 25 ms, which is longer than a busy
/// server takes.
const REFILL_DIVISOR: u64 = 2;

/// Time by which the server's clock may be ahead of what is known of it. Two clocks that are slewed
/// by 500 ppm in opposite directions drift apart by a tenth of this within [`LIFE_MAX`].
const DRIFT_MAX: Micros = Micros(1_000);

/// Time after which a counter that no call has used gives its place in the table to another one.
const IDLE_MAX: Micros = Micros(100_000);

/// Number of sets, each with [`ACCOUNTS_PER_SET`] accounts: prepaid hits of at most 1,024 counters,
/// in a third of a megabyte. A counter that finds no place is charged as without prepaid hits.
const SET_COUNT: usize = 256;

/// Number of accounts per set, all of which a lookup compares.
const ACCOUNTS_PER_SET: usize = 4;

/// Prepaid hits of all hot counters.
#[derive(Debug)]
pub(super) struct PrepaidLots {
    /// Uses mutexes, because an account is too large for an atomic. A call holds the lock of its
    /// counter's set for a few comparisons and additions.
    sets: Box<[Mutex<Accounts>]>,
    replicas: u64,
    next_id: AtomicU64,
}

/// Accounts of one set: at most [`ACCOUNTS_PER_SET`], allocated when the first counter is hot.
type Accounts = Vec<Account>;

/// Identifier of a lot, unique in the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LotId(u64);

/// What is known of one counter under one limit.
#[derive(Debug)]
struct Account {
    counter: CounterKey,
    /// Limit whose address identifies the account. A new policy has new limits, so its calls never
    /// spend hits that were taken under another limit.
    limit: Arc<Limit>,
    /// At most two: the one that is being spent, and the one taken beside its last hits.
    lots: [Lot; 2],
    /// Whether a call is taking a lot now.
    is_refilling: bool,
    /// Hits that remained in the store after its last answer.
    store_available: Hits,
    /// Time at which the counter is unused, by its last answer.
    reset_at: Micros,
    rate: RateMeter,
    used_at: Micros,
}

/// Hits that were charged in advance.
#[derive(Clone, Copy, Debug)]
struct Lot {
    id: LotId,
    left: u64,
    /// Record of the whole charge, by the store's clock.
    taken: ChargeRecord,
    spend_until: Micros,
    /// Session of the store in which the hits were charged.
    session: u64,
    /// Whether the lot ends with its fixed window, so that a refund would find another one.
    ends_with_window: bool,
}

impl Lot {
    const NONE: Lot = Lot {
        id: LotId(0),
        left: 0,
        taken: ChargeRecord { hits: Hits::ZERO, at: Micros::ZERO, window: Micros::ZERO, entry: 0 },
        spend_until: Micros::ZERO,
        session: 0,
        ends_with_window: false,
    };

    fn is_live(&self, session: u64, now: Micros) -> bool {
        self.left > 0 && now < self.spend_until && self.session == session
    }

    /// Returns whether another lot may take the place of this one: nothing can be spent or returned.
    fn is_free(&self, session: u64, now: Micros) -> bool {
        let is_lost = self.ends_with_window || self.session != session;
        self.left == 0 || is_lost && !self.is_live(session, now)
    }
}

/// Rate at which a replica admits the hits of one counter.
#[derive(Clone, Copy, Debug)]
struct RateMeter {
    since: Micros,
    hits: u64,
    /// Hits in [`LOT_TIME`], by the last period that was at least so long.
    per_lot_time: u64,
}

impl RateMeter {
    fn add(&mut self, hits: Hits, now: Micros) {
        self.roll(now);
        self.hits = self.hits.saturating_add(hits.0);
    }

    /// Starts a new period if the present one is long enough.
    fn roll(&mut self, now: Micros) {
        let elapsed = now.saturating_sub(self.since);
        if elapsed >= LOT_TIME {
            let hits = u128::from(self.hits) * u128::from(LOT_TIME.0) / u128::from(elapsed.0);
            // Fits: the period is at least as long as the lot's time.
            self.per_lot_time = u64::try_from(hits).unwrap_or(u64::MAX);
            (self.since, self.hits) = (now, 0);
        }
    }
}

/// What a call that needs hits gets from the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SpendResult {
    /// Prepaid hits of this lot.
    Spent(LotId, Outcome),
    /// No hits: the store must be asked, for so many hits in advance beside those that the call
    /// needs. If they are above zero, [`PrepaidLots::end_refill`] must follow.
    Ask {
        /// Hits to take in advance.
        lot: u64,
    },
}

/// Lot that was added to the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AddedLot {
    pub(super) counter: CounterKey,
    pub(super) id: LotId,
    /// Time from which the rest must be returned.
    pub(super) spend_until: Micros,
}

impl PrepaidLots {
    /// Creates an empty table. `replicas` is the number of replicas that share the limits.
    pub(super) fn new(replicas: u32) -> PrepaidLots {
        PrepaidLots {
            sets: (0..SET_COUNT).map(|_| Mutex::default()).collect(),
            replicas: u64::from(replicas.max(1)),
            next_id: AtomicU64::new(1),
        }
    }

    fn lock_set(&self, counter: &CounterKey) -> MutexGuard<'_, Accounts> {
        // The identity is a hash, so its lowest bits choose the set.
        let set = &self.sets[(counter.identity as usize) % SET_COUNT];
        set.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Spends prepaid hits on a check, if there are enough in one lot. `session` is the present one
    /// of the store. If `may_take_lot`, one call asks the store for the next lot before the last
    /// hits are spent.
    pub(super) fn spend(
        &self,
        check: &Check<'_>,
        may_take_lot: bool,
        session: u64,
        now: Micros,
    ) -> SpendResult {
        let mut set = self.lock_set(&check.key);
        let Some(account) = find(&mut set, check) else { return SpendResult::Ask { lot: 0 } };
        let cost = check.cost();
        account.used_at = now;
        account.rate.roll(now);
        if may_take_lot && !account.is_refilling {
            let lot = account.lot_to_take(self.replicas, session, now);
            if lot >= cost.0 && lot > 0 {
                account.is_refilling = true;
                return SpendResult::Ask { lot };
            }
        }
        let live = |lot: &&mut Lot| lot.is_live(session, now) && lot.left >= cost.0;
        let Some(lot) = account.lots.iter_mut().filter(live).min_by_key(|lot| lot.id) else {
            return SpendResult::Ask { lot: 0 };
        };
        lot.left -= cost.0;
        let (id, taken) = (lot.id, ChargeRecord { hits: cost, ..lot.taken });
        account.rate.add(cost, now);
        let available = account.store_available.0.saturating_add(account.held_hits(session, now));
        let outcome = Outcome {
            verdict: Verdict::Pass,
            charged: cost,
            available: Hits(available).min(check.limit.capacity()),
            retry_after: None,
            reset_after: account.reset_at.saturating_sub(now),
            taken: Some(taken),
        };
        SpendResult::Spent(id, outcome)
    }

    /// Puts hits back into the lot that they were spent from, because their call was rejected.
    /// Returns false if the lot is over, so that they must be refunded.
    pub(super) fn put_back(&self, check: &Check<'_>, id: LotId) -> bool {
        let mut set = self.lock_set(&check.key);
        let mut lots = set.iter_mut().flat_map(|account| &mut account.lots);
        let Some(lot) = lots.find(|lot| lot.id == id) else { return false };
        lot.left += check.cost().0;
        true
    }

    /// Records what the store answered for a check without a lot. A counter that was charged gets
    /// an account.
    pub(super) fn record(&self, check: &Check<'_>, outcome: &Outcome, now: Micros) {
        let mut set = self.lock_set(&check.key);
        if find(&mut set, check).is_none() {
            if outcome.charged == Hits::ZERO || !make_room(&mut set, now) {
                return;
            }
            set.push(Account {
                counter: check.key,
                limit: Arc::clone(check.limit),
                lots: [Lot::NONE; 2],
                is_refilling: false,
                store_available: Hits::ZERO,
                reset_at: Micros::ZERO,
                rate: RateMeter { since: now, hits: 0, per_lot_time: 0 },
                used_at: now,
            });
        }
        let Some(account) = find(&mut set, check) else { return };
        account.store_available = outcome.available;
        account.reset_at = now.saturating_add(outcome.reset_after);
        account.rate.add(outcome.charged, now);
    }

    /// Adds the hits that the store charged for a check beyond its cost. `outcome` is the store's
    /// answer, and `sent` the time at which it was asked. Returns `None` if they can never be spent,
    /// so that they must be refunded at once.
    pub(super) fn add(
        &self,
        check: &Check<'_>,
        outcome: &Outcome,
        session: u64,
        sent: Micros,
    ) -> Option<AddedLot> {
        let taken = outcome.taken?;
        let left = outcome.charged.0.checked_sub(check.cost().0)?;
        let mut set = self.lock_set(&check.key);
        let account = find(&mut set, check)?;
        let life = lot_lifetime(check.limit, &taken)?;
        let ends_with_window =
            life < LIFE_MAX && matches!(check.limit.algorithm, Algorithm::FixedWindow(_));
        let place = account.lots.iter_mut().find(|lot| lot.is_free(session, sent))?;
        let id = LotId(self.next_id.fetch_add(1, Ordering::Relaxed));
        let spend_until = sent.saturating_add(life);
        let taken = ChargeRecord { hits: Hits(left), ..taken };
        *place = Lot { id, left, taken, spend_until, session, ends_with_window };
        Some(AddedLot { counter: check.key, id, spend_until })
    }

    /// Lets another call take a lot of the check's counter.
    pub(super) fn end_refill(&self, check: &Check<'_>) {
        if let Some(account) = find(&mut self.lock_set(&check.key), check) {
            account.is_refilling = false;
        }
    }

    /// Ends a lot. Returns the receipt of its rest, unless nothing is left or a refund would be
    /// wrong: in another session, the server may not have the charge.
    pub(super) fn end(&self, lot: &AddedLot, session: u64) -> Option<Receipt> {
        let mut set = self.lock_set(&lot.counter);
        let account =
            set.iter_mut().find(|account| account.lots.iter().any(|held| held.id == lot.id))?;
        let held = account.lots.iter_mut().find(|held| held.id == lot.id)?;
        let ended = std::mem::replace(held, Lot::NONE);
        let is_due = ended.left > 0 && ended.session == session && !ended.ends_with_window;
        is_due.then(|| Receipt {
            key: account.counter,
            limit: Arc::clone(&account.limit),
            taken: ChargeRecord { hits: Hits(ended.left), ..ended.taken },
        })
    }

    /// Lets nobody spend the present lots, because the policy has changed. Their rest is returned
    /// when they are over.
    pub(super) fn stop_spending(&self) {
        for set in &self.sets {
            let mut set = set.lock().unwrap_or_else(PoisonError::into_inner);
            for lot in set.iter_mut().flat_map(|account| &mut account.lots) {
                lot.spend_until = Micros::ZERO;
            }
        }
    }
}

impl Account {
    /// Returns the hits that can still be spent.
    fn held_hits(&self, session: u64, now: Micros) -> u64 {
        self.lots.iter().filter(|lot| lot.is_live(session, now)).map(|lot| lot.left).sum()
    }

    /// Returns the hits to take in advance now; 0 if there are enough, or near the limit.
    fn lot_to_take(&self, replicas: u64, session: u64, now: Micros) -> u64 {
        if !self.lots.iter().any(|lot| lot.is_free(session, now)) {
            return 0;
        }
        let share = self.store_available.0 / (AVAILABLE_DIVISOR.saturating_mul(replicas));
        let target = self.rate.per_lot_time.min(share);
        let held = self.held_hits(session, now);
        if target < LOT_MIN || held > target / REFILL_DIVISOR {
            return 0;
        }
        target - held
    }
}

/// Returns how long a lot may be spent, from when its charge was sent. Until then, the server's
/// clock shows at most `taken.at` plus the time since that moment. Returns `None` if the clock has
/// stepped back, and is before the window.
fn lot_lifetime(limit: &Limit, taken: &ChargeRecord) -> Option<Micros> {
    let Some(end) = limit.window_end(taken.window) else { return Some(LIFE_MAX) };
    let left = end.saturating_sub(taken.at.saturating_add(DRIFT_MAX));
    (taken.at >= taken.window).then(|| LIFE_MAX.min(left))
}

fn find<'a>(set: &'a mut Accounts, check: &Check<'_>) -> Option<&'a mut Account> {
    set.iter_mut()
        .find(|account| account.counter == check.key && Arc::ptr_eq(&account.limit, check.limit))
}

/// Removes an idle account if the set is full. Returns whether there is room.
fn make_room(set: &mut Accounts, now: Micros) -> bool {
    if set.len() < ACCOUNTS_PER_SET {
        return true;
    }
    let is_idle = |account: &Account| {
        !account.is_refilling
            && account.lots.iter().all(|lot| lot.left == 0)
            && now.saturating_sub(account.used_at) >= IDLE_MAX
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
