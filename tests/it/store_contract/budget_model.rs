//! Reference model of "reserve and settle", written from SPEC.md alone.
//! Rule numbers ("rule 1" ... "rule 7") are those of SPEC.md; "Qn" is an entry of QUESTIONS.md.
//! All times are microseconds. Calls must be made in order of time.

/// What the budget counts with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// `limit` hits in each window of `window` microseconds; window number = now / window.
    FixedWindow { limit: u64, window: u64 },
    /// `limit` hits are refilled per `window` microseconds, up to `burst`; starts full.
    /// Counted in credits: 1 hit = `window` credits, `limit` credits are refilled per microsecond.
    TokenBucket { limit: u64, window: u64, burst: u64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitSpec {
    pub algorithm: Algorithm,
    /// The ttl of a hold; None = a limit without `reserve`.
    pub reserve: Option<u64>,
    /// Rule 7; 10,000 in production.
    pub max_ids: usize,
}

pub const DEFAULT_MAX_IDS: usize = 10_000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    Take { limit: usize, hits: u64 },
    Hold { limit: usize, id: Vec<u8>, hits: u64 },
    Settle { limit: usize, id: Vec<u8>, hits: u64 },
    Refund { limit: usize, hits: u64 },
}

impl Op {
    pub fn limit(&self) -> usize {
        match self {
            Op::Take { limit, .. }
            | Op::Hold { limit, .. }
            | Op::Settle { limit, .. }
            | Op::Refund { limit, .. } => *limit,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpAnswer {
    /// Whether this operation passes on its own limit (always true for Settle and Refund).
    pub passes: bool,
    /// Hits that an ordinary take could get next, after the whole call.
    pub available: u64,
    /// Only for a refusal, and only where waiting helps; counted from now.
    pub retry_after: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallAnswer {
    pub admitted: bool,
    pub ops: Vec<OpAnswer>,
}

/// An id that the counter knows: an open hold, or (rule 4) a settled one.
#[derive(Clone, Debug)]
struct Entry {
    id: Vec<u8>,
    amount: u64,
    end: u64,
    /// None: an open hold. Some(n): settled, as the n-th settle of this limit.
    settled: Option<u64>,
}

/// The counter of the algorithm ("used").
#[derive(Clone, Debug)]
enum Counter {
    Window { number: u64, count: i128 },
    Bucket { credits: i128, at: u64 },
}

/// A Take or Hold as the admission sees it.
#[derive(Clone, Copy)]
struct Wish<'a> {
    /// Hits that must be free: a peek (0 hits) needs 1 (Q1).
    need: u64,
    /// Rule 2: the id whose old amount does not count.
    own_id: Option<&'a [u8]>,
    /// Whether an id must be stored, so that rule 7 applies.
    stores: bool,
}

#[derive(Clone, Debug)]
struct Limit {
    spec: LimitSpec,
    counter: Counter,
    entries: Vec<Entry>,
    settles: u64,
}

impl Limit {
    fn new(spec: LimitSpec) -> Limit {
        let mut limit = Limit {
            spec,
            counter: Counter::Window { number: 0, count: 0 },
            entries: Vec::new(),
            settles: 0,
        };
        limit.reset();
        limit
    }

    /// Rule 6: `reset` clears the counter and ends holds, too (and forgets settled ids, Q9).
    fn reset(&mut self) {
        self.entries.clear();
        self.counter = match self.spec.algorithm {
            Algorithm::FixedWindow { window, .. } => {
                assert!(window > 0);
                Counter::Window { number: 0, count: 0 }
            }
            Algorithm::TokenBucket { window, .. } => {
                assert!(window > 0);
                Counter::Bucket { credits: self.capacity(), at: 0 }
            }
        };
    }

    /// Units per hit: a window counts hits, a bucket counts credits.
    fn unit(&self) -> i128 {
        match self.spec.algorithm {
            Algorithm::FixedWindow { .. } => 1,
            Algorithm::TokenBucket { window, .. } => i128::from(window),
        }
    }

    /// The most units that can ever be free.
    fn capacity(&self) -> i128 {
        match self.spec.algorithm {
            Algorithm::FixedWindow { limit, .. } => i128::from(limit),
            Algorithm::TokenBucket { burst, .. } => i128::from(burst).saturating_mul(self.unit()),
        }
    }

    /// Limit − used, in units, holds not considered, at the moment `t` if nothing happens until then.
    /// Negative while there is debt.
    fn unused_at(&self, t: u64) -> i128 {
        match (&self.counter, self.spec.algorithm) {
            (Counter::Window { number, count }, Algorithm::FixedWindow { limit, window }) => {
                let used = if t / window == *number { *count } else { 0 };
                i128::from(limit) - used
            }
            (Counter::Bucket { credits, at }, Algorithm::TokenBucket { limit, .. }) => {
                let refill = i128::from(t - at).saturating_mul(i128::from(limit));
                credits.saturating_add(refill).min(self.capacity())
            }
            _ => unreachable!("counter and algorithm always agree"),
        }
    }

    /// Charges (hits > 0) or gives back (hits < 0), at `now`, without any check.
    fn charge(&mut self, now: u64, hits: i128) {
        let unused = self.unused_at(now);
        let (unit, capacity) = (self.unit(), self.capacity());
        self.counter = match self.spec.algorithm {
            // Debt of a window: the charge counts in the current window (rule 3), beyond the limit
            // if need be. A refund does not bring used below 0 (Q13).
            Algorithm::FixedWindow { window, .. } => {
                Counter::Window { number: now / window, count: (capacity - unused + hits).max(0) }
            }
            // Debt of a bucket: at most one more burst. A refund does not go beyond the burst (Q13).
            Algorithm::TokenBucket { .. } => Counter::Bucket {
                credits: unused
                    .saturating_sub(hits.saturating_mul(unit))
                    .clamp(-capacity, capacity),
                at: now,
            },
        };
    }

    /// *held*: the amounts of open holds whose end is after `t`, without those of `except`.
    /// A window's end does not matter here (rule 5).
    fn held_at(&self, t: u64, except: Option<&[u8]>) -> i128 {
        self.open_at(t, except).map(|e| i128::from(e.amount)).sum()
    }

    fn open_at<'a>(&'a self, t: u64, except: Option<&'a [u8]>) -> impl Iterator<Item = &'a Entry> {
        self.entries
            .iter()
            .filter(move |e| e.settled.is_none() && e.end > t && Some(e.id.as_slice()) != except)
    }

    /// Rules 1, 2 and 7: would this wish pass at the moment `t`, if nothing happens until then?
    fn passes_at(&self, t: u64, wish: Wish<'_>) -> bool {
        // Rule 1: with held counted as used. Rule 2: without its own old amount.
        let taken =
            (self.held_at(t, wish.own_id) + i128::from(wish.need)).saturating_mul(self.unit());
        let fits = self.unused_at(t) >= taken;
        // Rule 7: settled ids can be forgotten, open holds cannot; its own id needs no second place.
        let has_place = !wish.stores || self.open_at(t, wish.own_id).count() < self.spec.max_ids;
        fits && has_place
    }

    /// Rule 6: the first moment at which it passes if nothing else happens.
    /// Things can only change at the end of a hold, at the window's end, and by refill; so list
    /// all such moments, and take the first at which it passes.
    fn retry_after(&self, now: u64, wish: Wish<'_>) -> Option<u64> {
        let hold_ends: Vec<u64> = self.open_at(now, None).map(|e| e.end).collect();
        let mut moments = hold_ends.clone();
        match self.spec.algorithm {
            Algorithm::FixedWindow { window, .. } => {
                moments.extend((now / window + 1).checked_mul(window));
            }
            Algorithm::TokenBucket { limit, .. } => {
                // With the holds that are open at `start`, when is the bucket full enough?
                for start in hold_ends.iter().copied().chain([now]) {
                    let held = self.held_at(start, wish.own_id);
                    let wanted = (held + i128::from(wish.need)).saturating_mul(self.unit());
                    let missing = wanted - self.unused_at(start);
                    if missing > 0 && limit > 0 && wanted <= self.capacity() {
                        let rate = i128::from(limit);
                        let wait = (missing + rate - 1) / rate;
                        moments.extend(u64::try_from(i128::from(start) + wait));
                    }
                }
            }
        }
        let first = moments.into_iter().filter(|t| self.passes_at(*t, wish)).min();
        first.map(|t| t - now)
    }

    /// Rule 6: available = limit − used − held (own hold included, Q3), in whole hits, at least 0.
    fn available(&self, now: u64) -> u64 {
        let free = self.unused_at(now) - self.held_at(now, None).saturating_mul(self.unit());
        u64::try_from(free.max(0) / self.unit()).unwrap_or(u64::MAX)
    }

    /// Stores a hold that has passed (rules 1, 2, 4, 7).
    fn store_hold(&mut self, now: u64, ttl: u64, id: &[u8], amount: u64) {
        // Rules 2 and 4: a renewal replaces the old hold; a settled id begins a new one.
        self.entries.retain(|e| e.id != id);
        // Rule 7: the oldest settled ids are forgotten first (Q7: the one whose settle is oldest).
        while self.entries.len() >= self.spec.max_ids {
            let settled = (0..self.entries.len()).filter(|i| self.entries[*i].settled.is_some());
            let oldest = settled.min_by_key(|i| self.entries[*i].settled);
            self.entries.remove(oldest.expect("rule 7 was checked"));
        }
        self.entries.push(Entry {
            id: id.to_vec(),
            amount,
            end: now.saturating_add(ttl),
            settled: None,
        });
    }

    /// Rules 3 and 4. Applies in any case.
    fn settle(&mut self, now: u64, id: &[u8], hits: u64) {
        if self.spec.reserve.is_none() {
            return; // the estimate was charged at once
        }
        self.settles += 1;
        match self.entries.iter_mut().find(|e| e.id == id) {
            // Rule 4: settling again until the hold's end charges nothing (even after a rejected
            // attempt to reserve the id again, Q4).
            Some(entry) if entry.settled.is_some() => {}
            // Rule 3: charges its hits and ends the hold. Rule 4: the id stays settled until its end.
            Some(entry) => {
                entry.settled = Some(self.settles);
                self.charge(now, i128::from(hits));
            }
            // Rule 4: a settle without a hold is a bill (and leaves no trace of the id, Q5).
            None => self.charge(now, i128::from(hits)),
        }
    }

    /// Rules 4 and 5: at its end, a hold or a settled id is gone, and nothing is charged.
    fn forget_ended(&mut self, now: u64) {
        self.entries.retain(|e| e.end > now);
    }

    /// How the admission sees an operation; None for a settle or refund (no part in admission).
    fn wish<'a>(&self, op: &'a Op) -> Option<Wish<'a>> {
        match op {
            // Ordinary takes and peeks see held, too (rule 1).
            Op::Take { hits, .. } => {
                Some(Wish { need: (*hits).max(1), own_id: None, stores: false })
            }
            // A limit without `reserve`: a take.
            Op::Hold { hits, .. } if self.spec.reserve.is_none() => {
                Some(Wish { need: (*hits).max(1), own_id: None, stores: false })
            }
            // Rule 1: c = 0 is a peek; it stores nothing, and so needs no place (Q2).
            Op::Hold { hits, id, .. } => {
                Some(Wish { need: (*hits).max(1), own_id: Some(id), stores: *hits > 0 })
            }
            Op::Settle { .. } | Op::Refund { .. } => None,
        }
    }
}

#[derive(Clone, Debug)]
pub struct Model {
    limits: Vec<Limit>,
    now: u64,
}

impl Model {
    pub fn new(specs: Vec<LimitSpec>) -> Model {
        Model { limits: specs.into_iter().map(Limit::new).collect(), now: 0 }
    }

