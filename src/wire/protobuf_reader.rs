//! Reads the protobuf encoding: tags, varints and lengths, borrowed from the bytes that came in.
//!
//! Why not prost's messages: they own every string and list they hold, six allocations for a
//! request of two descriptors, and the matcher needs none of it. prost stays the judge: a test
//! demands that both accept the same bytes and read the same out of them.
//!
//! Not here: what the fields mean (`decode`).

/// The bytes are not a protobuf message of the expected shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// A varint has at most that many bytes: 64 bits in groups of seven.
const VARINT_BYTES_MAX: usize = 10;

/// Groups, a form that proto3 left behind, are only ever skipped; nobody nests them deeper, and
/// the bound keeps a hostile message from exhausting the stack. prost's own is the same.
const GROUP_DEPTH_MAX: usize = 100;

/// A field's value as it stands on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value<'b> {
    /// Integers, booleans, enums.
    Varint(u64),
    /// Strings, bytes, messages.
    Bytes(&'b [u8]),
    /// Eight bytes.
    Fixed64,
    /// Four bytes.
    Fixed32,
    /// A group, skipped.
    Group,
}

impl<'b> Value<'b> {
    /// The integer, or a fault.
    pub(crate) fn varint(self) -> Result<u64, Malformed> {
        match self {
            Value::Varint(number) => Ok(number),
            Value::Bytes(_) | Value::Fixed64 | Value::Fixed32 | Value::Group => Err(Malformed),
        }
    }

    /// The integer's low 32 bits, which is what a 32-bit field keeps of a longer one.
    #[allow(clippy::cast_possible_truncation, reason = "protobuf says so")]
    pub(crate) fn varint32(self) -> Result<u32, Malformed> {
        Ok(self.varint()? as u32)
    }

    /// The bytes, or a fault.
    pub(crate) fn bytes(self) -> Result<&'b [u8], Malformed> {
        match self {
            Value::Bytes(bytes) => Ok(bytes),
            Value::Varint(_) | Value::Fixed64 | Value::Fixed32 | Value::Group => Err(Malformed),
        }
    }
}

/// The fields of a message, one after the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields<'b> {
    rest: &'b [u8],
}

impl<'b> Fields<'b> {
    pub(crate) fn of(message: &'b [u8]) -> Self {
        Fields { rest: message }
    }

    /// The next field's number and value; `None` at the end.
    pub(crate) fn next(&mut self) -> Result<Option<(u32, Value<'b>)>, Malformed> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let (field, wire_type) = self.tag()?;
        let value = self.value(field, wire_type, 0)?;
        Ok(Some((field, value)))
    }

    fn tag(&mut self) -> Result<(u32, u8), Malformed> {
        let tag = u32::try_from(self.varint()?).map_err(|_| Malformed)?;
        let (field, wire_type) = (tag >> 3, (tag & 7) as u8);
        if field == 0 { Err(Malformed) } else { Ok((field, wire_type)) }
    }

    fn value(&mut self, field: u32, wire_type: u8, depth: usize) -> Result<Value<'b>, Malformed> {
        match wire_type {
            0 => Ok(Value::Varint(self.varint()?)),
            1 => self.take(8).map(|_| Value::Fixed64),
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| Malformed)?;
                self.take(length).map(Value::Bytes)
            }
            3 => self.skip_group(field, depth).map(|()| Value::Group),
            5 => self.take(4).map(|_| Value::Fixed32),
            _ => Err(Malformed),
        }
    }

    fn skip_group(&mut self, group: u32, depth: usize) -> Result<(), Malformed> {
        if depth >= GROUP_DEPTH_MAX {
            return Err(Malformed);
        }
        loop {
            let (field, wire_type) = self.tag()?;
            if wire_type == 4 {
                return if field == group { Ok(()) } else { Err(Malformed) };
            }
            self.value(field, wire_type, depth + 1)?;
        }
    }

    fn take(&mut self, length: usize) -> Result<&'b [u8], Malformed> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(Malformed)?;
        self.rest = rest;
        Ok(taken)
    }

    fn varint(&mut self) -> Result<u64, Malformed> {
        // Tags, lengths and small numbers are one byte, and they are nearly all there is.
        if let [first, rest @ ..] = self.rest
            && *first < 0x80
        {
            self.rest = rest;
            return Ok(u64::from(*first));
        }
        let mut number = 0_u64;
        for (at, byte) in self.rest.iter().take(VARINT_BYTES_MAX).enumerate() {
            if at == VARINT_BYTES_MAX - 1 && *byte > 1 {
                return Err(Malformed);
            }
            number |= u64::from(byte & 0x7f) << (7 * at);
            if *byte < 0x80 {
                self.rest = &self.rest[at + 1..];
                return Ok(number);
            }
        }
        Err(Malformed)
    }
}
