//! What a caller asks: a domain and descriptors, borrowed from the bytes that came in.
//!
//! Not here: the wire's messages and their bounds (`wire::decode` turns them into this), matching.

use super::{Hits, Unit};

/// One question: may this request pass?
///
/// A value of this type is already within every bound of the wire: the domain is not empty, there
/// is at least one descriptor, and their number and size are capped by `wire::decode`.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The policy domain the caller names; not empty.
    pub domain: &'a str,
    /// At least one, in the caller's order; the answer has one status for each.
    pub descriptors: &'a [Descriptor<'a>],
}

/// One descriptor: a path of entries that the policy's tree is walked with.
#[derive(Clone, Copy, Debug)]
pub struct Descriptor<'a> {
    /// The path, in order. May be empty: such a descriptor matches nothing.
    pub entries: &'a [Entry<'a>],
    /// How many hits this request counts for here: the descriptor's own hits addend, else the
    /// request's, else 1. Zero is a peek.
    pub hits: Hits,
    /// The hits are refunded rather than taken (`is_negative_hits`).
    pub refund: bool,
    /// A limit that the caller brings along in place of the policy's.
    pub limit: Option<Override>,
    /// Who holds the concurrency slot that is taken or returned (the entry `tidegate.slot`, which
    /// is not part of `entries`).
    pub holder: Option<&'a [u8]>,
}

/// One step of a descriptor's path. Any bytes: what a client can put into a header is legal here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The name of the dimension, such as `remote_address`; not empty.
    pub key: &'a [u8],
    /// Its value; may be empty.
    pub value: &'a [u8],
}

/// A limit that the caller brings along: it replaces the policy's tree for its descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Override {
    /// Hits per window; 0 refuses everything.
    pub requests_per_unit: u32,
    /// The window's unit.
    pub unit: Unit,
    /// The window is that many units; at least 1.
    pub unit_multiplier: u32,
}
