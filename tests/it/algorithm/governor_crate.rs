//! The bucket against the `governor` crate, where the two are comparable: arrival form, time that
//! never steps back, costs of at least 1.

use std::num::NonZeroU32;
use std::time::Duration;

use governor::clock::{Clock, FakeRelativeClock};
use governor::{Quota, RateLimiter};
use proptest::prelude::*;
use tidegate::domain::{Micros, Refill, Verdict};

use super::trace_generator::*;

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_bucket_in_arrival_form_decides_as_governor_does(
        burst in 1..30_u32,
        emission in 1..200_000_u64,
        trace in a_trace(),
    ) {
        let clock = FakeRelativeClock::default();
        let quota = Quota::with_period(Duration::from_micros(emission))
            .unwrap()
            .allow_burst(NonZeroU32::new(burst).unwrap());
        let theirs = RateLimiter::direct_with_clock(quota, clock.clone());
        let refill = Refill::Arrival { emission: Micros(emission) };
        let limit = bucket(u64::from(burst), refill);
        let mut ours = Counter::new(&limit);
        let mut last = START;
        for (now, cost) in times(&limit, &trace) {
            clock.advance(Duration::from_micros(now.0 - last.0));
            last = now;
            let mine = ours.take(cost, now);
            let cost = NonZeroU32::new(u32::try_from(cost).unwrap()).unwrap();
            match theirs.check_n(cost) {
                Err(_) => prop_assert_eq!((mine.verdict, mine.retry_after), (Verdict::Refuse, None)),
                Ok(Ok(())) => prop_assert_eq!(mine.verdict, Verdict::Pass),
                Ok(Err(not_until)) => {
                    let wait = not_until.wait_time_from(clock.now());
                    prop_assert_eq!(mine.verdict, Verdict::Refuse);
                    let mine = mine.retry_after.map(|wait| Duration::from_micros(wait.0));
                    prop_assert_eq!(mine, Some(wait));
                }
            }
        }
    }
}
