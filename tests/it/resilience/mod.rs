//! The stack between a decision and its store: deadline, fallback, refusal cache.

mod empty_restarts;
mod fallback;
mod hot_bucket;
mod layers;
mod own_charges;
mod redis_outage;
mod refusal_cache;
mod shed_calls;
