//! Script calls: which script decides a call, its arguments, and what its reply means.
//!
//! Not here: where counters live (`keys`), connections (`client`).

pub mod arguments;
pub mod library;
pub mod msgpack;
pub mod reply;
pub(crate) mod selection;
