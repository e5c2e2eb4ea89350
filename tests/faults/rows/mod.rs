//! The rows of the table, by what fails.

pub mod network;
pub mod redis;
