//! Generated holders of concurrency slots, for callers that do not name one. The response contains
//! a token with which the caller can release the slot.
//!
//! Not here: counting slots (`algorithm::concurrency`), sending tokens (`wire`).

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::domain::{Answer, Check, Hits, Holder, HolderToken};
use crate::policy::Policy;

/// Slot holder generated for a call that does not name one, with the token that the caller
/// receives.
pub(super) struct GeneratedHolder {
    pub(super) token: HolderToken,
    pub(super) holder: Holder,
}

impl GeneratedHolder {
    /// Returns whether any of the checks acquired a slot for this holder.
    pub(super) fn acquired_slot(&self, checks: &[Check<'_>], answers: &[Answer]) -> bool {
        checks.iter().zip(answers).any(|(check, answer)| {
            check.holder == Some(self.holder)
                && answer.outcome().is_some_and(|outcome| outcome.charged > Hits::ZERO)
        })
    }
}

/// Generator of slot holders with unique, unpredictable tokens. A token consists of two SipHashes
/// of a counter, with random keys. Generating a token needs neither a lock nor a system call.
#[derive(Debug, Default)]
pub(super) struct HolderGenerator {
    next_number: AtomicU64,
    hashers: [RandomState; 2],
}

impl HolderGenerator {
    pub(super) fn generate(&self, policy: &Policy) -> GeneratedHolder {
        let token = self.generate_token();
        GeneratedHolder { token, holder: policy.hash_holder(token.as_str().as_bytes()) }
    }

    fn generate_token(&self) -> HolderToken {
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        let half = |at: usize| u128::from(self.hashers[at].hash_one((at, number)));
        HolderToken::new(half(0) << 64 | half(1))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn tokens_are_unique_within_and_across_processes() {
        let (one, other) = (HolderGenerator::default(), HolderGenerator::default());
        let tokens: HashSet<String> = (0..1_000)
            .flat_map(|_| [one.generate_token(), other.generate_token()])
            .map(|token| token.as_str().to_owned())
            .collect();
        assert_eq!(tokens.len(), 2_000);
        assert!(tokens.iter().all(|token| token.len() == 32));
    }
}
