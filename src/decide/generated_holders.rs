//! Who holds a concurrency slot, where the caller does not say: a random name, made up for the call
//! and told with its answer.
//!
//! Not here: what holders do (`algorithm::concurrency`), how the name travels (`wire`).

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::domain::HolderToken;

/// Makes names that no two calls share and nobody guesses: a keyed hash (SipHash, keys from the
/// operating system) of a counter. Neither a lock nor a system call for each.
#[derive(Debug, Default)]
pub(super) struct Holders {
    next: AtomicU64,
    halves: [RandomState; 2],
}

impl Holders {
    /// Another name.
    pub(super) fn draw(&self) -> HolderToken {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let half = |at: usize| u128::from(self.halves[at].hash_one((at, number)));
        HolderToken::new(half(0) << 64 | half(1))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_two_names_are_the_same_nor_those_of_two_processes() {
        let (one, other) = (Holders::default(), Holders::default());
        let names: HashSet<String> = (0..1_000)
            .flat_map(|_| [one.draw(), other.draw()])
            .map(|slot| slot.as_str().to_owned())
            .collect();
        assert_eq!(names.len(), 2_000);
        assert!(names.iter().all(|name| name.len() == 32));
    }
}
