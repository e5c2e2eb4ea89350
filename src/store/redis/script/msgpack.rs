//! Whole numbers for a script, packed into one argument as MessagePack, one after the other.
//!
//! Redis makes an object of every argument and Lua a string, and reads it again where a number is
//! meant: thirty numbers of ten checks were a fifth of what such a call cost. `cmsgpack.unpack` reads
//! them all in one go. Scripts of one check keep arguments that a person can read in MONITOR.
//!
//! Not here: which numbers (`args`).

use smallvec::SmallVec;

/// Bytes on the stack: ten checks of a fixed window, three numbers of at most nine bytes each.
const INLINE: usize = 288;

/// Numbers for a script.
///
/// ```
/// use tidegate::store::redis::pack::Numbers;
///
/// let mut numbers = Numbers::default();
/// numbers.push(1);
/// numbers.push(300);
/// assert_eq!(numbers.as_slice(), [1, 0xce, 0, 0, 1, 44]);
/// ```
#[derive(Debug, Default)]
pub struct Numbers(SmallVec<[u8; INLINE]>);

impl Numbers {
    /// One more number, in the shortest of three of MessagePack's forms. Lua reads it as a double:
    /// exact below 2^53.
    pub fn push(&mut self, number: u64) {
        if let Ok(small @ ..0x80) = u8::try_from(number) {
            self.0.push(small);
        } else if let Ok(word) = u32::try_from(number) {
            self.0.push(0xce);
            self.0.extend_from_slice(&word.to_be_bytes());
        } else {
            self.0.push(0xcf);
            self.0.extend_from_slice(&number.to_be_bytes());
        }
    }

    /// The argument.
    pub fn as_slice(&self) -> &[u8] {
        &self.0
    }
}
