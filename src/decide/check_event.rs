//! What an observer is told of a rule that counts nothing.
//!
//! Not here: what it is told of checks (`decide`), what it makes of that (`telemetry`).

use crate::domain::{CheckEvent, Descriptor, Hits, Micros, Outcome, Source, Verdict};
use crate::policy::Rule;

/// A rule without a counter is told of as if its capacity were endless.
pub(super) fn unlimited(rule: &Rule, descriptor: &Descriptor<'_>, admitted: bool) -> CheckEvent {
    CheckEvent {
        rule: Some(rule.id),
        hits: descriptor.hits,
        capacity: Hits(u64::MAX),
        outcome: Outcome {
            verdict: Verdict::Pass,
            charged: descriptor.hits,
            available: Hits(u64::MAX),
            retry_after: None,
            reset_after: Micros::ZERO,
            taken: None,
        },
        shadow: rule.shadow_mode,
        admitted,
        is_refund: descriptor.refund,
        source: Source::Policy,
    }
}
