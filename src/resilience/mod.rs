//! Layers between the decider and a store that may be slow or unavailable. [`deadline`],
//! [`refusal_cache`] and [`fallback`] each wrap a [`Store`](crate::store::Store) and are one.
//!
//! | file | what it does |
//! |---|---|
//! | [`deadline`] | bounds how long a call waits for the store |
//! | [`refusal_cache`] | repeats a recent refusal without asking the store |
//! | [`fallback`] | decides on the local store what the remote one does not answer |
//! | `merge` | merges remote, local and configured answers into one decision |
//! | `replica_limits` | this replica's share of each limit |
//! | [`in_flight_limit`] | bounds how many calls wait for the remote store |
//! | [`outage`] | since when and why calls are answered without the remote store |
//! | [`store_override`] | lets an operator disable the remote store to rehearse an outage |
//!
//! Not here: the arithmetic of limits (`algorithm`), the circuit breaker (`store::redis::client`).

pub mod deadline;
pub mod fallback;
pub mod in_flight_limit;
pub mod outage;
pub mod refusal_cache;
pub mod store_override;

mod merge;
mod replica_limits;
