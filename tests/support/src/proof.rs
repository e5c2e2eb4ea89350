//! How often a test repeats its claim: briefly in `make test`, at length in `make proof`.

use super::environment::number;

/// Returns `briefly`, or with TIDEGATE_PROOF that percentage of `at_length`, at least 1.
pub fn times(briefly: u64, at_length: u64) -> u64 {
    match number("TIDEGATE_PROOF") {
        None => briefly,
        Some(percent) => (at_length * percent / 100).max(1),
    }
}

/// Returns whether times are judged: in a whole `make proof` only, because a tenth of it shares the
/// machine with other tests.
pub fn judges_times() -> bool {
    number("TIDEGATE_PROOF").is_some_and(|percent| percent >= 100)
}
