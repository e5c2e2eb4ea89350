//! Redis replies: parsed as a script's reply, as an error, as a cluster's slots. Any bytes answer
//! the checks that were sent or give an error, never more.

use std::sync::Arc;

use redis::Value;
use tidegate::domain::{Accounting, Check, Limit, Role, Verdict};
use tidegate::store::redis::client::config::Address;
use tidegate::store::redis::client::error_reply::ErrorReply;
use tidegate::store::redis::client::slot_table::{parse_shards, parse_slots};
use tidegate::store::redis::script::call;
use tidegate::store::redis::script::reply::{ReplyError, ScriptReply};

use crate::fuzzer::{Target, feed};
use crate::mutation::Random;
use crate::sort;
use crate::support::limits::{
    HOUR, MINUTE, SECOND, always, bucket, calendar, credits, floored, hybrid, key, peek, refund,
    sliding_log, sliding_window, slots, take, window,
};
use tidegate::domain::Unit;

const WORDS: &[&str] = &[
    "\r\n",
    "*",
    "$",
    ":",
    "-",
    "+",
    "_\r\n",
    "#t\r\n",
    ",1.5\r\n",
    "(",
    "%",
    "~",
    ">",
    "|",
    "!",
    "=",
    "*-1\r\n",
    "$-1\r\n",
    "-1",
    "9223372036854775807",
    "-9223372036854775808",
    "1763596800000000",
    "MOVED 1 ",
    "ASK 16383 :",
    "NOSCRIPT ",
    "slots",
    "nodes",
    "master",
    "endpoint",
    "port",
];
const ERRORS: &[&str] = &[
    "MOVED 3999 127.0.0.1:6381",
    "MOVED 3999 :6381",
    "MOVED",
    "MOVED  ",
    "ASK 1 a:b:c",
    "ASK 1 [::1]:7",
    "TRYAGAIN x",
    "CLUSTERDOWN x",
    "NOSCRIPT x",
    "OOM x",
    "BUSY x",
    "LOADING x",
    "READONLY x",
    "ERR x",
    "WRONGTYPE x",
    "NOAUTH x",
    "NOPERM x",
    "MISCONF x",
    "",
    " ",
    "MOVED 99999999999 host:99999",
];

/// Limits of every algorithm.
fn limits() -> Vec<Arc<Limit>> {
    let plain = [
        window(5, MINUTE),
        bucket(5, SECOND),
        credits(5, 7, SECOND),
        floored(&bucket(9, SECOND), 4),
        sliding_window(5, MINUTE),
        sliding_log(5, MINUTE),
        slots(5, MINUTE),
        hybrid(200, 40, SECOND, &[20, 20, 20], 1),
        calendar(5, Unit::Day, "Europe/Berlin"),
        window(u64::from(u32::MAX), 10 * 8_760 * HOUR),
        bucket(71_000_000, 31_000_000),
    ];
    let charged = plain[..3].iter().map(always).collect::<Vec<_>>();
    plain.into_iter().chain(charged).collect()
}

/// Sets of checks that the first byte of an input picks from.
fn asked(limits: &[Arc<Limit>]) -> Vec<Vec<Check<'_>>> {
    let mut asked: Vec<Vec<Check<'_>>> = limits
        .iter()
        .flat_map(|limit| [vec![take(key(1), limit, 1)], vec![peek(key(1), limit)]])
        .collect();
    for pair in limits.windows(2) {
        asked.push(vec![take(key(1), &pair[0], 2), take(key(2), &pair[1], u64::MAX)]);
    }
    let roles = [Role::Required, Role::Quota(0), Role::Quota(1), Role::Shadow];
    let all = limits.iter().enumerate();
    let with = |(n, limit)| Check { role: roles[n % 4], ..take(key(n as u64), limit, 1) };
    asked.push(all.clone().map(with).collect());
    asked.push(all.map(|(n, limit)| refund(key(n as u64 % 3), limit, 1)).collect());
    asked
}

fn integer(random: &mut Random) -> String {
    let number = match random.below(4) {
        0 => random.odd() as i64,
        1 => -(random.below(10) as i64),
        2 => 1_763_596_800_000_000 + random.below(100_000_000) as i64,
        _ => random.below(10) as i64,
    };
    number.to_string()
}

