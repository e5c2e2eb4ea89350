//! Token bucket: holds `burst` hits and refills at a constant rate. A leaky bucket is the same
//! algorithm under another name. Any interval of length W admits at most B + r·W hits. For the
//! symbols, see the [parent module](super).
//!
//! The state is the debt, expressed as the time at which the bucket is full again (the theoretical
//! arrival time of GCRA): `tat` in whole microseconds, and `rem`, a remainder below one
//! microsecond. Both variants of [`Refill`] share this state, so that a limit whose rate changes
//! keeps its counter:
//!
//! | | `u`, credits per hit | `l`, credits refilled per µs |
//! |---|---|---|
//! | [`Refill::Arrival`] | emission | 1, so that `rem` is always 0 |
//! | [`Refill::Credits`] | window W | hits L |
//!
//! `C = burst·u` is the capacity, `cap` the largest debt (`debt_burst·u`, or twice that with `charge:
//! billed` or `always`), and `floor` the number of hits that must be in the bucket before a hit is charged
//! (for consumer classes). With `ahead = tat − now`, the debt is `ahead·l + rem` credits.
//!
//! ```text
//! read       tat < now: ahead, rem = 0, 0;  else ahead = tat − now, and if rem ≥ l: ahead + 1, 0
//! clamp      if ahead > ⌊cap / l⌋ + 1 s: store ahead, rem = ⌊cap / l⌋, cap mod l; a refund stores
//!            no such clamp
//! needs(c)   c + max(floor, 1) − 1 hits: c hits pass iff c single hits would, one after another
//! wait(c)    ahead − ⌊(C − needs(c)·u − rem) / l⌋ for needs(c) ≤ burst; passes iff ≤ 0
//! charge     rem + c·u; each l of it adds 1 to ahead, the rest stays in rem
//! available  ⌊(C − debt) / u⌋ + 1 − max(floor, 1), at least 0, and 0 if ahead > ⌊C / l⌋
//! reset      ahead, + 1 if rem > 0
//! write      tat = now + ahead, rem
//! ```
//!
//! Every product is at most `cap + l`, because `ahead` is checked before it is multiplied. The
//! products are therefore exact in Lua's doubles, too. To ensure this, the policy compiler requires
//! `burst·emission < 2^52` and `burst·window < 2^53`, or half of these bounds with `charge: billed`
//! or `always`.
//!
//! If the clock steps back, the stored debt looks larger. A debt that exceeds the maximum by at
//! most one second is kept: if it were clamped, every switch to a clock that is slightly behind
//! would refill the bucket by the difference. A larger debt is clamped; otherwise the counter would
//! stay frozen until the clock catches up. The state does not tell such a debt from that of a larger
//! burst, so the first take or peek after the burst was lowered clamps, too. The clamp is stored even
//! if the check is refused: repeated by every call, it would put off the reported wait forever.
//!
//! A refund subtracts from the debt as it is stored. If the debt were clamped first, a refund of one
//! hit under a lower burst would free all hits above that burst.
//!
//! Source: the generic cell rate algorithm (ITU-T I.371). Its bound holds because the debt never
//! exceeds C and falls by l each microsecond.

use super::step::{CounterOp, Step, record_charge};
use crate::domain::{Bucket, Charge, ChargeRecord, Hits, Micros, Outcome, Refill};

/// Maximum excess of stored debt over the bucket's maximum debt, as refill time: 1 s. A larger
/// excess means that the debt was stored by a clock that ran ahead, or before the capacity was
/// lowered or the refill rate was raised. A take or a peek clamps such debt to the maximum debt.
///
/// This tolerance covers the usual clock differences: NTP slews offsets below 128 ms and steps
/// larger ones, and clocks of Redis replicas are expected to differ by less than a second.
pub const EXCESS_DEBT_MAX: Micros = Micros::SECOND;

/// Upper bound on credit counts: 2^53. Doubles, Lua's only number type, represent every
/// integer below it exactly.
const CREDITS_MAX: u64 = 1 << 53;

/// Stored state of a bucket: the time at which it will be full again if no more hits are charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// Theoretical arrival time (GCRA): the time at which the bucket will be full again, in whole
    /// microseconds since the Unix epoch, rounded down.
    pub tat: Micros,
    /// Fraction of a microsecond to add to `tat`, in units of 1/L µs, where L is the number of hits
    /// refilled per window. Always below L; zero for [`Refill::Arrival`].
    pub rem: u32,
}

