//! Where a limit stands, for those who read what is written there.
//!
//! Not here: reading it (`rule`, `tiers`).

use super::fault::{At, FaultKind};
use super::limit::{Misfit, stable_hash};
use super::reader::{Fields, Reader, Reported};
use super::words;
use crate::domain::OnStoreFailure;

/// What a rule takes from where it stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ground<'a> {
    /// The domain's name.
    pub(super) domain: &'a str,
    /// The domain's answer when the store cannot be asked.
    pub(super) on_store_failure: OnStoreFailure,
}

/// Where a limit stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Site<'a> {
    pub(super) ground: Ground<'a>,
    /// The identity of its path: key and value of each level.
    pub(super) trail: &'a [String],
    /// It is an entry of `rate_limits`.
    pub(super) in_list: bool,
}

impl Site<'_> {
    /// The keys of the path.
    pub(super) fn keys(&self) -> impl Iterator<Item = &str> {
        self.trail.iter().step_by(2).map(String::as_str)
    }

    /// Key and value of the node that the limit stands on.
    pub(super) fn node(&self) -> (&str, &str) {
        match self.trail {
            [.., key, value] => (key, value),
            _ => ("", ""),
        }
    }
}

/// The number of a family: the same for the same parts.
pub(super) fn family(identity: &[Vec<u8>]) -> u64 {
    let parts: Vec<&[u8]> = identity.iter().map(Vec::as_slice).collect();
    stable_hash(&parts)
}

/// Notes a misfit at the key that has to change.
pub(super) fn report<'d>(reader: &mut Reader<'d>, fields: &Fields<'d>, misfit: Misfit) -> Reported {
    let (key, kind) = match misfit {
        Misfit::WindowTooLong { .. } => (words::UNIT_MULTIPLIER, FaultKind::OutOfRange),
        Misfit::BurstOnWindow | Misfit::BurstBesideZero => (words::BURST, FaultKind::Conflict),
        Misfit::BurstTooLarge { .. } => (words::BURST, FaultKind::OutOfRange),
        Misfit::RateTooLargeForBurst { .. } => (words::REQUESTS_PER_UNIT, FaultKind::OutOfRange),
        Misfit::HitsTooMany { .. } => (words::REQUESTS_PER_UNIT, FaultKind::OutOfRange),
        Misfit::AlwaysOnSlots => (words::CHARGE, FaultKind::Conflict),
        Misfit::CostAboveCapacity { .. } => (words::COST, FaultKind::OutOfRange),
    };
    if fields.has(&key) {
        reader.note_at(&key, kind, misfit.to_string())
    } else {
        reader.note(At::Key, kind, misfit.to_string())
    }
}
