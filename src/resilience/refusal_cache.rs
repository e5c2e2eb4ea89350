//! Refusals remembered: a check that was refused is refused again here, without asking the store,
//! until its retry-after has passed, at most for a second. So a hot key that is refused costs the
//! store at most one call a second and process, however hot it is.
//!
//! It never admits anything. It may refuse for a second what another process gave back meanwhile.
//!
//! A refusal is remembered per counter, limit and cost, and only where it says something of the
//! counter: not of a peek, not of hits that are charged whatever the verdict, not of a counter that
//! the call touched twice, not in a call that the store splits (another call may have held the hits
//! for a round trip). A refund or a charge seen here drops what is remembered of its counter, a
//! reload drops everything.
//!
//! Not here: the store's time (`Call::now` is this process's), what a refusal means.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use smallvec::SmallVec;

use crate::domain::{
    Accounting, Algorithm, Answer, Answers, Call, Charge, Check, Hits, Key, Limit, Micros, Op,
    Outcome, Receipt, Refill, Role, Source, Verdict, Window,
};
use crate::store::Store;

/// The longest that a refusal is remembered: what another process gave back is seen after that.
pub const REMEMBERED_FOR_MAX: Micros = Micros::SECOND;

/// While one call asks again what is a second old, the others are refused on for at most that long:
/// else as many would ask at once as there are callers. A tenth of what is remembered, and many
/// times the store's budget: a busy machine takes longer than that to bring the answer.
pub const RENEWED_WITHIN: Micros = Micros(100_000);

/// Sets of [`WAYS`] refusals. 4,096 in all, half a megabyte: only keys that are refused again
/// within a second profit, and a key that is driven out asks the store once more.
const SETS: usize = 512;

/// Refusals per set; a look compares each.
const WAYS: usize = 8;

/// A store that remembers its refusals.
#[derive(Debug)]
pub struct RefusalCache<S> {
    inner: S,
    /// The store splits calls whose counters have different tags.
    splits: bool,
    /// Switched off, it passes everything on.
    on: bool,
    sets: Box<[Set]>,
    counters: Counters,
}

/// Counts of what was remembered; read by telemetry, never reset.
#[derive(Debug, Default)]
pub struct Counters {
    /// Checks refused here.
    pub refused: AtomicU64,
    /// Calls answered without asking the store at all.
    pub spared: AtomicU64,
}

/// A mutex, because a refusal is a dozen words: it is held for eight comparisons, and only while
/// something here is remembered.
#[derive(Debug, Default)]
struct Set {
    /// When the last refusal here ends; nothing is remembered from then on. Zero: never anything.
    until: AtomicU64,
    refusals: Mutex<SmallVec<[Refusal; WAYS]>>,
}

#[derive(Clone, Copy, Debug)]
struct Refusal {
    what: What,
    /// By the process's clock.
    from: Micros,
    until: Micros,
    /// A call asks again; the others are refused on until `lasts`.
    renewing: bool,
    lasts: Micros,
    retry_at: Micros,
    reset_at: Micros,
    available: Hits,
}

/// What a refusal is remembered by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct What {
    key: Key,
    cost: Hits,
    numbers: [u64; 5],
}

/// The checks of a call that still have to be asked, by their number.
type Rest = SmallVec<[usize; 8]>;

impl<S: Store> RefusalCache<S> {
    /// Remembers the refusals of `inner`. `splits`: that store asks counters of different tags
    /// apart, so that a refusal in such a call says nothing (Redis Cluster).
    pub fn new(inner: S, splits: bool) -> Self {
        let sets = (0..SETS).map(|_| Set::default()).collect();
        RefusalCache { inner, splits, on: true, sets, counters: Counters::default() }
    }

    /// Remembers (as it does from the beginning) or does not.
    pub fn switched(mut self, on: bool) -> Self {
        self.on = on;
        self
    }

    /// The store whose refusals are cached.
    pub fn inner(&self) -> &S {
        &self.inner
    }

