//! A bucket: `burst` hits fit in and it refills evenly. A leaky bucket is the same one seen as a
//! level. It admits at most B + r·W in any interval of one window's length.
//!
//! The state is the debt, kept as time (GCRA's theoretical arrival time): `tat`, the microsecond in
//! which the bucket will be full again, and `rem`, the fraction of a further one. Both forms of
//! refill are one arithmetic and share the state, so that a changed rate keeps its counter:
//!
//! | | `u`, credits per hit | `l`, credits that come back each µs |
//! |---|---|---|
//! | [`Refill::Arrival`] | emission | 1, so that `rem` is always 0 |
//! | [`Refill::Credits`] | window W | hits L |
//!
//! With `C = burst·u` and `cap = C` (charge always: `2C`), and debt = `ahead·l + rem` credits:
//!
//! ```text
//! read       tat < now: ahead, rem = 0, 0;  else ahead = tat − now, and where rem ≥ l: ahead + 1, 0
//! far        ahead > ⌊cap / l⌋ + 1 s: ahead, rem = ⌊cap / l⌋, cap mod l, and that is written
//! wait(c)    ahead − ⌊(C − max(c, floor)·u − rem) / l⌋ for c ≤ burst; it passes iff that is ≤ 0
//! charge     rem + c·u, carried into ahead by l
//! available  ⌊(C − debt) / u⌋ + 1 − max(floor, 1), at least 0, and 0 where ahead > ⌊C / l⌋
//! reset      ahead, + 1 where rem > 0
//! write      tat = now + ahead, rem
//! ```
//!
//! Every product is at most `cap` (plus `l`), never `ahead·l` of an unchecked `ahead`: so all of it
//! is exact in doubles too. For that the policy keeps `burst·emission < 2^52` and
//! `burst·window < 2^53`, and half of that for limits that are charged always.
//!
//! A clock that steps back by at most a second beyond what a full debt explains only makes the debt
//! look longer: clamping at once would let two alternating clocks refill the difference again and
//! again. Beyond that the state is clamped, else the counter would freeze until the clock catches
//! up.
//!
//! Sources: the generic cell rate algorithm (ITU-T I.371); its bound follows from the debt never
//! exceeding C and falling by l each microsecond.

use super::Step;
use crate::domain::{Bucket, Charge, ChargeRecord, Hits, Micros, Op, Outcome, Refill, Verdict};

/// How much further into the future than a full debt a state may reach before it counts as one
/// from the far future. NTP slews below 128 ms and steps above; replicas that fail over differ by
/// less than a second, or their operators are told.
pub const STEP_BACK_MAX: Micros = Micros::SECOND;

/// More credits than any limit that the policy lets through has; Lua's numbers are exact below it.
const CREDITS_MAX: u64 = 1 << 53;

/// A bucket's debt, as time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// The whole microsecond in which the bucket is full again.
    pub tat: Micros,
    /// And a fraction of one: in units of 1/L µs, below L; always 0 in arrival form.
    pub rem: u32,
}

/// A limit's numbers, in credits.
pub(crate) struct BucketCredits {
    pub(crate) burst: u64,
    /// `u`: credits per hit.
    pub(crate) unit: u64,
    /// `l`: credits that come back each microsecond; at least 1.
    pub(crate) flow: u64,
    /// `C`: burst · unit.
    pub(crate) capacity: u64,
    /// The largest debt: C, charged always 2C.
    pub(crate) cap: u64,
    /// The same in hits.
    pub(crate) cap_hits: u64,
    /// Hits that must be there before any is taken.
    pub(crate) floor: u64,
}

/// What is owed: `ahead` µs and `rem / flow` of one more.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Debt {
    ahead: u64,
    rem: u64,
}

/// Applies an operation.
pub fn apply(
    state: Option<State>,
    limit: &Bucket,
    charge: Charge,
    op: Op,
    now: Micros,
) -> Step<State> {
    let terms = BucketCredits::of(limit, charge);
    let (read, clamped) = terms.read(state, now);
    let mut debt = read;
    let mut charged = 0;
    let mut wait = Some(0);
    match op {
        Op::Refund { cost } => {
            let credits = cost.0.min(terms.cap_hits) * terms.unit;
            debt = terms.lowered(read, credits / terms.flow, credits % terms.flow);
        }
        Op::Peek | Op::Take { cost: Hits::ZERO } => wait = terms.wait(read, 1),
        Op::Take { cost: Hits(cost) } => {
            wait = terms.wait(read, cost);
            if wait == Some(0) {
                debt = terms.raised(read, cost * terms.unit);
                charged = cost;
            } else if charge == Charge::Always {
                (debt, charged) = terms.capped(read, cost);
                wait = terms.wait(debt, cost);
            }
        }
    }
    // Read off after the charge, so that the wait is honest for `Charge::Always` too; there it is
    // never 0 because the debt has not shrunk.
    let passes = wait == Some(0);
    Step {
        outcome: Outcome {
            verdict: if passes { Verdict::Pass } else { Verdict::Refuse },
            charged: Hits(charged),
            available: Hits(terms.available(debt)),
            retry_after: wait.filter(|wait| *wait > 0).map(Micros),
            reset_after: Micros(debt.ceil()),
            taken: (charged > 0).then_some(ChargeRecord {
                hits: Hits(charged),
                at: now,
                window: Micros::ZERO,
                entry: 0,
            }),
        },
        write: (clamped || debt != read).then(|| debt.stored(now)),
        stepped_back: clamped,
    }
}

