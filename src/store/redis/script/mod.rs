//! Script calls: encodes the arguments of a call, and decodes its reply.
//!
//! | file | contents |
//! |---|---|
//! | [`library`] | the Lua scripts, bundled for Redis, and a call to one |
//! | [`keys`] | the key of a counter, and its cluster slot |
//! | [`call`] | a request to a node; a call as a script call of its own, and its reply |
//! | [`arguments`], [`msgpack`] | encoding of checks and receipts as arguments |
//! | [`reply`] | decoding of replies into outcomes |
//! | [`write_calls`], [`replay`] | the calls of one write as one script call; their outcomes |
//!
//! Not here: connections (`client`).

pub mod arguments;
pub mod call;
pub mod keys;
pub mod library;
pub mod msgpack;
pub mod replay;
pub mod reply;
pub mod write_calls;
