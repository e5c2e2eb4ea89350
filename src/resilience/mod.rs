//! What stands between the decider and a store that may be slow or gone: each part wraps a
//! [`Store`](crate::store::Store) and is one.
//!
//! | file | what it does |
//! |---|---|
//! | [`deadline`] | a store is asked for no longer than its budget |
//! | [`remember`] | a refusal is repeated without asking |
//! | [`fallback`] | what a remote store does not answer, the local one does |
//! | `settle`, `shares` | how such a call is settled; this replica's share of a limit |
//! | [`shed`] | how many calls may wait for the remote store |
//! | [`degraded`] | whether it is stood in for, since when and why |
//! | [`switches`] | it counts as away, for a rehearsal |
//!
//! Not here: algorithm, Redis (its breaker is beside its connections).

pub mod deadline;
pub mod degraded;
pub mod fallback;
pub mod in_flight_limit;
pub mod refusal_cache;
pub mod store_override;

mod merge;
mod replica_limits;
