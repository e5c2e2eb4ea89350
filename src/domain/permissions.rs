//! Permissions of a caller beyond charging hits: refunds, peeks, and request limits.
//!
//! Not here: which caller has which permissions (`server::authz`).

use super::named_enum::named_enum;
use super::{Descriptor, Hits, HoldRequest};

named_enum! {
    /// Access that callers have to the methods `Peek`, `ReadCounters`, `Refund`, and `ResetCounters` of
    /// `tidegate.v1.Limits`, in the domains that they may use.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
    pub enum CounterAccess {
        /// No access to `Peek`, `ReadCounters`, `Refund`, or `ResetCounters`.
        #[default]
        Off => "off",
        /// Access to the methods that change no counter: `Peek` and `ReadCounters`.
        Read => "read",
        /// Access to the methods that [`CounterAccess::Read`] permits, and to the methods that change
        /// counters: `Refund` and `ResetCounters`.
        Write => "write",
    }
}

/// Permission for a caller to use a domain. If at least one grant is configured, callers over TLS
/// may use only the domains that are granted to them. Callers over a Unix socket may use every
/// domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DomainGrant {
    /// Name of the rate limit domain, or `*` for every domain.
    pub domain: String,
    /// DNS name or URI of the caller. A client whose certificate contains it as a subject
    /// alternative name may use the domain.
    pub caller: String,
    /// What the caller may do in the domain, apart from charging hits.
    pub permissions: Permissions,
}

/// Parts of a request that need a permission, because they give away or reveal what other callers
/// have used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permissions {
    /// Refund hits: descriptors with negative hits, and the methods `Refund` and `ResetCounters`.
    pub refund: bool,
    /// Read a counter without charging it: descriptors with 0 hits, and the methods `Peek` and
    /// `ReadCounters`.
    pub peek: bool,
    /// Send a limit in a request, which replaces the limit of the policy.
    pub limits: bool,
}

impl Permissions {
    /// No permission: a caller can only charge hits.
    pub const NONE: Permissions = Permissions { refund: false, peek: false, limits: false };
    /// Every permission, which every caller of envoyproxy/ratelimit has.
    pub const ALL: Permissions = Permissions { refund: true, peek: true, limits: true };

    /// Returns the permissions that are in `self`, in `other`, or in both.
    #[must_use]
    pub fn union(self, other: Permissions) -> Permissions {
        Permissions {
            refund: self.refund || other.refund,
            peek: self.peek || other.peek,
            limits: self.limits || other.limits,
        }
    }

    /// Returns whether `self` has every permission that is in `needed`.
    pub fn include(self, needed: Permissions) -> bool {
        self.union(needed) == self
    }

    /// Returns the permissions that a request with these descriptors needs.
    pub fn needed_by(descriptors: &[Descriptor<'_>]) -> Permissions {
        descriptors.iter().fold(Permissions::NONE, |needed, descriptor| {
            needed.union(Permissions {
                refund: descriptor.refund,
                // A settle of 0 hits ends the caller's own hold.
                peek: descriptor.hits == Hits::ZERO
                    && !descriptor.refund
                    && !matches!(descriptor.hold, Some(HoldRequest::Settle { .. })),
                limits: descriptor.limit.is_some(),
            })
        })
    }
}
