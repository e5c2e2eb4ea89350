//! Which value each call asks for: spread evenly over all, with a share for the first.

#[derive(Debug)]
pub(crate) struct Keys {
    state: u64,
    keys: u32,
    /// Of 2^32 draws, those that go to the first value.
    hot: u64,
}

impl Keys {
    /// `hot`: share of the calls, 0 to 1, for the first value.
    pub(crate) fn new(keys: u32, hot: f64, seed: u64) -> Self {
        Keys { state: seed, keys, hot: (hot.clamp(0.0, 1.0) * 2_f64.powi(32)) as u64 }
    }

    pub(crate) fn next(&mut self) -> u32 {
        let drawn = self.draw();
        if drawn & 0xFFFF_FFFF < self.hot {
            return 0;
        }
        // The upper half of the draw, scaled down: no value is favoured noticeably.
        (((drawn >> 32) * u64::from(self.keys)) >> 32) as u32
    }

    /// SplitMix64: a full period, and every bit is good enough to pick values with.
    fn draw(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_spread_and_the_first_has_its_share() {
        let mut keys = Keys::new(10, 0.5, 7);
        let mut drawn = [0_u32; 10];
        for _ in 0..100_000 {
            drawn[keys.next() as usize] += 1;
        }
        assert!((54_000..56_000).contains(&drawn[0]), "{drawn:?}");
        assert!(drawn[1..].iter().all(|count| (4_500..5_500).contains(count)), "{drawn:?}");
    }
}
