//! `tidegate.v1.Limits`, asked by a client generated from its proto: batches and counters.

mod authorization;
mod batches;
mod counters;
pub(crate) mod messages;
