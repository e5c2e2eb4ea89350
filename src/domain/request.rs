//! Rate limit request: a domain and descriptors, borrowed from the received bytes.
//!
//! Not here: decoding and bounds checks (`wire`), matching (`policy`).

use super::{Hits, Unit};

/// Rate limit request.
///
/// Every value of this type is within the [`Bounds`](super::Bounds), because `wire` rejects larger
/// requests.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Domain of the policy to apply; not empty.
    pub domain: &'a str,
    /// Descriptors in the order in which the caller sent them; at least one. The response has one
    /// status for each.
    pub descriptors: &'a [Descriptor<'a>],
}

/// Descriptor of a request: a list of entries that is matched against the policy's tree.
#[derive(Clone, Copy, Debug)]
pub struct Descriptor<'a> {
    /// Entries, matched in order against the levels of the policy's tree. A descriptor without
    /// entries matches no rule.
    pub entries: &'a [Entry<'a>],
    /// Number of hits to charge or refund: the `hits_addend` of the descriptor or, if it has none,
    /// that of the request, which is 1 by default. A check of 0 hits is a peek and charges nothing.
    pub hits: Hits,
    /// Whether the descriptor sets its own `hits_addend`. If so, hits above 0 are a bill: hits that
    /// the caller has already used. Under `charge: billed`, they are charged even if the check is
    /// refused or the call is rejected.
    pub has_hits_addend: bool,
    /// Whether the hits are refunded rather than charged (`is_negative_hits`).
    pub refund: bool,
    /// Request override, which replaces the limit of the policy; `None` if the caller sent none.
    pub limit: Option<Override>,
    /// Name of the holder that acquires or releases concurrency slots. This is the value of the
    /// `tidegate.slot` entry, which is not included in `entries`; `None` if the descriptor has no
    /// such entry.
    pub holder: Option<&'a [u8]>,
    /// Hold to make or to settle with the hits; `None` if the descriptor has neither of the entries
    /// `tidegate.hold` and `tidegate.settle`, which are not included in `entries`.
    pub hold: Option<HoldRequest<'a>>,
}

impl<'a> Descriptor<'a> {
    /// Creates a descriptor that charges `hits`, without a request override or a holder.
    pub fn new(entries: &'a [Entry<'a>], hits: Hits) -> Descriptor<'a> {
        Descriptor {
            entries,
            hits,
            has_hits_addend: false,
            refund: false,
            limit: None,
            holder: None,
            hold: None,
        }
    }
}

/// What a descriptor does with its hits on limits with [`reserve`](super::Limit::reserve).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldRequest<'a> {
    /// Holds the hits, an upper estimate. Other limits are charged.
    Hold {
        /// Id of the hold; if empty, Tidegate makes one.
        id: &'a [u8],
        /// Seconds after which the hold ends at the latest; a longer time than the limit's has no effect.
        ttl_secs_max: u32,
    },
    /// Charges the hits, which were used, and ends the hold. Other limits are not asked.
    Settle {
        /// Id of the hold.
        id: &'a [u8],
    },
}

impl<'a> HoldRequest<'a> {
    /// Returns the id of the hold; empty if Tidegate is to make one.
    pub fn id(&self) -> &'a [u8] {
        match self {
            HoldRequest::Hold { id, .. } | HoldRequest::Settle { id } => id,
        }
    }
}

/// Entry of a descriptor. The key and value may contain any bytes, because they may come from
/// request headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Key of the entry, such as `remote_address`; not empty.
    pub key: &'a [u8],
    /// Value of the entry, such as `192.0.2.1`; may be empty.
    pub value: &'a [u8],
}

/// Request override: a limit that the caller sent in a descriptor. It replaces the limits of the
/// policy for this descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Override {
    /// Hits per window; 0 refuses every check.
    pub requests_per_unit: u32,
    /// Time unit of the window, such as `Unit::Minute`.
    pub unit: Unit,
    /// Number of units in a window; at least 1.
    pub unit_multiplier: u32,
}
