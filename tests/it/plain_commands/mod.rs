//! Calls far from every limit, which are charged by plain commands instead of a script: one test per
//! rule, and random calls with wrong hints under faults.
//!
//! Not here: the hints (`src/store/redis/plain_hints.rs`), the bounds of the server's time
//! (`src/store/redis/client/server_time.rs`), both beside their code.

pub mod bench;
mod random_calls;
mod rules;
