//! The headers of the scripts in `lua/` document what the Rust side sends.

use tidegate::domain::{
    Accounting, Algorithm, Call, ChargeRecord, Check, Hits, Holder, Limit, Micros, Receipt, Role,
    Unit,
};
use tidegate::store::redis::script::arguments::{CallScope, Encoder};
use tidegate::store::redis::script::call;
use tidegate::store::redis::script::keys::Prefix;
use tidegate::store::redis::script::library::{LUA_FILES, PRODUCTION, STRICT, ScriptCall};
use tidegate::store::redis::script::msgpack::Packed;

use crate::support::limits::*;
use crate::support::redis_server::Server;
use crate::support::script_bench::encode_call;

fn file(path: &str) -> &'static str {
    LUA_FILES
        .iter()
        .find(|(name, _)| *name == path)
        .unwrap_or_else(|| panic!("{path} is bundled"))
        .1
}

fn header(path: &str) -> impl Iterator<Item = &'static str> {
    file(path).lines().take_while(|line| line.starts_with("--") || line.starts_with("#!"))
}

/// The names after `ARGV[1]`, `ARGV[2]`, …
fn argv(path: &str) -> Vec<&'static str> {
    let lines = header(path).filter_map(|line| line.strip_prefix("-- ARGV["));
    lines
        .enumerate()
        .map(|(n, line)| {
            let (number, rest) = line.split_once(']').unwrap();
            assert_eq!(number.parse(), Ok(n + 1), "in order");
            rest.trim().split(':').next().unwrap()
        })
        .collect()
}

/// The names after `+1`, `+2`, … : a list for each time that the numbers begin anew, and of lines
/// with two columns one for the right column.
fn lists(path: &str) -> Vec<Vec<&'static str>> {
    let mut lists: Vec<Vec<&str>> = Vec::new();
    let mut right: Option<usize> = None;
    for line in header(path) {
        let entries = line.match_indices('+').filter_map(|(at, _)| {
            let (number, rest) = line[at + 1..].split_once("  ")?;
            Some((number.parse::<usize>().ok()?, rest.trim().split([':', ' ']).next()?))
        });
        for (nth, (number, name)) in entries.enumerate() {
            if number == 1 {
                lists.push(Vec::new());
                right = (nth == 1).then(|| lists.len() - 1);
            }
            let list = match (nth, right) {
                (0, Some(right)) => right - 1,
                _ => lists.len() - 1,
            };
            assert_eq!(number, lists[list].len() + 1, "{path}: in order: {line}");
            lists[list].push(name);
        }
    }
    lists
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

/// The values of one argument in MessagePack, as text: nil as `-`, 16 bytes as a holder.
fn unpacked(mut bytes: &[u8]) -> Vec<String> {
    let mut values = Vec::new();
    while let Some((first, rest)) = bytes.split_first() {
        let (value, len) = match *first {
            0xc0 => ("-".to_owned(), 0),
            small @ 0..0x80 => (small.to_string(), 0),
            0xce => (u32::from_be_bytes(*rest.first_chunk().unwrap()).to_string(), 4),
            0xcf => (u64::from_be_bytes(*rest.first_chunk().unwrap()).to_string(), 8),
            0xb0 => (format!("holder {}", u128::from_be_bytes(*rest.first_chunk().unwrap())), 16),
            // An id of 14 bytes.
            0xae if rest[0] == 0 => {
                (format!("id {}", u64::from_be_bytes(*rest[6..].first_chunk().unwrap())), 14)
            }
            text @ 0xa0..0xc0 => {
                let len = usize::from(text & 0x1f);
                (String::from_utf8(rest[..len].to_vec()).unwrap(), len)
            }
            other => panic!("{other:#x} is no form that Rust packs"),
        };
        values.push(value);
        bytes = &rest[len..];
    }
    values
}

