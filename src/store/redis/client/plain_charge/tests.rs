//! Tests of plain charges.

use std::sync::Arc;

use super::super::pending_command::NodeCommand;
use super::super::transport::ScriptCall;
use super::*;
use crate::domain::fixtures::fixed_window;
use crate::domain::{ChargeRecord, CounterKey, Hits, Receipt};
use crate::store::redis::keys::Prefix;
use crate::store::redis::script::arguments::Encoder;
use crate::store::redis::script::library::PRODUCTION;

#[test]
fn plain_charges_need_redis_7_and_permission_for_expire() {
    let node = Address::Tcp("127.0.0.1".into(), 6379);
    let error = |line: &str| redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap();
    let info = |version| format!("# Server\r\nredis_version:{version}\r\nrun_id:0a\r\n");
    let new = info("7.0.15");
    assert!(is_supported(Some(&new), &Value::Int(0), &node));
    assert!(is_supported(Some(&info("8.2.1")), &Value::Int(1), &node));
    let moved = error("MOVED 3999 127.0.0.1:6381");
    assert!(is_supported(Some(&new), &moved, &node), "another node holds the key");
    assert!(!is_supported(Some(&info("6.2.14")), &Value::Int(0), &node));
    assert!(!is_supported(None, &Value::Int(0), &node), "INFO is denied");
    assert!(!is_supported(Some("# Server\r\n"), &Value::Int(0), &node));
    for denied in ["NOPERM no permissions", "ERR Unsupported option NX"] {
        assert!(!is_supported(Some(&new), &error(denied), &node), "{denied}");
    }
    assert!(!is_supported(Some(&new), &Value::Nil, &node));
}

#[test]
fn a_denied_expire_differs_from_one_that_another_node_would_execute() {
    let node = Address::Tcp("127.0.0.1".into(), 6379);
    let error = |line: &str| redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap();
    for denied in ["NOPERM no permissions", "ERR syntax error"] {
        assert!(is_denied(&error(denied), &node), "{denied}");
    }
    for other in ["MOVED 1 127.0.0.1:1", "ASK 1 127.0.0.1:1", "CLUSTERDOWN", "READONLY"] {
        assert!(!is_denied(&error(other), &node), "{other}");
    }
    assert!(!is_denied(&Value::Int(0), &node));
}

/// Start of a window of a minute, in microseconds since the Unix epoch.
const START: Micros = Micros(1_763_596_800_000_000);
const MINUTE: Micros = Micros::from_secs(60);

/// Creates a charge of `cost` hits to a counter with a limit of 200 per minute.
fn charge(counter: u128, cost: u32) -> PlainCharge {
    PlainCharge {
        counter: counter.into(),
        key: key(counter).into_bytes().into(),
        cost,
        capacity: 200,
        window_length: MINUTE,
        slot: None,
    }
}

fn key(counter: u128) -> String {
    format!("tg1w:{{{counter}}}")
}

/// Returns the stored value of a counter with `count` hits in the window that begins at `START`.
fn stored(count: i64) -> i64 {
    i64::try_from(START.0 / MINUTE.0 % WINDOW_MODULUS * COUNT_SPAN).unwrap() + count
}

/// Charges the counters for several calls in one write. Returns the replies to each call, and the
/// refunds to write next.
fn complete(
    calls: Vec<Vec<PlainCharge>>,
    values: &[Result<i64, SendError>],
) -> (Vec<Option<CommandReply>>, CompletedCharges) {
    let mut merged = MergedCharges::default();
    let add = |charges: Vec<PlainCharge>| {
        let (sender, receiver) = reply_slot();
        merged.add(charges.into_iter().collect(), Some(ReplyTo::Caller(sender)));
        receiver
    };
    let receivers: Vec<_> = calls.into_iter().map(add).collect();
    let span = ServerTimeSpan { earliest: START, latest: START, is_certain: true };
    let reply = |value: &Result<i64, SendError>| {
        let is_node_unavailable = value.is_err();
        IncrbyReply { value: value.map(stored), is_node_unavailable }
    };
    let replies: Vec<IncrbyReply> = values.iter().map(reply).collect();
    let completed = merged.complete(&replies, Some(span));
    (receivers.iter().map(|receiver| receiver.take()).collect(), completed)
}

/// Returns the replies to the charges of a call that got some.
fn charged(reply: Option<CommandReply>) -> Vec<ChargeReply> {
    match reply {
        Some(CommandReply::Charged(replies)) => replies.to_vec(),
        other => panic!("{other:?}"),
    }
}

/// Returns the count that a reply reports.
fn count(reply: &ChargeReply) -> Option<u64> {
    match reply {
        ChargeReply::Passed(charge) | ChargeReply::Undecided(Some(charge)) => Some(charge.count),
        ChargeReply::Undecided(None) | ChargeReply::Unknown => None,
    }
}

#[test]
fn charges_to_one_counter_are_one_command() {
    let mut merged = MergedCharges::default();
    let calls = [
        vec![charge(2, 1)],
        vec![charge(1, 4), charge(2, 5)],
        vec![charge(3, 1)],
        vec![charge(2, 3)],
    ];
    for charges in calls {
        merged.add(charges.into_iter().collect(), None);
    }
    assert_eq!((merged.call_count(), merged.counter_count()), (4, 3));
    let mut pipeline = Pipeline::new();
    merged.write(&mut pipeline);
    let commands: Vec<Vec<u8>> =
        pipeline.cmd_iter().map(|command| command.get_packed_command()).collect();
    let mut expected = Pipeline::new();
    for (counter, cost) in [(2, 9), (1, 4), (3, 1)] {
        expected.cmd("INCRBY").arg(key(counter)).arg(cost);
    }
    // One window and a second.
    for counter in [2, 1, 3] {
        expected.cmd("EXPIRE").arg(key(counter)).arg(61).arg("NX");
    }
    let expected: Vec<Vec<u8>> =
        expected.cmd_iter().map(|command| command.get_packed_command()).collect();
    assert_eq!(commands, expected);
}

