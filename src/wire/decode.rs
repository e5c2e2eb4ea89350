//! Turns the bytes of a `RateLimitRequest` into a [`Request`], within every bound of the wire.
//!
//! Foreign things stop here: lengths are capped, hits become what they mean, units that do not
//! exist are refused, each with a message that names the bound. Whatever a downstream client can
//! put into a header is legal: any bytes, any length, empty. Not here: matching, counting.

use std::fmt;
use std::ops::Range;

use smallvec::SmallVec;
use tonic::Status;

use super::protobuf_reader::{Fields, Malformed};
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

/// Descriptors and entries of an ordinary request live on the stack: Envoy's routes seldom make
/// more than four descriptors of four entries.
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

impl From<Malformed> for DecodeError {
    fn from(Malformed: Malformed) -> Self {
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

/// A request that was read: the arenas that a [`Request`] borrows from.
#[derive(Debug)]
pub(crate) struct DecodedRequest<'b> {
    /// The domain; not empty.
    pub(crate) domain: &'b str,
    /// The request's own hits addend as sent: 0 where there was none.
    pub(crate) hits_addend: u32,
    /// Per descriptor, in order.
    pub(crate) heads: SmallVec<[Head<'b>; DESCRIPTORS_INLINE]>,
    entries: SmallVec<[Entry<'b>; ENTRIES_INLINE]>,
}

/// A descriptor without its entries.
#[derive(Debug)]
pub(crate) struct Head<'b> {
    entries: Range<usize>,
    /// The descriptor's own hits addend, if it was sent.
    pub(crate) hits_addend: Option<u64>,
    refund: bool,
    /// The limit that the caller brought along.
    pub(crate) limit: Option<Override>,
    holder: Option<&'b [u8]>,
}

impl<'b> DecodedRequest<'b> {
    /// Reads an encoded `RateLimitRequest`.
    ///
    /// # Errors
    ///
    /// [`DecodeError`], the first one met.
    pub(crate) fn read(message: &'b [u8]) -> Result<Self, DecodeError> {
        if message.len() > MESSAGE_BYTES_MAX {
            return Err(DecodeError::MessageTooLong);
        }
        let mut asked = DecodedRequest {
            domain: "",
            hits_addend: 0,
            heads: SmallVec::new(),
            entries: SmallVec::new(),
        };
        let mut fields = Fields::of(message);
        while let Some((field, value)) = fields.next()? {
            match field {
                1 => {
                    asked.domain = std::str::from_utf8(value.bytes()?)
                        .map_err(|_| DecodeError::DomainNotText)?;
                }
                2 => asked.read_descriptor(value.bytes()?)?,
                3 => asked.hits_addend = value.varint32()?,
                _ => {}
            }
        }
        if asked.domain.is_empty() {
            return Err(DecodeError::DomainEmpty);
        }
        if asked.heads.is_empty() {
            return Err(DecodeError::NoDescriptors);
        }
        Ok(asked)
    }

    fn read_descriptor(&mut self, message: &'b [u8]) -> Result<(), DecodeError> {
        let at = self.heads.len();
        if at == DESCRIPTORS_MAX {
            return Err(DecodeError::TooManyDescriptors);
        }
        let begin = self.entries.len();
        let mut head = Head {
            entries: begin..begin,
            hits_addend: None,
            refund: false,
            limit: None,
            holder: None,
        };
        let mut limit: Option<RawOverride> = None;
        let mut seen = 0;
        let mut fields = Fields::of(message);
        while let Some((field, value)) = fields.next()? {
            match field {
                1 => {
                    seen += 1;
                    if seen > ENTRIES_MAX {
                        return Err(DecodeError::TooManyEntries { descriptor: at });
                    }
                    let entry = read_entry(value.bytes()?)?;
                    if entry.key.is_empty() {
                        return Err(DecodeError::KeyEmpty { descriptor: at });
                    }
                    if entry.key == SLOT_KEY {
                        // A header that is present but empty names nobody.
                        head.holder = Some(entry.value).filter(|holder| !holder.is_empty());
                    } else {
                        self.entries.push(entry);
                    }
                }
                2 => limit.get_or_insert_default().read(value.bytes()?)?,
                3 => read_wrapped(&mut head.hits_addend, value.bytes()?)?,
                4 => head.refund = value.varint()? != 0,
                _ => {}
            }
        }
        head.entries = begin..self.entries.len();
        head.limit = limit.map(|limit| limit.checked(at)).transpose()?;
        self.heads.push(head);
        Ok(())
    }

    /// The descriptors, over the arenas.
    pub(crate) fn descriptors(&self) -> SmallVec<[Descriptor<'_>; DESCRIPTORS_INLINE]> {
        // A request that says 0 or nothing means one hit; only a descriptor can ask for a peek.
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

    /// The request, over its descriptors.
    pub(crate) fn request<'r>(&'r self, descriptors: &'r [Descriptor<'r>]) -> Request<'r> {
        Request { domain: self.domain, descriptors }
    }
}

fn read_entry(message: &[u8]) -> Result<Entry<'_>, Malformed> {
    let mut entry = Entry { key: b"", value: b"" };
    let mut fields = Fields::of(message);
    while let Some((field, value)) = fields.next()? {
        match field {
            1 => entry.key = value.bytes()?,
            2 => entry.value = value.bytes()?,
            _ => {}
        }
    }
    Ok(entry)
}

/// A `google.protobuf.UInt64Value` or `UInt32Value`: present, with 0 where it says no number.
fn read_wrapped(into: &mut Option<u64>, message: &[u8]) -> Result<(), Malformed> {
    let number = into.get_or_insert(0);
    let mut fields = Fields::of(message);
    while let Some((field, value)) = fields.next()? {
        if field == 1 {
            *number = value.varint()?;
        }
    }
    Ok(())
}

/// A limit that the caller brought along, as it stands on the wire.
#[derive(Default)]
struct RawOverride {
    requests_per_unit: u32,
    unit: i32,
    unit_multiplier: Option<u64>,
}

impl RawOverride {
    #[allow(clippy::cast_possible_wrap, reason = "an enum is an int32 on the wire")]
    fn read(&mut self, message: &[u8]) -> Result<(), Malformed> {
        let mut fields = Fields::of(message);
        while let Some((field, value)) = fields.next()? {
            match field {
                1 => self.requests_per_unit = value.varint32()?,
                2 => self.unit = value.varint32()? as i32,
                3 => read_wrapped(&mut self.unit_multiplier, value.bytes()?)?,
                _ => {}
            }
        }
        Ok(())
    }

    #[allow(clippy::cast_possible_truncation, reason = "protobuf keeps the low 32 bits")]
    fn checked(self, descriptor: usize) -> Result<Override, DecodeError> {
        let unit = match self.unit {
            1 => Unit::Second,
            2 => Unit::Minute,
            3 => Unit::Hour,
            4 => Unit::Day,
            5 => Unit::Month,
            6 => Unit::Year,
            unit => return Err(DecodeError::OverrideUnit { descriptor, unit }),
        };
        Ok(Override {
            requests_per_unit: self.requests_per_unit,
            unit,
            unit_multiplier: (self.unit_multiplier.unwrap_or(1) as u32).max(1),
        })
    }
}

#[cfg(test)]
mod tests;
