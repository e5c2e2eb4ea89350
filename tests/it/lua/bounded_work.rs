//! What one script call does at most: commands and members, however much a call asks for.
//!
//! Not here: which calls are too much work (`decisions/work_bound.rs`).

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::sync::Arc;

use tidegate::domain::{Accounting, Check, Holder, Limit, Micros, Receipt, Verdict};
use tidegate::store::Store as _;
use tidegate::store::redis::script::keys::Prefix;
use tidegate::store::redis::script::library::PRODUCTION;
use tidegate::store::redis::store::{RedisStore, TimeSource};

use crate::support::limits::*;
use crate::support::script_bench::Bench;

fn by<'a>(check: Check<'a>, holder: u64) -> Check<'a> {
    Check { holder: Some(Holder(spread(holder))), ..check }
}

/// How often each command was called since the last look, inner calls of scripts included.
async fn commands(bench: &Bench) -> Vec<(String, u64)> {
    let text: String = bench.command(&[b"INFO", b"commandstats"]).await;
    bench.command::<()>(&[b"CONFIG", b"RESETSTAT"]).await;
    let lines = text.lines().filter_map(|line| line.strip_prefix("cmdstat_"));
    let parse = |line: &str| {
        let (name, rest) = line.split_once(":calls=")?;
        Some((name.to_owned(), rest.split(',').next()?.parse().ok()?))
    };
    lines.filter_map(parse).collect()
}

/// The commands that a call runs in its script, and whether all of its checks pass.
async fn cost(bench: &Bench, checks: &[Check<'_>], accounting: Accounting) -> (u64, bool) {
    commands(bench).await;
    let outcomes = bench.decide(checks, accounting, None).await;
    let ours = ["evalsha", "info", "config|resetstat", "script|load"];
    let each = commands(bench).await;
    let inner = each.iter().filter(|(name, _)| !ours.contains(&name.as_str()));
    (inner.map(|(_, calls)| calls).sum(), outcomes.iter().all(|o| o.verdict == Verdict::Pass))
}

async fn members(bench: &Bench, check: &Check<'_>) -> u64 {
    bench.command(&[b"ZCARD", &bench.text(check)]).await
}

#[tokio::test]
async fn a_hundred_holders_of_a_call_cost_at_most_three_times_the_commands_of_one() {
    let bench = Bench::new(&PRODUCTION, &[]).await;
    let limit = slots(1_000, HOUR);
    let takes = |n: u64, holders: u64, hits: u64| -> Vec<Check<'_>> {
        (0..holders).map(|holder| by(take(key(n), &limit, hits), holder)).collect()
    };
    let releases: Vec<_> = (0..100).map(|holder| by(refund(key(2), &limit, 0), holder)).collect();
    for hits in [1, 3] {
        bench.command::<()>(&[b"FLUSHALL"]).await;
        let (one, _) = cost(&bench, &takes(1, 1, hits), Accounting::AllOrNothing).await;
        for (what, checks) in [
            ("taken", takes(2, 100, hits)),
            ("renewed", takes(2, 100, hits)),
            ("fewer slots", takes(2, 100, 1)),
            ("released", releases.clone()),
        ] {
            let (hundred, passes) = cost(&bench, &checks, Accounting::AllOrNothing).await;
            assert!(passes, "{what}");
            assert!(hundred <= 3 * one, "{what}, {hits} slots each: {hundred}, one costs {one}");
        }
        assert_eq!(members(&bench, &releases[0]).await, 0, "nothing is left");
    }
}

/// The members that the scripts' calls of a command name after the key, while `run` runs.
async fn named_members(bench: &Bench, command: &str, run: impl Future<Output = ()>) -> usize {
    let mut watcher = TcpStream::connect(("127.0.0.1", bench.port())).unwrap();
    watcher.write_all(b"MONITOR\r\n").unwrap();
    let mut lines = BufReader::new(watcher).lines().map(Result::unwrap);
    assert_eq!(lines.next().unwrap(), "+OK");
    run.await;
    bench.command::<()>(&[b"ECHO", b"the end"]).await;
    let lines = lines.take_while(|line| !line.ends_with("\"the end\""));
    let named = lines.filter_map(|line| {
        let words = line.split_once(&format!(" lua] \"{command}\" "))?.1.matches("\" \"").count();
        Some(words)
    });
    named.sum()
}

#[tokio::test]
async fn holders_of_one_slot_each_are_looked_up_once() {
    let bench = Bench::new(&PRODUCTION, &[]).await;
    let limit = slots(1_000, HOUR);
    let takes: Vec<_> = (0..100).map(|holder| by(take(key(1), &limit, 1), holder)).collect();
    bench.decide(&takes, Accounting::AllOrNothing, None).await;
    let renew = async {
        bench.decide(&takes, Accounting::AllOrNothing, None).await;
    };
    let looked_up = named_members(&bench, "ZMSCORE", renew).await;
    assert_eq!(looked_up, 101, "each holder, and the sum of further slots");
}

