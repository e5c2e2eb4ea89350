//! How often a test repeats what it repeats: briefly in `make test`, at length in `make proof`.
//!
//! Not here: what is repeated.

/// `briefly` as a rule; where TIDEGATE_PROOF is set, that percentage of `at_length`, at least one.
pub fn times(briefly: u64, at_length: u64) -> u64 {
    #[allow(clippy::disallowed_methods, reason = "how long a proof runs is said from outside")]
    let share = std::env::var("TIDEGATE_PROOF");
    match share.as_deref() {
        Err(_) | Ok("") => briefly,
        Ok(text) => {
            let percent: u64 =
                text.parse().unwrap_or_else(|e| panic!("TIDEGATE_PROOF={text}: {e}"));
            (at_length * percent / 100).max(1)
        }
    }
}
