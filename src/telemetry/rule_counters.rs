//! Metric counters of each rule, looked up by the rule's id.
//!
//! A rule has three cache lines of relaxed atomics, shared by all workers. Workers contend for the
//! rule's counter in the store anyway, so sharing at most doubles the cost of contention. Separate
//! counters per worker would take 18 MB per core for 100,000 rules.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};

use super::hit_counts::HitCounts;
use crate::domain::{CheckEvent, LossCause, LostBill, RuleId, Source, Verdict};

/// Name that identifies a rule in metrics and stays the same across policy reloads.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleName {
    /// Domain of the rule.
    pub domain: Box<str>,
    /// Path of the rule, as in `/rlconfig`.
    pub path: Arc<str>,
}

/// Numbers of calls or checks, indexed by code (OK, OVER_LIMIT), then by decision source.
pub(super) type CountsByCode = [[u64; Source::ALL.len()]; 2];

/// Values of the `code` label, in the order of [`CountsByCode`].
pub(super) const CODES: [&str; 2] = ["ok", "over_limit"];

/// Counters of one rule: hits by category, and checks by verdict and decision source. Fields are
/// ordered so that a passing check writes only to the first cache line, because the cache lines of
/// a busy rule move between all cores.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(super) struct RuleCounters {
    passed: [AtomicU64; Source::ALL.len()],
    within: AtomicU64,
    near: AtomicU64,
    refused: [AtomicU64; Source::ALL.len()],
    /// Number of requested hits that are not in `within`. Stored instead of the total, so that a
    /// passing check increments fewer counters.
    not_within: AtomicU64,
    over: AtomicU64,
    shadow: AtomicU64,
    uncharged: AtomicU64,
    refunded: AtomicU64,
    /// Those of the checks in `refused` that did not reject their call, because the rule is in
    /// shadow mode or because another quota group of the call passes.
    would_refuse: AtomicU64,
    /// Whether the rule has been checked with 0 hits (a peek). If so, a descriptor that sets
    /// `hits_addend` is assumed to be a bill: a report of hits already used. Otherwise, it may be a
    /// request for several hits.
    has_peeks: AtomicBool,
    has_lost_bill: AtomicBool,
    /// Number of checks that the rule had refused when the log of rejected calls last named the
    /// rule.
    refused_when_logged: AtomicU64,
    /// Lower bits of the rule's [snapshot](super::RuleSnapshot) when the history last read it.
    seen_by_history: [AtomicU32; 3],
}