#[test]
fn each_charge_gets_its_own_count() {
    let calls = vec![
        vec![charge(2, 1)],
        vec![charge(1, 4), charge(2, 5)],
        vec![charge(3, 1)],
        vec![charge(2, 3)],
    ];
    let busy = SendError::not_executed(SendErrorKind::Busy);
    // Counter 2 had 100 hits before.
    let (replies, completed) = complete(calls, &[Ok(109), Ok(54), Err(busy)]);
    assert_eq!((completed.unavailable_calls, completed.refunds.len()), (1, 0));
    let counts: Vec<Vec<Option<u64>>> =
        replies.into_iter().map(|reply| charged(reply).iter().map(count).collect()).collect();
    let expected = [vec![Some(101)], vec![Some(54), Some(106)], vec![None], vec![Some(109)]];
    assert_eq!(counts, expected);
}

#[test]
fn a_charge_that_does_not_pass_is_refunded_before_its_caller_gets_the_reply() {
    let calls = vec![vec![charge(1, 2), charge(2, 3)], vec![charge(1, 4)]];
    // Counter 1 had 100 hits before, and counter 2 had 198.
    let (replies, completed) = complete(calls, &[Ok(106), Ok(201)]);
    assert!(replies[0].is_none(), "its refund comes first");
    let passed = charged(replies.into_iter().nth(1).flatten());
    assert!(matches!(passed[..], [ChargeReply::Passed(WindowCharge { count: 106, .. })]));
    let [refund] = &completed.refunds[..] else { panic!("{completed:?}") };
    let NodeCommand::Script(call) = &refund.call else { panic!("{refund:?}") };
    let limit = Arc::new(fixed_window(200, MINUTE));
    let receipts = [(1_u128, 2), (2, 3)].map(|(identity, hits)| Receipt {
        key: CounterKey { identity, tag: None },
        limit: Arc::clone(&limit),
        taken: ChargeRecord { hits: Hits(hits), at: START, window: START, entry: 0 },
    });
    let encoder = Encoder::new(Prefix::default(), &PRODUCTION, false);
    let by_receipt = encoder.encode_refund(&receipts, None);
    // The same command but for the keys, which are readable in this test.
    let tail = |call: &ScriptCall| -> Vec<Vec<u8>> {
        let bytes = |argument: redis::Arg<&[u8]>| match argument {
            redis::Arg::Simple(bytes) => bytes.to_vec(),
            _ => Vec::new(),
        };
        call.command.args_iter().skip(5).map(bytes).collect()
    };
    assert_eq!(tail(call), tail(&by_receipt));
    assert!(call.script.is_refund());
}

#[test]
fn a_refund_that_cannot_be_written_passes_the_replies_on() {
    let (sender, receiver) = reply_slot();
    let replies = ChargeReplies::from_iter([ChargeReply::Undecided(None)]);
    let limit = [WindowRefund {
        key: b"tg1w:{1}",
        slot: None,
        hits: 1,
        charged_at: START,
        window: START,
        window_length: MINUTE,
        capacity: 200,
    }];
    let refund = PendingCommand::refund(encode_window_refunds(&limit), sender, replies);
    assert!(refund.mark_written(), "it is written even if its caller has left");
    refund.reject(SendErrorKind::BreakerOpen);
    assert_eq!(charged(receiver.take()), [ChargeReply::Undecided(None)]);
}

#[test]
fn an_error_reply_means_that_nothing_was_charged() {
    let node = Address::Tcp("127.0.0.1".into(), 6379);
    let decode = |reply: Value| {
        let (value, error) = decode_charge_reply(&reply, &node);
        (value, error.is_some())
    };
    assert_eq!(decode(Value::Int(7)), (Ok(7), false));
    for (line, kind) in [
        ("MOVED 1 127.0.0.1:1", SendErrorKind::Reconfiguring),
        ("TRYAGAIN half", SendErrorKind::Reconfiguring),
        ("READONLY replica", SendErrorKind::LoadingOrReplica),
        ("NOPERM no permissions", SendErrorKind::Denied),
        ("ERR value is not an integer", SendErrorKind::Script),
    ] {
        let error = redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap();
        assert_eq!(decode(error), (Err(SendError::not_executed(kind)), true), "{line}");
    }
    assert_eq!(decode(Value::Nil), (Err(SendError::LOST), false), "it may have been charged");
}

#[test]
fn an_error_of_the_call_applies_to_each_of_its_charges() {
    let full = SendError::not_executed(SendErrorKind::QueueFull);
    let not_made = ChargeReply::Undecided(None);
    let replies = |reply: CommandReply, count: usize| into_charge_replies(reply, count).to_vec();
    assert_eq!(replies(CommandReply::Failed(full), 2), [not_made; 2]);
    assert_eq!(replies(CommandReply::Failed(SendError::LOST), 1), [ChargeReply::Unknown]);
    let charged = || CommandReply::Charged(ChargeReplies::from_iter([not_made]));
    assert_eq!(replies(charged(), 1), [not_made]);
    assert_eq!(replies(charged(), 2), [ChargeReply::Unknown; 2], "the numbers differ");
    assert_eq!(replies(CommandReply::Value(Value::Int(1)), 1), [ChargeReply::Unknown]);
}