    /// What went on so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Forgets everything: for a reload of the policy.
    pub fn forget_all(&self) {
        for set in &self.sets {
            set.refusals.lock().unwrap_or_else(PoisonError::into_inner).clear();
        }
    }

    fn set(&self, key: &Key) -> &Set {
        // The identity is a hash already.
        &self.sets[(key.identity as usize) % SETS]
    }

    fn forget(&self, key: &Key, now: Micros) {
        let set = self.set(key);
        if set.until.load(Ordering::Relaxed) > now.0 {
            let mut refusals = set.refusals.lock().unwrap_or_else(PoisonError::into_inner);
            refusals.retain(|refusal| refusal.what.key != *key);
        }
    }

    /// The refusal that a check meets again.
    fn recall(&self, check: &Check<'_>, now: Micros) -> Option<Outcome> {
        let set = self.set(&check.key);
        if set.until.load(Ordering::Relaxed) <= now.0 {
            return None;
        }
        let what = What::of(check)?;
        let mut refusals = set.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        let refusal = refusals.iter_mut().find(|refusal| refusal.what == what)?;
        // A clock that stepped back behind the refusal: the store shall say.
        let holds =
            refusal.from <= now && (now < refusal.until || refusal.renewing && now < refusal.lasts);
        refusal.renewing |= now >= refusal.until;
        holds.then(|| Outcome {
            verdict: Verdict::Refuse,
            charged: Hits::ZERO,
            available: refusal.available,
            retry_after: Some(refusal.retry_at.saturating_sub(now)),
            reset_after: refusal.reset_at.saturating_sub(now),
            taken: None,
        })
    }

    fn remember(&self, check: &Check<'_>, outcome: &Outcome, now: Micros) {
        let (Some(retry), Some(what)) = (outcome.retry_after, What::of(check)) else { return };
        if !self.on {
            return;
        }
        let retry_at = now.saturating_add(retry);
        let until = now.saturating_add(REMEMBERED_FOR_MAX).min(retry_at);
        let lasts = until.saturating_add(RENEWED_WITHIN).min(retry_at);
        let refusal = Refusal {
            what,
            from: now,
            until,
            renewing: false,
            lasts,
            retry_at,
            reset_at: now.saturating_add(outcome.reset_after),
            available: outcome.available,
        };
        let set = self.set(&check.key);
        let mut refusals = set.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        refusals.retain(|held| held.what != what && held.lasts > now);
        if refusals.len() == WAYS {
            let ends_first = (0..WAYS).min_by_key(|at| refusals[*at].until);
            refusals.swap_remove(ends_first.unwrap_or(0));
        }
        refusals.push(refusal);
        set.until.fetch_max(lasts.0, Ordering::Relaxed);
    }

    /// Learns from a call that was asked: remembers its refusals, and drops those of counters that
    /// it charged, because their waits have become longer.
    fn learn(&self, call: &Call<'_>, answers: &[Answer]) {
        let apart = self.splits && !share_a_tag(call.checks);
        for (check, answer) in call.checks.iter().zip(answers) {
            let Answer::Decided(outcome) = answer else { continue };
            if outcome.charged > Hits::ZERO {
                self.forget(&check.key, call.now);
            }
            let same = |other: &&Check<'_>| other.key == check.key;
            if outcome.verdict == Verdict::Refuse
                && !apart
                && call.checks.iter().filter(same).count() == 1
            {
                self.remember(check, outcome, call.now);
            }
        }
    }

