//! Where the counters are kept: a cell per rule, resolved when a policy is loaded, and a few
//! counters of the whole process.
//!
//! A rule's cell is one cache line of relaxed atomics, not one line per worker: a hot rule's
//! counter in the store is such a line too (and locked), so this at most doubles a cost that is
//! there, while a line per worker would cost 100,000 rules 6 MB for every core. The counters of
//! the whole process are touched by every call whatever its rule, so those do have a line per
//! worker. Not here: the arithmetic (`tally`), the text of a scrape (`scrape`).

use std::cell::Cell as LocalCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use arc_swap::ArcSwap;

use super::tally::{Tally, tally};
use super::top::{Top, Values};
use crate::domain::{Code, Decision, Facts, Observer, Refused, RuleId, Source};

/// A rule as metrics name it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RuleName {
    /// The policy's domain.
    pub domain: Box<str>,
    /// The rule's printed path.
    pub path: Box<str>,
}

/// One rule's sums, in hits.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct RuleCell {
    total: AtomicU64,
    within: AtomicU64,
    over: AtomicU64,
    near: AtomicU64,
    shadow: AtomicU64,
    uncharged: AtomicU64,
    given_back: AtomicU64,
}

impl RuleCell {
    fn add(&self, tally: &Tally) {
        let pairs = [
            (&self.total, tally.total),
            (&self.within, tally.within),
            (&self.over, tally.over),
            (&self.near, tally.near),
            (&self.shadow, tally.shadow),
            (&self.uncharged, tally.uncharged),
            (&self.given_back, tally.given_back),
        ];
        for (sum, hits) in pairs {
            if hits != 0 {
                sum.fetch_add(hits, Ordering::Relaxed);
            }
        }
    }

    pub(super) fn read(&self) -> Tally {
        let read = |sum: &AtomicU64| sum.load(Ordering::Relaxed);
        Tally {
            total: read(&self.total),
            within: read(&self.within),
            over: read(&self.over),
            near: read(&self.near),
            shadow: read(&self.shadow),
            uncharged: read(&self.uncharged),
            given_back: read(&self.given_back),
        }
    }
}

/// The cells of one policy.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// The id of the policy's first rule; the others follow without a gap.
    first: u32,
    /// By id, from `first` on. Rules that print alike share a cell.
    by_id: Vec<Arc<RuleCell>>,
    /// By name, for scrapes and for the next policy.
    pub(super) by_name: BTreeMap<RuleName, Arc<RuleCell>>,
}

impl Table {
    fn cell(&self, id: RuleId) -> Option<&RuleCell> {
        let at = id.0.wrapping_sub(self.first) as usize;
        self.by_id.get(at).map(Arc::as_ref)
    }
}

/// The present policy's cells and the ones before, for calls that were under way at the reload.
#[derive(Debug, Default)]
pub(super) struct Tables {
    pub(super) present: Arc<Table>,
    before: Arc<Table>,
}

/// Workers whose counters of the whole process have a line of their own; more share.
const SHARDS: usize = 64;

/// Kinds of [`Source`].
const SOURCES: usize = 5;

/// Counters of the whole process, as one worker counts them.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard {
    admitted: [AtomicU64; SOURCES],
    refused: [AtomicU64; SOURCES],
    shadowed: AtomicU64,
    domain_not_found: AtomicU64,
}

/// Sums of the whole process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) admitted: [u64; SOURCES],
    pub(super) refused: [u64; SOURCES],
    pub(super) shadowed: u64,
    pub(super) domain_not_found: u64,
    pub(super) loads: u64,
    pub(super) load_errors: u64,
}

/// All sources, in the order of the arrays above.
pub(super) const ALL_SOURCES: [Source; SOURCES] =
    [Source::Memory, Source::Redis, Source::Local, Source::Remembered, Source::Policy];

/// The counters of the process.
#[derive(Debug)]
pub struct Telemetry {
    near_ratio: f64,
    tables: ArcSwap<Tables>,
    /// Limits that callers brought along: one cell for all, since callers choose their number.
    pub(super) overrides: RuleCell,
    shards: Box<[Shard]>,
    loads: AtomicU64,
    load_errors: AtomicU64,
    top: Top,
}

/// The next worker's shard. Workers are few and live as long as the process.
static WORKERS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static WORKER: LocalCell<Option<usize>> = const { LocalCell::new(None) };
}

impl Telemetry {
    /// Counters at zero. `near_ratio`: the share of a limit, 0 to 1, from which hits are near it.
    pub fn new(near_ratio: f64) -> Self {
        Telemetry {
            top: Top::new(Values::default()),
            near_ratio,
            tables: ArcSwap::default(),
            overrides: RuleCell::default(),
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
            loads: AtomicU64::new(0),
            load_errors: AtomicU64::new(0),
        }
    }

    /// The same; `values` says how refused keys are shown.
    #[must_use]
    pub fn showing(self, values: Values) -> Self {
        Telemetry { top: Top::new(values), ..self }
    }