/// Parameters of a bucket limit in credits, the integer unit of the bucket's arithmetic.
pub(crate) struct BucketCredits {
    /// Capacity of the bucket, in hits.
    pub(crate) burst: u64,
    /// Cost of one hit, in credits (`u` in the module documentation).
    pub(crate) unit: u64,
    /// Credits refilled per microsecond, at least 1 (`l` in the module documentation).
    pub(crate) flow: u64,
    /// Capacity of the bucket in credits: `burst * unit` (`C` in the module documentation).
    pub(crate) capacity: u64,
    /// Maximum debt in credits: that of a used-up counter, or twice that with `charge: billed` or
    /// `always`.
    pub(crate) cap: u64,
    /// Maximum debt in hits.
    pub(crate) cap_hits: u64,
    /// Minimum number of hits that must be in the bucket before each hit is charged. Used by
    /// consumer classes that share the bucket; 0 without classes.
    pub(crate) floor: u64,
}

/// Debt of a bucket, expressed as the time until it is full again: `ahead` whole microseconds plus
/// `rem / flow` of a microsecond, where `flow` is the refill rate in credits per microsecond.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Debt {
    ahead: u64,
    rem: u64,
}

/// Applies an operation to a bucket. Returns the outcome and, if the state changes, the new state.
pub fn apply(
    state: Option<State>,
    limit: &Bucket,
    charge: Charge,
    op: CounterOp,
    now: Micros,
) -> Step<State> {
    let credits = BucketCredits::new(limit, charge);
    let is_refund = matches!(op, CounterOp::Refund(_));
    let cap = if is_refund { CREDITS_MAX } else { credits.cap };
    let (read, clamped) = credits.read(state, cap, now);
    let mut debt = read;
    let mut charged = 0;
    let mut wait = Some(0);
    match op {
        CounterOp::Refund(cost) if cost >= credits.refund_hits_max() => debt = Debt::ZERO,
        CounterOp::Refund(cost) => {
            let refunded = cost * credits.unit;
            debt = credits.subtract_time(read, refunded / credits.flow, refunded % credits.flow);
        }
        CounterOp::Peek(hits) => wait = credits.wait_time(read, hits),
        CounterOp::Take(cost) => {
            wait = credits.wait_time(read, cost);
            if wait == Some(0) {
                debt = credits.add_debt(read, cost * credits.unit);
                charged = cost;
            } else if charge == Charge::Always {
                (debt, charged) = credits.add_debt_up_to_cap(read, cost);
                wait = credits.wait_time(debt, cost);
            }
        }
    }
    // Under `Charge::Always` the wait was computed after the charge and is never 0, because a
    // charge only raises the debt.
    // After a refund, what the next peek will make of the debt.
    let shown = if is_refund { credits.clamp(debt, credits.cap).0 } else { debt };
    Step {
        outcome: Outcome {
            charged: Hits(charged),
            reset_after: Micros(shown.ceil_micros()),
            taken: record_charge(charged, now, Micros::ZERO, 0),
            ..Outcome::after(wait.map(Micros), Hits(credits.available(shown)))
        },
        write: (clamped || debt != read).then(|| debt.to_state(now)),
        stepped_back: clamped,
    }
}

/// Refunds a recorded charge, minus the hits that may have refilled since the charge: a full refund
/// would grant these hits twice. Returns the new state, or `None` if nothing is left to refund.
pub fn refund(
    state: State,
    limit: &Bucket,
    charge: Charge,
    record: &ChargeRecord,
    now: Micros,
) -> Option<State> {
    let credits = BucketCredits::new(limit, charge);
    let (read, clamped) = credits.read(Some(state), CREDITS_MAX, now);
    let refunded = record.hits.0.min(credits.cap_hits) * credits.unit;
    let (whole, rem) = (refunded / credits.flow, refunded % credits.flow);
    let elapsed = now.saturating_sub(record.at).0;
    let debt =
        if elapsed > whole { read } else { credits.subtract_time(read, whole - elapsed, rem) };
    (clamped || debt != read).then(|| debt.to_state(now))
}

/// Returns the time at which the bucket is full again, rounded up to a whole microsecond.
pub fn expires_at(state: State) -> Micros {
    state.tat.saturating_add(Micros(u64::from(state.rem > 0)))
}

impl BucketCredits {
    pub(crate) fn new(limit: &Bucket, charge: Charge) -> BucketCredits {
        let (unit, flow) = match limit.refill {
            Refill::Arrival { emission } => (emission.0, 1),
            Refill::Credits { hits, window } => (window.0, hits.0),
        };
        let (unit, flow) = (unit.clamp(1, CREDITS_MAX), flow.clamp(1, CREDITS_MAX));
        // The policy's bounds keep every limit below this clamp.
        let burst = limit.burst.0.min(CREDITS_MAX / unit);
        let times = match charge {
            Charge::Admitted => 1,
            Charge::Billed | Charge::Always => 2,
        };
        let cap_hits = limit.debt_burst.0.min(CREDITS_MAX / unit / times).max(burst) * times;
        BucketCredits {
            burst,
            unit,
            flow,
            capacity: burst * unit,
            cap: cap_hits * unit,
            cap_hits,
            floor: limit.floor.0.min(burst),
        }
    }