    /// Asks the checks of `rest` and fills in their answers.
    async fn ask(&self, call: &Call<'_>, rest: &Rest, answers: &mut [Answer]) -> Source {
        if rest.is_empty() {
            self.counters.spared.fetch_add(1, Ordering::Relaxed);
            return Source::Cached;
        }
        let checks: SmallVec<[Check<'_>; 8]> = rest.iter().map(|at| call.checks[*at]).collect();
        let part = Call { checks: &checks, ..*call };
        let asked = self.inner.apply(&part).await;
        self.learn(&part, &asked.each);
        for (at, answer) in rest.iter().zip(asked.each) {
            answers[*at] = answer;
        }
        asked.source
    }
}

impl What {
    /// `None` for a check whose refusal is never remembered.
    fn of(check: &Check<'_>) -> Option<What> {
        let Op::Take { cost: cost @ Hits(1..) } = check.op else { return None };
        if check.limit.charge == Charge::Always || check.holder.is_some() {
            return None;
        }
        Some(What { key: check.key, cost, numbers: numbers(check.limit)? })
    }
}

/// What tells one limit from another on the same counter. `None` for slots: any call may return one.
fn numbers(limit: &Limit) -> Option<[u64; 5]> {
    Some(match &limit.algorithm {
        Algorithm::FixedWindow(window) => match window.window {
            Window::Epoch { length } => [0, window.hits.0, length.0, 0, 0],
            // The unit and the zone are in the key.
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
        // ReplicaLimits that change with a policy drop what is remembered, as every reload does.
        Algorithm::Hybrid(classes) => {
            let class = (classes.class as u64) << 32 | u64::from(classes.floor_percent);
            [6, classes.burst.0, classes.hits.0, classes.window.0, class]
        }
        Algorithm::Concurrency(_) => return None,
    })
}

/// Whether a store that splits calls by tag asks these together.
fn share_a_tag(checks: &[Check<'_>]) -> bool {
    let tag = |check: &Check<'_>| check.key.tag.unwrap_or(check.key.identity);
    checks.windows(2).all(|pair| tag(&pair[0]) == tag(&pair[1]))
}

/// Whether the cached refusals refuse the call: a required check, or every quota check, under
/// all-or-nothing. (Independent checks are charged for themselves.)
fn refuse(call: &Call<'_>, answers: &[Answer]) -> bool {
    if call.accounting == Accounting::Independent {
        return false;
    }
    let with = |role| call.checks.iter().zip(answers).filter(move |(check, _)| check.role == role);
    let decided = |(_, answer): (&Check<'_>, &Answer)| answer.outcome().is_some();
    with(Role::Required).any(decided)
        || with(Role::Quota).next().is_some() && with(Role::Quota).all(decided)
}

/// Takes effect whatever becomes of the call.
fn stands(check: &Check<'_>) -> bool {
    match check.op {
        Op::Refund { .. } => true,
        Op::Take { .. } => check.limit.charge == Charge::Always,
        Op::Peek => false,
    }
}

impl<S: Store> Store for RefusalCache<S> {
    async fn apply(&self, call: &Call<'_>) -> Answers {
        for check in call.checks {
            if matches!(check.op, Op::Refund { .. }) {
                self.forget(&check.key, call.now);
            }
        }
        let mut recalled = false;
        // The allocation is the answer's own.
        let mut each: Vec<Answer> = Vec::new();
        for (at, check) in call.checks.iter().enumerate() {
            let Some(outcome) = self.recall(check, call.now) else { continue };
            self.counters.refused.fetch_add(1, Ordering::Relaxed);
            if !recalled {
                each.resize(call.checks.len(), Answer::NotAsked);
                recalled = true;
            }
            each[at] = Answer::Decided(outcome);
        }
        if !recalled {
            let answers = self.inner.apply(call).await;
            self.learn(call, &answers.each);
            return answers;
        }
        // A check that would refuse charges nothing: without it the others fare the same.
        let refused = refuse(call, &each);
        let open = |at: &usize| each[*at] == Answer::NotAsked;
        let rest: Rest = (0..call.checks.len())
            .filter(open)
            .filter(|at| !refused || stands(&call.checks[*at]))
            .collect();
        let source = self.ask(call, &rest, &mut each).await;
        Answers { each, source }
    }

    async fn refund(&self, receipts: &[Receipt]) {
        for receipt in receipts {
            // Whatever the time is.
            self.forget(&receipt.key, Micros::ZERO);
        }
        self.inner.refund(receipts).await;
    }
}