    /// A policy was loaded whose rules are numbered from `first` on: rules of a name that is known
    /// keep their sums. To be called before the policy decides its first call.
    pub fn loaded(&self, first: RuleId, rules: impl IntoIterator<Item = RuleName>) {
        let present = Arc::clone(&self.tables.load().present);
        let mut table = Table { first: first.0, ..Table::default() };
        for name in rules {
            let cell = match table.by_name.get(&name).or_else(|| present.by_name.get(&name)) {
                Some(cell) => Arc::clone(cell),
                None => Arc::default(),
            };
            table.by_id.push(Arc::clone(&cell));
            table.by_name.insert(name, cell);
        }
        self.tables.store(Arc::new(Tables { present: Arc::new(table), before: present }));
        self.loads.fetch_add(1, Ordering::Relaxed);
    }

    /// A policy was not loaded, because it has faults.
    pub fn not_loaded(&self) {
        self.load_errors.fetch_add(1, Ordering::Relaxed);
    }

    /// Who is being refused.
    pub fn top(&self) -> &Top {
        &self.top
    }

    pub(super) fn tables(&self) -> Arc<Tables> {
        self.tables.load_full()
    }

    pub(super) fn totals(&self) -> Totals {
        let mut totals = Totals {
            loads: self.loads.load(Ordering::Relaxed),
            load_errors: self.load_errors.load(Ordering::Relaxed),
            ..Totals::default()
        };
        for shard in &self.shards {
            for at in 0..SOURCES {
                totals.admitted[at] += shard.admitted[at].load(Ordering::Relaxed);
                totals.refused[at] += shard.refused[at].load(Ordering::Relaxed);
            }
            totals.shadowed += shard.shadowed.load(Ordering::Relaxed);
            totals.domain_not_found += shard.domain_not_found.load(Ordering::Relaxed);
        }
        totals
    }

    fn shard(&self) -> &Shard {
        let worker = WORKER.get().unwrap_or_else(|| {
            let next = WORKERS.fetch_add(1, Ordering::Relaxed);
            WORKER.set(Some(next));
            next
        });
        &self.shards[worker % SHARDS]
    }
}

impl Observer for Telemetry {
    fn checked(&self, facts: &Facts) {
        let tally = tally(facts, self.near_ratio);
        let Some(id) = facts.rule else {
            self.overrides.add(&tally);
            return;
        };
        let tables = self.tables.load();
        if let Some(cell) = tables.present.cell(id).or_else(|| tables.before.cell(id)) {
            cell.add(&tally);
        }
    }

    fn refused(&self, refused: &Refused<'_>) {
        self.top.note(refused);
    }

    fn decided(&self, decision: &Decision<'_>) {
        let shard = self.shard();
        let at = match decision.source {
            Source::Memory => 0,
            Source::Redis => 1,
            Source::Local => 2,
            Source::Remembered => 3,
            Source::Policy => 4,
        };
        let sum = match decision.code {
            Code::Ok => &shard.admitted[at],
            Code::OverLimit => &shard.refused[at],
        };
        sum.fetch_add(1, Ordering::Relaxed);
        if decision.shadowed {
            shard.shadowed.fetch_add(1, Ordering::Relaxed);
        }
        if !decision.domain_known {
            shard.domain_not_found.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Hits, Micros, Outcome, Verdict};

    fn name(path: &str) -> RuleName {
        RuleName { domain: "d".into(), path: path.into() }
    }

    fn pass(id: u32) -> Facts {
        Facts {
            rule: Some(RuleId(id)),
            hits: Hits(1),
            capacity: Hits(10),
            outcome: Outcome {
                verdict: Verdict::Pass,
                charged: Hits(1),
                available: Hits(9),
                retry_after: None,
                reset_after: Micros::ZERO,
                taken: None,
            },
            shadow: false,
            admitted: true,
            gives_back: false,
        }
    }

    fn total(telemetry: &Telemetry, path: &str) -> Option<u64> {
        telemetry.tables().present.by_name.get(&name(path)).map(|cell| cell.read().total)
    }

    #[test]
    fn a_rules_sums_survive_a_reload_by_its_name() {
        let telemetry = Telemetry::new(0.8);
        telemetry.loaded(RuleId(0), [name("d.a"), name("d.b")]);
        telemetry.checked(&pass(1));
        telemetry.loaded(RuleId(2), [name("d.b"), name("d.c")]);
        telemetry.checked(&pass(2));
        assert_eq!(total(&telemetry, "d.b"), Some(2));
        assert_eq!(total(&telemetry, "d.a"), None, "a rule that is gone has no series");
    }

    #[test]
    fn a_call_that_was_under_way_at_a_reload_is_counted_on_its_own_rule() {
        let telemetry = Telemetry::new(0.8);
        telemetry.loaded(RuleId(0), [name("d.a"), name("d.b")]);
        telemetry.loaded(RuleId(2), [name("d.c"), name("d.b")]);
        telemetry.checked(&pass(1));
        assert_eq!(total(&telemetry, "d.b"), Some(1));
        assert_eq!(total(&telemetry, "d.c"), Some(0));
    }

    #[test]
    fn rules_that_print_alike_share_one_series() {
        let telemetry = Telemetry::new(0.8);
        telemetry.loaded(RuleId(0), [name("d.a_b"), name("d.a_b")]);
        telemetry.checked(&pass(0));
        telemetry.checked(&pass(1));
        assert_eq!(total(&telemetry, "d.a_b"), Some(2));
    }
}
