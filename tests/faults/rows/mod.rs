//! The rows of the table, by what fails.

pub mod abuse;
pub mod cluster;
pub mod network;
pub mod redis;
pub mod replicas;
pub mod service;