fn value(random: &mut Random, depth: usize, into: &mut Vec<u8>) {
    match random.below(if depth == 0 { 6 } else { 9 }) {
        0..3 => into.extend(format!(":{}\r\n", integer(random)).bytes()),
        3 => into.extend(format!("-{}\r\n", random.pick(ERRORS)).bytes()),
        4 => {
            let words: Vec<String> = (0..random.below(9)).map(|_| integer(random)).collect();
            let line = words.join(" ");
            into.extend(format!("${}\r\n{line}\r\n", line.len()).bytes());
        }
        5 => {
            let word = *random.pick(WORDS);
            into.extend(format!("${}\r\n{word}\r\n", word.len()).bytes());
        }
        6 => {
            let pairs = random.below(4);
            into.extend(format!("%{pairs}\r\n").bytes());
            (0..2 * pairs).for_each(|_| value(random, depth - 1, into));
        }
        _ => {
            let items = random.below(if depth > 2 { 40 } else { 5 });
            into.extend(format!("*{items}\r\n").bytes());
            (0..items).for_each(|_| value(random, depth.min(2) - 1, into));
        }
    }
}

/// As many integers as the scripts answer with, or nearly.
fn numbers(random: &mut Random, into: &mut Vec<u8>) {
    let items = 1 + random.below(40);
    into.extend(format!("*{items}\r\n").bytes());
    (0..items).for_each(|_| into.extend(format!(":{}\r\n", integer(random)).bytes()));
}

fn made(random: &mut Random) -> Vec<u8> {
    let mut bytes = vec![random.byte()];
    match random.one_in(2) {
        true => numbers(random, &mut bytes),
        false => value(random, 4, &mut bytes),
    }
    bytes
}

fn fits(decoded: &ScriptReply, checks: &[Check<'_>]) {
    assert_eq!(decoded.outcomes.len(), checks.len());
    for (outcome, check) in decoded.outcomes.iter().zip(checks) {
        assert!(outcome.verdict == Verdict::Refuse || outcome.retry_after.is_none());
        assert!(outcome.available <= check.limit.capacity(), "{check:?}: {outcome:?}");
        assert!(outcome.taken.is_none_or(|taken| taken.hits == outcome.charged));
    }
}

#[test]
fn any_reply_is_read_or_a_fault() {
    let target = Target { name: "replies", share: 25, words: WORDS };
    let limits = limits();
    let asked = asked(&limits);
    let node = Address::Tcp("10.0.0.1".to_owned(), 6379);
    feed(&target, Vec::new(), made, |input| {
        let Some((first, reply)) = input.split_first() else { return 0 };
        let Ok(value) = redis::parse_redis_value(reply) else { return 1 };
        let checks = &asked[usize::from(*first) % asked.len()];
        let mut sorts = Vec::new();
        for accounting in [Accounting::AllOrNothing, Accounting::Independent] {
            match call::decode(&value, checks, accounting, false) {
                Ok(decoded) => {
                    fits(&decoded, checks);
                    sorts.push(10 + (checks.len().min(20) as u64));
                }
                Err(fault) => sorts.push(match fault {
                    ReplyError::Error => 1,
                    ReplyError::Shape => 2,
                    ReplyError::Length => 3,
                    ReplyError::Number => 4,
                    ReplyError::NoWindow => 5,
                    ReplyError::PartlyWritten => 6,
                }),
            }
        }
        if let Value::ServerError(error) = &value {
            sorts.push(100 + format!("{:?}", ErrorReply::classify(error, &node)).len() as u64);
        }
        for tls in [false, true] {
            let tables = [parse_shards(&value, &node, tls), parse_slots(&value, &node)];
            for holdings in tables.into_iter().flatten() {
                let held = holdings.iter().flat_map(|holding| &holding.slots);
                assert!(held.clone().all(|(first, last)| first <= last && *last < 16_384));
                sorts.push(1_000 + holdings.len().min(4) as u64);
            }
        }
        sort(sorts)
    });
}
