//! Decodes a `RateLimitRequest` into a [`Request`] and checks its bounds.
//!
//! An error names the bound that was exceeded. No value that a downstream client sends in a header
//! causes an error: entry values may contain any bytes, have any length, or be empty.
//!
//! The fields are read in place, without copying. Compared with decoding and encoding by prost,
//! this decoder and the encoder (`encode`) together save 17 % of the instructions of a decision in
//! a batch of 100 (load/results/batches.txt). prost still decodes:
//!
//! - integer fields, including their keys
//! - field keys and lengths that take more than one byte
//! - a descriptor's `hits_addend`
//! - request overrides, which are rare
//! - messages that are modified and passed on (`decode_message`)
//!
//! Not here: matching of descriptors (`policy::lookup`), decisions (`decide`).

use std::fmt;
use std::ops::Range;

use bytes::Bytes;
use prost::Message as _;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use smallvec::SmallVec;
use tonic::Status;

use super::messages::RateLimitRequest;
use super::messages::rate_limit_descriptor::RateLimitOverride;
use crate::domain::{
    Bounds, Descriptor, Entry, Hits, HoldRequest, InvalidReason, Override, Request, Unit,
};

/// Default maximum number of descriptors in one request.
pub const DESCRIPTORS_MAX: usize = Bounds::DEFAULT.descriptors_max;

/// Default maximum number of entries in one descriptor.
pub const ENTRIES_MAX: usize = Bounds::DEFAULT.entries_max;

/// Default maximum size of one encoded message, in bytes.
pub const MESSAGE_BYTES_MAX: usize = Bounds::DEFAULT.message_bytes_max;

/// Maximum number of protobuf fields in one encoded message, including those of nested messages.
pub(super) const FIELDS_MAX: usize = Bounds::DEFAULT.fields_max;

/// Key of the entry that names the holder of a concurrency slot. The entry is not part of the path
/// that rules match, but counts towards [`ENTRIES_MAX`].
pub const SLOT_KEY: &[u8] = b"tidegate.slot";

/// Key of the entry that holds the descriptor's hits under the id in its value. Likewise removed.
pub const HOLD_KEY: &[u8] = b"tidegate.hold";

/// Key of the entry that settles the hold with the id in its value. Likewise removed.
pub const SETTLE_KEY: &[u8] = b"tidegate.settle";

/// First bytes of the keys of the entries that are removed before matching.
const OWN_KEYS: &[u8] = b"tidegate.";

/// Maximum length in bytes of a short message, which is decoded without counting its fields first.
/// A short message has at most 8,192 fields, because a field takes at least two bytes. An empty
/// entry takes two bytes in the message and up to 72 bytes once decoded. A message of this length
/// that consists of empty entries thus takes up to 576 KiB once decoded. A message of 1 MiB would
/// take up to 36 MiB.
const SHORT_MESSAGE_BYTES_MAX: usize = 16 * 1024;

/// Number of descriptors in a request that are stored without a heap allocation. Envoy's routes
/// rarely send more than four descriptors of four entries each.
const DESCRIPTORS_INLINE: usize = 4;

/// Descriptors of a request.
pub(crate) type Descriptors<'r> = SmallVec<[Descriptor<'r>; DESCRIPTORS_INLINE]>;

/// Number of entries in a request, over all descriptors, that are stored without a heap
/// allocation.
const ENTRIES_INLINE: usize = 16;

