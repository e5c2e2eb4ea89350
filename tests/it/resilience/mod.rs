//! The layers between a decision and its store: deadline, fallback, refusal cache.

mod fallback;
mod redis_outage;
mod refusal_cache;
