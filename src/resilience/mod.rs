//! What stands between the decider and a store that may be slow or gone: each part wraps a
//! [`Store`](crate::store::Store) and is one.
//!
//! Not here: counting, Redis.

pub mod deadline;
pub mod remember;
