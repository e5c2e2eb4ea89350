//! Random numbers that are the same in every run with the same seed.

/// The xorshift64* generator.
#[derive(Clone)]
pub struct Random(u64);

impl Random {
    pub fn seeded(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 11) % n
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// Up to `most` bytes.
    pub fn bytes(&mut self, most: u64) -> Vec<u8> {
        let length = self.below(most + 1);
        (0..length).map(|_| (self.next() >> 56) as u8).collect()
    }
}