impl RuleCounters {
    pub(super) fn add(&self, hits: &HitCounts, check: &CheckEvent) {
        let pairs = [
            (&self.within, hits.within),
            (&self.near, hits.near),
            (&self.not_within, hits.total.saturating_sub(hits.within)),
            (&self.over, hits.over),
            (&self.shadow, hits.shadow),
            (&self.uncharged, hits.uncharged),
            (&self.refunded, hits.refunded),
        ];
        for (counter, more) in pairs {
            if more != 0 {
                counter.fetch_add(more, Ordering::Relaxed);
            }
        }
        if !check.decided {
            return;
        }
        let checks = match check.outcome.verdict {
            Verdict::Pass => &self.passed,
            Verdict::Refuse => &self.refused,
        };
        checks[check.source as usize].fetch_add(1, Ordering::Relaxed);
        if check.outcome.verdict == Verdict::Refuse && (check.shadow || check.admitted) {
            self.would_refuse.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn would_refuse(&self) -> u64 {
        self.would_refuse.load(Ordering::Relaxed)
    }

    /// Records a peek (a check with 0 hits) or a rejected bill (a report of hits already used).
    /// Returns the lost bill to count, or `None` if there is none. A rejected bill counts as lost
    /// only if the rule has been peeked at before.
    pub(super) fn record_bill(&self, check: &CheckEvent) -> Option<LostBill> {
        if check.is_peek && !self.has_peeks.load(Ordering::Relaxed) {
            self.has_peeks.store(true, Ordering::Relaxed);
        }
        let lost = check.lost_bill?;
        match lost.cause {
            LossCause::Rejected if !self.has_peeks.load(Ordering::Relaxed) => return None,
            LossCause::Rejected => self.has_lost_bill.store(true, Ordering::Relaxed),
            LossCause::DebtBound => {}
        }
        Some(lost)
    }

    /// Returns the number of checks that the rule has refused since the previous call of this
    /// method, without those whose call passed.
    pub(super) fn refused_since_logged(&self) -> u64 {
        let over: u64 = self.refused.iter().map(|checks| checks.load(Ordering::Relaxed)).sum();
        let refused = over.saturating_sub(self.would_refuse());
        refused.saturating_sub(self.refused_when_logged.swap(refused, Ordering::Relaxed))
    }

    /// Returns how much three counts, those of the rule's [snapshot](super::RuleSnapshot), have grown
    /// since the history last read them.
    pub(super) fn take_increase(&self, counts: [u64; 3]) -> [u64; 3] {
        std::array::from_fn(|at| {
            let count = counts[at] as u32;
            let seen = self.seen_by_history[at].swap(count, Ordering::Relaxed);
            // Negative if a refusal was read before it was found not to reject its call.
            (count.wrapping_sub(seen) as i32).max(0) as u64
        })
    }

    /// Returns whether the rule has rejected a bill (a report of hits already used) after a peek (a
    /// check with 0 hits).
    pub(super) fn has_lost_bill(&self) -> bool {
        self.has_lost_bill.load(Ordering::Relaxed)
    }

    pub(super) fn hits(&self) -> HitCounts {
        let read = |sum: &AtomicU64| sum.load(Ordering::Relaxed);
        let within = read(&self.within);
        HitCounts {
            total: within.wrapping_add(read(&self.not_within)),
            within,
            over: read(&self.over),
            near: read(&self.near),
            shadow: read(&self.shadow),
            uncharged: read(&self.uncharged),
            refunded: read(&self.refunded),
        }
    }

    pub(super) fn checks(&self) -> CountsByCode {
        let read = |sum: &AtomicU64| sum.load(Ordering::Relaxed);
        [&self.passed, &self.refused].map(|by_source| by_source.each_ref().map(read))
    }
}

/// Counters of a rule in a table, allocated for the rule's first check: a policy may have 125,000
/// rules, and up to three tables exist at a time.
#[derive(Debug, Default)]
pub(super) struct TableCounters(OnceLock<Box<RuleCounters>>);

impl TableCounters {
    fn to_count(&self) -> &RuleCounters {
        self.0.get_or_init(Box::default)
    }

    /// Returns the counters to read; zeros if the rule was never met.
    pub(super) fn to_read(&self) -> &RuleCounters {
        static NEVER_MET: LazyLock<RuleCounters> = LazyLock::new(RuleCounters::default);
        self.0.get().map_or(&NEVER_MET, |counters| counters)
    }
}

/// Rule counters of one policy.
#[derive(Debug, Default)]
pub(super) struct RuleTable {
    /// Id of the policy's first rule. Ids are consecutive.
    first: u32,
    /// Counters in the order of rule ids, starting with `first`. Rules with the same name share
    /// their counters.
    by_id: Vec<Arc<TableCounters>>,
    /// Counters by rule name, for scrapes and for the next policy load.
    pub(super) by_name: BTreeMap<RuleName, Arc<TableCounters>>,
    /// Counters of request overrides, by domain.
    pub(super) overrides: BTreeMap<Box<str>, Arc<RuleCounters>>,
    /// Fingerprint of the policy's files.
    pub(super) fingerprint: String,
}

impl RuleTable {
    /// Creates counters for a policy whose rules have consecutive ids, starting with `first`. A
    /// rule keeps its counters if `previous`, the table of the previous policy, has a rule with the
    /// same name.
    pub(super) fn new(
        first: RuleId,
        rules: impl IntoIterator<Item = RuleName>,
        fingerprint: String,
        previous: &RuleTable,
    ) -> RuleTable {
        let mut table = RuleTable { first: first.0, fingerprint, ..RuleTable::default() };
        for name in rules {
            let counters = match table.by_name.get(&name).or_else(|| previous.by_name.get(&name)) {
                Some(counters) => Arc::clone(counters),
                None => Arc::default(),
            };
            if !table.overrides.contains_key(&name.domain) {
                let counters = previous.overrides.get(&name.domain).cloned().unwrap_or_default();
                table.overrides.insert(name.domain.clone(), counters);
            }
            table.by_id.push(Arc::clone(&counters));
            table.by_name.insert(name, counters);
        }
        table
    }

    pub(super) fn get(&self, id: RuleId) -> Option<&RuleCounters> {
        let at = id.0.wrapping_sub(self.first) as usize;
        self.by_id.get(at).map(|counters| counters.to_count())
    }

    /// Returns the name of a rule, or `None` if the policy has no rule with this id. Searches all
    /// rules, which takes less than a millisecond for 100,000 rules. Called at most once per
    /// second, by the log of rejected calls.
    fn name(&self, id: RuleId) -> Option<&RuleName> {
        let wanted = self.by_id.get(id.0.wrapping_sub(self.first) as usize)?;
        let mut rules = self.by_name.iter();
        rules.find(|(_, counters)| Arc::ptr_eq(counters, wanted)).map(|(name, _)| name)
    }
}

/// Rule counters of the current and the previous policy. A call that is in flight during a reload
/// still increments the counters of the previous policy.
#[derive(Debug, Default)]
pub(super) struct RuleTables {
    pub(super) current: Arc<RuleTable>,
    pub(super) previous: Arc<RuleTable>,
}

impl RuleTables {
    pub(super) fn get(&self, id: RuleId) -> Option<&RuleCounters> {
        self.current.get(id).or_else(|| self.previous.get(id))
    }

    /// Returns the name of a rule of the current or the previous policy; `None` if neither has a
    /// rule with this id.
    pub(super) fn name(&self, id: RuleId) -> Option<&RuleName> {
        self.current.name(id).or_else(|| self.previous.name(id))
    }

    /// Returns the counters of request overrides in a domain; `None` if the domain has no rules.
    pub(super) fn override_counters(&self, domain: &str) -> Option<&RuleCounters> {
        self.current.overrides.get(domain).map(Arc::as_ref)
    }
}
