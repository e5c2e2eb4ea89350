//! Values that no script of ours wrote: the first check repairs the counter and is answered without
//! an error.

use tidegate::domain::{Accounting, ChargeRecord, Hits, Micros, Receipt, Unit, Verdict};
use tidegate::store::redis::script::library::{PRODUCTION, STRICT};

use super::window_and_buckets;
use crate::support::limits::*;
use crate::support::script_bench::Bench;
use crate::support::script_bench::encode_call;

const TEXTS: [&str; 28] = [
    "",
    " ",
    "x",
    "-",
    "-1",
    "-99999999999999999999",
    "0",
    "5",
    "42.5",
    "1e400",
    "-1e400",
    "nan",
    "-nan",
    "inf",
    "0x10",
    "9007199254740993",
    "9223372036854775807",
    "99999999999999999999999",
    "1763596800000000:",
    ":5",
    "1763596800000000:-5",
    "9763596800000000:99999999999999999999",
    "1763596800000000:5:5",
    "1763596800000000.5:1",
    "17635968000000005 ",
    "\u{0}\u{1}",
    "293932800000000005x",
    "29393280+000000005",
];

async fn spoil(bench: &Bench, text: &[u8], how: usize) {
    let _: i64 = bench.command(&[b"DEL", text]).await;
    match how.checked_sub(TEXTS.len()) {
        None => bench.command::<()>(&[b"SET", text, TEXTS[how].as_bytes()]).await,
        Some(0) => bench.command::<()>(&[b"LPUSH", text, b"1"]).await,
        Some(1) => bench.command::<()>(&[b"HSET", text, b"a", b"1"]).await,
        Some(2) => bench.command::<()>(&[b"SADD", text, b"1"]).await,
        Some(_) => bench.command::<()>(&[b"ZADD", text, b"1", b"1"]).await,
    }
}

#[tokio::test]
async fn damage_is_answered_and_mended_never_an_error() {
    let bench = Bench::new(&STRICT, &[]).await;
    let plain = [window(5, MINUTE), bucket(5, SECOND), credits(5, 7, SECOND)];
    let limits: Vec<_> = plain.iter().map(always).chain(plain.clone()).collect();
    for how in 0..TEXTS.len() + 4 {
        for (n, limit) in limits.iter().enumerate() {
            let what = TEXTS.get(how).unwrap_or(&"a wrong type");
            let key = key(n as u64);
            let text = bench.text(&take(key, limit, 1));
            for checks in [
                vec![take(key, limit, 1)],
                vec![peek(key, limit)],
                vec![refund(key, limit, 1), take(key, limit, 2), take(key, limit, 1)],
                vec![take(key, limit, 9)],
            ] {
                spoil(&bench, &text, how).await;
                for outcome in bench.decide(&checks, Accounting::Independent, Some(START)).await {
                    assert!(outcome.available <= Hits(5), "{what}: {outcome:?}");
                    assert!(outcome.reset_after <= Micros(2 * MINUTE), "{what}: {outcome:?}");
                }
            }
            let taken = ChargeRecord { hits: Hits(1), at: START, window: START, entry: 0 };
            let receipt = Receipt { key, limit: limit.clone(), taken };
            spoil(&bench, &text, how).await;
            let item = bench.encoder.encode_refund(&[receipt], Some(START));
            bench.plain.run(&item).await.unwrap();

            spoil(&bench, &text, how).await;
            bench.one(take(key, limit, 1), Some(START)).await;
            // At the latest when a full debt is paid or the window is over, all is well.
            let later = Some(Micros(START.0 + 2 * MINUTE));
            let outcome = bench.one(take(key, limit, 1), later).await;
            assert_eq!(outcome.verdict, Verdict::Pass, "{what}: {outcome:?}");
            assert_eq!(outcome.available, Hits(4), "{what}: {outcome:?}");
        }
    }
}

