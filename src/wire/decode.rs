//! Decodes a `RateLimitRequest` to a [`Request`] and checks its bounds.
//!
//! Errors name the bound. Whatever a downstream client can put into a header is valid: any bytes, any
//! length, empty.
//!
//! prost decodes the message. A reader of our own, which borrowed from the received bytes and
//! allocated nothing, was cheaper by 3, 4 and 9 % of the instructions of a call with one, two and ten
//! descriptors (load/results/grpc.txt); the limit for keeping it was 10 %.
//!
//! Not here: matching, counting.

use std::fmt;
use std::ops::Range;

use bytes::Bytes;
use prost::Message as _;
use prost::encoding::{DecodeContext, decode_key, decode_varint, skip_field};
use smallvec::SmallVec;
use tonic::Status;

use super::messages::rate_limit_descriptor::RateLimitOverride;
use super::messages::{RateLimitDescriptor, RateLimitRequest};
use crate::domain::{Bounds, Descriptor, Entry, Hits, Override, Request, Unit};

/// Descriptors in one request: [`Bounds::descriptors_max`].
pub const DESCRIPTORS_MAX: usize = Bounds::DEFAULT.descriptors_max;

/// Entries in one descriptor: [`Bounds::entries_max`].
pub const ENTRIES_MAX: usize = Bounds::DEFAULT.entries_max;

/// Bytes of one message: [`Bounds::message_bytes_max`].
pub const MESSAGE_BYTES_MAX: usize = Bounds::DEFAULT.message_bytes_max;

/// The entry that names the holder of a concurrency slot. It counts towards [`ENTRIES_MAX`] and is
/// not part of the path.
pub const SLOT_KEY: &[u8] = b"tidegate.slot";

/// Longest message that is decoded without counting its descriptors and entries first. prost allocates
/// 72 bytes for a descriptor that takes two: 4 MiB of them would take 144 MiB, 16 KiB take 576 KiB.
const UNCOUNTED_BYTES_MAX: usize = 16 * 1024;

/// Descriptors and entries that fit on the stack. Envoy's routes seldom send more than four
/// descriptors of four entries.
const DESCRIPTORS_INLINE: usize = 4;
const ENTRIES_INLINE: usize = 16;

/// What is wrong with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DecodeError {
    /// Not a protobuf message of this shape.
    Malformed,
    /// The message is longer than it may be.
    MessageTooLong,
    /// No domain.
    DomainEmpty,
    /// The domain is not UTF-8.
    DomainNotText,
    /// Nothing is asked.
    NoDescriptors,
    /// More than [`DESCRIPTORS_MAX`].
    TooManyDescriptors,
    /// More than [`ENTRIES_MAX`] in the descriptor at that position.
    TooManyEntries { descriptor: usize },
    /// An entry without a key in the descriptor at that position.
    KeyEmpty { descriptor: usize },
    /// The limit that the caller brought along has a unit that does not exist.
    OverrideUnit { descriptor: usize, unit: i32 },
}

impl From<prost::DecodeError> for DecodeError {
    fn from(_: prost::DecodeError) -> Self {
        DecodeError::Malformed
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DecodeError::Malformed => f.write_str("the message is not an encoded RateLimitRequest"),
            DecodeError::MessageTooLong => {
                write!(f, "the message is longer than {MESSAGE_BYTES_MAX} bytes")
            }
            DecodeError::DomainEmpty => f.write_str("domain must not be empty"),
            DecodeError::DomainNotText => f.write_str("domain must be UTF-8"),
            DecodeError::NoDescriptors => f.write_str("descriptors must not be empty"),
            DecodeError::TooManyDescriptors => {
                write!(f, "descriptors: at most {DESCRIPTORS_MAX} in one request")
            }
            DecodeError::TooManyEntries { descriptor } => {
                write!(f, "descriptors[{descriptor}].entries: at most {ENTRIES_MAX}")
            }
            DecodeError::KeyEmpty { descriptor } => {
                write!(f, "descriptors[{descriptor}].entries: a key must not be empty")
            }
            DecodeError::OverrideUnit { descriptor, unit } => write!(
                f,
                "descriptors[{descriptor}].limit.unit: {unit} is none of SECOND, MINUTE, HOUR, \
                 DAY, MONTH, YEAR"
            ),
        }
    }
}

impl From<DecodeError> for Status {
    fn from(fault: DecodeError) -> Self {
        Status::invalid_argument(fault.to_string())
    }
}

/// Decodes an encoded `RateLimitRequest`.
///
/// # Errors
///
/// A message that is too long or malformed, or has too many descriptors or entries to be decoded.
pub(crate) fn message(encoded: Bytes) -> Result<RateLimitRequest, DecodeError> {
    if encoded.len() > MESSAGE_BYTES_MAX {
        return Err(DecodeError::MessageTooLong);
    }
    if encoded.len() > UNCOUNTED_BYTES_MAX {
        let descriptors =
            fields(&encoded, 2, DESCRIPTORS_MAX)?.ok_or(DecodeError::TooManyDescriptors)?;
        for (at, descriptor) in descriptors.into_iter().enumerate() {
            fields(descriptor, 1, ENTRIES_MAX)?
                .ok_or(DecodeError::TooManyEntries { descriptor: at })?;
        }
    }
    Ok(RateLimitRequest::decode(encoded)?)
}

