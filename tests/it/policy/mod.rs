//! The policy language as a whole: files in, limits or every diagnostic out.

mod arithmetic_bounds;
pub mod bad_files;
mod compile_helpers;
mod diagnostics;
mod file_kinds;
mod good_files;
mod json_schema;
mod memory_bounds;
mod random_text;
mod ratelimit_language;
mod source_lines;
mod warnings;
mod yaml_in_use;
