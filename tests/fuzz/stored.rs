//! Values of unknown origin under our Redis keys: every script answers them, again and again, and
//! never admits more than the limit.

use std::sync::Arc;

use tidegate::domain::{Accounting, Call, Check, Limit, Micros, Unit};
use tidegate::store::redis::script::arguments::{CallScope, Encoder};
use tidegate::store::redis::script::call;
use tidegate::store::redis::script::keys::Prefix;
use tidegate::store::redis::script::library::PRODUCTION;

use crate::fuzzer::{Target, feed};
use crate::mutation::{Decisions, Random};
use crate::sort;
use crate::support::limits::{
    MINUTE, SECOND, START, always, bucket, calendar, credits, hybrid, key, peek, refund,
    sliding_log, sliding_window, slots, take, window,
};
use crate::support::plain_transport::Plain;
use crate::support::redis_server::Server;

fn limits() -> Vec<Arc<Limit>> {
    let plain = [
        window(5, MINUTE),
        bucket(5, SECOND),
        credits(5, 7, SECOND),
        sliding_window(5, MINUTE),
        sliding_log(5, MINUTE),
        slots(5, MINUTE),
        hybrid(200, 40, SECOND, &[20, 20, 20], 1),
        calendar(5, Unit::Day, "Europe/Berlin"),
    ];
    let charged: Vec<_> = plain[..3].iter().map(always).collect();
    plain.into_iter().chain(charged).collect()
}

/// Commands that leave something under a key: strings, and every other type.
fn spoil(by: &mut Decisions<'_>, key: &[u8]) -> redis::Pipeline {
    let mut pipe = redis::pipe();
    pipe.cmd("DEL").arg(key);
    let (first, second) = (by.piece().to_vec(), by.piece().to_vec());
    match by.below(12) {
        0 => pipe.cmd("LPUSH").arg(key).arg(&first).arg(&second),
        1 => pipe.cmd("HSET").arg(key).arg(&first).arg(&second),
        2 => pipe.cmd("SADD").arg(key).arg(&first).arg(&second),
        3 | 4 => {
            let (one, other) = (by.odd() as i64, by.number() as i64);
            pipe.cmd("ZADD").arg(key).arg(one).arg(&first).arg(other).arg(&second)
        }
        5 => pipe.cmd("XADD").arg(key).arg("1-1").arg(&first).arg(&second),
        _ => pipe.cmd("SET").arg(key).arg(&first),
    };
    pipe
}

const WORDS: &[&str] = &[
    "1763596800000000",
    "293932800000000005",
    ":",
    "-1",
    "0",
    "1e400",
    "nan",
    "inf",
    "0x10",
    " ",
    "9007199254740993",
    "9223372036854775807",
    "99999999999999999999999",
    ".5",
    "+5",
];

fn made(random: &mut Random) -> Vec<u8> {
    let mut input = vec![random.byte(), random.byte()];
    for _ in 0..2 {
        let piece = match random.below(4) {
            0 => random.bytes(60),
            1 => random.odd().to_le_bytes().repeat(1 + random.below(4)),
            2 => random.odd().to_string().into_bytes(),
            _ => [*random.pick(WORDS), *random.pick(WORDS), *random.pick(WORDS)]
                .concat()
                .into_bytes(),
        };
        input.push(piece.len() as u8);
        input.extend(piece);
    }
    input.extend(random.bytes(40));
    input
}

/// One call, answered by the scripts.
async fn answered(plain: &Plain, encoder: &Encoder, checks: &[Check<'_>], now: Micros) -> u64 {
    let accounting = Accounting::Independent;
    let call = Call { checks, accounting, now, deadline: None };
    let item = call::encode(encoder, &call, CallScope::default(), Some(now));
    let reply = plain.run(&item).await.unwrap_or_else(|e| panic!("{checks:?}: {e}"));
    let decoded = call::decode(&reply, checks, accounting, false);
    let decoded = decoded.unwrap_or_else(|e| panic!("{checks:?}: {e:?}: {reply:?}"));
    for (outcome, check) in decoded.outcomes.iter().zip(checks) {
        assert!(outcome.available <= check.limit.capacity(), "{check:?}: {outcome:?}");
    }
    sort((decoded.clamped, decoded.outcomes.iter().map(|o| o.verdict as u8).collect::<Vec<_>>()))
}

#[test]
fn whatever_stands_under_a_key_is_answered_and_never_an_error() {
    let target = Target { name: "stored", share: 2, words: WORDS };
    let limits = limits();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (server, plain) = runtime.block_on(async {
        let server = Server::start(&[]);
        let plain = Plain(server.connect().await);
        (server, plain)
    });
    let encoder = Encoder::new(Prefix::default(), &PRODUCTION, false);
    feed(&target, Vec::new(), made, |input| {
        let mut by = Decisions::of(input);
        let limit = by.pick(&limits);
        let key = key(by.below(4) as u64);
        let text = Prefix::default().key(&key, &limit.algorithm).to_vec();
        runtime.block_on(async {
            let spoilt: redis::RedisResult<redis::Value> =
                spoil(&mut by, &text).query_async(&mut plain.0.clone()).await;
            // What Redis itself refuses to store is not there.
            let spoilt = spoilt.is_ok();
            let checks = match by.below(4) {
                0 => vec![take(key, limit, 1)],
                1 => vec![peek(key, limit)],
                2 => vec![refund(key, limit, 1), take(key, limit, 2), take(key, limit, 1)],
                _ => vec![take(key, limit, by.odd())],
            };
            let first = answered(&plain, &encoder, &checks, START).await;
            let again = answered(&plain, &encoder, &[take(key, limit, 1)], START).await;
            // At the latest when a full debt is paid, or the window or lease is over, all is well.
            let later = Micros(START.0 + 3 * 24 * 60 * MINUTE);
            let mended = answered(&plain, &encoder, &[take(key, limit, 1)], later).await;
            assert_eq!(mended, passes(), "{limit:?} does not mend");
            sort((spoilt, first, again))
        })
    });
    drop(server);
}

/// The sort of one take that passes on a counter that nobody had to clamp.
fn passes() -> u64 {
    sort((0_u64, vec![tidegate::domain::Verdict::Pass as u8]))
}