/// Holds `<name>=<value> …` to names from a header and the values that were sent. Values that are
/// absent at the end stand as nothing.
fn assert_named(names: &[&str], values: &[String], expected: &str) {
    assert!(values.len() <= names.len(), "{names:?} name {values:?}");
    let named: Vec<String> =
        names.iter().zip(values).map(|(name, value)| format!("{name}={value}")).collect();
    assert_eq!(named.join(" "), expected);
}

fn encoder() -> Encoder {
    Encoder::new(Prefix::default(), &PRODUCTION, false)
}

/// The values after those of a counter's place in `decide.lua`, of a call by itself.
fn sent_to_decide(checks: &[Check<'_>]) -> [Vec<String>; 3] {
    let call = encode_call(&encoder(), checks, Accounting::AllOrNothing, None, START);
    assert_eq!(call.script.name, "decide");
    let sent = words(&call);
    assert_eq!(sent[0], b"");
    let bytes = sent[2].iter().map(u8::to_string).collect();
    [unpacked(&sent[1]), bytes, sent.get(3).map_or(Vec::new(), |values| unpacked(values))]
}

#[test]
fn decide_gets_what_its_header_and_each_algorithm_name() {
    let path = "decide.lua";
    assert_eq!(argv(path), ["now_us", "limits", "bytes", "values", "keys"]);
    let [of_limit, of_counter, of_call, of_check, of_other, ..] = &lists(path)[..] else {
        panic!("five lists")
    };
    let holds = |algorithm: &str, limit: &std::sync::Arc<Limit>, expected: &str| {
        let [limits, bytes, values] = sent_to_decide(&[take(key(1), limit, 2)]);
        let [limit] = &lists(algorithm)[..] else { panic!("one list") };
        assert_eq!(of_limit.last(), Some(&"limit"));
        let names: Vec<&str> = of_limit[..8].iter().chain(limit).copied().collect();
        assert_named(&names, &limits, expected);
        let names: Vec<&str> =
            [of_counter, of_call, of_check].into_iter().flatten().copied().collect();
        assert_named(&names, &bytes, "at=1 checks=1 cost=2 place=1");
        assert!(values.is_empty(), "{values:?}");
    };
    let path = "algorithm/fixed_window.lua";
    let expected = "most=5 unit=1 zero=- top=9999999999 number=- rate=- next=12 letter=w hits=5 \
                    unit_us=1000000 previous=-";
    holds(path, &window(5, SECOND), expected);
    let path = "algorithm/bucket.lua";
    let expected = "most=50 unit=10 zero=- top=50 number=- rate=1 next=14 letter=b burst=5 cap=50 \
                    unit=10 rate=1 floor=0";
    holds(path, &bucket(5, 10), expected);
    let expected = "most=30 unit=10 zero=- top=100 number=- rate=1 next=14 letter=b burst=5 cap=100 \
                    unit=10 rate=1 floor=3";
    holds(path, &billed(&floored(&bucket(5, 10), 3)), expected);
    let expected = "most=0 unit=0 zero=- top=- number=- rate=- next=13 letter=s hits=5 \
                    cap=4294967295 length_us=60000000 tick_us=1000";
    holds("algorithm/sliding_window.lua", &sliding_window(5, MINUTE), expected);

    let (w, a) = (window(5, SECOND), bucket(5, 10));
    let asked = Check { role: Role::Shadow, ..peek(key(2), &w) };
    let [_, bytes, values] = sent_to_decide(&[take(key(1), &a, 2), asked]);
    assert_eq!(bytes, [""; 0]);
    assert_eq!(of_other[1..], ["accounting", "checks"]);
    // The limits of both counters, the call, then place, cost, limit, operation, and role of each.
    let expected = "1 14 0 all_or_nothing 2 1 2 1 take required 2 1 14 peek shadow";
    assert_eq!(values.join(" "), expected);
}

#[test]
fn apply_gets_what_its_header_and_each_algorithm_name() {
    let path = "decide_call.lua";
    assert_eq!(argv(path), ["now_us", "accounting", "stride", "checks", "keys"]);
    let [of_check] = &lists(path)[..] else { panic!("one list") };
    assert_eq!(of_check.last(), Some(&"limit"));
    let holds = |algorithm: &str, check: Check<'_>, expected: &str| {
        // The same counter twice: decide.lua does not take that.
        let twice = [check, check];
        let call = encode_call(&encoder(), &twice, Accounting::Independent, Some(Micros(9)), START);
        assert_eq!(call.script.name, "decide_call");
        let sent = words(&call);
        assert_eq!(sent[..2], [b"9".as_slice(), b"independent"]);
        let values = unpacked(&sent[3]);
        let stride: usize = std::str::from_utf8(&sent[2]).unwrap().parse().unwrap();
        assert_eq!(values.len(), 2 * stride);
        assert_eq!(values[..stride], values[stride..]);
        let [limit] = &lists(algorithm)[..] else { panic!("one list") };
        let names: Vec<&str> = of_check[..4].iter().chain(limit).copied().collect();
        let shares = names.iter().position(|name| *name == "and").unwrap_or(names.len());
        assert_named(&names[..shares], &values[..stride.min(shares)], expected);
    };
    let path = "algorithm/fixed_window.lua";
    let expected = "letter=w op=take role=required cost=2 hits=5 unit_us=1000000 previous=-";
    holds(path, take(key(1), &window(5, SECOND), 2), expected);
    let day = calendar(5, Unit::Day, "UTC");
    let (start, length) = (START.0, 24 * HOUR);
    let expected = format!(
        "letter=k op=peek role=required cost=1 hits=5 unit_us=1000000 \
         previous={} current={start} following={} last={}",
        start - length,
        start + length,
        start + 2 * length
    );
    holds(path, peek(key(1), &day), &expected);
    let expected = "letter=b op=debt role=required cost=9 burst=5 cap=100 unit=10 rate=1 floor=3";
    let classes = always(&floored(&bucket(5, 10), 3));
    holds("algorithm/bucket.lua", take(key(1), &classes, 9), expected);
    let expected = "letter=s op=take role=required cost=2 hits=5 cap=4294967295 length_us=60000000 tick_us=1000";
    holds("algorithm/sliding_window.lua", take(key(1), &sliding_window(5, MINUTE), 2), expected);
    let expected = "letter=g op=take role=required cost=2 hits=5 cap=5 length_us=60000000";
    holds("algorithm/sliding_log.lua", take(key(1), &sliding_log(5, MINUTE), 2), expected);
    let expected =
        "letter=c op=take role=required cost=2 slots=5 lease_us=60000000 holder=holder 7";
    let seats = slots(5, MINUTE);
    let held = Check { holder: Some(Holder(7)), ..take(key(1), &seats, 2) };
    holds("algorithm/concurrency.lua", held, expected);
    let expected = "letter=h op=take role=required cost=2 burst=200 unit=100000000 tick_us=1 \
                    hits=40 class=2 floor=24 expiry=5000000 classes=3";
    let classes = hybrid(200, 40, SECOND, &[20, 20, 20], 1);
    holds("algorithm/hybrid.lua", take(key(1), &classes, 2), expected);

    // A budget: six values for its window, then its own.
    let limit = reserved(&window(5, SECOND), 60);
    let checks = [hold(key(1), &limit, 7, 2)];
    let call = encode_call(&encoder(), &checks, Accounting::Independent, Some(Micros(9)), START);
    let [of_window] = &lists("algorithm/fixed_window.lua")[..] else { panic!("one list") };
    let [own] = &lists("algorithm/budget.lua")[..] else { panic!("one list") };
    let names: Vec<&str> = [&of_check[..4], of_window, own].concat();
    let expected = "letter=rw op=hold role=required cost=2 hits=5 unit_us=1000000 previous=- current=- \
                    following=- last=- holds=2 id=id 7 ttl_us=60000000";
    assert_named(&names, &unpacked(&words(&call)[3]), expected);
}

