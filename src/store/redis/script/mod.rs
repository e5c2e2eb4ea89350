//! Script calls: selects the script of a call, encodes its arguments, and decodes its reply.
//!
//! | file | contents |
//! |---|---|
//! | [`library`] | the Lua scripts, bundled for Redis |
//! | `selection` | selects the script of a call |
//! | [`arguments`], [`msgpack`] | encodes checks and receipts as arguments |
//! | [`reply`] | decodes replies into outcomes |
//!
//! Not here: the keys of counters (`keys`), connections (`client`).

pub mod arguments;
pub mod library;
pub mod msgpack;
pub mod reply;
pub(crate) mod selection;
