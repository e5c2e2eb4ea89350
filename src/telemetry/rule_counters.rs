//! A cell per rule, resolved when a policy is loaded.
//!
//! A rule's cell is three cache lines of relaxed atomics, not three per worker: a hot rule's counter
//! in the store is such a line too (and locked), so this at most doubles a cost that is there, while
//! lines per worker would cost 100,000 rules 18 MB for every core. Not here: the arithmetic
//! (`tally`), the counters of the whole process (`cells`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::compat_stats::Tally;
use crate::domain::{CheckEvent, RuleId, Source, Verdict};

/// A rule as metrics name it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RuleName {
    /// The policy's domain.
    pub domain: Box<str>,
    /// The rule's printed path.
    pub path: Box<str>,
}

/// All sources, in the order of the arrays that are counted by them.
pub(super) const ALL_SOURCES: [Source; SOURCES] =
    [Source::Memory, Source::Redis, Source::Local, Source::Cached, Source::Policy, Source::Shed];

/// Kinds of [`Source`].
pub(super) const SOURCES: usize = 6;

/// The place of a source in those arrays.
pub(super) const fn place(source: Source) -> usize {
    match source {
        Source::Memory => 0,
        Source::Redis => 1,
        Source::Local => 2,
        Source::Cached => 3,
        Source::Policy => 4,
        Source::Shed => 5,
    }
}

/// Counts by code, OK and OVER_LIMIT, and by source.
pub(super) type ByCode = [[u64; SOURCES]; 2];

/// The codes, in the order of [`ByCode`].
pub(super) const CODES: [&str; 2] = ["ok", "over_limit"];

/// One rule's sums, in hits, and its checks by how they were decided. A check that passes adds to
/// the first cache line alone: it is the one that the cores of a hot rule pass around.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(super) struct RuleCounters {
    passed: [AtomicU64; SOURCES],
    within: AtomicU64,
    near: AtomicU64,
    refused: [AtomicU64; SOURCES],
    /// Asked for and not within.
    not_within: AtomicU64,
    over: AtomicU64,
    shadow: AtomicU64,
    uncharged: AtomicU64,
    refunded: AtomicU64,
}

impl RuleCounters {
    pub(super) fn add(&self, tally: &Tally, facts: &CheckEvent) {
        let pairs = [
            (&self.within, tally.within),
            (&self.near, tally.near),
            (&self.not_within, tally.total.saturating_sub(tally.within)),
            (&self.over, tally.over),
            (&self.shadow, tally.shadow),
            (&self.uncharged, tally.uncharged),
            (&self.refunded, tally.refunded),
        ];
        for (sum, hits) in pairs {
            if hits != 0 {
                sum.fetch_add(hits, Ordering::Relaxed);
            }
        }
        let checks = match facts.outcome.verdict {
            Verdict::Pass => &self.passed,
            Verdict::Refuse => &self.refused,
        };
        checks[place(facts.source)].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn read(&self) -> Tally {
        let read = |sum: &AtomicU64| sum.load(Ordering::Relaxed);
        let within = read(&self.within);
        Tally {
            total: within.wrapping_add(read(&self.not_within)),
            within,
            over: read(&self.over),
            near: read(&self.near),
            shadow: read(&self.shadow),
            uncharged: read(&self.uncharged),
            refunded: read(&self.refunded),
        }
    }

    pub(super) fn checks(&self) -> ByCode {
        let read = |sum: &AtomicU64| sum.load(Ordering::Relaxed);
        [&self.passed, &self.refused].map(|by_source| by_source.each_ref().map(read))
    }
}

/// The cells of one policy.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// The id of the policy's first rule; the others follow without a gap.
    first: u32,
    /// By id, from `first` on. Rules that print alike share a cell.
    by_id: Vec<Arc<RuleCounters>>,
    /// By name, for scrapes and for the next policy.
    pub(super) by_name: BTreeMap<RuleName, Arc<RuleCounters>>,
    /// What the policy's files hash to.
    pub(super) fingerprint: String,
}

impl Table {
    /// Cells for a policy whose rules are numbered from `first` on; those of a name that `former`
    /// has keep theirs.
    pub(super) fn new(
        first: RuleId,
        rules: impl IntoIterator<Item = RuleName>,
        fingerprint: String,
        former: &Table,
    ) -> Table {
        let mut table = Table { first: first.0, fingerprint, ..Table::default() };
        for name in rules {
            let cell = match table.by_name.get(&name).or_else(|| former.by_name.get(&name)) {
                Some(cell) => Arc::clone(cell),
                None => Arc::default(),
            };
            table.by_id.push(Arc::clone(&cell));
            table.by_name.insert(name, cell);
        }
        table
    }

    pub(super) fn cell(&self, id: RuleId) -> Option<&RuleCounters> {
        let at = id.0.wrapping_sub(self.first) as usize;
        self.by_id.get(at).map(Arc::as_ref)
    }
}

/// The present policy's cells and the ones before, for calls that were under way at the reload.
#[derive(Debug, Default)]
pub(super) struct Tables {
    pub(super) present: Arc<Table>,
    pub(super) before: Arc<Table>,
}

impl Tables {
    pub(super) fn cell(&self, id: RuleId) -> Option<&RuleCounters> {
        self.present.cell(id).or_else(|| self.before.cell(id))
    }
}
