//! The rows of the table, by what fails.

pub mod redis;
