//! The name of a concurrency slot's holder that was made up for a call.
//!
//! Not here: who makes it up (`decide`).

/// 128 bits as 32 hexadecimal digits: what a caller is told, and names when it returns its slot.
///
/// ```
/// assert_eq!(tidegate::domain::HolderToken::new(255).as_str(), "000000000000000000000000000000ff");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HolderToken([u8; 32]);

impl HolderToken {
    /// The name that stands for these bits.
    pub fn new(bits: u128) -> HolderToken {
        let mut text = [b'0'; 32];
        for (at, digit) in text.iter_mut().rev().enumerate() {
            *digit = b"0123456789abcdef"[(bits >> (4 * at)) as usize & 0xf];
        }
        HolderToken(text)
    }

    /// The digits.
    pub fn as_str(&self) -> &str {
        // They are ASCII.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}