/// Returns the embedded messages of that field number, `None` if there are more than `max`.
fn fields(mut message: &[u8], number: u32, max: usize) -> Result<Option<Vec<&[u8]>>, DecodeError> {
    let mut found = Vec::new();
    while !message.is_empty() {
        let (field, wire_type) = decode_key(&mut message)?;
        if field != number {
            skip_field(wire_type, field, &mut message, DecodeContext::default())?;
            continue;
        }
        if found.len() == max {
            return Ok(None);
        }
        let length = usize::try_from(decode_varint(&mut message)?);
        let split = length.ok().and_then(|length| message.split_at_checked(length));
        let (embedded, rest) = split.ok_or(DecodeError::Malformed)?;
        found.push(embedded);
        message = rest;
    }
    Ok(Some(found))
}

/// A request within every bound: borrows from prost's message and lends to a [`Request`].
#[derive(Debug)]
pub(crate) struct DecodedRequest<'b> {
    /// The domain; not empty.
    pub(crate) domain: &'b str,
    /// Hits addend of the request; 0 if it has none.
    pub(crate) hits_addend: u32,
    /// One per descriptor, in order.
    pub(crate) heads: SmallVec<[Head<'b>; DESCRIPTORS_INLINE]>,
    entries: SmallVec<[Entry<'b>; ENTRIES_INLINE]>,
}

/// A descriptor without its entries.
#[derive(Debug)]
pub(crate) struct Head<'b> {
    entries: Range<usize>,
    /// Hits addend of the descriptor, if it has one.
    pub(crate) hits_addend: Option<u64>,
    refund: bool,
    /// The request override.
    pub(crate) limit: Option<Override>,
    holder: Option<&'b [u8]>,
}

impl<'b> DecodedRequest<'b> {
    /// Checks every bound but that of the message's length.
    ///
    /// # Errors
    ///
    /// The first [`DecodeError`] found.
    pub(crate) fn new(message: &'b RateLimitRequest) -> Result<Self, DecodeError> {
        let domain =
            std::str::from_utf8(&message.domain).map_err(|_| DecodeError::DomainNotText)?;
        if domain.is_empty() {
            return Err(DecodeError::DomainEmpty);
        }
        if message.descriptors.is_empty() {
            return Err(DecodeError::NoDescriptors);
        }
        if message.descriptors.len() > DESCRIPTORS_MAX {
            return Err(DecodeError::TooManyDescriptors);
        }
        let mut request = DecodedRequest {
            domain,
            hits_addend: message.hits_addend,
            heads: SmallVec::new(),
            entries: SmallVec::new(),
        };
        for descriptor in &message.descriptors {
            request.add(descriptor)?;
        }
        Ok(request)
    }

    fn add(&mut self, descriptor: &'b RateLimitDescriptor) -> Result<(), DecodeError> {
        let at = self.heads.len();
        if descriptor.entries.len() > ENTRIES_MAX {
            return Err(DecodeError::TooManyEntries { descriptor: at });
        }
        let begin = self.entries.len();
        let mut holder = None;
        for entry in &descriptor.entries {
            if entry.key.is_empty() {
                return Err(DecodeError::KeyEmpty { descriptor: at });
            }
            if entry.key == SLOT_KEY {
                // An empty header names no holder.
                holder = Some(&*entry.value).filter(|holder| !holder.is_empty());
            } else {
                self.entries.push(Entry { key: &entry.key, value: &entry.value });
            }
        }
        self.heads.push(Head {
            entries: begin..self.entries.len(),
            hits_addend: descriptor.hits_addend,
            refund: descriptor.is_negative_hits,
            limit: descriptor.limit.map(|limit| request_override(limit, at)).transpose()?,
            holder,
        });
        Ok(())
    }

    /// Returns the descriptors.
    pub(crate) fn descriptors(&self) -> SmallVec<[Descriptor<'_>; DESCRIPTORS_INLINE]> {
        // For the request, 0 means one hit; only a descriptor can peek.
        let of_request = u64::from(self.hits_addend.max(1));
        self.heads
            .iter()
            .map(|head| Descriptor {
                entries: &self.entries[head.entries.clone()],
                hits: Hits(head.hits_addend.unwrap_or(of_request)),
                refund: head.refund,
                limit: head.limit,
                holder: head.holder,
            })
            .collect()
    }

    /// Returns the request with `descriptors`, which [`descriptors`](Self::descriptors) returned.
    pub(crate) fn request<'r>(&'r self, descriptors: &'r [Descriptor<'r>]) -> Request<'r> {
        Request { domain: self.domain, descriptors }
    }
}

fn request_override(limit: RateLimitOverride, descriptor: usize) -> Result<Override, DecodeError> {
    let unit = match limit.unit {
        1 => Unit::Second,
        2 => Unit::Minute,
        3 => Unit::Hour,
        4 => Unit::Day,
        5 => Unit::Month,
        6 => Unit::Year,
        unit => return Err(DecodeError::OverrideUnit { descriptor, unit }),
    };
    Ok(Override {
        requests_per_unit: limit.requests_per_unit,
        unit,
        unit_multiplier: limit.unit_multiplier.unwrap_or(1).max(1),
    })
}

#[cfg(test)]
mod tests;
