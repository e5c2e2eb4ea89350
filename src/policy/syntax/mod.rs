//! The policy language as text: YAML values with their places, the table of keys, and diagnostics.
//!
//! Not here: what the keys mean together (`compile`).

pub(crate) mod diagnostic;
pub(crate) mod document;
pub(crate) mod excerpt;
pub(crate) mod json_schema;
pub(crate) mod keywords;
pub(crate) mod reader;
pub(crate) mod scalar;
pub(crate) mod suggestions;
pub(crate) mod values;
pub(crate) mod yaml;