/// A write of one call, a call of several limits, a call that only `decide_call.lua` takes, and calls that
/// share a script call use different scripts.
#[tokio::test]
async fn every_script_reads_a_value_alike() {
    let bench = Bench::new(&STRICT, &[]).await;
    let log = sliding_log(5, MINUTE);
    let limits = [
        window(900, MINUTE),
        bucket(9, SECOND),
        credits(9, 7, SECOND),
        sliding_window(900, MINUTE),
    ];
    let windows = [
        "29393280 000000005",
        "293932800x00000005",
        "2939328000000001e2",
        "29393280000000.500",
        "2939328000000000.5",
        "29393280-000000005",
        "293932809999999999",
        "00293932800000000005",
        "+293932800000000005",
    ];
    for text in TEXTS.iter().chain(&windows) {
        for (n, limit) in (0..).zip(&limits) {
            let check = peek(key(n), limit);
            let beside = take(key(50), &limits[0], 1);
            let slow = peek(key(60), &log);
            bench.command::<()>(&[b"SET", &bench.text(&check), text.as_bytes()]).await;
            let (all, now) = (Accounting::AllOrNothing, Some(START));
            let by_apply = bench.decide(&[check, slow], all, now).await[0];
            bench.command::<()>(&[b"SET", &bench.text(&check), text.as_bytes()]).await;
            let by_several = bench.decide(&[check, beside], all, now).await[0];
            bench.command::<()>(&[b"SET", &bench.text(&check), text.as_bytes()]).await;
            let shared = bench.shared(&[&[beside], &[check]], now).await;
            bench.command::<()>(&[b"SET", &bench.text(&check), text.as_bytes()]).await;
            let alone = bench.one(check, now).await;
            assert_eq!(by_several, alone, "{text:?}, several limits: {:?}", limit.algorithm);
            assert_eq!(shared[1][0], alone, "{text:?}, shared: {:?}", limit.algorithm);
            assert_eq!(by_apply, alone, "{text:?}, apply: {:?}", limit.algorithm);
        }
    }
}

#[tokio::test]
async fn a_full_server_still_refuses_and_only_a_charge_fails() {
    let bench = Bench::new(&PRODUCTION, &[]).await;
    let limits = window_and_buckets(2);
    for (n, limit) in limits.iter().enumerate() {
        bench.one(take(key(n as u64), limit, 2), None).await;
    }
    bench.command::<()>(&[b"CONFIG", b"SET", b"maxmemory-policy", b"noeviction"]).await;
    bench.command::<()>(&[b"CONFIG", b"SET", b"maxmemory", b"1"]).await;
    for (n, limit) in limits.iter().enumerate() {
        let refused = bench.one(take(key(n as u64), limit, 1), None).await;
        assert_eq!(refused.verdict, Verdict::Refuse);
        let fresh = take(key(9 + n as u64), limit, 1);
        let item =
            encode_call(&bench.encoder, &[fresh, fresh], Accounting::AllOrNothing, None, START);
        assert!(bench.plain.run(&item).await.is_err(), "a charge cannot be written");
    }
    bench.command::<()>(&[b"CONFIG", b"SET", b"maxmemory", b"0"]).await;
    for (n, limit) in limits.iter().enumerate() {
        assert_eq!(bench.one(peek(key(9 + n as u64), limit), None).await.available, Hits(2));
    }
}

#[tokio::test]
async fn a_server_that_forbids_reading_is_an_error_not_an_empty_counter() {
    let bench = Bench::new(&PRODUCTION, &[]).await;
    let limits = [
        window(1, HOUR),
        calendar(1, Unit::Day, "UTC"),
        bucket(1, HOUR),
        sliding_window(1, HOUR),
        sliding_log(1, HOUR),
        hybrid(1, 1, HOUR, &[100], 0),
        slots(1, HOUR),
    ];
    for (n, limit) in (1..).zip(&limits) {
        bench.one(take(key(n), limit, 1), Some(START)).await;
    }
    let denied: [&[u8]; 7] =
        [b"ACL", b"SETUSER", b"default", b"-get", b"-mget", b"-strlen", b"-zcount"];
    bench.command::<()>(&denied).await;
    for (n, limit) in (1..).zip(&limits) {
        let checks = [take(key(n), limit, 1), take(key(n), limit, 1)];
        for checks in [&checks[..1], &checks[..]] {
            let accounting = Accounting::AllOrNothing;
            let item = encode_call(&bench.encoder, checks, accounting, Some(START), START);
            assert!(bench.plain.run(&item).await.is_err(), "{checks:?}");
        }
    }
}