/// Reason why a request cannot be decoded. The server rejects such a request with
/// INVALID_ARGUMENT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DecodeError {
    /// The bytes are not an encoded `RateLimitRequest`.
    Malformed,
    /// The message is longer than `bytes_max`.
    MessageTooLong { bytes_max: usize },
    /// The message has more fields than [`FIELDS_MAX`].
    TooManyFields,
    /// The domain is missing or empty.
    DomainEmpty,
    /// The domain is not UTF-8.
    DomainNotUtf8,
    /// The request has no descriptors.
    NoDescriptors,
    /// The request has more than `descriptors_max` descriptors.
    TooManyDescriptors { descriptors_max: usize },
    /// The descriptor with this index has more than `entries_max` entries.
    TooManyEntries { descriptor: usize, entries_max: usize },
    /// The descriptor with this index has an entry without a key.
    KeyEmpty { descriptor: usize },
    /// The request override of the descriptor with this index has an unknown unit.
    UnknownOverrideUnit { descriptor: usize, unit: i32 },
    /// The descriptor with this index both holds and settles, or also refunds.
    HoldConflict { descriptor: usize },
    /// The bytes are not a valid encoding of the protobuf message with this name.
    MalformedMessage(&'static str),
    /// The batch has no requests, or more than `requests_max`.
    BatchSize { requests_max: usize },
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
            DecodeError::MessageTooLong { bytes_max } => {
                write!(f, "the message is longer than {bytes_max} bytes")
            }
            DecodeError::TooManyFields => {
                write!(f, "the message has more than {FIELDS_MAX} fields")
            }
            DecodeError::DomainEmpty => f.write_str("domain must not be empty"),
            DecodeError::DomainNotUtf8 => f.write_str("domain must be UTF-8"),
            DecodeError::NoDescriptors => f.write_str("descriptors must not be empty"),
            DecodeError::TooManyDescriptors { descriptors_max } => {
                write!(f, "descriptors: at most {descriptors_max} in one request")
            }
            DecodeError::TooManyEntries { descriptor, entries_max } => {
                write!(f, "descriptors[{descriptor}].entries: at most {entries_max}")
            }
            DecodeError::KeyEmpty { descriptor } => {
                write!(f, "descriptors[{descriptor}].entries: a key must not be empty")
            }
            DecodeError::UnknownOverrideUnit { descriptor, unit } => write!(
                f,
                "descriptors[{descriptor}].limit.unit: {unit} must be one of SECOND, MINUTE, HOUR, \
                 DAY, MONTH, YEAR"
            ),
            DecodeError::HoldConflict { descriptor } => write!(
                f,
                "descriptors[{descriptor}]: tidegate.hold, tidegate.settle, and is_negative_hits \
                 cannot be combined; send one of them"
            ),
            DecodeError::MalformedMessage(message) => {
                write!(f, "the message is not an encoded {message}")
            }
            DecodeError::BatchSize { requests_max } => {
                write!(f, "requests: a batch must have 1 to {requests_max} requests")
            }
        }
    }
}

impl DecodeError {
    /// Returns the reason that metrics report for the invalid request.
    pub(crate) fn reason(&self) -> InvalidReason {
        match self {
            DecodeError::Malformed | DecodeError::MalformedMessage(_) => InvalidReason::Malformed,
            DecodeError::BatchSize { .. } => InvalidReason::Requests,
            DecodeError::MessageTooLong { .. } => InvalidReason::MessageSize,
            DecodeError::TooManyFields => InvalidReason::Fields,
            DecodeError::DomainEmpty | DecodeError::DomainNotUtf8 => InvalidReason::Domain,
            DecodeError::NoDescriptors => InvalidReason::NoDescriptors,
            DecodeError::TooManyDescriptors { .. } => InvalidReason::Descriptors,
            DecodeError::TooManyEntries { .. } => InvalidReason::Entries,
            DecodeError::KeyEmpty { .. } => InvalidReason::EmptyKey,
            DecodeError::UnknownOverrideUnit { .. } => InvalidReason::OverrideUnit,
            DecodeError::HoldConflict { .. } => InvalidReason::HoldConflict,
        }
    }
}

impl From<DecodeError> for Status {
    fn from(fault: DecodeError) -> Self {
        Status::invalid_argument(fault.to_string())
    }
}

