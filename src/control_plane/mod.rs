//! Policies from a control plane, over xDS: one stream (ADS) on which the control plane sends the state
//! of the world, and the client acknowledges or rejects it.
//!
//! | file | what it does |
//! |---|---|
//! | `exchange` | ACK or NACK, and when |
//! | `last_good` | which domains are in force after a response |
//! | `resource`, `messages` | decoding |
//!
//! Not here: compiling descriptors (`policy`), building the policy and activating it (`app`).

mod exchange;
mod last_good;
mod messages;
mod resource;

pub use exchange::{Answer, Exchange};
pub use last_good::{LastGood, RESOURCES_MAX, RawResource, Rejection, Update};