    /// Returns the smallest refund that empties any bucket, in hits. Smaller refunds are exact.
    pub(crate) fn refund_hits_max(&self) -> u64 {
        CREDITS_MAX.div_ceil(self.unit)
    }

    /// Returns the debt at `now`, and whether the stored debt was larger than `cap` credits by more
    /// than the tolerance and therefore clamped.
    fn read(&self, state: Option<State>, cap: u64, now: Micros) -> (Debt, bool) {
        let Some(state) = state.filter(|state| state.tat >= now) else {
            return (Debt::ZERO, false);
        };
        let mut debt = Debt { ahead: state.tat.0 - now.0, rem: u64::from(state.rem) };
        if debt.rem >= self.flow {
            // Written under another rate or `Refill` variant: round the remainder up to 1 µs.
            debt = Debt { ahead: debt.ahead.saturating_add(1), rem: 0 };
        }
        self.clamp(debt, cap)
    }

    fn clamp(&self, debt: Debt, cap: u64) -> (Debt, bool) {
        let full = Debt { ahead: cap / self.flow, rem: cap % self.flow };
        if debt.ahead > full.ahead + EXCESS_DEBT_MAX.0 { (full, true) } else { (debt, false) }
    }

    /// Returns the time until a charge of `cost` hits passes, in microseconds: 0 if it passes now,
    /// or `None` if it never does.
    fn wait_time(&self, debt: Debt, cost: u64) -> Option<u64> {
        // The last of the hits also needs the floor before it.
        let needed = cost.saturating_add(self.floor.max(1) - 1);
        if needed > self.burst {
            return None;
        }
        let room = self.capacity - needed * self.unit;
        // `rem` is below `flow`, so one microsecond of refill always makes room for it.
        let wait = match room.checked_sub(debt.rem) {
            Some(room) => debt.ahead.saturating_sub(room / self.flow),
            None => debt.ahead.saturating_add(1),
        };
        Some(wait)
    }

    /// Returns the debt plus `credits`.
    fn add_debt(&self, debt: Debt, credits: u64) -> Debt {
        let rem = debt.rem.saturating_add(credits);
        Debt { ahead: debt.ahead.saturating_add(rem / self.flow), rem: rem % self.flow }
    }

    /// Increases the debt by `cost` hits, up to the maximum debt. Returns the new debt and the
    /// number of hits charged, rounded down.
    fn add_debt_up_to_cap(&self, debt: Debt, cost: u64) -> (Debt, u64) {
        if debt.ahead > self.cap / self.flow {
            return (debt, 0);
        }
        let owed = debt.ahead * self.flow + debt.rem;
        let room = self.cap.saturating_sub(owed);
        let credits = (cost.min(self.cap_hits) * self.unit).min(room);
        (self.add_debt(debt, credits), credits / self.unit)
    }

    /// Returns the debt reduced by `whole` microseconds plus `rem / flow` of a microsecond, or zero
    /// if the debt is smaller than that.
    fn subtract_time(&self, debt: Debt, whole: u64, rem: u64) -> Debt {
        let (borrow, left) =
            if debt.rem >= rem { (0, debt.rem - rem) } else { (1, debt.rem + self.flow - rem) };
        match debt.ahead.checked_sub(whole + borrow) {
            Some(ahead) => Debt { ahead, rem: left },
            None => Debt::ZERO,
        }
    }

    /// Returns the number of single-hit charges that would pass now, one after another.
    fn available(&self, debt: Debt) -> u64 {
        if debt.ahead > self.capacity / self.flow {
            return 0;
        }
        let left = self.capacity.saturating_sub(debt.ahead * self.flow + debt.rem) / self.unit;
        // A single hit needs max(floor, 1) hits to be available before it.
        (left + 1).saturating_sub(self.floor.max(1))
    }
}

impl Debt {
    const ZERO: Debt = Debt { ahead: 0, rem: 0 };

    /// Returns the debt in whole microseconds, rounded up.
    fn ceil_micros(self) -> u64 {
        self.ahead.saturating_add(u64::from(self.rem > 0))
    }

    fn to_state(self, now: Micros) -> State {
        let tat = now.saturating_add(Micros(self.ahead));
        match u32::try_from(self.rem) {
            Ok(rem) => State { tat, rem },
            // Only for rates above `u32::MAX` hits per window, which no policy can express.
            Err(_) => State { tat: tat.saturating_add(Micros(1)), rem: 0 },
        }
    }
}
