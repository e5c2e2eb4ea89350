//! Where a limit stands, for those who read what is written there.
//!
//! Not here: reading it (`rule`, `tiers`).

use super::limit_numbers::{BoundsError, stable_hash};
use crate::domain::OnStoreFailure;
use crate::policy::syntax::diagnostic::{At, DiagnosticKind};
use crate::policy::syntax::keywords;
use crate::policy::syntax::reader::{ErrorReported, Fields, Reader};

/// What a rule takes from where it stands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DomainDefaults<'a> {
    /// The domain's name.
    pub(crate) domain: &'a str,
    /// The domain's answer when the store cannot be asked.
    pub(crate) on_store_failure: OnStoreFailure,
}

/// Where a limit stands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LimitContext<'a> {
    pub(crate) ground: DomainDefaults<'a>,
    /// The identity of its path: key and value of each level.
    pub(crate) trail: &'a [String],
    /// It is an entry of `rate_limits`.
    pub(crate) in_list: bool,
}

impl LimitContext<'_> {
    /// The keys of the path.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &str> {
        self.trail.iter().step_by(2).map(String::as_str)
    }

    /// Key and value of the node that the limit stands on.
    pub(crate) fn node(&self) -> (&str, &str) {
        match self.trail {
            [.., key, value] => (key, value),
            _ => ("", ""),
        }
    }
}

/// The number of a limit_id: the same for the same parts.
pub(crate) fn limit_id(identity: &[Vec<u8>]) -> u64 {
    let parts: Vec<&[u8]> = identity.iter().map(Vec::as_slice).collect();
    stable_hash(&parts)
}

/// Notes a misfit at the key that has to change.
pub(crate) fn report<'d>(
    reader: &mut Reader<'d>,
    fields: &Fields<'d>,
    misfit: BoundsError,
) -> ErrorReported {
    let (key, kind) = match misfit {
        BoundsError::WindowTooLong { .. } => {
            (keywords::UNIT_MULTIPLIER, DiagnosticKind::OutOfRange)
        }
        BoundsError::BurstOnWindow | BoundsError::BurstBesideZero => {
            (keywords::BURST, DiagnosticKind::Conflict)
        }
        BoundsError::BurstTooLarge { .. } => (keywords::BURST, DiagnosticKind::OutOfRange),
        BoundsError::RateTooLargeForBurst { .. } => {
            (keywords::REQUESTS_PER_UNIT, DiagnosticKind::OutOfRange)
        }
        BoundsError::HitsTooMany { .. } => {
            (keywords::REQUESTS_PER_UNIT, DiagnosticKind::OutOfRange)
        }
        BoundsError::AlwaysOnSlots => (keywords::CHARGE, DiagnosticKind::Conflict),
        BoundsError::CostAboveCapacity { .. } => (keywords::COST, DiagnosticKind::OutOfRange),
    };
    if fields.has(&key) {
        reader.report_key(&key, kind, misfit.to_string())
    } else {
        reader.report(At::Key, kind, misfit.to_string())
    }
}