/// In both scripts the check of a block precedes that of its counter, and so do their keys.
#[test]
fn a_block_precedes_its_counter() {
    let limit = blocking(&window(5, SECOND), 2);
    let checks = [take(key(1), &limit, 1)];
    let [limits, bytes, values] = sent_to_decide(&checks);
    assert_eq!(bytes, [""; 0]);
    assert_eq!(limits[..9].join(" "), "0 0 - - - - 10 x 2000000");
    assert_eq!(
        values.join(" "),
        "1 10 0 all_or_nothing 2 1 0 1 blocks shadow 2 1 10 take required"
    );
    let keys = |checks: &[Check<'_>]| {
        let call = encode_call(&encoder(), checks, Accounting::AllOrNothing, None, START);
        let names = call.command.args_iter().filter_map(|arg| match arg {
            redis::Arg::Simple(bytes) if bytes.starts_with(b"tg1") => Some(char::from(bytes[3])),
            _ => None,
        });
        names.collect::<String>()
    };
    assert_eq!(keys(&checks), "xw");
    assert_eq!(keys(&[checks[0], peek(key(2), &window(1, SECOND)), checks[0]]), "xwwxw");
    assert_eq!(keys(&[refund(key(1), &limit, 1)]), "w", "a refund has nothing to do with a block");
    let call = encode_call(&encoder(), &[checks[0]; 2], Accounting::AllOrNothing, None, START);
    let values = unpacked(&words(&call)[3]);
    assert_eq!(values[..5].join(" "), "x blocks shadow 0 2000000");
}

