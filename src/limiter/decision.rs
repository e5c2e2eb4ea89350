//! Decisions that the library returns to its callers, as owned values.
//!
//! Not here: making a decision (`decide`).

use std::time::Duration;

use crate::domain;
use crate::domain::{Code, HolderToken, Micros, WaitPrecision};

/// Decision on a call: whether it may pass, and how many hits its limits have left.
///
/// Remaining hits are rounded down, and waits are rounded up. Waits are in whole microseconds
/// unless a method says otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    is_admitted: bool,
    is_domain_known: bool,
    limited_by: Option<Box<str>>,
    retry_after: Option<Micros>,
    is_retry_after_exact: bool,
    descriptors: Vec<DescriptorStatus>,
    holder: Option<HolderToken>,
    source: &'static str,
}

/// Status of one descriptor of a call: its limit and the remaining hits. If several limits apply
/// to the descriptor, the status reports the limit that rejects it or, if none does, the limit
/// with the fewest remaining hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescriptorStatus {
    is_within_limit: bool,
    limit: Option<u64>,
    remaining: Option<u64>,
    reset_after: Option<Micros>,
}

impl Decision {
    pub(super) fn new(decision: &domain::Decision<'_>) -> Decision {
        let by = decision.limited_by;
        Decision {
            is_admitted: decision.code == Code::Ok,
            is_domain_known: decision.domain_known,
            limited_by: by.map(|by| by.name.into()),
            retry_after: by.and_then(|by| by.retry_after),
            is_retry_after_exact: by.is_some_and(|by| by.precision == WaitPrecision::Exact),
            descriptors: decision.statuses.iter().map(DescriptorStatus::new).collect(),
            holder: decision.slot,
            source: decision.source.as_str(),
        }
    }

    /// Returns whether the call may pass. By default, a rejected call charges nothing.
    pub fn is_admitted(&self) -> bool {
        self.is_admitted
    }

    /// Returns the time after which a rejected call may pass. `None` if the call was admitted, or
    /// if waiting does not help because the call costs more than the whole limit or the limit is 0.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after.map(to_duration)
    }

    /// Returns [`retry_after`](Self::retry_after) as the value of the HTTP header `Retry-After`:
    /// whole seconds, rounded up, at least 1.
    pub fn retry_after_secs(&self) -> Option<u64> {
        self.retry_after.map(|wait| wait.ceil_secs().max(1))
    }

    /// Returns whether the call would pass after [`retry_after`](Self::retry_after) if no other
    /// call is charged in the meantime. Returns false if the call was admitted, or if the wait is
    /// only a lower bound.
    pub fn is_retry_after_exact(&self) -> bool {
        self.is_retry_after_exact
    }

    /// Returns the limit that rejected the call: its `name` or, if it has none, the path of its
    /// rule, such as `api.user`. `None` if the call was admitted. If several limits rejected the
    /// call, this is the one with the longest wait.
    pub fn limited_by(&self) -> Option<&str> {
        self.limited_by.as_deref()
    }

    /// Returns the status of each descriptor, in the order of the descriptors in the call.
    pub fn descriptors(&self) -> &[DescriptorStatus] {
        &self.descriptors
    }

    /// Returns the generated holder of the concurrency slots that the call acquired, 32 hexadecimal
    /// digits. Pass it to [`Descriptor::holder`](crate::Descriptor::holder) to release the slots.
    /// `None` if the call acquired no slot or set a holder itself.
    pub fn holder(&self) -> Option<&str> {
        self.holder.as_ref().map(HolderToken::as_str)
    }

    /// Returns whether the policy contains the domain of the call. If not, no limit applied.
    pub fn is_domain_known(&self) -> bool {
        self.is_domain_known
    }

    /// Returns the source of the decision:
    ///
    /// | source | meaning |
    /// |---|---|
    /// | `memory` | the counters of this process |
    /// | `redis` | the counters in Redis |
    /// | `local` | the counters of this process, because Redis did not reply in time |
    /// | `shed` | the counters of this process, because there was no time or capacity for Redis |
    /// | `cached` | a recent rejection, repeated without a call to Redis |
    /// | `policy` | the policy alone, because no limit applied |
    pub fn source(&self) -> &'static str {
        self.source
    }
}

impl DescriptorStatus {
    fn new(status: &domain::Status<'_>) -> DescriptorStatus {
        DescriptorStatus {
            is_within_limit: status.code == Code::Ok,
            limit: status.shown.map(|limit| limit.reported_limit().0),
            remaining: status.shown.map(|_| u64::from(status.remaining)),
            reset_after: status.reset,
        }
    }

    /// Returns whether the descriptor is within its limits. True if no limit applies to it.
    pub fn is_within_limit(&self) -> bool {
        self.is_within_limit
    }

    /// Returns the limit, in hits: `requests_per_unit` or, if that is larger, the capacity of the
    /// bucket. `None` if no limit applies.
    pub fn limit(&self) -> Option<u64> {
        self.limit
    }

    /// Returns the number of hits that the limit has left after the call, rounded down. `None` if
    /// no limit applies.
    pub fn remaining(&self) -> Option<u64> {
        self.remaining
    }

    /// Returns the time until the full limit is available again or, for a descriptor over its
    /// limit, the time until a retry may pass. `None` if no limit applies, if waiting does not
    /// help, or if the state of the counter is unknown.
    pub fn reset_after(&self) -> Option<Duration> {
        self.reset_after.map(to_duration)
    }
}

fn to_duration(time: Micros) -> Duration {
    Duration::from_micros(time.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{LimitedBy, Source};

    fn rejected(wait: Option<u64>, precision: WaitPrecision) -> Decision {
        let retry_after = wait.map(Micros);
        Decision::new(&domain::Decision {
            code: Code::OverLimit,
            statuses: Vec::new(),
            limited_by: Some(LimitedBy { name: "daily", rule: None, retry_after, precision }),
            source: Source::Redis,
            shadowed: false,
            domain_known: true,
            slot: None,
            marks: Vec::new(),
            hold: None,
        })
    }

    #[test]
    fn a_wait_that_is_a_lower_bound_is_not_exact() {
        assert!(rejected(Some(5), WaitPrecision::Exact).is_retry_after_exact());
        assert!(!rejected(Some(5), WaitPrecision::AtLeast).is_retry_after_exact());
    }

    #[test]
    fn the_seconds_of_a_wait_are_rounded_up_to_at_least_one() {
        let seconds = |wait| rejected(wait, WaitPrecision::Exact).retry_after_secs();
        for (micros, expected) in [(0, 1), (1, 1), (1_000_000, 1), (1_000_001, 2)] {
            assert_eq!(seconds(Some(micros)), Some(expected), "{micros}");
        }
        assert_eq!(seconds(None), None);
    }
}
