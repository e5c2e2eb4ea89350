//! Context of a limit in its policy file: its path, the defaults of its domain, and its limit id.
//!
//! Not here: reading the limit itself (`rate_limit`, `tiers`).

use super::limit_parameters::BoundsError;
use crate::domain::{Charge, Limit, OnStoreFailure};
use crate::policy::diagnostic::Target;
use crate::policy::lookup::request_override::stable_hash;
use crate::policy::read_budget::ReadBudget;
use crate::policy::syntax::reader::{ErrorReported, Reader};

/// Settings of a domain that are needed to compile its limits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LimitDefaults<'a> {
    /// Name of the domain that contains the limit.
    pub(crate) domain: &'a str,
    /// Action taken if the store is unavailable, for limits without their own `on_store_failure`.
    pub(crate) on_store_failure: OnStoreFailure,
    /// Charge mode for limits without their own `charge`.
    pub(crate) charge: Charge,
    /// `near_at` of a `mark` that has none, in millionths.
    pub(crate) near_at: u32,
    /// Nodes and bytes that the whole policy may still use.
    pub(crate) budget: &'a ReadBudget,
}

/// Position of a limit in the descriptor tree, with the defaults of its domain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LimitContext<'a> {
    /// Domain-wide defaults for settings that the limit does not set itself.
    pub(crate) defaults: LimitDefaults<'a>,
    /// Alternating keys and values of the limit's path, from the first level down. A value is
    /// empty if the policy specifies none.
    pub(crate) path: &'a [String],
    /// Whether the limit is an entry of `rate_limits` rather than a single `rate_limit`.
    pub(crate) in_list: bool,
}

impl LimitContext<'_> {
    /// Returns the keys of the limit's path, from the first level down.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &str> {
        self.path.iter().step_by(2).map(String::as_str)
    }

    /// Returns the key and value of the descriptor that has the limit. The value is empty if the
    /// policy specifies none.
    pub(crate) fn key_and_value(&self) -> (&str, &str) {
        match self.path {
            [.., key, value] => (key, value),
            _ => ("", ""),
        }
    }
}

/// Returns the `limit_id` of a limit, which is a hash of the parts of its identity. The hash is the
/// same on every replica. The bit that marks request overrides is never set.
pub(crate) fn limit_id(identity: &[Vec<u8>]) -> u64 {
    let parts: Vec<&[u8]> = identity.iter().map(Vec::as_slice).collect();
    stable_hash(&parts) & !Limit::OVERRIDE_BIT
}

/// Reports a bounds error at the key that must be corrected, or at the limit if that key is absent.
pub(crate) fn report_bounds_error(reader: &mut Reader<'_>, error: BoundsError) -> ErrorReported {
    let BoundsError { key, kind, message } = error;
    if reader.is_set(&key) {
        reader.report_key(&key, kind, message)
    } else {
        reader.report(Target::Key, kind, message)
    }
}
