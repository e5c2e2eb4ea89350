//! One test for each rule of plain commands. Rules 6 and 8 are tested beside the hints, and rule 10
//! beside the refusal cache.

#![allow(clippy::disallowed_methods, reason = "waits for real time on a real server")]

use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use tidegate::domain::{
    Accounting, Answer, Answers, ChargeRecord, Check, ExecutionStatus, Hits, Limit, Micros,
    Receipt, Role, Source, Unit, Verdict,
};
use tidegate::store::redis::script::library::STRICT;
use tidegate::store::{SharedStore, Store};

use super::bench::{
    Bench, LENGTH, apply, at_a_windows_start, counted, text, until_after_window, window_now,
};
use crate::support::limits::*;
use crate::support::redis_server::until;
use crate::support::script_bench::Bench as ScriptBench;

/// Longer than anything on this machine takes, shorter than a window.
const MOMENT: Duration = Duration::from_millis(300);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_far_from_its_limits_is_one_command_per_counter() {
    let bench = Bench::new().await;
    let (wide, narrow) = (window(1_000, HOUR), window(100, 10 * HOUR));
    let checks = [take(key(1), &wide, 3), take(key(2), &narrow, 2)];
    bench.all(&checks).await;
    let (before, number) = (bench.stats(), window_now(HOUR));
    bench.learn_time().await;
    let Answers { each: answers, source, .. } =
        apply(&bench.store, &checks, Accounting::AllOrNothing).await;
    let stats = bench.stats();
    assert_eq!(source, Source::Redis);
    assert_eq!((stats.plain_calls - before.plain_calls, stats.plain_undecided), (1, 0));
    assert_eq!(stats.script_calls - before.script_calls, 1, "which told the time");
    let outcomes: Vec<_> = answers.iter().map(|answer| answer.outcome().unwrap()).collect();
    assert_eq!((outcomes[0].available, outcomes[0].charged), (Hits(994), Hits(3)));
    assert_eq!((outcomes[1].available, outcomes[1].charged), (Hits(96), Hits(2)));
    assert!(outcomes.iter().all(|outcome| outcome.verdict == Verdict::Pass));
    assert_eq!(bench.state(&checks[0]).await, (number % 900_000_000, 6));
    let taken = outcomes[0].taken.unwrap();
    assert_eq!((taken.hits, taken.window), (Hits(3), Micros(number * HOUR)));
    let left = (number + 1) * HOUR - tidegate::clock::Clock::System.now().0;
    assert!(outcomes[0].reset_after >= Micros(left), "{outcomes:?}");
    assert!(outcomes[0].reset_after <= Micros(left + SECOND), "{outcomes:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_on_one_counter_that_leave_together_are_one_command_with_a_count_for_each() {
    let bench = Bench::new().await;
    let limit = window(1_000, HOUR);
    bench.plainly(take(key(1), &limit, 1)).await;
    bench.command::<()>(&["CONFIG", "RESETSTAT"]).await;
    bench.learn_time().await;
    let calls = (0..100).map(|nth| bench.one(take(key(1), &limit, 1 + nth % 3)));
    let outcomes = futures_util::future::join_all(calls).await;
    let mut counts: Vec<(u64, u64)> =
        outcomes.iter().map(|outcome| (1_000 - outcome.available.0, outcome.charged.0)).collect();
    counts.sort_unstable();
    let mut count = 1;
    for (after, charged) in counts {
        count += charged;
        assert_eq!(after, count, "each call has the count after its own charge");
    }
    assert_eq!(bench.state(&take(key(1), &limit, 1)).await.1, count);
    let stats: String = bench.command(&["INFO", "commandstats"]).await;
    let calls_of = |name: &str| -> u64 {
        let line =
            stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{name}:calls=")));
        line.and_then(|line| line.split(',').next()?.parse().ok()).expect("the command ran")
    };
    let (charges, expiries) = (calls_of("incrby"), calls_of("expire"));
    assert!(charges < 20 && charges == expiries, "{charges} INCRBY, {expiries} EXPIRE");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rule_1_an_answer_that_arrives_in_another_window_does_not_count() {
    let bench = Arc::new(Bench::new().await);
    let limit = window(10, LENGTH);
    let number = at_a_windows_start(LENGTH).await;
    bench.one(take(key(1), &limit, 1)).await;
    bench.learn_time().await;
    bench.server.freeze();
    let call = {
        let (bench, limit) = (Arc::clone(&bench), Arc::clone(&limit));
        tokio::spawn(async move { bench.one(take(key(1), &limit, 1)).await })
    };
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(window_now(LENGTH), number, "it was sent in the first window");
    until_after_window(number, LENGTH, 100).await;
    bench.server.thaw();
    let outcome = call.await.unwrap();
    assert!(outcome.taken.unwrap().window >= Micros((number + 1) * LENGTH), "{outcome:?}");
    assert_eq!(outcome.available, Hits(9), "the scripts charged it to the next window");
    assert_eq!(bench.stats().plain_undecided, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rule_1_the_servers_time_is_known_for_a_second_and_to_one_connection() {
    let bench = Bench::new().await;
    let limit = window(1_000, HOUR);
    let plain_after = async |wait: &dyn Fn()| {
        bench.learn_time().await;
        let before = bench.stats().plain_calls;
        wait();
        bench.one(take(key(1), &limit, 1)).await;
        bench.stats().plain_calls - before
    };
    bench.one(take(key(1), &limit, 1)).await;
    assert_eq!(plain_after(&|| {}).await, 1);
    assert_eq!(plain_after(&|| std::thread::sleep(Duration::from_millis(1_010))).await, 0);
    bench.learn_time().await;
    let connects = || bench.store.nodes()[0].stats.connects.get();
    let had = connects();
    bench.command::<i64>(&["CLIENT", "KILL", "USER", "tidegate"]).await;
    until("it is connected again", || connects() > had && bench.store.transport().is_connected())
        .await;
    let before = bench.stats().plain_calls;
    bench.one(take(key(1), &limit, 1)).await;
    assert_eq!(bench.stats().plain_calls, before, "another server may have answered");
    bench.one(take(key(1), &limit, 1)).await;
    assert_eq!(bench.stats().plain_calls, before + 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rule_2_a_refused_charge_is_refunded_and_the_scripts_decide() {
    let bench = Bench::new().await;
    let (narrow, wide) = (window(3, HOUR), window(1_000, HOUR));
    let checks = [take(key(1), &wide, 5), take(key(2), &narrow, 2)];
    bench.all(&checks).await;
    bench.learn_time().await;
    let answers = bench.all(&checks).await;
    assert_eq!(answers[1].outcome().unwrap().verdict, Verdict::Refuse);
    assert!(answers[1].outcome().unwrap().retry_after.is_some());
    assert_eq!(answers[0].outcome().unwrap().charged, Hits(0));
    assert_eq!(answers[0].outcome().unwrap().available, Hits(995));
    assert_eq!((bench.stats().plain_undecided, bench.stats().plain_refunds), (1, 2));
    assert_eq!(bench.state(&checks[0]).await.1, 5);
    assert_eq!(bench.state(&checks[1]).await.1, 2);
    assert_eq!(bench.plainly(take(key(2), &narrow, 1)).await.verdict, Verdict::Pass);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rule_2_a_late_refund_does_not_touch_the_next_window() {
    let bench = Bench::new().await;
    let limit = window(3, LENGTH);
    let check = take(key(1), &limit, 1);
    let number = at_a_windows_start(LENGTH).await;
    bench.one(check).await;
    let window = Micros(number * LENGTH);
    let taken = ChargeRecord { hits: Hits(1), at: window, window, entry: 0 };
    until_after_window(number, LENGTH, 50).await;
    for _ in 0..3 {
        assert_eq!(bench.one(check).await.verdict, Verdict::Pass);
    }
    bench.store.refund(&[Receipt { key: check.key, limit: limit.clone(), taken }]).await;
    assert_eq!(bench.one(check).await.verdict, Verdict::Refuse, "it would admit 4 of 3");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rule_2_a_refund_whose_caller_gave_up_is_written() {
    let bench = Bench::new().await;
    let limit = window(1_000, HOUR);
    let check = take(key(1), &limit, 3);
    let receipt = Receipt::for_check(&check, &bench.one(check).await).expect("charged");
    let written = || bench.store.nodes()[0].stats.calls.get();
    let before = written();
    bench.server.freeze();
    // Polled once, a command has entered the queue.
    let mut context = Context::from_waker(Waker::noop());
    let beside = take(key(2), &limit, 1);
    let mut waiting = Vec::new();
    // Two writes may be under way, so that the refund has to queue.
    for count in 1..=2 {
        let mut call = Box::pin(bench.one(beside));
        assert!(call.as_mut().poll(&mut context).is_pending());
        waiting.push(call);
        until("it is written", || written() == before + count).await;
    }
    let mut refund = Box::pin(bench.store.refund(std::slice::from_ref(&receipt)));
    assert!(refund.as_mut().poll(&mut context).is_pending());
    // As the deadline of the call does.
    drop(refund);
    bench.server.thaw();
    futures_util::future::join_all(waiting).await;
    until("it is refunded", || counted(&bench.server, &check) == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rule_2_a_refund_of_more_than_is_counted_leaves_the_window_and_no_hits() {
    let bench = Bench::new().await;
    let limit = window(1_000, HOUR);
    let (check, number) = (take(key(1), &limit, 3), window_now(HOUR));
    let receipt = Receipt::for_check(&check, &bench.one(check).await).expect("charged");
    // The caller returns two of the three hits first.
    bench.one(refund(key(1), &limit, 2)).await;
    bench.store.refund(&[receipt]).await;
    assert_eq!(bench.state(&check).await, (number % 900_000_000, 0));
    assert_eq!(bench.plainly(check).await.available, Hits(997));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rule_2_a_charge_to_a_dead_window_needs_no_refund() {
    let bench = Bench::new().await;
    let limit = window(10, LENGTH);
    let check = take(key(1), &limit, 1);
    let number = at_a_windows_start(LENGTH).await;
    bench.one(check).await;
    // The key lives for a second or two after its window.
    until_after_window(number, LENGTH, 50).await;
    let outcome = bench.plainly(check).await;
    assert_eq!(outcome.available, Hits(9));
    assert_eq!((bench.stats().plain_undecided, bench.stats().plain_refunds), (1, 0));
    assert_eq!(bench.state(&check).await.1, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rule_3_a_key_that_a_charge_created_ends() {
    let bench = Arc::new(Bench::new().await);
    let limits = [window(1_000, HOUR), window(1_000, LENGTH)];
    let keys: Vec<String> =
        (0..10).map(|n| text(&take(key(n), &limits[n as usize % 2], 1))).collect();
    bench.learn_time().await;
    bench.command::<()>(&["FLUSHALL"]).await;
    bench.server.freeze();
    let call = {
        let bench = Arc::clone(&bench);
        tokio::spawn(async move {
            let checks: Vec<Check<'_>> =
                (0..10).map(|n| take(key(n), &limits[n as usize % 2], 1)).collect();
            bench.all(&checks).await
        })
    };
    let written = || bench.store.nodes()[0].stats.plain_calls.get() == 1;
    until("the charges are written", written).await;
    // Nobody refunds or decides anew what this caller has charged.
    call.abort();
    tokio::time::sleep(MOMENT / 10).await;
    bench.server.thaw();
    for (n, key) in keys.iter().enumerate() {
        let left: i64 = bench.command(&["TTL", key]).await;
        // One window and a second, less the time since the charge: a minute is a slow machine's.
        let (least, most) = [(3_541, 3_601), (1, 3)][n % 2];
        assert!((least..=most).contains(&left), "{key}: {left} s");
        let value: u64 = bench.command(&["GET", key]).await;
        assert_eq!(value, 1, "the key is new");
    }
}

#[tokio::test]
async fn rule_4_the_scripts_read_a_value_without_a_windows_number_as_absent() {
    let bench = ScriptBench::new(&STRICT, &[]).await;
    let (limit, other) = (window(6, LENGTH), bucket(9, SECOND));
    let text = bench.text(&take(key(1), &limit, 1));
    // At the second time, the number of the present window is 0 itself, and the value counts.
    for (now, had) in [(START, 0), (Micros(1_800_000_000_000_000), 5)] {
        for checks in [
            vec![take(key(1), &limit, 1)],
            vec![take(key(1), &limit, 1), take(key(2), &other, 1)],
            vec![take(key(1), &limit, 1), take(key(3), &sliding_log(9, MINUTE), 1)],
        ] {
            bench.command::<()>(&[b"SET", &text, b"5"]).await;
            let outcomes = bench.decide(&checks, Accounting::AllOrNothing, Some(now)).await;
            assert_eq!(outcomes[0].verdict, Verdict::Pass, "{outcomes:?}");
            assert_eq!(outcomes[0].available, Hits(5 - had), "{outcomes:?}");
            let next = bench.one(take(key(1), &limit, 6 - had), Some(now)).await;
            assert_eq!(next.verdict, Verdict::Refuse, "{next:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn rule_5_no_sum_of_charges_reaches_the_windows_digits() {
    let bench = Arc::new(Bench::new().await);
    let limit = window(u64::from(u32::MAX), 10 * HOUR);
    let plain = async |cost| {
        let before = bench.stats().plain_calls;
        bench.plainly(take(key(1), &limit, cost)).await;
        bench.stats().plain_calls - before
    };
    bench.one(take(key(1), &limit, 1)).await;
    assert_eq!(plain(65_535).await, 1);
    assert_eq!(plain(65_536).await, 0);
    let check = take(key(1), &limit, 1);
    let (number, count) = bench.state(&check).await;
    bench.one(take(key(1), &limit, u64::from(u32::MAX) - count)).await;
    bench.learn_time().await;
    let calls = (0..200).map(|_| {
        let (bench, limit) = (Arc::clone(&bench), Arc::clone(&limit));
        tokio::spawn(async move { bench.one(take(key(1), &limit, 65_535)).await })
    });
    for call in calls.collect::<Vec<_>>() {
        assert_eq!(call.await.unwrap().verdict, Verdict::Refuse);
    }
    assert!(bench.stats().plain_refunds > 0);
    assert_eq!(bench.state(&check).await, (number, u64::from(u32::MAX)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rule_7_what_a_plain_command_may_not_decide_goes_to_the_scripts() {
    let bench = Bench::new().await;
    let hour = window(1_000, HOUR);
    let request_override =
        Arc::new(Limit { limit_id: Limit::OVERRIDE_BIT | 7, ..Limit::clone(&hour) });
    let (always, billed) = (always(&hour), billed(&hour));
    let (second, day) = (window(1_000, SECOND), calendar(1_000, Unit::Day, "UTC"));
    let (sliding, bucket) = (sliding_window(1_000, HOUR), bucket(1_000, HOUR));
    let quota = Check { role: Role::Quota(0), ..take(key(1), &hour, 1) };
    let far = take(key(2), &hour, 1);
    let many: Vec<Check<'_>> = (100..133).map(|n| take(key(n), &hour, 1)).collect();
    let scripted = [
        vec![peek(key(1), &hour)],
        vec![refund(key(1), &hour, 1)],
        vec![take(key(1), &always, 1)],
        vec![take(key(1), &billed, 1)],
        vec![take(key(1), &request_override, 1)],
        vec![take(key(3), &second, 1)],
        vec![take(key(4), &day, 1)],
        vec![take(key(5), &sliding, 1)],
        vec![take(key(6), &bucket, 1)],
        vec![quota],
        vec![far, take(key(6), &bucket, 1)],
        vec![far, far],
        many.clone(),
    ];
    bench.one(far).await;
    for checks in &scripted {
        let before = bench.stats();
        bench.all(checks).await;
        let stats = bench.stats();
        assert_eq!(stats.plain_calls, before.plain_calls, "{checks:?}");
        assert_eq!(stats.plain_undecided, before.plain_undecided, "{checks:?}");
        assert_eq!(stats.script_calls, before.script_calls + 1, "{checks:?}");
    }
    let shadow = Check { role: Role::Shadow, ..far };
    for checks in [&many[..32], &[shadow]] {
        bench.all(checks).await;
        bench.learn_time().await;
        let before = bench.stats().plain_calls;
        bench.all(checks).await;
        assert_eq!(bench.stats().plain_calls, before + 1, "{checks:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rule_7_a_call_with_a_check_that_is_not_far_goes_to_the_scripts() {
    let bench = Bench::with(|_| {}, 0).await;
    let (wide, narrow) = (window(1_000_000, HOUR), window(4, HOUR));
    let plain = async |checks: &[Check<'_>]| {
        // Three times, because a busy machine may take longer than a hint holds.
        for _ in 0..3 {
            let before = bench.stats().plain_calls;
            bench.all(checks).await;
            bench.all(checks).await;
            if bench.stats().plain_calls > before {
                return true;
            }
        }
        false
    };
    assert!(plain(&[take(key(1), &wide, 1)]).await);
    assert!(!plain(&[take(key(1), &wide, 1), take(key(2), &narrow, 1)]).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rule_9_an_unknown_outcome_is_never_sent_twice() {
    let bench = Arc::new(Bench::new().await);
    let limit = window(1_000, HOUR);
    let check = take(key(1), &limit, 1);
    bench.one(check).await;
    bench.learn_time().await;
    bench.server.freeze();
    let charge = |bench: &Arc<Bench>| {
        let (bench, limit) = (Arc::clone(bench), Arc::clone(&limit));
        tokio::spawn(async move { bench.all(&[take(key(1), &limit, 1)]).await })
    };
    let call = charge(&bench);
    let writes = |count| bench.store.nodes()[0].stats.plain_calls.get() == count;
    until("it is written", || writes(1)).await;
    // As the deadline does.
    call.abort();
    tokio::time::sleep(MOMENT / 10).await;
    bench.server.thaw();
    tokio::time::sleep(MOMENT).await;
    assert_eq!(bench.state(&check).await.1, 2, "charged once, and not refunded");

    let info: String = bench.command(&["INFO", "server"]).await;
    let pid = info.lines().find_map(|line| line.strip_prefix("process_id:")).unwrap().to_owned();
    bench.learn_time().await;
    bench.server.freeze();
    let call = charge(&bench);
    until("it is written", || writes(2)).await;
    // The task holds the bench, so the server is killed by its process id.
    let killed = std::process::Command::new("kill").args(["-9", &pid]).status().unwrap();
    assert!(killed.success());
    let unknown = Answer::Unanswered { executed: ExecutionStatus::Unknown };
    assert_eq!(call.await.unwrap(), [unknown]);
    // The task has ended, and with it the other reference.
    let Bench { mut server, store, .. } = Arc::into_inner(bench).expect("the task has ended");
    server.restart();
    until("it is connected again", || store.transport().is_connected()).await;
    tokio::time::sleep(MOMENT).await;
    assert_eq!(server.count(&text(&check)), 0, "nothing was sent again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rule_11_a_setting_turns_plain_commands_off() {
    let bench = Bench::with(|config| config.plain_commands = false, 1).await;
    let limit = window(1_000, HOUR);
    for _ in 0..5 {
        bench.plainly(take(key(1), &limit, 1)).await;
    }
    assert_eq!((bench.stats().plain_calls, bench.stats().plain_undecided), (0, 0));
    let page = std::fs::read_to_string("docs/POLICY.md").unwrap();
    assert!(page.contains("--redis-plain-commands false"), "docs/POLICY.md says what is given up");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_permission_for_incrby_one_call_is_decided_twice() {
    let bench = Bench::new().await;
    let limit = window(1_000, HOUR);
    bench.command::<()>(&["ACL", "SETUSER", "tidegate", "-incrby"]).await;
    for calls in 1..=5 {
        let outcome = bench.plainly(take(key(1), &limit, 1)).await;
        assert_eq!(outcome.available, Hits(1_000 - calls));
    }
    let stats = bench.stats();
    assert_eq!((stats.plain_calls, stats.plain_undecided, stats.plain_refunds), (0, 1, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_permission_for_expire_every_call_is_a_script() {
    let bench = Bench::new().await;
    let limit = window(1_000, HOUR);
    bench.plainly(take(key(1), &limit, 1)).await;
    bench.plainly(take(key(1), &limit, 1)).await;
    assert_eq!(bench.stats().plain_calls, 1);
    // Denied while the connection is open: the first denial is the last.
    bench.command::<()>(&["ACL", "SETUSER", "tidegate", "-expire"]).await;
    for _ in 0..3 {
        bench.plainly(take(key(1), &limit, 1)).await;
    }
    assert_eq!(bench.stats().plain_calls, 2);
    let connects = || bench.store.nodes()[0].stats.connects.get();
    let had = connects();
    bench.command::<i64>(&["CLIENT", "KILL", "USER", "tidegate"]).await;
    until("it is connected again", || connects() > had && bench.store.transport().is_connected())
        .await;
    let before = bench.stats();
    for _ in 0..5 {
        bench.plainly(take(key(1), &limit, 1)).await;
    }
    let stats = bench.stats();
    assert_eq!(stats.plain_calls, before.plain_calls);
    assert_eq!(stats.script_calls, before.script_calls + 10);
    let answers = apply(&bench.store, &[take(key(1), &limit, 1)], Accounting::Independent).await;
    assert!(answers.each[0].outcome().is_some());
}
