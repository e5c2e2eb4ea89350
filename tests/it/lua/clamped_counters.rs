//! A counter from the far future is reported as clamped once, whichever script reads it.

use tidegate::domain::{Accounting, Hits, Micros, Op, Unit};
use tidegate::store::redis::script::library::STRICT;
use tidegate::store::redis::script::reply::ScriptReply;

use crate::support::limits::*;
use crate::support::script_bench::Bench;

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
                let call = bench.encoder.encode_call(&checks, accounting, Some(START), START);
                let reply = bench.plain.run(&call).await.unwrap();
                let decoded = ScriptReply::decode(&reply, &checks, accounting).unwrap();
                assert_eq!(decoded.clamped, 1, "{checks:?}");
                // The clamped state was stored, whatever the verdict.
                let call = bench.encoder.encode_call(&[asked], accounting, Some(START), START);
                let reply = bench.plain.run(&call).await.unwrap();
                let decoded = ScriptReply::decode(&reply, &[asked], accounting).unwrap();
                assert_eq!(decoded.clamped, 0, "{checks:?}");
            }
        }
    }
}
