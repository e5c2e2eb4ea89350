//! No reply makes the decoder panic, and none but a script's is taken for an outcome.

use proptest::prelude::*;
use redis::Value;
use tidegate::domain::{Accounting, Check};
use tidegate::store::redis::script::reply::{ReplyError, decode};

use super::window_and_buckets;
use crate::support::limits::*;

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Nil),
        Just(Value::Okay),
        any::<i64>().prop_map(Value::Int),
        (-3i64..100).prop_map(Value::Int),
        any::<Vec<u8>>().prop_map(Value::BulkString),
        "[-0-9 ]{0,60}".prop_map(|text| Value::BulkString(text.into_bytes())),
        ".{0,20}".prop_map(Value::SimpleString),
        any::<f64>().prop_map(Value::Double),
    ];
    leaf.prop_recursive(2, 32, 16, |inner| {
        prop::collection::vec(inner, 0..16).prop_map(Value::Array)
    })
}

proptest! {
    #[test]
    fn whatever_comes_the_decoder_answers(value in any_value(), numbers in prop::collection::vec(any::<i64>(), 0..14)) {
        let limits = [window_and_buckets(5), window_and_buckets(0), window_and_buckets(5).map(|limit| always(&limit))];
        let checks: Vec<_> =
            limits.iter().flatten().enumerate().map(|(n, l)| take(key(n as u64), l, 1 + n as u64)).collect();
        let ints = Value::Array(numbers.into_iter().map(Value::Int).collect());
        for count in 0..=checks.len() {
            for reply in [&value, &ints] {
                if let Ok(decoded) = decode(reply, &checks[..count], Accounting::AllOrNothing) {
                    prop_assert_eq!(decoded.outcomes.len(), count);
                }
            }
        }
    }
}

#[test]
fn what_is_no_reply_is_a_fault() {
    let limit = bucket(5, SECOND);
    let one = [take(key(1), &limit, 1)];
    let two = [one[0], one[0]];
    let line = |text: &str| decode(&Value::BulkString(text.into()), &one, Accounting::AllOrNothing);
    assert!(line("1000000 1763596800000000").is_ok());
    assert_eq!(line(""), Err(ReplyError::Number));
    assert_eq!(line("1000000"), Err(ReplyError::Length));
    assert_eq!(line("1 2 3 4 5"), Err(ReplyError::Length));
    assert_eq!(line("1 -2"), Err(ReplyError::Number));
    assert_eq!(line("1e3 2"), Err(ReplyError::Number));
    assert_eq!(line("9223372036854775808 2"), Err(ReplyError::Number));
    let array = |numbers: &[i64]| {
        let numbers = numbers.iter().map(|n| Value::Int(*n)).collect();
        decode(&Value::Array(numbers), &two, Accounting::AllOrNothing)
    };
    assert!(array(&[9, 1, 1]).is_ok());
    assert!(array(&[9, 1, -1, 0, 1, 0, 2, 3, 0]).is_ok());
    assert_eq!(array(&[9, 1]), Err(ReplyError::Length));
    assert_eq!(array(&[9, 1, 1, 1]), Err(ReplyError::Length));
    assert_eq!(array(&[9, 1, 1, 3, 0, 0]), Err(ReplyError::Number), "no third check");
    assert_eq!(decode(&Value::Nil, &two, Accounting::AllOrNothing), Err(ReplyError::Shape));
}

#[test]
fn more_than_the_limit_holds_or_the_caller_asked_for_is_no_reply() {
    let (limit, classes) = (sliding_log(5, MINUTE), hybrid(200, 40, SECOND, &[20, 20, 20], 1));
    let said = |check: Check<'_>, text: &str| {
        decode(&Value::BulkString(text.into()), &[check], Accounting::AllOrNothing)
            .map(|decoded| decoded.outcomes[0].charged.0)
    };
    // Available, wait, reset, charged, since, far, now.
    assert_eq!(said(take(key(1), &limit, 2), "3 0 60 2 9 0 9"), Ok(2));
    assert_eq!(said(take(key(1), &limit, 2), "6 0 60 2 9 0 9"), Err(ReplyError::Number));
    assert_eq!(said(take(key(1), &limit, 2), "-7 0 60 0 9 0 9"), Err(ReplyError::Number));
    assert_eq!(said(take(key(1), &limit, 2), "3 0 60 3 9 0 9"), Err(ReplyError::Number));
    assert_eq!(said(peek(key(1), &limit), "3 0 60 1 9 0 9"), Err(ReplyError::Number));
    assert_eq!(said(take(key(1), &classes, 1), "201 0 60 1 9 0 9"), Err(ReplyError::Number));
}