/// Returns a receipt's hits, less what can have refilled since they were taken. (Returning all of
/// them would hand out the refill twice.)
pub fn refund(
    state: State,
    limit: &Bucket,
    charge: Charge,
    taken: &ChargeRecord,
    now: Micros,
) -> Option<State> {
    let terms = BucketCredits::of(limit, charge);
    let (read, clamped) = terms.read(Some(state), now);
    let credits = taken.hits.0.min(terms.cap_hits) * terms.unit;
    let (whole, rem) = (credits / terms.flow, credits % terms.flow);
    let elapsed = now.saturating_sub(taken.at).0;
    let debt = if elapsed > whole { read } else { terms.lowered(read, whole - elapsed, rem) };
    (clamped || debt != read).then(|| debt.stored(now))
}

/// When the bucket is full again.
pub fn expires_at(state: State) -> Micros {
    state.tat.saturating_add(Micros(u64::from(state.rem > 0)))
}

impl BucketCredits {
    pub(crate) fn of(limit: &Bucket, charge: Charge) -> BucketCredits {
        let (unit, flow) = match limit.refill {
            Refill::Arrival { emission } => (emission.0, 1),
            Refill::Credits { hits, window } => (window.0, hits.0),
        };
        let (unit, flow) = (unit.clamp(1, CREDITS_MAX), flow.clamp(1, CREDITS_MAX));
        // Without effect on any limit that the policy lets through.
        let burst = limit.burst.0.min(CREDITS_MAX / unit);
        let times = match charge {
            Charge::Admitted => 1,
            Charge::Always => 2,
        };
        let capacity = burst * unit;
        BucketCredits {
            burst,
            unit,
            flow,
            capacity,
            cap: capacity * times,
            cap_hits: burst * times,
            floor: limit.floor.0.min(burst),
        }
    }

    /// The debt at `now`, and whether it had to be clamped.
    fn read(&self, state: Option<State>, now: Micros) -> (Debt, bool) {
        let Some(state) = state.filter(|state| state.tat >= now) else {
            return (Debt { ahead: 0, rem: 0 }, false);
        };
        let mut debt = Debt { ahead: state.tat.0 - now.0, rem: u64::from(state.rem) };
        if debt.rem >= self.flow {
            // The limit changed its form or its rate: below a microsecond, rounded up.
            debt = Debt { ahead: debt.ahead.saturating_add(1), rem: 0 };
        }
        let full = Debt { ahead: self.cap / self.flow, rem: self.cap % self.flow };
        if debt.ahead > full.ahead + STEP_BACK_MAX.0 { (full, true) } else { (debt, false) }
    }

    /// How long until `cost` hits pass: 0 if they do now, `None` if they never do.
    fn wait(&self, debt: Debt, cost: u64) -> Option<u64> {
        if cost > self.burst {
            return None;
        }
        let room = self.capacity - cost.max(self.floor) * self.unit;
        // `rem` is below `flow`: where there is no room for it, one microsecond makes some.
        let wait = match room.checked_sub(debt.rem) {
            Some(room) => debt.ahead.saturating_sub(room / self.flow),
            None => debt.ahead.saturating_add(1),
        };
        Some(wait)
    }

    fn raised(&self, debt: Debt, credits: u64) -> Debt {
        let rem = debt.rem.saturating_add(credits);
        Debt { ahead: debt.ahead.saturating_add(rem / self.flow), rem: rem % self.flow }
    }

    /// The debt raised by as much of `cost` as the cap has room for, and the hits that makes,
    /// rounded down.
    fn capped(&self, debt: Debt, cost: u64) -> (Debt, u64) {
        if debt.ahead > self.cap / self.flow {
            return (debt, 0);
        }
        let owed = debt.ahead * self.flow + debt.rem;
        let room = self.cap.saturating_sub(owed);
        let credits = (cost.min(self.cap_hits) * self.unit).min(room);
        (self.raised(debt, credits), credits / self.unit)
    }

    /// The debt lowered by `whole` µs and `rem / flow` of one more; at least none.
    fn lowered(&self, debt: Debt, whole: u64, rem: u64) -> Debt {
        let (borrow, left) =
            if debt.rem >= rem { (0, debt.rem - rem) } else { (1, debt.rem + self.flow - rem) };
        match debt.ahead.checked_sub(whole + borrow) {
            Some(ahead) => Debt { ahead, rem: left },
            None => Debt { ahead: 0, rem: 0 },
        }
    }

    fn available(&self, debt: Debt) -> u64 {
        if debt.ahead > self.capacity / self.flow {
            return 0;
        }
        let there = self.capacity.saturating_sub(debt.ahead * self.flow + debt.rem) / self.unit;
        // Single hits pass until one more than the floor is no longer there.
        (there + 1).saturating_sub(self.floor.max(1))
    }
}

impl Debt {
    /// Whole microseconds, rounded up.
    fn ceil(self) -> u64 {
        self.ahead.saturating_add(u64::from(self.rem > 0))
    }

    fn stored(self, now: Micros) -> State {
        let tat = now.saturating_add(Micros(self.ahead));
        match u32::try_from(self.rem) {
            Ok(rem) => State { tat, rem },
            // Only for rates beyond `u32::MAX` hits per window, which no policy can say.
            Err(_) => State { tat: tat.saturating_add(Micros(1)), rem: 0 },
        }
    }
}
