//! Presentation of the policy: explanations of a match, and listings of the active rules.
//!
//! Not here: the routes and commands that print them (`admin`, `cli`).

#[cfg(feature = "server")]
pub(crate) mod changes;
pub(crate) mod explain;
pub(crate) mod listing;
pub(crate) mod nearest;
#[cfg(feature = "server")]
pub(crate) mod view;
