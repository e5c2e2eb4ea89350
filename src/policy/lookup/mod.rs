//! Lookup: turns a request into the checks that it must pass under the active policy.
//!
//! Not here: reading policy files (`compile`), counting (`store`).

pub(crate) mod build;
pub(crate) mod changed_limits;
pub(crate) mod counter_key;
pub(crate) mod literals;
pub(crate) mod matcher;
pub(crate) mod operator_overrides;
pub(crate) mod override_index;
pub(crate) mod patterns;
pub(crate) mod request_override;
pub(crate) mod tree;
