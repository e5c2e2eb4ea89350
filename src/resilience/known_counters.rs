//! Table of what this replica knows of counters: refusals and last states.
//!
//! A value that is lost costs a call to the store or makes a status less precise, so the table has a
//! fixed size. A new value takes the place of the one with the same key, else of one that is of no
//! more use, else of the one in its set that becomes stale first.
//!
//! Not here: the values (`refusal_cache`, `last_known`).

use std::fmt::Debug;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::domain::{CounterKey, Micros};

/// What is known of a counter. The default value is of no use at any time.
pub(super) trait Known: Copy + Default {
    /// Key of the value: the counter and, for example, a cost.
    type Key: Copy + Debug + Default + PartialEq;

    /// Returns whether the value may be of use at `now` or later.
    fn is_useful(&self, now: Micros) -> bool;

    /// Returns the time at which the value becomes stale.
    fn stale_at(&self) -> Micros;
}

/// Table of `SETS` sets of `WAYS` values. A lookup compares the keys of one set, which the counter
/// chooses.
#[derive(Debug)]
pub(super) struct KnownCounters<V: Known, const SETS: usize, const WAYS: usize> {
    /// Each set has a mutex, because a value is too large for an atomic.
    sets: Box<[Mutex<KnownSet<V, WAYS>>]>,
}

/// Values of the counters that share a set.
#[derive(Debug)]
pub(super) struct KnownSet<V: Known, const WAYS: usize>([(V::Key, V); WAYS]);

impl<V: Known, const SETS: usize, const WAYS: usize> KnownCounters<V, SETS, WAYS> {
    pub(super) fn new() -> Self {
        let empty = || KnownSet([Default::default(); WAYS]);
        KnownCounters { sets: (0..SETS).map(|_| Mutex::new(empty())).collect() }
    }

    pub(super) fn set_index(counter: &CounterKey) -> usize {
        // The identity is a hash, so its lowest bits choose the set.
        counter.identity as usize % SETS
    }

    /// Locks the set of a counter.
    pub(super) fn lock(&self, counter: &CounterKey) -> MutexGuard<'_, KnownSet<V, WAYS>> {
        self.sets[Self::set_index(counter)].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the set of a counter, unless another call has locked it.
    pub(super) fn try_lock(
        &self,
        counter: &CounterKey,
    ) -> Option<MutexGuard<'_, KnownSet<V, WAYS>>> {
        self.sets[Self::set_index(counter)].try_lock().ok()
    }

    /// Removes all values.
    pub(super) fn clear(&self) {
        for set in &self.sets {
            set.lock().unwrap_or_else(PoisonError::into_inner).retain(|_, _| false);
        }
    }
}

impl<V: Known, const WAYS: usize> KnownSet<V, WAYS> {
    /// Returns the value with this key. It may be of no more use.
    pub(super) fn get(&mut self, key: &V::Key) -> Option<&mut V> {
        self.0.iter_mut().find(|(held, _)| held == key).map(|(_, value)| value)
    }

    /// Adds a value, or replaces the one with this key.
    pub(super) fn insert(&mut self, key: V::Key, value: V, now: Micros) {
        let rank =
            |(held, value): &(V::Key, V)| (*held != key, value.is_useful(now), value.stale_at());
        if let Some(place) = self.0.iter_mut().min_by_key(|held| rank(held)) {
            *place = (key, value);
        }
    }

    /// Keeps only the values for which `is_kept` returns true.
    pub(super) fn retain(&mut self, mut is_kept: impl FnMut(&V::Key, &mut V) -> bool) {
        for held in &mut self.0 {
            if !is_kept(&held.0, &mut held.1) {
                *held = Default::default();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Becomes stale at the first time, and is of no more use at the second.
    #[derive(Clone, Copy, Debug, Default, PartialEq)]
    struct Times(u64, u64);

    impl Known for Times {
        type Key = u64;

        fn is_useful(&self, now: Micros) -> bool {
            now.0 < self.1
        }

        fn stale_at(&self) -> Micros {
            Micros(self.0)
        }
    }

    type Table = KnownCounters<Times, 4, 2>;

    fn counter(identity: u128) -> CounterKey {
        CounterKey { identity, tag: None }
    }

    fn insert(table: &Table, key: u64, value: Times) {
        table.lock(&counter(key.into())).insert(key, value, Micros(10));
    }

    /// Returns the values of the keys of the first set.
    fn held(table: &Table) -> Vec<Option<Times>> {
        let mut set = table.lock(&counter(0));
        [4, 8, 12].iter().map(|key| set.get(key).copied()).collect()
    }

    #[test]
    fn the_stalest_value_of_a_full_set_makes_room() {
        let (table, new) = (Table::new(), Times(90, 99));
        for (stale, other, left) in [
            (Times(20, 99), Times(30, 99), [None, Some(Times(30, 99)), Some(new)]),
            (Times(30, 99), Times(20, 99), [Some(Times(30, 99)), None, Some(new)]),
        ] {
            table.clear();
            insert(&table, 4, stale);
            insert(&table, 8, other);
            insert(&table, 5, Times(0, 99));
            insert(&table, 12, new);
            assert_eq!(held(&table), left);
        }
    }

    #[test]
    fn a_value_of_the_same_key_and_one_of_no_more_use_make_room_first() {
        let (table, stale) = (Table::new(), Times(5, 99));
        insert(&table, 4, stale);
        insert(&table, 8, Times(6, 10));
        insert(&table, 12, Times(7, 99));
        assert_eq!(held(&table), [Some(stale), None, Some(Times(7, 99))]);
        insert(&table, 12, Times(8, 99));
        assert_eq!(held(&table), [Some(stale), None, Some(Times(8, 99))]);
    }

    #[test]
    fn only_values_that_are_kept_remain() {
        let table = Table::new();
        insert(&table, 4, Times(20, 99));
        insert(&table, 8, Times(30, 99));
        table.lock(&counter(0)).retain(|key, value| {
            value.0 += 1;
            *key != 4
        });
        assert_eq!(held(&table), [None, Some(Times(31, 99)), None]);
        table.clear();
        assert_eq!(held(&table), [None; 3]);
    }

    #[test]
    fn a_locked_set_is_not_waited_for() {
        let table = Table::new();
        let _set = table.lock(&counter(1));
        assert!(table.try_lock(&counter(5)).is_none());
        assert!(table.try_lock(&counter(2)).is_some());
    }
}
