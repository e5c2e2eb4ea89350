//! No reply makes the decoder panic, and only a script's reply becomes an outcome.

use proptest::prelude::*;
use redis::Value;
use tidegate::domain::{Accounting, Check};
use tidegate::store::redis::script::call;
use tidegate::store::redis::script::reply::ReplyError;

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
                if let Ok(decoded) = call::decode(reply, &checks[..count], Accounting::AllOrNothing, false) {
                    prop_assert_eq!(decoded.outcomes.len(), count);
                }
            }
        }
    }
}

#[test]
fn what_is_no_reply_is_an_error() {
    let limit = bucket(5, SECOND);
    let one = [take(key(1), &limit, 1)];
    let array = |checks: &[Check<'_>], numbers: &[i64]| {
        let numbers = numbers.iter().map(|n| Value::Int(*n)).collect();
        call::decode(&Value::Array(numbers), checks, Accounting::AllOrNothing, false)
    };
    // Time, clamped, then six numbers of each check.
    let same = [one[0], one[0]];
    let six = [4, 0, 1_000_000, 1, 9, 0];
    let all = [[9, 0].as_slice(), &six, &six].concat();
    assert!(array(&same, &all).is_ok());
    assert_eq!(array(&same, &all[..13]), Err(ReplyError::Length));
    assert_eq!(array(&same, &[all.as_slice(), &[1]].concat()), Err(ReplyError::Length));
    assert_eq!(array(&same, &[-1]), Err(ReplyError::NoWindow));
    for (checks, reply) in [
        (&same[..], Value::Nil),
        (&same, Value::BulkString(b"9 1".to_vec())),
        (&one, Value::Int(9)),
    ] {
        let decoded = call::decode(&reply, checks, Accounting::AllOrNothing, false);
        assert_eq!(decoded, Err(ReplyError::Shape));
    }
}

#[test]
fn more_than_the_limit_holds_or_the_caller_asked_for_is_no_reply() {
    let (limit, classes) = (sliding_log(5, MINUTE), hybrid(200, 40, SECOND, &[20, 20, 20], 1));
    let said = |check: Check<'_>, six: [i64; 6]| {
        let numbers = [9, 0].into_iter().chain(six).map(Value::Int).collect();
        call::decode(&Value::Array(numbers), &[check], Accounting::AllOrNothing, false)
            .map(|decoded| decoded.outcomes[0].charged.0)
    };
    // Available, wait, reset, charged, since, entry.
    assert_eq!(said(take(key(1), &limit, 2), [3, 0, 60, 2, 9, 0]), Ok(2));
    for no_reply in
        [[6, 0, 60, 2, 9, 0], [-7, 0, 60, 0, 9, 0], [3, 0, 60, 3, 9, 0], [3, 7, 60, 2, 9, 0]]
    {
        assert_eq!(said(take(key(1), &limit, 2), no_reply), Err(ReplyError::Number));
    }
    let refused_and_charged = [-1, 5, 60, 2, 9, 0];
    assert_eq!(said(take(key(1), &limit, 2), refused_and_charged), Err(ReplyError::Number));
    assert_eq!(said(take(key(1), &always(&limit), 2), refused_and_charged), Ok(2), "a debt");
    assert_eq!(said(peek(key(1), &limit), [3, 0, 60, 1, 9, 0]), Err(ReplyError::Number));
    assert_eq!(said(take(key(1), &classes, 1), [201, 0, 60, 1, 9, 0]), Err(ReplyError::Number));
}
