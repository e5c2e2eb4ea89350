//! The headers in `lua/` say what the Rust side sends.

use tidegate::domain::{Accounting, ChargeRecord, Hits, Micros, Receipt};
use tidegate::store::redis::client::transport::ScriptCall;
use tidegate::store::redis::keys::Prefix;
use tidegate::store::redis::script::arguments::{Encoder, names};
use tidegate::store::redis::script::library::{PRODUCTION, STRICTLY, files};
use tidegate::store::redis::script::msgpack::Numbers;
use tidegate::store::redis::script::told;

use crate::support::limits::*;
use crate::support::redis_server::Server;

/// The names after `ARGV[1]`, `ARGV[2]`, …
fn argv(file: &str) -> Vec<&str> {
    let header = file.lines().filter_map(|line| line.strip_prefix("-- ARGV["));
    header
        .enumerate()
        .map(|(n, line)| {
            let (number, rest) = line.split_once(']').unwrap();
            assert_eq!(number.parse(), Ok(n + 1), "in order");
            rest.trim().split(':').next().unwrap()
        })
        .collect()
}

/// The names after `+1`, `+2`, … in the left column, and in the right one where there are two.
fn columns(file: &str) -> (Vec<String>, Vec<String>) {
    columns_from(file, 1)
}

/// The same of a file whose first number is `first`.
fn columns_from(file: &str, first: usize) -> (Vec<String>, Vec<String>) {
    let (mut left, mut right) = (Vec::new(), Vec::new());
    for line in file.lines().take_while(|line| line.starts_with("--") || line.starts_with("#!")) {
        let marks: Vec<usize> = line
            .match_indices('+')
            .filter(|(at, _)| {
                let rest = &line[at + 1..];
                rest.starts_with(|c: char| c.is_ascii_digit()) && rest[1..].starts_with("  ")
            })
            .map(|(at, _)| at)
            .collect();
        for at in &marks {
            let (number, rest) = line[at + 1..].split_once("  ").unwrap();
            let name = rest.trim().split([':', ' ']).next().unwrap().to_owned();
            // A line with one name at the left belongs to both columns.
            let at_left = *at < 10;
            let columns: &mut [&mut Vec<String>] = if at_left && marks.len() == 1 {
                &mut [&mut left, &mut right]
            } else if at_left {
                &mut [&mut left]
            } else {
                &mut [&mut right]
            };
            for column in columns {
                assert_eq!(number.parse(), Ok(column.len() + first), "in order: {line}");
                column.push(name.clone());
            }
        }
    }
    (left, right)
}

#[test]
fn the_headers_name_the_arguments_that_rust_sends() {
    assert_eq!(argv(files::FIXED_WINDOW), names::FIXED_WINDOW);
    assert_eq!(argv(files::BUCKET), names::BUCKET);
    assert_eq!(argv(files::TAKES), names::TAKES);
    assert_eq!(argv(files::APPLY), names::APPLY);
    let (call, each) = files::TAKES.split_once("then of each check").unwrap();
    assert_eq!(columns(call).0, names::TAKES_CALL);
    let (window, bucket) = columns(&format!("--{each}"));
    assert_eq!(window, names::TAKES_WINDOW);
    assert_eq!(bucket, names::TAKES_BUCKET);
    assert_eq!(argv(files::REFUND), names::REFUND);
    let (window, bucket) = columns(files::APPLY);
    assert_eq!(window, names::APPLY_WINDOW);
    assert_eq!(bucket, names::APPLY_BUCKET);
    let (window, bucket) = columns(files::REFUND);
    let (used, unused) = window.split_at(names::REFUND_WINDOW.len());
    assert_eq!(used, names::REFUND_WINDOW);
    assert_eq!(unused, ["not"], "not used");
    assert_eq!(bucket, names::REFUND_BUCKET);
}

#[test]
fn the_headers_name_the_arguments_of_the_other_algorithms() {
    assert_eq!(argv(files::SLIDING_WINDOW)[1..], told::names::SLIDING_WINDOW);
    let blocks: [(&str, &[&str]); 4] = [
        (files::CALENDAR, &told::names::CALENDAR),
        (files::SLIDING_LOG, &told::names::SLIDING_LOG),
        (files::CONCURRENCY, &told::names::CONCURRENCY),
        (files::HYBRID, &told::names::HYBRID),
    ];
    for (file, expected) in blocks {
        assert_eq!(columns_from(file, 2).0, expected);
    }
}

/// The arguments after the keys.
fn words(item: &ScriptCall) -> Vec<Vec<u8>> {
    let words: Vec<Vec<u8>> = item
        .command
        .args_iter()
        .map(|arg| match arg {
            redis::Arg::Simple(bytes) => bytes.to_vec(),
            _ => panic!("no cursors"),
        })
        .collect();
    assert_eq!(words[0], b"EVALSHA");
    assert_eq!(words[1], item.script.sha.as_bytes());
    let keys: usize = std::str::from_utf8(&words[2]).unwrap().parse().unwrap();
    words[3 + keys..].to_vec()
}

/// The same as text.
fn sent(item: &ScriptCall) -> Vec<String> {
    words(item).into_iter().map(|word| String::from_utf8(word).unwrap()).collect()
}