#[tokio::test]
async fn a_holder_of_many_slots_has_two_members_and_costs_as_much_as_one_of_few() {
    let bench = Bench::new(&PRODUCTION, &[]).await;
    let limit = slots(10_000, HOUR);
    let few = by(take(key(1), &limit, 2), 1);
    let (least, _) = cost(&bench, &[few], Accounting::AllOrNothing).await;
    let all = by(take(key(2), &limit, 10_000), 1);
    let (most, passes) = cost(&bench, &[all], Accounting::AllOrNothing).await;
    assert!(passes);
    assert_eq!(most, least);
    assert_eq!(members(&bench, &all).await, 3, "its lease, its slots, and their sum");
    let (refused, passes) =
        cost(&bench, &[by(take(key(2), &limit, 1), 2)], Accounting::AllOrNothing).await;
    assert!(!passes && refused <= least + 3, "{refused}");
    let (released, _) =
        cost(&bench, &[by(refund(key(2), &limit, 0), 1)], Accounting::AllOrNothing).await;
    assert!(released <= least + 1, "{released}");
    assert_eq!(members(&bench, &all).await, 0);
}

#[tokio::test]
async fn a_wait_for_slots_is_read_in_few_commands_however_many_holders_there_are() {
    let bench = Bench::new(&PRODUCTION, &[]).await;
    let limit = slots(2_000, HOUR);
    let checks: Vec<_> = (0..900).map(|n| by(take(key(1), &limit, 2), n)).collect();
    bench.decide(&checks, Accounting::AllOrNothing, None).await;
    let asks: Vec<_> = (0..20).map(|n| by(take(key(1), &limit, 1_900 + n), 5_000 + n)).collect();
    let (commands, passes) = cost(&bench, &asks, Accounting::Independent).await;
    assert!(!passes);
    assert!(commands < 40, "{commands}");
}

#[tokio::test]
async fn expired_holders_are_read_once() {
    let bench = Bench::new(&PRODUCTION, &[]).await;
    let (short, limit) = (slots(2_000, 1_000), slots(2_000, HOUR));
    let checks: Vec<_> = (0..500).map(|n| by(take(key(1), &short, 2), n)).collect();
    let keeper = by(take(key(1), &limit, 1), 9_999);
    bench.decide(&[&checks[..], &[keeper]].concat(), Accounting::Independent, None).await;
    let asks = peek(key(1), &limit);
    while bench.one(asks, None).await.available.0 < 1_999 {}
    assert_eq!(members(&bench, &asks).await, 1, "only the lease that has not ended");
}

/// A transport's script calls are counted by the server.
async fn refund_calls(bench: &Bench, limit: &Arc<Limit>, count: u64) -> u64 {
    let checks: Vec<_> = (0..count).map(|_| take(key(1), limit, 1)).collect();
    let outcomes = bench.decide(&checks, Accounting::AllOrNothing, None).await;
    let receipts: Vec<_> =
        checks.iter().zip(&outcomes).filter_map(|(c, o)| Receipt::for_check(c, o)).collect();
    assert_eq!(receipts.len() as u64, count);
    let store = RedisStore::new(bench.plain.clone(), Prefix::default(), TimeSource::Server);
    store.refund(&receipts).await;
    commands(bench).await;
    bench.decide(&checks, Accounting::AllOrNothing, None).await;
    let receipts: Vec<_> = receipts
        .iter()
        .map(|receipt| {
            let taken = tidegate::domain::ChargeRecord { at: Micros(1), ..receipt.taken };
            Receipt { taken, ..receipt.clone() }
        })
        .collect();
    commands(bench).await;
    store.refund(&receipts).await;
    let calls = commands(bench).await;
    calls.iter().find(|(name, _)| name == "evalsha").map_or(0, |(_, calls)| *calls)
}

#[tokio::test]
async fn refunds_that_may_rewrite_long_logs_are_several_script_calls() {
    let bench = Bench::new(&PRODUCTION, &[]).await;
    assert_eq!(refund_calls(&bench, &window(10_000, HOUR), 100).await, 1);
    bench.command::<()>(&[b"FLUSHALL"]).await;
    assert_eq!(refund_calls(&bench, &sliding_log(10_000, HOUR), 10).await, 5);
}

#[tokio::test]
async fn a_refund_reads_a_log_with_one_command_however_many_takes_came_later() {
    let bench = Bench::new(&PRODUCTION, &[]).await;
    let limit = sliding_log(10_000, HOUR);
    let first = bench.one(take(key(1), &limit, 1), None).await;
    for _ in 0..3 {
        let later = vec![take(key(1), &limit, 1); 400];
        bench.decide(&later, Accounting::AllOrNothing, None).await;
    }
    let receipt = Receipt::for_check(&take(key(1), &limit, 1), &first).unwrap();
    commands(&bench).await;
    bench.plain.run(&bench.encoder.encode_refund(&[receipt], None)).await.unwrap();
    let each = commands(&bench).await;
    let reads = each.iter().find(|(name, _)| name == "getrange").map_or(0, |(_, calls)| *calls);
    assert!(reads < 40, "{reads}");
    let left = bench.one(peek(key(1), &limit), None).await;
    assert_eq!(left.available.0, 10_000 - 1_200);
}
