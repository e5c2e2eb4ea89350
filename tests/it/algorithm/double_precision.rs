//! The bucket's formulas in double precision, as Lua computes them, give the same answers as
//! integers for every limit that a policy accepts.

use proptest::prelude::*;
use tidegate::domain::{Charge, Hits, Micros, Refill};

use super::trace_generator::*;

/// Ahead, remainder and wait after one take, as a script would compute them.
struct Doubles {
    tat: f64,
    rem: f64,
}

impl Doubles {
    fn take(&mut self, limit: (f64, f64, f64), cost: f64, now: f64) -> Option<f64> {
        let (burst, unit, flow) = limit;
        let capacity = burst * unit;
        let (mut ahead, mut rem) =
            if self.tat < now { (0.0, 0.0) } else { (self.tat - now, self.rem) };
        let full = (capacity / flow).floor();
        if ahead > full + 1e6 {
            (ahead, rem) = (full, capacity % flow);
            (self.tat, self.rem) = (now + ahead, rem);
        }
        if cost > burst {
            return None;
        }
        let wait = ahead - ((capacity - cost * unit - rem) / flow).floor();
        if wait <= 0.0 {
            let credits = rem + cost * unit;
            ahead += (credits / flow).floor();
            (self.tat, self.rem) = (now + ahead, credits % flow);
        }
        Some(wait.max(0.0))
    }
}

const LARGEST_CREDITS: u64 = 1 << 53;
const LARGEST_ARRIVAL: u64 = 1 << 52;

fn a_large_bucket() -> impl Strategy<Value = (u64, Refill)> {
    prop_oneof![
        // burst * window just below 2^53
        (1..40_u32, 2..4_294_967_295_u64, 1..100_u64).prop_map(|(bits, hits, less)| {
            let window = ((1 << bits) + 7).max(SECOND);
            let burst = (LARGEST_CREDITS - 1) / window;
            let refill = Refill::Credits { hits: Hits(hits), window: Micros(window) };
            ((burst - burst / 1_000 * less.min(9)).max(1), refill)
        }),
        // burst * emission just below 2^52
        (0..45_u32).prop_map(|bits| {
            let emission = (1 << bits) + 3;
            let refill = Refill::Arrival { emission: Micros(emission) };
            ((LARGEST_ARRIVAL - 1) / emission, refill)
        }),
    ]
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn doubles_compute_the_same_as_integers(
        (burst, refill) in a_large_bucket(),
        steps in prop::collection::vec((0..1_000_u64, 0..1_100_u64, 0..3_u64), 1..60),
    ) {
        prop_assume!(burst > 0);
        let limit = bucket(burst, refill);
        prop_assert_eq!(limit.charge, Charge::Admitted);
        let (unit, flow) = flow(refill);
        let mut ours = Counter::new(&limit);
        let mut doubles = Doubles { tat: -1.0, rem: 0.0 };
        let mut now = START.0;
        for (pause, part, more) in steps {
            // Pauses and costs in thousandths of the whole bucket, so that the edges are met.
            // (Half a year at most each time, so that the clock stays in this century.)
            now += ((burst * unit / flow / 1_000).saturating_mul(pause) / 7).min(1 << 44) + more;
            let cost = (burst / 1_000 * part + more).max(1);
            let mine = ours.take(cost, Micros(now));
            let terms = (burst as f64, unit as f64, flow as f64);
            let theirs = doubles.take(terms, cost as f64, now as f64);
            prop_assert_eq!(mine.retry_after.map(|wait| wait.0 as f64), theirs.filter(|w| *w > 0.0));
            let state = ours.state.clone();
            if let Some(tidegate::algorithm::State::Bucket(state)) = state {
                prop_assert_eq!((state.tat.0 as f64, f64::from(state.rem)), (doubles.tat, doubles.rem));
            }
        }
    }
}
