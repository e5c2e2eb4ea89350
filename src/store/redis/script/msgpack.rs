//! MessagePack encoder for script arguments: packs many values into one argument.
//!
//! Redis turns each argument into an object and a Lua string, which the script then parses as a
//! number. In a call with ten checks, thirty separate numbers made up a fifth of the call's cost.
//! `cmsgpack.unpack` parses all values at once.
//!
//! Not here: choosing the values (`arguments`).

use smallvec::SmallVec;

/// Number of encoded bytes that [`Packed`] stores without a heap allocation: enough for ten checks
/// of fixed windows, each with three numbers of at most nine bytes.
const BYTES_INLINE: usize = 288;

/// Maximum length of a string in bytes. Longer strings do not fit MessagePack's `fixstr` format,
/// whose header is one byte.
const STRING_BYTES_MAX: usize = 31;

/// Sequence of MessagePack values, encoded one after another.
///
/// ```
/// use tidegate::store::redis::script::msgpack::Packed;
///
/// let mut packed = Packed::default();
/// packed.push_number(1);
/// packed.push_number(300);
/// packed.push_string(b"take");
/// assert_eq!(packed.as_slice(), b"\x01\xce\0\0\x01\x2c\xa4take");
/// ```
#[derive(Clone, Debug, Default)]
pub struct Packed {
    bytes: SmallVec<[u8; BYTES_INLINE]>,
    values: usize,
}

impl Packed {
    /// Appends a number as 1, 5, or 9 bytes. Lua reads it as a double, which is exact below 2^53.
    pub fn push_number(&mut self, number: u64) {
        self.values += 1;
        if let Ok(small @ ..0x80) = u8::try_from(number) {
            self.bytes.push(small);
        } else if let Ok(word) = u32::try_from(number) {
            let [a, b, c, d] = word.to_be_bytes();
            self.bytes.extend_from_slice(&[0xce, a, b, c, d]);
        } else {
            let [a, b, c, d, e, f, g, h] = number.to_be_bytes();
            self.bytes.extend_from_slice(&[0xcf, a, b, c, d, e, f, g, h]);
        }
    }

    /// Appends several numbers.
    pub fn push_numbers(&mut self, numbers: impl IntoIterator<Item = u64>) {
        for number in numbers {
            self.push_number(number);
        }
    }

    /// Appends a string, truncated to 31 bytes.
    pub fn push_string(&mut self, text: &[u8]) {
        let text = &text[..text.len().min(STRING_BYTES_MAX)];
        self.values += 1;
        self.bytes.push(0xa0 | text.len() as u8);
        self.bytes.extend_from_slice(text);
    }

    /// Appends nil, which represents an absent optional value.
    pub fn push_nil(&mut self) {
        self.values += 1;
        self.bytes.push(0xc0);
    }

    /// Appends nils until the total number of values is `values`.
    pub fn pad_to(&mut self, values: usize) {
        while self.values < values {
            self.push_nil();
        }
    }

    /// Appends all values of `other`.
    pub fn extend(&mut self, other: &Packed) {
        self.values += other.values;
        self.bytes.extend_from_slice(&other.bytes);
    }

    /// Appends an array that contains all values of `other`. The script unpacks it into a table.
    pub fn push_array(&mut self, other: &Packed) {
        self.values += 1;
        self.bytes.push(0xdd);
        self.bytes.extend_from_slice(&(other.values as u32).to_be_bytes());
        self.bytes.extend_from_slice(&other.bytes);
    }

    /// Returns the number of values.
    pub(super) fn len(&self) -> usize {
        self.values
    }

    /// Returns the encoded bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes
    }
}

/// Sequence of values that takes one byte for each as long as all are small numbers, else MessagePack.
/// A script gets a byte as a number at a fraction of the cost of a MessagePack value.
#[derive(Debug, Default)]
pub(super) struct SmallValues {
    bytes: Vec<u8>,
    /// All values, if one of them is not a small number. Then `bytes` is empty.
    packed: Option<Packed>,
}

impl SmallValues {
    pub(super) fn push_numbers(&mut self, numbers: impl IntoIterator<Item = u64>) {
        numbers.into_iter().for_each(|number| self.push_number(number));
    }

    pub(super) fn push_number(&mut self, number: u64) {
        match (&self.packed, u8::try_from(number)) {
            (None, Ok(byte)) => self.bytes.push(byte),
            _ => self.as_packed().push_number(number),
        }
    }

    /// Appends a string, truncated to 31 bytes.
    pub(super) fn push_string(&mut self, text: &[u8]) {
        self.as_packed().push_string(text);
    }

    pub(super) fn extend(&mut self, other: &SmallValues) {
        match &other.packed {
            Some(packed) => self.as_packed().extend(packed),
            None => self.push_numbers(other.bytes.iter().map(|byte| u64::from(*byte))),
        }
    }

    /// Returns the values in MessagePack, to which values can be appended.
    pub(super) fn as_packed(&mut self) -> &mut Packed {
        let bytes = &mut self.bytes;
        self.packed.get_or_insert_with(|| {
            let mut packed = Packed::default();
            packed.push_numbers(bytes.drain(..).map(u64::from));
            packed
        })
    }

    /// Returns the values in MessagePack; `None` if they are one byte each.
    pub(super) fn message_pack(&self) -> Option<&Packed> {
        self.packed.as_ref()
    }

    /// Returns the values of one byte each, of which there are none if they are in MessagePack.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the size of the values in bytes.
    pub(super) fn size(&self) -> usize {
        self.packed.as_ref().map_or(self.bytes.len(), |packed| packed.as_slice().len())
    }
}

/// Reader of a MessagePack array of integers and short strings, as `cmsgpack.pack` packs a
/// Lua array.
#[derive(Clone, Debug)]
pub(super) struct Unpacked<'a>(&'a [u8]);

/// Value of a MessagePack array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UnpackedItem<'a> {
    Number(i64),
    String(&'a [u8]),
}

impl<'a> Unpacked<'a> {
    /// Reads the header of an array. `None` if it is no array.
    pub(super) fn array(bytes: &'a [u8]) -> Option<Unpacked<'a>> {
        let mut rest = Unpacked(bytes);
        match rest.take::<1>()? {
            [0x90..=0x9f] => {}
            [0xdc] => drop(rest.take::<2>()?),
            [0xdd] => drop(rest.take::<4>()?),
            _ => return None,
        }
        Some(rest)
    }

    /// Returns whether all values have been read.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Reads the next value. `None` at the end, or for a value of another type.
    pub(super) fn next_item(&mut self) -> Option<UnpackedItem<'a>> {
        let [first] = self.take()?;
        let number = match first {
            0x00..=0x7f => i64::from(first),
            0xe0..=0xff => i64::from(first as i8),
            0xcc => i64::from(u8::from_be_bytes(self.take()?)),
            0xcd => i64::from(u16::from_be_bytes(self.take()?)),
            0xce => i64::from(u32::from_be_bytes(self.take()?)),
            0xcf => i64::try_from(u64::from_be_bytes(self.take()?)).ok()?,
            0xd0 => i64::from(i8::from_be_bytes(self.take()?)),
            0xd1 => i64::from(i16::from_be_bytes(self.take()?)),
            0xd2 => i64::from(i32::from_be_bytes(self.take()?)),
            0xd3 => i64::from_be_bytes(self.take()?),
            0xa0..=0xbf => {
                let (text, rest) = self.0.split_at_checked(usize::from(first & 0x1f))?;
                self.0 = rest;
                return Some(UnpackedItem::String(text));
            }
            _ => return None,
        };
        Some(UnpackedItem::Number(number))
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }
}
