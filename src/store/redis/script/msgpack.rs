//! Values for a script, packed into one argument as MessagePack, one after the other.
//!
//! Redis makes an object of every argument and Lua a string, and reads it again where a number is
//! meant: thirty numbers of ten checks were a fifth of what such a call cost. `cmsgpack.unpack` reads
//! them all at once. Fast paths of one check keep arguments that a person can read in MONITOR.
//!
//! Not here: which values (`arguments`).

use smallvec::SmallVec;

/// Bytes on the stack: ten checks of a fixed window, three numbers of at most nine bytes each.
const INLINE: usize = 288;

/// The longest text that one byte announces.
const TEXT_BYTES_MAX: usize = 31;

/// Values for a script.
///
/// ```
/// use tidegate::store::redis::script::msgpack::Packed;
///
/// let mut packed = Packed::default();
/// packed.number(1);
/// packed.number(300);
/// packed.text(b"take");
/// assert_eq!(packed.as_slice(), b"\x01\xce\0\0\x01\x2c\xa4take");
/// assert_eq!(packed.len(), 3);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Packed {
    bytes: SmallVec<[u8; INLINE]>,
    values: usize,
}

impl Packed {
    /// Adds a number, in the shortest of three forms. Lua reads it as a double: exact below 2^53.
    pub fn number(&mut self, number: u64) {
        self.values += 1;
        if let Ok(small @ ..0x80) = u8::try_from(number) {
            self.bytes.push(small);
        } else if let Ok(word) = u32::try_from(number) {
            self.bytes.push(0xce);
            self.bytes.extend_from_slice(&word.to_be_bytes());
        } else {
            self.bytes.push(0xcf);
            self.bytes.extend_from_slice(&number.to_be_bytes());
        }
    }

    /// Adds numbers.
    pub fn numbers(&mut self, numbers: impl IntoIterator<Item = u64>) {
        for number in numbers {
            self.number(number);
        }
    }

    /// Adds a text of at most 31 bytes; of a longer one, the first 31.
    pub fn text(&mut self, text: &[u8]) {
        let text = &text[..text.len().min(TEXT_BYTES_MAX)];
        self.values += 1;
        self.bytes.push(0xa0 | text.len() as u8);
        self.bytes.extend_from_slice(text);
    }

    /// Adds nil: nothing in a place that must not be left out.
    pub fn nil(&mut self) {
        self.values += 1;
        self.bytes.push(0xc0);
    }

    /// Adds nils until there are so many values.
    pub fn pad_to(&mut self, values: usize) {
        while self.values < values {
            self.nil();
        }
    }

    /// Adds the values of another.
    pub fn extend(&mut self, other: &Packed) {
        self.values += other.values;
        self.bytes.extend_from_slice(&other.bytes);
    }

    /// How many values there are.
    pub fn len(&self) -> usize {
        self.values
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.values == 0
    }

    /// The argument.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes
    }
}
