//! Syntax of policy files: YAML with source positions, the keyword table, and diagnostics.
//!
//! Not here: compiling values to limits and rules (`compile`).

pub(crate) mod document;
pub(crate) mod foreign_file;
pub(crate) mod json_schema;
pub(crate) mod keywords;
pub(crate) mod reader;
pub(crate) mod resource;
pub(crate) mod suggestions;
pub(crate) mod values;
pub(crate) mod yaml;