/// Checks the bounds of an encoded `RateLimitRequest` and decodes it into a prost message, which
/// can be modified.
///
/// # Errors
///
/// Returns an error for a message that is too long, is malformed, or has too many fields,
/// descriptors, or entries.
pub(crate) fn decode_message(
    encoded: Bytes,
    bounds: &Bounds,
) -> Result<RateLimitRequest, DecodeError> {
    check_bounds(&encoded, bounds)?;
    Ok(RateLimitRequest::decode(encoded)?)
}

/// Encodes a request of a caller in this process.
pub(crate) fn encode_message(request: &RateLimitRequest) -> Vec<u8> {
    request.encode_to_vec()
}

/// Checks the length of an encoded `RateLimitRequest` and, if it is long, counts its descriptors,
/// fields, and entries before memory is allocated for them. Returns an error if a bound is
/// exceeded or a long message is malformed.
fn check_bounds(encoded: &[u8], bounds: &Bounds) -> Result<(), DecodeError> {
    let Bounds { message_bytes_max: bytes_max, descriptors_max, .. } = *bounds;
    if encoded.len() > bytes_max {
        return Err(DecodeError::MessageTooLong { bytes_max });
    }
    // A descriptor takes at least two bytes.
    if encoded.len() / 2 > descriptors_max {
        check_descriptor_count(encoded, descriptors_max)?;
    }
    if encoded.len() > SHORT_MESSAGE_BYTES_MAX {
        let mut fields_left = bounds.fields_max;
        count_fields(encoded, MessageType::Request, bounds.entries_max, &mut fields_left)?;
    }
    Ok(())
}

/// Splits an encoded `CheckRequest` into its requests, which stay encoded.
///
/// # Errors
///
/// Returns an error for a batch that is malformed, is too long, has no requests or too many, or
/// whose requests have too many fields in total. A malformed request in the batch is not an error.
pub(crate) fn split_batch<'b>(
    encoded: &'b [u8],
    bounds: &Bounds,
) -> Result<Vec<&'b [u8]>, DecodeError> {
    let bytes_max = bounds.message_bytes_max;
    if encoded.len() > bytes_max {
        return Err(DecodeError::MessageTooLong { bytes_max });
    }
    let requests_max = bounds.batch_requests_max;
    let malformed = DecodeError::MalformedMessage("CheckRequest");
    let mut rest = encoded;
    let mut requests = Vec::new();
    // The requests in flight are decoded at the same time, so they share one bound.
    let mut fields_left = bounds.fields_max;
    while !rest.is_empty() {
        let (field, wire_type) = decode_key(&mut rest).map_err(|_| malformed)?;
        fields_left = fields_left.checked_sub(1).ok_or(DecodeError::TooManyFields)?;
        if field != 1 {
            skip_field(wire_type, field, &mut rest, DecodeContext::default())
                .map_err(|_| malformed)?;
            continue;
        }
        if wire_type != WireType::LengthDelimited {
            return Err(malformed);
        }
        let (request, after) = split_message(rest).map_err(|_| malformed)?;
        if requests.len() == requests_max {
            return Err(DecodeError::BatchSize { requests_max });
        }
        if encoded.len() > SHORT_MESSAGE_BYTES_MAX {
            let counted = count_fields(request, MessageType::Request, usize::MAX, &mut fields_left);
            // The request's own decoding reports any other error.
            if counted == Err(DecodeError::TooManyFields) {
                return Err(DecodeError::TooManyFields);
            }
        }
        requests.push(request);
        rest = after;
    }
    match requests.is_empty() {
        true => Err(DecodeError::BatchSize { requests_max }),
        false => Ok(requests),
    }
}

/// Splits off a length-prefixed message. Returns the message and the bytes after it, or an error
/// if the length is malformed or exceeds the remaining bytes.
#[inline]
fn split_message(mut bytes: &[u8]) -> Result<(&[u8], &[u8]), DecodeError> {
    let length = match bytes {
        // Nearly every length takes one byte.
        [length @ ..0x80, rest @ ..] => {
            bytes = rest;
            usize::from(*length)
        }
        _ => usize::try_from(decode_varint(&mut bytes)?).map_err(|_| DecodeError::Malformed)?,
    };
    bytes.split_at_checked(length).ok_or(DecodeError::Malformed)
}