    /// One call, all or nothing. At most one operation per limit.
    pub fn call(&mut self, now: u64, ops: &[Op]) -> CallAnswer {
        self.advance(now);
        for (i, op) in ops.iter().enumerate() {
            let twice = ops[..i].iter().any(|other| other.limit() == op.limit());
            assert!(!twice, "one operation per limit and call");
        }

        // Rule 3: settles and refunds are applied before all else, and in any case.
        for op in ops {
            let limit = &mut self.limits[op.limit()];
            match op {
                Op::Settle { id, hits, .. } => limit.settle(now, id, *hits),
                // Rule 6: a refund changes used only.
                Op::Refund { hits, .. } => limit.charge(now, -i128::from(*hits)),
                Op::Take { .. } | Op::Hold { .. } => {}
            }
        }

        // The call is admitted iff every take and hold passes.
        let mut answers = Vec::new();
        for op in ops {
            let limit = &self.limits[op.limit()];
            let (passes, retry_after) = match limit.wish(op) {
                None => (true, None),
                Some(wish) if limit.passes_at(now, wish) => (true, None),
                Some(wish) => (false, limit.retry_after(now, wish)),
            };
            answers.push(OpAnswer { passes, available: 0, retry_after });
        }
        let admitted = answers.iter().all(|answer| answer.passes);

        // A rejected call charges and holds nothing (rule 2: the old hold stays).
        for op in ops.iter().filter(|_| admitted) {
            let limit = &mut self.limits[op.limit()];
            match (op, limit.spec.reserve) {
                (Op::Take { hits, .. }, _) | (Op::Hold { hits, .. }, None) => {
                    limit.charge(now, i128::from(*hits));
                }
                // Rule 1: stores {id, c, now + ttl}, leaves used alone; c = 0 changes nothing (Q2).
                (Op::Hold { id, hits, .. }, Some(ttl)) if *hits > 0 => {
                    limit.store_hold(now, ttl, id, *hits);
                }
                _ => {}
            }
        }

        for (op, answer) in ops.iter().zip(&mut answers) {
            answer.available = self.limits[op.limit()].available(now);
        }
        CallAnswer { admitted, ops: answers }
    }

