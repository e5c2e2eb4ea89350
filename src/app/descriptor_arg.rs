//! Descriptors typed on the command line.

use super::process::exit_codes::Failure;
use crate::domain;

/// Parses a descriptor such as `k=v,k2=v2`; see [`domain::parse_descriptor`].
///
/// # Errors
///
/// Returns [`Failure::Usage`] if an entry has no key, or has a colon instead of `=`.
pub fn parse_descriptor(text: &str) -> Result<Vec<(String, String)>, Failure> {
    domain::parse_descriptor(text).map_err(Failure::Usage)
}
