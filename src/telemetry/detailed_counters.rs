//! Counters of rules whose metrics show the descriptor values of requests (`detailed_metric`,
//! `value_to_metric`). As in envoyproxy/ratelimit, there is one set of counters per detailed path.
//! A detailed path is the rule's path with these values.
//!
//! Callers choose the values, so the number and the length of detailed paths are bounded. A check
//! beyond the bounds is counted in the row of its rule, whose path contains no values.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::rule_counters::{RuleCounters, RuleName, RuleTable};
use crate::domain::{DetailedCheck, Lock};

/// Maximum number of detailed paths (rule paths with descriptor values) over all rules. At this
/// number, a scrape has 70,000 additional lines.
pub(super) const DETAILED_ROWS_MAX: usize = 10_000;
/// Maximum length of a detailed path (a rule's path with descriptor values), in bytes.
/// Prometheus servers commonly reject labels longer than about 1 KiB.
pub(super) const DETAILED_PATH_BYTES_MAX: usize = 512;
/// Maximum length of all detailed paths together, in bytes. A scrape repeats each path in seven lines
/// and more, so that 10,000 paths of 512 bytes would make it 62 MB.
pub(super) const DETAILED_TOTAL_BYTES_MAX: usize = 1024 * 1024;
/// Number of shards. Each shard holds some of the paths under its own lock, so that workers rarely
/// wait for each other.
const SHARD_COUNT: usize = 16;

/// Key of a row: the length of the domain's name in bytes, and the detailed path, which begins
/// with the domain. The length distinguishes rules of the domains `a` and `a.b`.
type RowKey = (usize, Box<str>);
/// Rule that a detailed path belongs to, and the counters of the path.
type RowCounters = (RuleName, Arc<RuleCounters>);

/// Counters by detailed path (a rule's path with descriptor values), for all rules of the policy.
#[derive(Debug, Default)]
pub(super) struct DetailedCounters {
    shards: [Lock<HashMap<RowKey, RowCounters>>; SHARD_COUNT],
    hasher: RandomState,
    row_count: AtomicUsize,
    path_bytes: AtomicUsize,
    overflows: AtomicU64,
}

/// Counters of one detailed path (a rule's path with descriptor values).
#[derive(Clone, Debug)]
pub(super) struct DetailedRow {
    /// Rule that the path belongs to.
    pub(super) rule: RuleName,
    /// Detailed path: the rule's path with descriptor values.
    pub(super) path: Box<str>,
    pub(super) counters: Arc<RuleCounters>,
}

impl DetailedCounters {
    /// Returns the counters of a check's detailed path, and creates them if necessary. Returns
    /// `None` if the path is too long, or if it is new and there are already too many paths.
    ///
    /// Allocates and takes a lock on the request path, but is called only for rules with
    /// `detailed_metric` or `value_to_metric`.
    pub(super) fn get(&self, check: &DetailedCheck<'_>) -> Option<Arc<RuleCounters>> {
        let path = (check.detailed_path)();
        if path.len() > DETAILED_PATH_BYTES_MAX {
            self.overflows.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        let key = (check.domain.len(), path.into_boxed_str());
        let shard = self.hasher.hash_one(&key) as usize % SHARD_COUNT;
        let mut shard = self.shards[shard].lock();
        if let Some((_, counters)) = shard.get(&key) {
            return Some(Arc::clone(counters));
        }
        let take = |count: &AtomicUsize, part: usize, max: usize| {
            let add = |sum: usize| (sum + part <= max).then_some(sum + part);
            count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
        };
        let bytes = key.1.len();
        let fits = take(&self.path_bytes, bytes, DETAILED_TOTAL_BYTES_MAX);
        if !fits || !take(&self.row_count, 1, DETAILED_ROWS_MAX) {
            if fits {
                self.path_bytes.fetch_sub(bytes, Ordering::Relaxed);
            }
            self.overflows.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        let rule = RuleName { domain: check.domain.into(), path: check.rule_path.into() };
        let counters = Arc::default();
        shard.insert(key, (rule, Arc::clone(&counters)));
        Some(counters)
    }

    /// Removes the counters of rules that `table`, the rule table of the new policy, does not
    /// contain.
    pub(super) fn retain_rules_of(&self, table: &RuleTable) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            let before = shard.len();
            shard.retain(|(_, path), (rule, _)| {
                let is_kept = table.by_name.contains_key(rule);
                if !is_kept {
                    self.path_bytes.fetch_sub(path.len(), Ordering::Relaxed);
                }
                is_kept
            });
            self.row_count.fetch_sub(before - shard.len(), Ordering::Relaxed);
        }
    }