/// Type of a message within an encoded request.
#[derive(Clone, Copy)]
enum MessageType {
    Request,
    /// Descriptor at this position in the request.
    Descriptor(usize),
    Entry,
    Override,
}

impl MessageType {
    /// Returns the type of the message in `field`. Returns `None` if the field is not a message, or
    /// if it is a wrapped number such as `hits_addend`. `preceding` is the number of descriptors or
    /// entries that come before the field in its message. Returns an error if the field is an entry
    /// and `preceding` is `entries_max`.
    fn nested_type(
        self,
        field: u32,
        preceding: usize,
        entries_max: usize,
    ) -> Result<Option<MessageType>, DecodeError> {
        match (self, field) {
            (MessageType::Request, 2) => Ok(Some(MessageType::Descriptor(preceding))),
            (MessageType::Descriptor(descriptor), 1) if preceding == entries_max => {
                Err(DecodeError::TooManyEntries { descriptor, entries_max })
            }
            (MessageType::Descriptor(_), 1) => Ok(Some(MessageType::Entry)),
            (MessageType::Descriptor(_), 2) => Ok(Some(MessageType::Override)),
            (_, _) => Ok(None),
        }
    }
}

/// Returns an error if a request has too many descriptors or is malformed. Must be called before
/// the entries are counted, so that a request with too many descriptors and too many entries gets
/// the same error regardless of its length.
fn check_descriptor_count(mut message: &[u8], descriptors_max: usize) -> Result<(), DecodeError> {
    let (mut fields, mut descriptors) = (0, 0);
    while !message.is_empty() && fields <= FIELDS_MAX {
        let (field, wire_type) = decode_key(&mut message)?;
        skip_field(wire_type, field, &mut message, DecodeContext::default())?;
        fields += 1;
        descriptors += usize::from(field == 2);
        if descriptors > descriptors_max {
            return Err(DecodeError::TooManyDescriptors { descriptors_max });
        }
    }
    Ok(())
}

/// Counts the fields of a message and of its nested messages without allocating, and subtracts
/// their number from `fields_left`. Returns an error if there are more than `fields_left` fields,
/// if a descriptor has more than `entries_max` entries, or if the message is malformed.
fn count_fields(
    mut message: &[u8],
    message_type: MessageType,
    entries_max: usize,
    fields_left: &mut usize,
) -> Result<(), DecodeError> {
    let mut nested = 0;
    while !message.is_empty() {
        *fields_left = fields_left.checked_sub(1).ok_or(DecodeError::TooManyFields)?;
        let (field, wire_type) = decode_key(&mut message)?;
        let Some(inner_type) = message_type.nested_type(field, nested, entries_max)? else {
            skip_field(wire_type, field, &mut message, DecodeContext::default())?;
            continue;
        };
        if wire_type != WireType::LengthDelimited {
            return Err(DecodeError::Malformed);
        }
        nested += usize::from(!matches!(inner_type, MessageType::Override));
        let (inner, rest) = split_message(message)?;
        count_fields(inner, inner_type, entries_max, fields_left)?;
        message = rest;
    }
    Ok(())
}