#[test]
fn a_call_in_several_slots_of_a_node_has_its_keys_after_the_same_arguments() {
    let (w, a) = (window(5, SECOND), bucket(5, 10));
    let checks = [take(key(1), &w, 1), take(key(2), &a, 2)];
    let twice = [checks[0], checks[0]];
    let accounting = Accounting::AllOrNothing;
    for (checks, name) in [(&checks, "decide"), (&twice, "decide_call")] {
        let expected = words(&encode_call(&encoder(), checks, accounting, None, START));
        let call = Call { checks, accounting, now: START, deadline: None };
        let scope = CallScope { spans_slots: true, is_part: false };
        let call = call::encode(&encoder(), &call, scope, None);
        assert_eq!(call.script.name, name);
        let sent = words(&call);
        assert_eq!(sent[..expected.len()], expected);
        let keys = checks
            .iter()
            .map(|check| Prefix::default().key(&check.key, &check.limit.algorithm).to_vec());
        assert_eq!(sent[4..], keys.collect::<Vec<_>>(), "ARGV[5]");
    }
    let call = Call { checks: &twice, accounting, now: START, deadline: None };
    let scope = CallScope { spans_slots: true, is_part: true };
    assert_eq!(words(&call::encode(&encoder(), &call, scope, None))[1], b"part");
}

#[test]
fn a_receipt_is_sent_with_what_the_header_names() {
    let path = "refund.lua";
    assert_eq!(argv(path), ["now_us", "stride", "receipts"]);
    let [of_receipt] = &lists(path)[..] else { panic!("one list") };
    let taken =
        ChargeRecord { hits: Hits(3), at: Micros(77), window: Micros(60_000_000), entry: 0 };
    let receipt = |n, limit| Receipt { key: key(n), limit, taken };
    let receipts = [receipt(1, window(5, MINUTE)), receipt(2, credits(5, 7, SECOND))];
    let sent = words(&encoder().encode_refund(&receipts, None));
    assert_eq!(sent[..2], [b"".as_slice(), b"10"]);
    let values = unpacked(&sent[2]);
    assert_named(
        &of_receipt[..5],
        &values[..5],
        "letter=w hits=3 taken_at=77 window=60000000 entry=0",
    );
    assert_eq!(values[5..10], ["5", "60000000", "-", "-", "-"]);
    assert_named(
        &of_receipt[..5],
        &values[10..15],
        "letter=b hits=3 taken_at=77 window=60000000 entry=0",
    );
    assert_eq!(values[15..], ["5", "5000000", "1000000", "7", "0"]);
}

