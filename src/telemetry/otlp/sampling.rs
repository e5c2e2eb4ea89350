//! Head sampling: decides at the start of a call whether to trace it.
//!
//! `domain` records traces; `trace_export` exports them.

use std::hash::{BuildHasher as _, RandomState};

use crate::domain::TraceParent;

/// Head sampling rule: decides at the start of a call whether it is traced.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplingRule {
    /// Whether the sampling decision in the caller's trace context takes precedence.
    parent_based: bool,
    /// Sampling ratio times 2⁶⁴. A call is sampled if its random 64-bit number is below this
    /// threshold.
    threshold: u64,
    /// Whether the sampling ratio is 1. Needed because a random number can equal the largest
    /// possible `threshold`.
    samples_all: bool,
}

impl SamplingRule {
    /// Creates a rule that samples the fraction `ratio` (0 to 1) of the calls. With
    /// `parent_based`, the ratio applies only to calls without a sampling decision from their
    /// caller.
    pub fn new(parent_based: bool, ratio: f64) -> Self {
        // The cast saturates. A ratio of 1 would miss one call in 2⁶⁴, hence `samples_all`.
        let threshold = (ratio.clamp(0.0, 1.0) * u64::MAX as f64) as u64;
        SamplingRule { parent_based, threshold, samples_all: ratio >= 1.0 }
    }

    /// Returns whether this rule can sample any call.
    pub(crate) fn is_enabled(&self) -> bool {
        self.parent_based || self.threshold > 0
    }

    /// Returns whether to sample a call. `parent` is the caller's trace context, or `None` if the
    /// caller sent no valid one.
    pub(crate) fn should_sample(&self, parent: Option<&TraceParent>) -> bool {
        match parent {
            Some(parent) if self.parent_based => parent.sampled,
            Some(_) | None => {
                // The keys of each `RandomState` differ, so that its hashes are as good as random.
                self.samples_all || RandomState::new().hash_one(()) < self.threshold
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace_parent(sampled: bool) -> TraceParent {
        TraceParent { trace: [1; 16], span: [1; 8], sampled }
    }

    #[test]
    fn the_callers_decision_applies_if_parent_based() {
        for ratio in [0.0, 1.0] {
            let sampling = SamplingRule::new(true, ratio);
            assert!(sampling.should_sample(Some(&trace_parent(true))));
            assert!(!sampling.should_sample(Some(&trace_parent(false))));
            assert_eq!(sampling.should_sample(None), ratio == 1.0);
        }
        let sampling = SamplingRule::new(false, 0.0);
        assert!(!sampling.should_sample(Some(&trace_parent(true))) && !sampling.is_enabled());
    }

    #[test]
    fn a_fraction_of_the_calls_without_a_parent_is_sampled() {
        let sampling = SamplingRule::new(true, 0.1);
        let sampled = (0..100_000).filter(|_| sampling.should_sample(None)).count();
        // Ten thousand expected, a standard deviation of 95: ten of them.
        assert!((9_050..=10_950).contains(&sampled), "{sampled}");
    }
}
