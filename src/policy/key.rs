//! Counter keys: 128 bits of a keyed BLAKE3 over the length-prefixed parts of an identity.

/// The key of the hash, so that nobody who does not know it can make two counters collide.
#[derive(Clone)]
pub struct Secret(pub [u8; 32]);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}
