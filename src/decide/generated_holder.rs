//! Generated holders of concurrency slots, and ids of holds, for callers that do not name one. The
//! response contains a token with which the caller can release the slot or settle the hold.
//!
//! Not here: counting slots and holds (`algorithm`), sending tokens (`wire`).

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::domain::{Answer, Check, Hits, HoldId, Holder, HolderToken, Verdict};
use crate::policy::Policy;

/// Holder generated for a call that does not name one, with the token that the caller receives.
pub(super) struct GeneratedHolder {
    token: HolderToken,
    pub(super) holder: Holder,
}

/// Holders of a call's slots and holds.
#[derive(Default)]
pub(super) struct CallHolders {
    /// Holder of all checks that need one and name none; `None` if there are no such checks.
    pub(super) generated: Option<GeneratedHolder>,
    /// Whether the call holds hits.
    pub(super) has_hold: bool,
}

impl CallHolders {
    /// Returns what the caller of an admitted call must know: the token of the slots that it acquired,
    /// and the id of its hold.
    pub(super) fn acquired(
        &self,
        checks: &[Check<'_>],
        answers: &[Answer],
    ) -> (Option<HolderToken>, Option<HoldId>) {
        if self.generated.is_none() && !self.has_hold {
            return (None, None);
        }
        let (mut slot, mut hold) = (None, None);
        for (check, outcome) in checks.iter().zip(answers.iter().map(Answer::outcome)) {
            let Some(outcome) = outcome else { continue };
            let generated = self.generated.as_ref();
            let token = generated.filter(|generated| check.holder == Some(generated.holder));
            let token = token.map(|generated| generated.token);
            if check.is_hold() && outcome.verdict == Verdict::Pass {
                hold.get_or_insert(token.map_or(HoldId::Sent, HoldId::Generated));
            } else if outcome.charged > Hits::ZERO {
                slot = slot.or(token);
            }
        }
        (slot, hold)
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