/// Decoded request within all bounds. Borrows from the encoded message. The default is an empty
/// request, which [`read`](Self::read) fills.
#[derive(Debug, Default)]
pub(crate) struct DecodedRequest<'b> {
    /// Domain of the request, never empty.
    pub(crate) domain: &'b str,
    /// `hits_addend` of the request; 0 if the field is absent.
    pub(crate) hits_addend: u32,
    /// Fields of each descriptor except its entries, in the order of the request.
    decoded_descriptors: SmallVec<[DecodedDescriptor<'b>; DESCRIPTORS_INLINE]>,
    /// Entries of all descriptors, in the order of the descriptors.
    entries: SmallVec<[Entry<'b>; ENTRIES_INLINE]>,
}

/// Fields of a descriptor, with the index range of its entries in [`DecodedRequest`].
#[derive(Debug)]
struct DecodedDescriptor<'b> {
    entries: Range<usize>,
    /// `hits_addend` of the descriptor, which overrides the request's; `None` if the field is
    /// absent.
    hits_addend: Option<u64>,
    refund: bool,
    /// Request override of the descriptor; `None` if it has none.
    limit: Option<Override>,
    holder: Option<&'b [u8]>,
    hold: Option<HoldRequest<'b>>,
}

impl<'b> DecodedRequest<'b> {
    /// Decodes an encoded `RateLimitRequest`.
    ///
    /// # Errors
    ///
    /// Returns a [`DecodeError`] for a message that is malformed or violates a bound.
    pub(crate) fn decode(encoded: &'b [u8], bounds: &Bounds) -> Result<Self, DecodeError> {
        let mut request = DecodedRequest::default();
        request.read(encoded, bounds)?;
        Ok(request)
    }

    /// Decodes an encoded `ReserveRequest`, `SettleRequest`, or `ReleaseRequest` as the rate limit request
    /// whose descriptors have the entry for it. This works because domain and descriptors have the same
    /// numbers in all of them. A release has no amount.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`decode`](Self::decode), and [`DecodeError::HoldConflict`].
    pub(crate) fn decode_hold(
        encoded: &'b [u8],
        bounds: &Bounds,
        is_settle: bool,
    ) -> Result<Self, DecodeError> {
        let malformed = |error| match error {
            DecodeError::Malformed if is_settle => DecodeError::MalformedMessage("SettleRequest"),
            DecodeError::Malformed => DecodeError::MalformedMessage("ReserveRequest"),
            error => error,
        };
        let mut request = DecodedRequest::decode(encoded, bounds).map_err(malformed)?;
        // The number of `hits_addend` is that of the amount.
        request.hits_addend = 0;
        let (mut amount, mut ttl, mut id) = (0, prost_types::Duration::default(), &b""[..]);
        let mut fields = FieldReader(encoded);
        while let Some((field, value)) = fields.next().map_err(malformed)? {
            match field {
                3 => amount = value.into_u64().map_err(malformed)?,
                4 => {
                    let bytes = value.into_bytes().map_err(malformed)?;
                    ttl.merge(bytes).map_err(|error| malformed(error.into()))?;
                }
                5 => id = value.into_bytes().map_err(malformed)?,
                _ => {}
            }
        }
        let ttl_secs = ttl.seconds.saturating_add(i64::from(ttl.nanos > 0)).max(0);
        let ttl_secs_max = match u32::try_from(ttl_secs) {
            Ok(0) | Err(_) => u32::MAX,
            Ok(seconds) => seconds,
        };
        for (at, descriptor) in request.decoded_descriptors.iter_mut().enumerate() {
            if descriptor.refund || descriptor.hold.is_some() {
                return Err(DecodeError::HoldConflict { descriptor: at });
            }
            descriptor.hits_addend = Some(amount);
            descriptor.hold = Some(match is_settle {
                true => HoldRequest::Settle { id },
                false => HoldRequest::Hold { id, ttl_secs_max },
            });
        }
        Ok(request)
    }

