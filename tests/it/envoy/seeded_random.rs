//! Random numbers of a test, from a seed.

#![allow(clippy::disallowed_methods, reason = "TIDEGATE_SEED picks the seed")]

/// Unless `TIDEGATE_SEED` says another.
const SEED: u64 = 1;

/// SplitMix64.
pub struct Dice(u64);

impl Dice {
    /// The numbers of the seed.
    pub fn seeded() -> Dice {
        let given = std::env::var("TIDEGATE_SEED").ok().and_then(|seed| seed.parse().ok());
        Dice(given.unwrap_or(SEED))
    }

    /// Others, that depend on the same seed.
    pub fn another(&mut self) -> Dice {
        Dice(self.next())
    }

    /// Below `sides`, each alike.
    pub fn below(&mut self, sides: usize) -> usize {
        (self.next() % sides as u64) as usize
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
