//! A counter from the far future is reported as clamped once, whichever script reads it. A count
//! above its limit is not clamped.

use tidegate::domain::{Accounting, Algorithm, ChargeRecord, Hits, Micros, Op, Receipt, Unit};
use tidegate::store::redis::script::call;
use tidegate::store::redis::script::library::STRICT;

use crate::support::limits::*;
use crate::support::script_bench::Bench;
use crate::support::script_bench::encode_call;

#[tokio::test]
async fn every_script_reports_one_clamp_of_one_counter() {
    let bench = Bench::new(&STRICT, &[]).await;
    let accounting = Accounting::AllOrNothing;
    let (future, beside) = (Micros(START.0 + 240 * HOUR), bucket(9, SECOND));
    let limits = [
        window(5, MINUTE),
        calendar(5, Unit::Day, "UTC"),
        bucket(5, SECOND),
        credits(5, 7, SECOND),
        sliding_window(5, MINUTE),
        sliding_log(5, MINUTE),
        hybrid(50, 600, HOUR, &[50, 30, 20], 0),
        slots(5, MINUTE),
    ];
    let mut n = 0;
    for limit in &limits {
        for op in [Op::Take { cost: Hits(1) }, Op::PEEK, Op::Refund { cost: Hits(1) }] {
            // The script of one check, of several, and of any.
            for kind in 0..3 {
                n += 2;
                bench.one(take(key(n), limit, 1), Some(future)).await;
                let asked = check(key(n), limit, op);
                let checks = match kind {
                    0 => vec![asked],
                    1 => vec![asked, take(key(n + 1), &beside, 1)],
                    _ => vec![asked, asked],
                };
                let call = encode_call(&bench.encoder, &checks, accounting, Some(START), START);
                let reply = bench.plain.run(&call).await.unwrap();
                let decoded = call::decode(&reply, &checks, accounting, false).unwrap();
                // A refund subtracts from a bucket's debt as it is stored.
                let is_left_as_it_is = matches!(op, Op::Refund { .. })
                    && matches!(limit.algorithm, Algorithm::Bucket(_));
                assert_eq!(decoded.clamped, u64::from(!is_left_as_it_is), "{checks:?}");
                // The clamped state was stored, whatever the verdict.
                let call = encode_call(&bench.encoder, &[asked], accounting, Some(START), START);
                let reply = bench.plain.run(&call).await.unwrap();
                let decoded = call::decode(&reply, &[asked], accounting, false).unwrap();
                assert_eq!(decoded.clamped, 0, "{checks:?}");
            }
        }
    }
}

/// A limit that was lowered may hold more hits than it has. A caller's refund must not take the hits of
/// another's receipt for its own.
#[tokio::test]
async fn a_refund_beside_charges_above_the_limit_gives_back_only_its_own_hits() {
    let bench = Bench::new(&STRICT, &[]).await;
    let (key, beside) = (key(1), key(2));
    for (limit, pending, back) in [(1_000, 1_564, 1), (1_000_000, 30_000, 10)] {
        let limit = window(limit, HOUR);
        let capacity = limit.capacity().0;
        for kind in 0..3 {
            bench.command::<()>(&[b"FLUSHALL"]).await;
            bench.one(take(key, &limit, capacity), Some(START)).await;
            let text = bench.text(&peek(key, &limit));
            bench.command::<i64>(&[b"INCRBY", &text, pending.to_string().as_bytes()]).await;
            let asked = refund(key, &limit, back);
            let checks = match kind {
                0 => vec![asked],
                1 => vec![asked, take(beside, &limit, 1)],
                _ => vec![asked, peek(key, &limit)],
            };
            bench.decide(&checks, Accounting::Independent, Some(START)).await;
            let taken = ChargeRecord { hits: Hits(pending), at: START, window: START, entry: 0 };
            let receipt = Receipt { key, limit: limit.clone(), taken };
            bench.plain.run(&bench.encoder.encode_refund(&[receipt], Some(START))).await.unwrap();
            let left = bench.one(peek(key, &limit), Some(START)).await.available;
            assert_eq!(left, Hits(back), "{checks:?}");
        }
    }
}
