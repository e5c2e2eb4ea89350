//! Numbers at the ends of their range, through the scripts: amounts are clamped to what the limit
//! can hold, as in the memory store.

use tidegate::domain::{Accounting, Check, Hits, Holder, Op, Outcome, Unit, Verdict};
use tidegate::store::Store;
use tidegate::store::memory::MemoryStore;
use tidegate::store::redis::script::library::{PRODUCTION, STRICT};

use crate::support::limits::*;
use crate::support::script_bench::Bench;

const ENDS: [u64; 7] =
    [1 << 31, u32::MAX as u64, 1 << 53, (1 << 53) + 1, i64::MAX as u64, 1 << 63, u64::MAX];

#[tokio::test]
async fn however_much_is_refunded_no_counter_holds_more_than_its_limit() {
    let plain = [
        window(5, MINUTE),
        bucket(5, SECOND),
        credits(5, 7, SECOND),
        calendar(5, Unit::Day, "Europe/Berlin"),
        sliding_window(5, MINUTE),
        sliding_log(5, MINUTE),
        slots(5, MINUTE),
        hybrid(5, 1, MINUTE, &[0, 0, 0], 0),
    ];
    let limits: Vec<_> = plain[..3].iter().map(always).chain(plain.clone()).collect();
    for scripts in [&PRODUCTION, &STRICT] {
        let bench = Bench::new(scripts, &[]).await;
        let memory = MemoryStore::new(10_000);
        let mut n = 0;
        for limit in &limits {
            for hits in ENDS {
                n += 1;
                let key = key(n);
                let holder = Some(Holder(1));
                let asked = [
                    vec![Check { holder, ..take(key, limit, 3) }],
                    vec![Check { holder, ..refund(key, limit, hits) }],
                    vec![peek(key, limit)],
                    vec![refund(key, limit, hits), Check { holder, ..take(key, limit, 5) }],
                    vec![Check { holder, ..take(key, limit, hits) }],
                    vec![peek(key, limit)],
                ];
                for checks in asked {
                    let got = bench.decide(&checks, Accounting::AllOrNothing, Some(START)).await;
                    let call = call(&checks, START);
                    let expected = memory.apply(&call).await.each;
                    for (got, expected) in got.iter().zip(&expected) {
                        let expected = expected.outcome().unwrap();
                        // An emptied log may number its entries anew.
                        let told = |of: &Outcome| Outcome { taken: None, ..*of };
                        assert_eq!(told(got), told(expected), "{checks:?}");
                        assert!(got.available <= Hits(5), "{checks:?}: {got:?}");
                    }
                    if let [Check { op: Op::Take { cost }, .. }] = checks[..] {
                        let fits = cost <= Hits(5);
                        assert_eq!(got[0].verdict == Verdict::Pass, fits, "{checks:?}: {got:?}");
                    }
                }
            }
        }
    }
}
