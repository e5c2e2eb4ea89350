//! Script calls: which script decides a call, its arguments, and what its reply means.
//!
//! | file | what it does |
//! |---|---|
//! | [`library`] | `lua/` as the service runs it |
//! | `selection` | which script decides a call |
//! | [`arguments`], [`msgpack`] | checks and receipts to arguments |
//! | [`reply`] | replies to outcomes |
//!
//! Not here: where counters live (`keys`), connections (`client`).

pub mod arguments;
pub mod library;
pub mod msgpack;
pub mod reply;
pub(crate) mod selection;
