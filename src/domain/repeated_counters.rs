//! Finds the counters that several checks of one call share.
//!
//! Not here: handling repeated counters (`store`, `decide`, `resilience`).

use std::collections::HashSet;

use super::{Check, CounterKey};

/// Maximum number of checks for which all pairs are compared. For 16 checks, this takes up to 120
/// comparisons, which is faster than hashing.
const PAIRWISE_CHECKS_MAX: usize = 16;

/// Set of the counters that more than one check of a call uses. Building it takes time linear in
/// the number of checks. It does not allocate for up to 16 checks on different counters.
///
/// ```
/// use tidegate::domain::{CounterKey, RepeatedCounters};
/// let key = |identity| CounterKey { identity, tag: None };
/// let repeated = RepeatedCounters::from_keys([1, 2, 1].map(key).into_iter());
/// assert!(repeated.contains(&key(1)) && !repeated.contains(&key(2)));
/// ```
#[derive(Debug, Default)]
pub struct RepeatedCounters(HashSet<CounterKey>);

impl RepeatedCounters {
    /// Returns the counters that more than one of these checks uses.
    pub fn from_checks(checks: &[Check<'_>]) -> RepeatedCounters {
        RepeatedCounters::from_keys(checks.iter().map(|check| check.key))
    }

    /// Returns the counters whose keys occur more than once.
    pub fn from_keys(keys: impl ExactSizeIterator<Item = CounterKey> + Clone) -> RepeatedCounters {
        if keys.len() <= PAIRWISE_CHECKS_MAX {
            let is_earlier =
                |(at, key): &(usize, CounterKey)| keys.clone().take(*at).any(|k| k == *key);
            return RepeatedCounters(
                keys.clone().enumerate().filter(is_earlier).map(|(_, key)| key).collect(),
            );
        }
        let mut seen = HashSet::with_capacity(keys.len());
        RepeatedCounters(keys.filter(|key| !seen.insert(*key)).collect())
    }

    /// Returns whether more than one check uses the counter.
    pub fn contains(&self, key: &CounterKey) -> bool {
        !self.0.is_empty() && self.0.contains(key)
    }

    /// Returns whether no counter is repeated: each is used by at most one check.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_and_many_keys_are_compared_alike() {
        for length in [0_u128, 1, 2, 15, 16, 17, 40, 2_048] {
            let key = |identity| CounterKey { identity, tag: None };
            let different: Vec<CounterKey> = (0..length).map(key).collect();
            assert!(RepeatedCounters::from_keys(different.iter().copied()).is_empty());
            if length > 1 {
                let last = [different, vec![key(0)]].concat();
                let repeated = RepeatedCounters::from_keys(last.iter().copied());
                assert!(repeated.contains(&key(0)) && !repeated.contains(&key(1)));
            }
        }
    }
}
