//! The rows of the table, by what fails.

pub mod cluster;
pub mod network;
pub mod redis;
