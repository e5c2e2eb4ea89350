//! The policy shown to people: why a request matches a rule, and listings of what is in force.
//!
//! Not here: the routes and commands that print it (`admin`, `cli`).

pub(crate) mod explain;
pub(crate) mod listing;
pub(crate) mod view;