    /// Decodes an encoded `RateLimitRequest` into an empty request. Saves copying the request, which
    /// takes a kilobyte.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`decode`](Self::decode).
    pub(crate) fn read(&mut self, encoded: &'b [u8], bounds: &Bounds) -> Result<(), DecodeError> {
        check_bounds(encoded, bounds)?;
        let request = self;
        let mut domain: &[u8] = b"";
        let mut fields = FieldReader(encoded);
        while let Some((field, value)) = fields.next()? {
            match field {
                1 => domain = value.into_bytes()?,
                2 => request.add_descriptor(value.into_bytes()?, bounds.entries_max)?,
                // The low 32 bits, as protobuf decoders do for 32-bit fields.
                3 => request.hits_addend = value.into_u64()? as u32,
                _ => {}
            }
        }
        request.domain = std::str::from_utf8(domain).map_err(|_| DecodeError::DomainNotUtf8)?;
        if domain.is_empty() {
            return Err(DecodeError::DomainEmpty);
        }
        if request.decoded_descriptors.is_empty() {
            return Err(DecodeError::NoDescriptors);
        }
        Ok(())
    }

    fn add_descriptor(&mut self, encoded: &'b [u8], entries_max: usize) -> Result<(), DecodeError> {
        let descriptor = self.decoded_descriptors.len();
        let begin = self.entries.len();
        let mut head = DecodedDescriptor {
            entries: begin..begin,
            hits_addend: None,
            refund: false,
            limit: None,
            holder: None,
            hold: None,
        };
        let (mut entries, mut limit) = (0, None::<RateLimitOverride>);
        let mut fields = FieldReader(encoded);
        while let Some((field, value)) = fields.next()? {
            match field {
                1 => {
                    entries += 1;
                    if entries > entries_max {
                        return Err(DecodeError::TooManyEntries { descriptor, entries_max });
                    }
                    let entry = decode_entry(value.into_bytes()?)?;
                    if entry.key.is_empty() {
                        return Err(DecodeError::KeyEmpty { descriptor });
                    }
                    if !entry.key.starts_with(OWN_KEYS)
                        || !head.add_own_entry(&entry, descriptor)?
                    {
                        self.entries.push(entry);
                    }
                }
                // A message that occurs twice is merged, also a wrapped number.
                2 => limit.get_or_insert_default().merge(value.into_bytes()?)?,
                3 => head.hits_addend.get_or_insert_default().merge(value.into_bytes()?)?,
                4 => head.refund = value.into_u64()? != 0,
                _ => {}
            }
        }
        head.entries.end = self.entries.len();
        head.limit = limit.map(|limit| decode_override(limit, descriptor)).transpose()?;
        if head.refund && head.hold.is_some() {
            return Err(DecodeError::HoldConflict { descriptor });
        }
        self.decoded_descriptors.push(head);
        Ok(())
    }

    /// Returns the descriptors, each with its hits and entries.
    pub(crate) fn descriptors(&self) -> Descriptors<'_> {
        let mut descriptors = Descriptors::new();
        self.push_descriptors(&mut descriptors);
        descriptors
    }

    /// Like [`descriptors`](Self::descriptors), but appends to `descriptors`. Returning them would
    /// copy them.
    pub(crate) fn push_descriptors<'r>(&'r self, descriptors: &mut Descriptors<'r>) {
        // On the request, a `hits_addend` of 0 means one hit; only a descriptor can peek.
        let of_request = u64::from(self.hits_addend.max(1));
        descriptors.extend(self.decoded_descriptors.iter().map(|head| Descriptor {
            entries: &self.entries[head.entries.clone()],
            hits: Hits(head.hits_addend.unwrap_or(of_request)),
            has_hits_addend: head.hits_addend.is_some(),
            refund: head.refund,
            limit: head.limit,
            holder: head.holder,
            hold: head.hold,
        }));
    }

    /// Returns the [`Request`] to decide. `descriptors` must be the result of
    /// [`descriptors`](Self::descriptors).
    pub(crate) fn request<'r>(&'r self, descriptors: &'r [Descriptor<'r>]) -> Request<'r> {
        Request { domain: self.domain, descriptors }
    }
}

