//! The policy arranged for lookup: a request becomes the checks that it must pass.
//!
//! Not here: what the policy says (`compile`), counting (`store`).

pub(crate) mod build;
pub(crate) mod counter_key;
pub(crate) mod literals;
pub(crate) mod matcher;
pub(crate) mod overrides;
pub(crate) mod patterns;
pub(crate) mod tree;