#[test]
fn every_file_says_its_purpose_and_every_script_its_keys_arguments_state_reply_and_cost() {
    for (path, text) in LUA_FILES {
        let header: Vec<&str> = header(path).collect();
        assert_eq!(header[0], "#!lua", "{path}");
        assert!(header[1].starts_with("-- "), "{path}");
        let is_script =
            PRODUCTION.all().iter().any(|script| *path == format!("{}.lua", script.name));
        let words: &[&str] = match () {
            () if is_script => &["-- KEYS[", "-- ARGV[1]", "-- State ", "-- Reply ", "-- Cost "],
            () if path.starts_with("algorithm/") => &["-- limit ", "-- State ", "-- Expiry "],
            () => &[],
        };
        for word in words {
            assert!(text.lines().any(|line| line.starts_with(word)), "{path} lacks {word}");
        }
    }
}

#[test]
fn production_runs_the_same_text_without_the_first_line() {
    for (plain, strict) in PRODUCTION.all().iter().zip(STRICT.all()) {
        let flags = if plain.name == "refund" { "" } else { " flags=allow-cross-slot-keys" };
        assert_eq!(format!("#!lua{flags}\n{}", plain.text), strict.text);
        assert!(!plain.text.contains("loadfile"), "every file was found");
        assert_eq!(plain.sha.len(), 40);
        assert_ne!(plain.sha, strict.sha);
    }
}

#[test]
fn every_letter_of_a_key_names_an_algorithm() {
    let zones = calendar(1, Unit::Day, "UTC");
    let mut leaky = Limit::clone(&bucket(1, 1));
    if let Algorithm::Bucket(bucket) = &mut leaky.algorithm {
        bucket.leaky = true;
    }
    let limits = [
        window(1, SECOND),
        zones,
        bucket(1, 1),
        leaky.into(),
        sliding_window(1, SECOND),
        sliding_log(1, SECOND),
        slots(1, SECOND),
        hybrid(1, 1, SECOND, &[100], 0),
    ];
    let letters = limits.map(|limit| {
        let text = Prefix::default().key(&key(1), &limit.algorithm);
        char::from(text["tg1".len()])
    });
    for letter in letters {
        let named = format!("letter == '{letter}'");
        assert!(file("algorithms.lua").contains(&named), "{letter}");
    }
}

#[test]
fn no_script_turns_a_number_into_text_on_its_own() {
    for (path, text) in LUA_FILES {
        for line in text.lines().filter(|line| !line.trim_start().starts_with("--")) {
            assert!(!line.contains("tostring"), "{path}: {line}");
            // What cmsgpack.pack returns is a text.
            let rounds = line
                .replace(" .. cmsgpack.pack(", "")
                .replace("(...)", "")
                .replace("= ...", "")
                .replace(", ...", "")
                .contains("..");
            assert!(!rounds, "{path}: concatenation rounds to 14 digits: {line}");
        }
    }
}

#[tokio::test]
async fn redis_unpacks_the_numbers_that_rust_packed() {
    let numbers = [0, 1, 127, 128, 65_535, 65_536, u64::from(u32::MAX), 1 << 32, (1 << 53) - 1];
    let mut packed = Packed::default();
    numbers.iter().for_each(|number| packed.push_number(*number));
    let script = "local n = { cmsgpack.unpack(ARGV[1]) }
        for i = 1, #n do n[i] = string.format('%.0f', n[i]) end
        return n";
    let server = Server::start(&[]);
    let mut eval = redis::cmd("EVAL");
    eval.arg(script).arg(0).arg(packed.as_slice());
    let read: Vec<u64> = eval.query_async(&mut server.connect().await).await.unwrap();
    assert_eq!(read, numbers);
}
