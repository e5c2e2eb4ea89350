//! Buckets that a node script charges by INCRBY: the same outcomes and values as one script call for
//! one slot, every charge undone if one fails, and an end for every key.

use redis::Value;
use tidegate::domain::{Accounting, Check, Hits, Micros, Outcome, Verdict};
use tidegate::store::redis::keys::Prefix;
use tidegate::store::redis::script::library::PRODUCTION;
use tidegate::store::redis::script::reply::ScriptReply;

use crate::support::limits::*;
use crate::support::random::Random;
use crate::support::redis_server::Server;
use crate::support::script_bench::Bench;

/// What no script of ours stored, or stored under another limit.
const FOREIGN: [&str; 9] = [
    "x",
    "0",
    "-7",
    "42.5",
    "1763668123456789:3",
    "9007199254740993",
    "9223372036854775807",
    "99999999999999999999999",
    "1e400",
];

/// The reply to PEXPIRETIME for a key that does not exist.
const MISSING: i64 = -2;

async fn decide_on_node(
    bench: &Bench,
    checks: &[Check<'_>],
    accounting: Accounting,
    now: Option<Micros>,
) -> Vec<Outcome> {
    let local_now = now.unwrap_or(START);
    let call = bench.encoder.encode_node_call(checks, accounting, false, now, local_now);
    let reply = bench.plain.run(&call).await.unwrap();
    ScriptReply::decode(&reply, checks, accounting).unwrap().outcomes.to_vec()
}

/// The stored value. `None` for a bucket that is full.
async fn stored(bench: &Bench, check: &Check<'_>, now: Micros) -> Option<String> {
    let text: Value = bench.command(&[b"GET", &bench.text(check)]).await;
    let text: Option<String> = redis::from_redis_value(text).unwrap();
    text.filter(|text| text.parse().map_or(true, |tat: f64| tat > now.0 as f64))
}

#[tokio::test]
async fn buckets_charged_on_a_node_are_those_charged_in_one_slot() {
    let (on_node, in_slot) =
        (Bench::new(&PRODUCTION, &[]).await, Bench::new(&PRODUCTION, &[]).await);
    let mut random = Random::seeded(3);
    let (mut now, mut refused) = (START, 0);
    let limits = [bucket(9, SECOND), bucket(40, 7), always(&bucket(9, SECOND)), bucket(3, MINUTE)];
    for step in 0..3_000 {
        now = Micros(match random.below(9) {
            0 => now.0 + random.below(30 * SECOND),
            _ => now.0 + random.below(SECOND),
        });
        let count = 1 + random.below(6);
        let start = random.below(12);
        let checks: Vec<Check<'_>> = (start..=start + count)
            .map(|n| {
                // Few calls contain the counter that is always charged.
                let limit = if n == 0 { &limits[2] } else { &limits[[0, 1, 3][n as usize % 3]] };
                let most = if random.one_in(9) { 60 } else { 4 };
                take(key(n), limit, 1 + random.below(most))
            })
            .collect();
        if random.one_in(20) {
            let check = &checks[random.below(count) as usize];
            let text = FOREIGN[random.below(FOREIGN.len() as u64) as usize];
            for bench in [&on_node, &in_slot] {
                bench.command::<()>(&[b"SET", &bench.text(check), text.as_bytes()]).await;
            }
        }
        let accounting =
            if random.one_in(3) { Accounting::Independent } else { Accounting::AllOrNothing };
        let outcomes = decide_on_node(&on_node, &checks, accounting, Some(now)).await;
        let expected = in_slot.decide(&checks, accounting, Some(now)).await;
        assert_eq!(outcomes, expected, "step {step}: {checks:?}");
        refused += outcomes.iter().filter(|outcome| outcome.verdict == Verdict::Refuse).count();
        for check in &checks {
            let [left, right] =
                [stored(&on_node, check, now).await, stored(&in_slot, check, now).await];
            assert_eq!(left, right, "step {step}: {check:?}");
        }
    }
    assert!(refused > 300, "{refused} refused");
}

#[tokio::test]
async fn a_refused_call_leaves_no_charge_and_no_new_key() {
    let bench = Bench::new(&PRODUCTION, &[]).await;
    let limit = bucket(9, MINUTE);
    let all = Accounting::AllOrNothing;
    let [fresh, used, empty] =
        [take(key(1), &limit, 2), take(key(2), &limit, 2), take(key(3), &limit, 9)];
    decide_on_node(&bench, &[used, empty], all, None).await;
    let before = (stored(&bench, &used, START).await, stored(&bench, &empty, START).await);
    // Each place of the bucket that refuses.
    for checks in [[fresh, used, empty], [fresh, empty, used], [empty, fresh, used]] {
        let outcomes = decide_on_node(&bench, &checks, all, None).await;
        assert!(outcomes.iter().all(|outcome| outcome.charged == Hits::ZERO));
        assert_eq!(
            (stored(&bench, &used, START).await, stored(&bench, &empty, START).await),
            before
        );
    }
    // Longer than the millisecond for which an undone charge leaves a key.
    tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    assert_eq!(stored(&bench, &fresh, START).await, None);
}

#[tokio::test]
async fn a_key_lives_until_its_bucket_is_full_and_at_most_twice_as_long_and_a_second() {
    let bench = Bench::new(&PRODUCTION, &[]).await;
    for (n, limit) in (0..).zip([bucket(1_000, SECOND), bucket(1_000, 1), bucket(1_000, 20_000)]) {
        let pair = [take(key(2 * n), &limit, 3), take(key(2 * n + 1), &limit, 1)];
        for call in 0..40 {
            let outcomes = decide_on_node(&bench, &pair, Accounting::AllOrNothing, None).await;
            for (check, outcome) in pair.iter().zip(outcomes) {
                assert_eq!(outcome.verdict, Verdict::Pass);
                let full_us = outcome.taken.unwrap().at.0 + outcome.reset_after.0;
                let ends_ms: i64 = bench.command(&[b"PEXPIRETIME", &bench.text(check)]).await;
                if ends_ms == MISSING {
                    let (s, us): (u64, u64) = bench.command(&[b"TIME"]).await;
                    assert!(s * SECOND + us >= full_us, "call {call}: ended before it was full");
                    continue;
                }
                let kept = (ends_ms.unsigned_abs() * 1_000).checked_sub(full_us);
                let kept = kept.unwrap_or_else(|| panic!("call {call}: ends before it is full"));
                let longest = outcome.reset_after.0 + SECOND + 4_000;
                assert!(kept <= longest, "call {call}: {kept} us longer, {longest} at most");
            }
        }
    }
}

#[tokio::test]
async fn a_user_without_pttl_is_answered_and_charged_the_same() {
    let server = Server::start(&["user default on nopass ~* +@all -pttl"]);
    let bench = Bench::on(server, &PRODUCTION).await;
    let limit = bucket(9, MINUTE);
    let pair = [take(key(1), &limit, 2), take(key(2), &limit, 2)];
    for n in 1..=4 {
        let outcomes = decide_on_node(&bench, &pair, Accounting::AllOrNothing, None).await;
        for outcome in outcomes {
            assert_eq!((outcome.charged, outcome.available), (Hits(2), Hits(9 - 2 * n)));
        }
    }
    for check in &pair {
        let left: i64 = bench.command(&[b"PEXPIRETIME", &bench.text(check)]).await;
        assert!(left > 0, "the key has an end");
    }
}

#[tokio::test]
async fn a_server_without_memory_still_refuses() {
    let bench = Bench::new(&PRODUCTION, &[]).await;
    let limit = bucket(9, MINUTE);
    let pair = [take(key(1), &limit, 9), take(key(2), &limit, 1)];
    decide_on_node(&bench, &pair, Accounting::AllOrNothing, None).await;
    let text = Prefix::default().key(&key(2), &limit.algorithm);
    let before: u64 = bench.command(&[b"GET", &text]).await;
    bench.command::<()>(&[b"CONFIG", b"SET", b"maxmemory", b"1"]).await;
    let outcomes = decide_on_node(&bench, &pair, Accounting::AllOrNothing, None).await;
    assert_eq!(outcomes[0].verdict, Verdict::Refuse);
    assert_eq!(bench.command::<u64>(&[b"GET", &text]).await, before);
}
