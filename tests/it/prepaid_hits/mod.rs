//! Hits of hot counters that replicas take in advance and spend without Redis: limits stay exact,
//! lots end when they must, and Redis has little to do.
//!
//! Not here: how many hits are taken (`src/resilience/prepaid_lots.rs`, beside the code).

mod exactness;
mod lots_end;
mod processes;
mod replica;
