//! Which calls are traced: decided before anything is written down.
//!
//! Not here: writing down (`domain`), sending (`traces`).

use std::cell::Cell;
use std::hash::{BuildHasher as _, RandomState};

use crate::domain::TraceParent;

/// Which calls are traced.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// A caller that is in a trace decides for us.
    heeds_parent: bool,
    /// Else so many of 2⁶⁴.
    share: u64,
    /// Not a share: all of them.
    all: bool,
}

thread_local! {
    /// Zero until the thread's first draw.
    static DICE: Cell<u64> = const { Cell::new(0) };
}

impl Sampling {
    /// A share from 0 to 1 of the calls whose caller has not decided, or, unless the caller's word
    /// is heeded, of all.
    pub fn new(heeds_parent: bool, ratio: f64) -> Self {
        // The cast saturates: a ratio of 1 is all but one in 2⁶⁴, which `all` makes good.
        let share = (ratio.clamp(0.0, 1.0) * u64::MAX as f64) as u64;
        Sampling { heeds_parent, share, all: ratio >= 1.0 }
    }

    /// Whether any call may be traced.
    pub(super) fn is_any(&self) -> bool {
        self.heeds_parent || self.share > 0
    }

    /// Whether this one is.
    pub(super) fn takes(&self, parent: Option<&TraceParent>) -> bool {
        match parent {
            Some(parent) if self.heeds_parent => parent.sampled,
            Some(_) | None => self.all || draw() < self.share,
        }
    }
}

/// A number that nobody has to be able to foretell: xorshift (Marsaglia 2003), which is good enough
/// to take one call in a hundred, for a nanosecond.
fn draw() -> u64 {
    DICE.with(|dice| {
        let mut x = dice.get();
        if x == 0 {
            x = RandomState::new().hash_one(()) | 1;
        }
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        dice.set(x);
        x
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parent(sampled: bool) -> TraceParent {
        TraceParent { trace: [1; 16], span: [1; 8], sampled }
    }

    #[test]
    fn the_caller_decides_where_its_word_is_heeded() {
        for ratio in [0.0, 1.0] {
            let sampling = Sampling::new(true, ratio);
            assert!(sampling.takes(Some(&parent(true))));
            assert!(!sampling.takes(Some(&parent(false))));
            assert_eq!(sampling.takes(None), ratio == 1.0);
        }
        let sampling = Sampling::new(false, 0.0);
        assert!(!sampling.takes(Some(&parent(true))) && !sampling.is_any());
    }

    #[test]
    fn a_share_of_the_others_is_taken() {
        let sampling = Sampling::new(true, 0.1);
        let taken = (0..100_000).filter(|_| sampling.takes(None)).count();
        // Ten thousand expected, a standard deviation of 95: ten of them.
        assert!((9_050..=10_950).contains(&taken), "{taken}");
    }
}