    /// Rule 6: ends all holds and clears the counter.
    pub fn reset(&mut self, limit: usize) {
        self.limits[limit].reset();
    }

    /// A reload that changes `reserve` alone. Rule 7: without it, open holds are forgotten (Q10).
    pub fn reload(&mut self, limit: usize, reserve: Option<u64>) {
        self.limits[limit].spec.reserve = reserve;
        if reserve.is_none() {
            self.limits[limit].entries.clear();
        }
    }

    /// For tests: used, in hits (window) or as missing credits (bucket); and held, in hits.
    pub fn used_and_held(&mut self, now: u64, limit: usize) -> (i128, i128) {
        self.advance(now);
        let limit = &self.limits[limit];
        (limit.capacity() - limit.unused_at(now), limit.held_at(now, None))
    }

    fn advance(&mut self, now: u64) {
        assert!(now >= self.now, "calls must be in order of time");
        self.now = now;
        self.limits.iter_mut().for_each(|limit| limit.forget_ended(now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000;

    fn window(limit: u64, window: u64, ttl: u64) -> LimitSpec {
        let algorithm = Algorithm::FixedWindow { limit, window };
        LimitSpec { algorithm, reserve: Some(ttl), max_ids: DEFAULT_MAX_IDS }
    }
    fn bucket(limit: u64, window: u64, burst: u64, ttl: u64) -> LimitSpec {
        let algorithm = Algorithm::TokenBucket { limit, window, burst };
        LimitSpec { algorithm, reserve: Some(ttl), max_ids: DEFAULT_MAX_IDS }
    }
    fn take(limit: usize, hits: u64) -> Op {
        Op::Take { limit, hits }
    }
    fn hold(limit: usize, id: &str, hits: u64) -> Op {
        Op::Hold { limit, id: id.as_bytes().to_vec(), hits }
    }
    fn settle(limit: usize, id: &str, hits: u64) -> Op {
        Op::Settle { limit, id: id.as_bytes().to_vec(), hits }
    }
    fn ok(available: u64) -> OpAnswer {
        OpAnswer { passes: true, available, retry_after: None }
    }
    fn refused(available: u64, retry_after: Option<u64>) -> OpAnswer {
        OpAnswer { passes: false, available, retry_after }
    }
    fn one(m: &mut Model, now: u64, op: Op) -> OpAnswer {
        let mut answer = m.call(now, &[op]);
        assert_eq!(answer.admitted, answer.ops[0].passes);
        answer.ops.remove(0)
    }

    #[test]
    fn the_table() {
        let mut m = Model::new(vec![window(100, 3600 * S, 60 * S)]);
        let rows = [
            (0, hold(0, "a", 60), ok(40), (0, 60)),
            (1, hold(0, "b", 50), refused(40, Some(59 * S)), (0, 60)),
            (2, hold(0, "b", 40), ok(0), (0, 100)),
            (5, settle(0, "a", 25), ok(35), (25, 40)),
            (6, settle(0, "a", 25), ok(35), (25, 40)),
            (7, hold(0, "b", 70), ok(5), (25, 70)),
            (67, take(0, 0), ok(75), (25, 0)),
            (70, settle(0, "b", 80), ok(0), (105, 0)),
        ];
        for (t, op, answer, state) in rows {
            assert_eq!(one(&mut m, t * S, op), answer, "at {t}");
            assert_eq!(m.used_and_held(t * S, 0), state, "at {t}");
        }
        // Not in the table: a hold made at 7 counts until just before 67.
        let mut m = Model::new(vec![window(100, 3600 * S, 60 * S)]);
        one(&mut m, 7 * S, hold(0, "b", 70));
        assert_eq!(one(&mut m, 67 * S - 1, take(0, 0)), ok(30));
        assert_eq!(one(&mut m, 67 * S, take(0, 0)), ok(100));
    }

    #[test]
    fn the_estimates() {
        let mut m = Model::new(vec![window(100, 3600 * S, 60 * S)]);
        assert_eq!(one(&mut m, 0, hold(0, "1", 58)), ok(42));
        assert_eq!(one(&mut m, 0, hold(0, "2", 80)), refused(42, Some(60 * S)));
        for id in ["3", "4", "5"] {
            assert_eq!(one(&mut m, 0, hold(0, id, 175)), refused(42, None));
        }
    }

    #[test]
    fn the_bucket() {
        for (rate, per) in [(1, S), (100, 100 * S)] {
            let mut m = Model::new(vec![bucket(rate, per, 100, 60 * S)]);
            assert_eq!(one(&mut m, 0, hold(0, "a", 60)), ok(40));
            assert_eq!(one(&mut m, 0, take(0, 40)), ok(0));
            assert_eq!(one(&mut m, 10 * S, take(0, 0)), ok(10));
            assert_eq!(m.used_and_held(10 * S, 0), (30 * i128::from(per), 60));
            // 40 fit at 40 s by refill, 41 at 41 s, and 100 only when the hold ends (full at 40 s).
            assert_eq!(one(&mut m, 10 * S, take(0, 40)), refused(10, Some(30 * S)));
            assert_eq!(one(&mut m, 10 * S, take(0, 41)), refused(10, Some(50 * S)));
            assert_eq!(one(&mut m, 10 * S, take(0, 100)), refused(10, Some(50 * S)));
            assert_eq!(one(&mut m, 10 * S, take(0, 101)), refused(10, None));
        }
    }

    #[test]
    fn bucket_debt_is_one_burst() {
        let mut m = Model::new(vec![bucket(1, S, 10, 60 * S)]);
        assert_eq!(one(&mut m, 0, settle(0, "x", 1000)), ok(0));
        assert_eq!(m.used_and_held(0, 0).0, 20 * i128::from(S));
        assert_eq!(one(&mut m, 0, take(0, 0)), refused(0, Some(11 * S)));
    }

    #[test]
    fn window_end_does_not_end_holds() {
        let mut m = Model::new(vec![window(10, 10 * S, 15 * S)]);
        one(&mut m, 0, take(0, 4));
        one(&mut m, 9 * S, hold(0, "a", 6));
        assert_eq!(one(&mut m, 9 * S, take(0, 4)), refused(0, Some(S)));
        assert_eq!(one(&mut m, 9 * S, take(0, 5)), refused(0, Some(15 * S)));
        assert_eq!(one(&mut m, 10 * S, take(0, 0)), ok(4));
        assert_eq!(one(&mut m, 11 * S, settle(0, "a", 6)), ok(4));
        assert_eq!(m.used_and_held(11 * S, 0), (6, 0));
        assert_eq!(one(&mut m, 20 * S, settle(0, "a", 6)), ok(10)); // still settled until 24
        assert_eq!(one(&mut m, 24 * S, settle(0, "a", 6)), ok(4)); // a bill
    }

    #[test]
    fn renewal_and_new_hold_after_settle() {
        let mut m = Model::new(vec![window(100, 3600 * S, 60 * S)]);
        one(&mut m, 0, hold(0, "a", 60));
        one(&mut m, S, hold(0, "b", 30));
        assert_eq!(one(&mut m, 2 * S, hold(0, "a", 71)), refused(10, Some(59 * S)));
        assert_eq!(m.used_and_held(2 * S, 0), (0, 90));
        assert_eq!(one(&mut m, 3 * S, hold(0, "a", 70)), ok(0));
        assert_eq!(one(&mut m, 4 * S, hold(0, "a", 0)), ok(0)); // peek: without its own amount
        assert_eq!(one(&mut m, 4 * S, hold(0, "c", 0)), refused(0, Some(57 * S)));
        assert_eq!(m.used_and_held(61 * S, 0), (0, 70)); // the peek has not renewed
        one(&mut m, 62 * S, settle(0, "a", 0));
        assert_eq!(one(&mut m, 62 * S, settle(0, "a", 9)), ok(100));
        assert_eq!(one(&mut m, 62 * S, hold(0, "a", 20)), ok(80));
        assert_eq!(one(&mut m, 62 * S, settle(0, "a", 9)), ok(91));
    }

    #[test]
    fn all_or_nothing() {
        let no_reserve = LimitSpec { reserve: None, ..window(50, 3600 * S, 0) };
        let mut m = Model::new(vec![window(100, 3600 * S, 60 * S), no_reserve, window(10, S, S)]);
        let answer = m.call(0, &[hold(0, "a", 40), hold(1, "a", 60), settle(2, "z", 3)]);
        assert!(!answer.admitted);
        assert_eq!(answer.ops, [ok(100), refused(50, None), ok(7)]);
        let answer = m.call(0, &[hold(0, "a", 40), hold(1, "a", 30)]);
        assert_eq!(answer, CallAnswer { admitted: true, ops: vec![ok(60), ok(20)] });
        let answer = m.call(1, &[settle(0, "a", 25), settle(1, "a", 25)]);
        assert_eq!(answer.ops, [ok(75), ok(20)]);
        let answer = m.call(2, &[Op::Refund { limit: 0, hits: 30 }, hold(1, "b", 21)]);
        assert_eq!(answer.ops, [ok(100), refused(20, Some(3600 * S - 2))]);
    }

    #[test]
    fn at_most_max_ids() {
        let mut m = Model::new(vec![LimitSpec { max_ids: 2, ..window(100, 3600 * S, 60 * S) }]);
        one(&mut m, 0, hold(0, "a", 1));
        one(&mut m, 1, hold(0, "b", 1));
        assert_eq!(one(&mut m, 2, hold(0, "c", 1)), refused(98, Some(60 * S - 2)));
        assert_eq!(one(&mut m, 2, hold(0, "b", 2)), ok(97)); // a renewal needs no place
        one(&mut m, 3, settle(0, "b", 1));
        one(&mut m, 4, settle(0, "a", 1));
        assert_eq!(one(&mut m, 5, hold(0, "c", 1)), ok(97)); // b is forgotten
        assert_eq!(one(&mut m, 6, settle(0, "a", 1)), ok(97)); // a is not
        assert_eq!(one(&mut m, 6, settle(0, "b", 1)), ok(96)); // a bill
    }

    #[test]
    fn reset_and_reload() {
        for spec in [window(100, 3600 * S, 60 * S), bucket(1, S, 100, 60 * S)] {
            let mut m = Model::new(vec![spec]);
            one(&mut m, 0, hold(0, "a", 60));
            one(&mut m, 0, take(0, 10));
            m.reset(0);
            assert_eq!(one(&mut m, 1, take(0, 0)), ok(100));
            one(&mut m, 1, hold(0, "a", 60));
            m.reload(0, None);
            assert_eq!(one(&mut m, 1, hold(0, "b", 60)), ok(40));
            assert_eq!(one(&mut m, 1, settle(0, "b", 10)), ok(40));
        }
    }

    fn random(seed: &mut u64, below: u64) -> u64 {
        *seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (*seed >> 33) % below
    }

    /// retry_after against the plain meaning of rule 6: try every later microsecond.
    #[test]
    fn retry_after_is_the_first_moment() {
        let mut seed = 1;
        let (mut some, mut none) = (0, 0);
        for round in 0..400 {
            let spec = if round % 2 == 0 { window(7, 20, 15) } else { bucket(3, 10, 7, 15) };
            let mut m = Model::new(vec![LimitSpec { max_ids: 3, ..spec }]);
            let mut now = 0;
            for _ in 0..40 {
                now += random(&mut seed, 6);
                let id = ["a", "b", "c", "d", "e"][random(&mut seed, 5) as usize];
                let op = match random(&mut seed, 6) {
                    0 => take(0, random(&mut seed, 9)),
                    1 => settle(0, id, random(&mut seed, 9)),
                    2 => Op::Refund { limit: 0, hits: random(&mut seed, 3) },
                    _ => hold(0, id, random(&mut seed, 9)),
                };
                let answer = one(&mut m, now, op.clone());
                if !answer.passes {
                    let later = |wait: &u64| one(&mut m.clone(), now + wait, op.clone()).passes;
                    assert_eq!((1..200).find(later), answer.retry_after, "{op:?} {m:?}");
                    if answer.retry_after.is_some() { some += 1 } else { none += 1 }
                }
            }
        }
        assert!(some > 500 && none > 100, "{some} {none}");
    }

    /// "If no use exceeds its estimate and every settle is in time, used + held ≤ limit always."
    #[test]
    fn used_and_held_never_exceed_the_limit() {
        let mut seed = 2;
        for round in 0..400 {
            let spec = if round % 2 == 0 { window(20, 50, 30) } else { bucket(3, 10, 20, 30) };
            let mut m = Model::new(vec![spec]);
            let (mut now, mut open) = (0, Vec::new()); // (id, amount, end)
            for n in 0..100 {
                now += random(&mut seed, 8);
                open.retain(|(_, _, end)| *end > now);
                if !open.is_empty() && random(&mut seed, 2) == 0 {
                    let i = random(&mut seed, open.len() as u64) as usize;
                    let (id, amount, _): (String, u64, u64) = open.remove(i);
                    one(&mut m, now, settle(0, &id, random(&mut seed, amount + 1)));
                } else if random(&mut seed, 3) == 0 {
                    one(&mut m, now, take(0, random(&mut seed, 8)));
                } else {
                    let (id, amount) = (n.to_string(), random(&mut seed, 8) + 1);
                    if one(&mut m, now, hold(0, &id, amount)).passes {
                        open.push((id, amount, now + 30));
                    }
                }
                let (used, held) = m.used_and_held(now, 0);
                let unit = m.limits[0].unit();
                assert!(used + held * unit <= m.limits[0].capacity());
            }
        }
    }
}
