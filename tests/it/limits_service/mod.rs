//! `tidegate.v1.Limits`, asked by a client generated from its proto: batches and counters.

mod authorization;
mod batch_bounds;
mod batches;
mod counters;
mod holds;
pub(crate) mod messages;
mod overrides;
mod permissions;
