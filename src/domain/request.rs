//! A rate limit request: a domain and descriptors, borrowed from the received bytes.
//!
//! Not here: decoding and bounds (`wire`), matching (`policy`).

use super::{Hits, Unit};

/// A rate limit request.
///
/// A value of this type is within the [`Bounds`](super::Bounds): `wire` rejects everything else.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The policy domain; not empty.
    pub domain: &'a str,
    /// At least one, in the caller's order. The response has one status for each.
    pub descriptors: &'a [Descriptor<'a>],
}

/// One descriptor: a path of entries to match against the policy's tree.
#[derive(Clone, Copy, Debug)]
pub struct Descriptor<'a> {
    /// The path. May be empty; an empty path matches nothing.
    pub entries: &'a [Entry<'a>],
    /// Hits that this request counts as: the descriptor's `hits_addend`, else the request's, else 1.
    /// Zero is a peek.
    pub hits: Hits,
    /// The hits are refunded rather than taken (`is_negative_hits`).
    pub refund: bool,
    /// Request override: a limit that replaces the policy's.
    pub limit: Option<Override>,
    /// Holder of the concurrency slot to take or return: the value of the entry `tidegate.slot`, which
    /// is not part of `entries`.
    pub holder: Option<&'a [u8]>,
}

/// One entry of a descriptor. Key and value may contain any bytes, because they may come from headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The name of the dimension, such as `remote_address`; not empty.
    pub key: &'a [u8],
    /// Its value; may be empty.
    pub value: &'a [u8],
}

/// Request override: a limit that the caller sends to replace the policy's limits for a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Override {
    /// Hits per window; 0 refuses everything.
    pub requests_per_unit: u32,
    /// The window's unit.
    pub unit: Unit,
    /// Units per window; at least 1.
    pub unit_multiplier: u32,
}