#[test]
fn the_commands_hold_what_the_lists_name() {
    let encoder = Encoder::new(Prefix::default(), &PRODUCTION, false);
    let (w, a, c) = (window(5, SECOND), bucket(5, 10), credits(5, 7, SECOND));
    let alone = |check| sent(&encoder.call(&[check], Accounting::AllOrNothing, None, START));
    assert_eq!(alone(take(key(1), &w, 2)), ["", "2", "5", "1000000"]);
    assert_eq!(alone(take(key(1), &a, 2)), ["", "20", "50"]);
    assert_eq!(alone(take(key(1), &a, 6)), ["", "51", "50"], "never fits");
    assert_eq!(alone(take(key(1), &c, 2)), ["", "2000000", "5000000", "7"]);

    let checks = [take(key(1), &c, 1), take(key(2), &a, 2), take(key(3), &w, 3)];
    let call = encoder.call(&checks, Accounting::AllOrNothing, None, START);
    let mut numbers = Numbers::default();
    #[rustfmt::skip]
    let expected = [
        1, 1, 1,
        3, 5, 1_000_000,
        20, 50,
        1_000_000, 5_000_000, 7,
    ];
    expected.into_iter().for_each(|number| numbers.push(number));
    assert_eq!(words(&call), [b"".as_slice(), numbers.as_slice()], "windows, arrivals, credits");

    let checks = [peek(key(1), &w), take(key(2), &c, 1), refund(key(3), &a, 2)];
    let call = encoder.call(&checks, Accounting::Independent, Some(Micros(9)), START);
    #[rustfmt::skip]
    let expected = [
        "9", "i", "4",
        "agr", "20", "50", "",
        "wpr", "1", "5", "1000000",
        "ctr", "1000000", "5000000", "7",
    ];
    assert_eq!(sent(&call), expected, "refunds first");

    let debts = [take(key(1), &always(&w), 9), take(key(2), &always(&a), 99)].map(|c| c.op);
    let (w, a) = (always(&w), always(&a));
    let checks = [check(key(1), &w, debts[0]), check(key(2), &a, debts[1])];
    let call = encoder.call(&checks, Accounting::AllOrNothing, None, START);
    #[rustfmt::skip]
    let expected = [
        "", "a", "5",
        "wdr", "9", "5", "1000000", "4294967295",
        "cdr", "100", "50", "1", "100",
    ];
    assert_eq!(sent(&call), expected);
}

#[test]
fn a_receipt_is_sent_with_what_the_list_names() {
    let encoder = Encoder::new(Prefix::default(), &PRODUCTION, false);
    let taken =
        ChargeRecord { hits: Hits(3), at: Micros(77), window: Micros(60_000_000), entry: 0 };
    let receipt = |n, limit| Receipt { key: key(n), limit, taken };
    let receipts = [receipt(1, window(5, MINUTE)), receipt(2, credits(5, 7, SECOND))];
    #[rustfmt::skip]
    let expected = [
        "",
        "w", "3", "60000000", "60000000", "0",
        "c", "3000000", "77", "5000000", "7",
    ];
    assert_eq!(sent(&encoder.refund(&receipts, None)), expected);
}

#[test]
fn every_file_says_purpose_keys_arguments_state_reply_and_cost() {
    for file in [files::FIXED_WINDOW, files::BUCKET, files::TAKES, files::APPLY, files::REFUND] {
        let header: Vec<&str> = file.lines().take_while(|line| !line.is_empty()).collect();
        assert_eq!(header[0], "#!lua");
        for word in ["-- KEYS[", "-- ARGV[1]", "-- State ", "-- Reply ", "-- Cost "] {
            let says = file.lines().any(|line| line.starts_with(word));
            assert!(says, "{} says nothing of {word}", header[1]);
        }
    }
}

#[test]
fn production_runs_the_same_text_without_the_first_line() {
    for (plain, strict) in PRODUCTION.each().iter().zip(STRICTLY.each()) {
        assert_eq!(format!("#!lua\n{}", plain.text), strict.text);
        assert!(!plain.text.contains("-- insert "), "every block was found");
        assert_eq!(plain.sha.len(), 40);
        assert_ne!(plain.sha, strict.sha);
    }
}

#[test]
fn no_script_turns_a_number_into_text_on_its_own() {
    for script in PRODUCTION.each() {
        let code = script.text.lines().filter(|line| !line.trim_start().starts_with("--"));
        for line in code {
            assert!(!line.contains("tostring"), "{line}");
            assert!(!line.contains(".."), "concatenation rounds to 14 digits: {line}");
        }
    }
}

#[tokio::test]
async fn redis_unpacks_the_numbers_that_rust_packed() {
    let numbers = [0, 1, 127, 128, 65_535, 65_536, u64::from(u32::MAX), 1 << 32, (1 << 53) - 1];
    let mut packed = Numbers::default();
    numbers.iter().for_each(|number| packed.push(*number));
    let script = "local n = { cmsgpack.unpack(ARGV[1]) }
        for i = 1, #n do n[i] = string.format('%.0f', n[i]) end
        return n";
    let server = Server::start(&[]);
    let mut eval = redis::cmd("EVAL");
    eval.arg(script).arg(0).arg(packed.as_slice());
    let read: Vec<u64> = eval.query_async(&mut server.connect().await).await.unwrap();
    assert_eq!(read, numbers);
}