impl<'b> DecodedDescriptor<'b> {
    /// Reads an entry that is removed before matching. Returns whether it is one.
    #[cold]
    fn add_own_entry(&mut self, entry: &Entry<'b>, at: usize) -> Result<bool, DecodeError> {
        let id = entry.value;
        let hold = match entry.key {
            SLOT_KEY => {
                // Envoy sends an empty value if the header or metadata is empty.
                self.holder = Some(id).filter(|holder| !holder.is_empty());
                return Ok(true);
            }
            HOLD_KEY => HoldRequest::Hold { id, ttl_secs_max: u32::MAX },
            SETTLE_KEY => HoldRequest::Settle { id },
            _ => return Ok(false),
        };
        // Not twice either: the hits are those of one hold.
        match self.hold.replace(hold) {
            None => Ok(true),
            Some(_) => Err(DecodeError::HoldConflict { descriptor: at }),
        }
    }
}

fn decode_entry(encoded: &[u8]) -> Result<Entry<'_>, DecodeError> {
    let mut entry = Entry { key: b"", value: b"" };
    let mut fields = FieldReader(encoded);
    while let Some((field, value)) = fields.next()? {
        match field {
            1 => entry.key = value.into_bytes()?,
            2 => entry.value = value.into_bytes()?,
            _ => {}
        }
    }
    Ok(entry)
}

fn decode_override(limit: RateLimitOverride, descriptor: usize) -> Result<Override, DecodeError> {
    let unit = match limit.unit {
        1 => Unit::Second,
        2 => Unit::Minute,
        3 => Unit::Hour,
        4 => Unit::Day,
        5 => Unit::Month,
        6 => Unit::Year,
        unit => return Err(DecodeError::UnknownOverrideUnit { descriptor, unit }),
    };
    Ok(Override {
        requests_per_unit: limit.requests_per_unit,
        unit,
        unit_multiplier: limit.unit_multiplier.unwrap_or(1).max(1),
    })
}

/// Reader of the fields of an encoded message. Holds the bytes that have not been read yet.
struct FieldReader<'b>(&'b [u8]);

/// Value of a field, by its wire type.
enum FieldValue<'b> {
    Integer(u64),
    Bytes(&'b [u8]),
    /// Value with a wire type that no field of a request uses. Its content is skipped.
    Other,
}

impl<'b> FieldReader<'b> {
    /// Returns the number and the value of the next field; `None` at the end of the message.
    /// Returns an error if the field is malformed.
    #[inline(always)]
    fn next(&mut self) -> Result<Option<(u32, FieldValue<'b>)>, DecodeError> {
        let rest = &mut self.0;
        let (field, wire_type) = match **rest {
            [] => return Ok(None),
            // Nearly every field is a text or a message whose key takes one byte.
            [key @ 0x08..0x80, ref after @ ..] if key & 0x07 == WireType::LengthDelimited as u8 => {
                *rest = after;
                (u32::from(key >> 3), WireType::LengthDelimited)
            }
            _ => decode_key(rest)?,
        };
        let value = match wire_type {
            WireType::Varint => FieldValue::Integer(decode_varint(rest)?),
            WireType::LengthDelimited => {
                let (bytes, after) = split_message(rest)?;
                *rest = after;
                FieldValue::Bytes(bytes)
            }
            WireType::SixtyFourBit
            | WireType::StartGroup
            | WireType::EndGroup
            | WireType::ThirtyTwoBit => {
                skip_field(wire_type, field, rest, DecodeContext::default())?;
                FieldValue::Other
            }
        };
        Ok(Some((field, value)))
    }
}

impl<'b> FieldValue<'b> {
    fn into_bytes(self) -> Result<&'b [u8], DecodeError> {
        match self {
            FieldValue::Bytes(bytes) => Ok(bytes),
            FieldValue::Integer(_) | FieldValue::Other => Err(DecodeError::Malformed),
        }
    }

    fn into_u64(self) -> Result<u64, DecodeError> {
        match self {
            FieldValue::Integer(number) => Ok(number),
            FieldValue::Bytes(_) | FieldValue::Other => Err(DecodeError::Malformed),
        }
    }
}

#[cfg(test)]
mod tests;