    /// Returns the counters of all detailed paths, in no particular order.
    pub(super) fn rows(&self) -> Vec<DetailedRow> {
        let shards = self.shards.iter().map(|shard| {
            let shard = shard.lock();
            let row = |((_, path), (rule, counters)): (&RowKey, &RowCounters)| DetailedRow {
                rule: rule.clone(),
                path: path.clone(),
                counters: Arc::clone(counters),
            };
            shard.iter().map(row).collect::<Vec<_>>()
        });
        shards.flatten().collect()
    }

    /// Returns the number of checks that were counted under the rule's path without descriptor
    /// values, because the detailed path was too long or there were too many detailed paths.
    pub(super) fn overflows(&self) -> u64 {
        self.overflows.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(counters: &DetailedCounters, domain: &str, path: &str) -> Option<Arc<RuleCounters>> {
        let detailed_path = || path.to_owned();
        let check = DetailedCheck { domain, rule_path: "d.k", detailed_path: &detailed_path };
        counters.get(&check)
    }

    #[test]
    fn a_path_keeps_its_counters_and_the_number_of_paths_is_bounded() {
        let counters = DetailedCounters::default();
        let first = get(&counters, "d", "d.k_0").unwrap();
        for n in 1..DETAILED_ROWS_MAX {
            assert!(get(&counters, "d", &format!("d.k_{n}")).is_some(), "{n}");
        }
        assert!(get(&counters, "d", "d.k_more").is_none());
        assert!(
            Arc::ptr_eq(&first, &get(&counters, "d", "d.k_0").unwrap()),
            "known ones still count"
        );
        assert_eq!((counters.rows().len(), counters.overflows()), (DETAILED_ROWS_MAX, 1));
    }

    #[test]
    fn a_path_that_is_too_long_has_no_counters() {
        let counters = DetailedCounters::default();
        assert!(get(&counters, "d", &"x".repeat(DETAILED_PATH_BYTES_MAX)).is_some());
        assert!(get(&counters, "d", &"x".repeat(DETAILED_PATH_BYTES_MAX + 1)).is_none());
        assert_eq!(counters.overflows(), 1);
    }

    #[test]
    fn rows_of_a_removed_rule_are_dropped_and_free_their_space() {
        let counters = DetailedCounters::default();
        get(&counters, "d", "d.k_1").unwrap();
        counters.retain_rules_of(&RuleTable::default());
        assert!(counters.rows().is_empty());
        assert_eq!(counters.row_count.load(Ordering::Relaxed), 0);
        assert_eq!(counters.path_bytes.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn the_length_of_all_paths_together_is_bounded() {
        let counters = DetailedCounters::default();
        let path = |at: usize| format!("{at:05}{}", "x".repeat(DETAILED_PATH_BYTES_MAX - 5));
        let kept = (0..DETAILED_ROWS_MAX).filter(|at| get(&counters, "d", &path(*at)).is_some());
        assert_eq!(kept.count(), DETAILED_TOTAL_BYTES_MAX / DETAILED_PATH_BYTES_MAX);
        assert_eq!(counters.rows().len(), DETAILED_TOTAL_BYTES_MAX / DETAILED_PATH_BYTES_MAX);
    }

    #[test]
    fn domains_with_a_dot_do_not_share_counters() {
        let counters = DetailedCounters::default();
        let one = get(&counters, "a", "a.b.c").unwrap();
        let other = get(&counters, "a.b", "a.b.c").unwrap();
        assert!(!Arc::ptr_eq(&one, &other));
    }
}
