//! The fault bench: real Tidegates, real Redis, a TCP proxy that injects faults, a bounded open-loop
//! load, and an oracle that measures over-admission.
//!
//! Each row of the table is a test. In `make test` and in a part of the proof it runs once, with a
//! small load, and judges no times; in `make faults` (and `make proof`) it runs five times, at full
//! load, one row at a time, and the medians of its times are judged. The last row prints the table.
//!
//! Rows are numbered as in the list of faults that the bench covers. 18 is missing: it is about
//! limiters that count by each replica's own clock, and Tidegate counts by Redis' clock only.
//!
//! Not here: Envoy between two Tidegates, one of which leaves (`tests/it/envoy/failover.rs`); each
//! abuse of HTTP/2 by itself (`tests/it/hostile/http2_abuse.rs`).

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::disallowed_methods,
    unreachable_pub,
    reason = "a test fails by panicking, measures by the machine's clock, and is not imported"
)]

mod admission_oracle;
mod grpc_caller;
#[path = "../../load/generator/messages.rs"]
mod messages;
mod metric_samples;
mod open_loop_load;
mod redis_behind_proxy;
mod results_table;
mod rows;
#[path = "../it/support/mod.rs"]
#[allow(dead_code, reason = "the bench needs only some of the shared helpers")]
mod support;
mod tidegate_replica;
mod trial;

use results_table::{Row, Times};

/// A test for each row, in the table's order: number, fault, expectation, the longest medians in
/// milliseconds (p99 beyond the calm's, to detect, to recover), and what runs.
macro_rules! rows {
    ($($name:ident: $number:literal, $fault:literal, $expected:literal, [$p99:expr, $detect:expr,
        $recover:expr], $run:path;)*) => {
        #[allow(non_camel_case_types, clippy::upper_case_acronyms, reason = "numbers of the rows")]
        #[derive(Clone, Copy)]
        enum Place { $($name),* }
        const COUNT: usize = [$(stringify!($name)),*].len();
        $(
            #[test]
            fn $name() {
                let times = Times { p99: $p99, detect: $detect, recover: $recover };
                let row = Row { number: $number, fault: $fault, expected: $expected, times };
                results_table::judge(Place::$name as usize, COUNT, &row, $run);
            }
        )*
    };
}

rows! {
    a_killed_master_costs_only_its_own_keys: "1", "cluster: a master killed",
        "its slots local, others untouched; its replica within 5 s",
        [Some(10), Some(100), Some(7_000)], rows::cluster::master_killed;
    a_frozen_master_costs_only_its_own_keys: "2", "cluster: a master frozen",
        "the same; nothing piles up; late replies are not taken for others",
        [Some(20), Some(100), Some(9_000)], rows::cluster::master_frozen;
    a_planned_failover_is_followed: "3", "cluster: planned failover",
        "a short gap, MOVED and NOSCRIPT healed", [Some(50), None, Some(500)],
        rows::cluster::planned_failover;
    a_cluster_that_is_gone_is_stood_in_for: "4", "cluster: all six nodes killed",
        "all local, no storm of dials", [Some(10), Some(100), None], rows::cluster::all_gone;
    a_start_without_redis_is_ready_and_degraded: "5", "cold start, Redis absent",
        "ready, says that it is degraded", [None, None, Some(5_000)], rows::redis::cold_start;
    an_answer_within_the_budget_is_waited_for: "6 a", "Redis slower by 1 to 2 ms",
        "nothing to be seen but the time", [Some(10), None, None], rows::network::within_budget;
    a_redis_20_ms_late_is_not_waited_for: "6 b", "Redis slower by 20 ms",
        "local after the budget", [Some(20), Some(100), Some(5_000)], rows::network::slow_20;
    a_redis_100_ms_late_is_not_waited_for: "6 c", "Redis slower by 100 ms each way",
        "local after the budget", [Some(10), Some(100), Some(5_000)], rows::network::slow_100;
    a_redis_that_sleeps_is_not_waited_for: "6 d", "DEBUG SLEEP 0.05 in a loop",
        "local after the budget", [Some(20), Some(150), Some(5_000)], rows::network::sleeping;
    a_black_hole_is_noticed_by_the_budget: "7", "black hole: bytes vanish",
        "noticed by the budget, not by TCP", [Some(10), Some(100), Some(5_000)],
        rows::network::black_hole;
    a_black_hole_leaves_the_other_shards_alone: "7 b", "cluster: one master in a black hole",
        "the other shards' p99 within 1.5 times of before", [Some(3), Some(100), Some(5_000)],
        rows::cluster::one_black_hole;
    a_silent_slot_of_a_call_does_not_open_the_others: "7 c",
        "cluster: calls over two shards, one of them frozen",
        "the sound shard's limits hold", [Some(10), Some(100), None], rows::cluster::silent_slot;
    a_reset_in_mid_pipeline_charges_nobody_twice: "8 a", "reset in mid-pipeline, both ways",
        "nothing is sent twice", [Some(10), None, None], rows::network::resets;
    a_reply_that_is_cut_charges_nobody_twice: "8 b", "connection closed in mid-reply",
        "nothing is sent twice", [Some(10), None, None], rows::network::cuts;
    a_stream_that_loses_bytes_charges_nobody_twice: "8 c", "bytes are lost out of replies",
        "nothing is sent twice", [None, None, None], rows::network::lost_bytes;
    half_open_connections_are_given_up: "8 d", "half-open: Redis forgot its connections",
        "dialled anew", [Some(10), Some(100), None], rows::network::half_open;
    a_dripping_redis_is_not_waited_for: "8 e", "replies drip, 2 bytes each 10 ms",
        "local after the budget", [Some(10), Some(100), Some(5_000)], rows::network::dripping;
    a_narrow_line_is_not_waited_for: "8 f", "2 kB/s to Redis",
        "local after the budget", [Some(20), Some(100), Some(5_000)], rows::network::throttled;
    lies_are_answered_and_not_believed: "8 g", "corrupt and lying replies",
        "0 errors", [None, None, None], rows::network::lies;
    slots_that_move_cost_nothing: "9", "cluster: slots move under load",
        "redirected, 0 errors", [Some(20), None, None], rows::cluster::slots_move;
    flushed_scripts_are_invisible: "10", "SCRIPT FLUSH ten times a second",
        "invisible", [Some(20), None, None], rows::redis::scripts_flushed;
    a_full_redis_still_refuses: "11", "out of memory",
        "refusals by Redis, the rest local", [Some(10), None, Some(5_000)],
        rows::redis::out_of_memory;
    a_redis_that_evicts_is_warned_of: "12", "maxmemory-policy volatile-ttl, and others' keys",
        "a warning at connect; what it costs", [None, None, None], rows::redis::evicting;
    a_redis_that_became_a_replica_is_stood_in_for: "13", "demoted: REPLICAOF while connected",
        "local until it is a master again", [Some(10), Some(100), Some(5_000)],
        rows::redis::demoted;
    a_busy_redis_parks_nobody: "14", "BUSY: a script of 3 s",
        "local, nobody parked", [Some(10), Some(100), Some(5_000)], rows::redis::busy;
    paused_writes_are_stood_in_for: "15", "CLIENT PAUSE WRITE",
        "local", [Some(10), Some(100), Some(5_000)], rows::redis::paused;
    a_login_that_is_taken_away_is_said_and_not_hammered: "16", "ACL cut, then password rotated",
        "local, slow retry, few lines of log", [Some(10), None, Some(5_000)],
        rows::redis::locked_out;
    a_clock_that_jumps_sticks_no_counter: "17", "Redis' clock jumps by an hour and by 10 s, both ways",
        "no counter stuck, at most a burst for each jump", [None, None, None],
        rows::network::clock_jumps;
    reloads_without_end_drop_no_call: "19", "ten reloads a second, two of three bad",
        "last good policy kept, nothing dropped, no fresh limits", [None, None, None],
        rows::service::reloads;
    a_replica_that_is_told_to_leave_loses_no_call: "20",
        "SIGTERM under load; frozen and silent callers",
        "0 lost, exit 0 before the hard limit", [Some(20), Some(600), None],
        rows::replicas::terminated;
    a_killed_replica_costs_what_it_held: "21", "kill -9 of one of two replicas",
        "only its own calls lost, limits exact", [None, None, None], rows::replicas::killed;
    a_starved_process_answers_and_keeps_its_bound: "22", "a fifth of a core, in slices",
        "no errors, no queue left behind", [Some(250), None, Some(5_000)], rows::service::starved;
    goodput_stays_flat_at_twice_the_capacity: "23", "twice the capacity, open loop",
        "goodput flat, memory bounded", [None, None, None], rows::service::overloaded;
    a_flood_of_keys_is_bounded: "24", "a flood of fresh keys",
        "memory under its bound, other counters exact", [Some(50), None, None],
        rows::service::key_flood;
    a_hot_key_spares_redis: "25", "one key, refused nearly always",
        "exact, Redis spared", [None, None, None], rows::service::hot_key;
    abuse_of_http2_disturbs_nobody_else: "26",
        "rapid reset, CONTINUATION, empty frames, slow prefaces, idle connections",
        "closed; others unchanged", [Some(100), None, None], rows::abuse::http2;
    a_replica_that_is_cut_off_has_its_share: "27", "one of two replicas cut off from Redis",
        "local there with half the limit", [Some(10), Some(100), Some(5_000)],
        rows::network::partition;
    a_killed_redis_costs_nobody_an_error: "28 a", "Redis killed at 2,000 calls/s, rule `local`",
        "0 errors, at most the limit once more, p99 under 10 ms, back by itself",
        [Some(10), Some(100), Some(5_000)], rows::redis::killed_local;
    a_killed_redis_lets_pass_what_may_pass: "28 b", "the same, rule `allow`",
        "all pass, 0 errors", [Some(10), Some(100), Some(5_000)], rows::redis::killed_allow;
    a_redis_that_comes_back_empty_grants_its_limit_once_more: "28 c", "Redis restarted empty",
        "at most one limit more per counter", [None, None, None], rows::redis::restarted_empty;
    a_frozen_redis_keeps_nobody_waiting: "28 d", "Redis frozen at 2,000 calls/s",
        "0 errors, p99 within 2 ms of before once 200 ms have passed, back within 1 s",
        [Some(2), Some(100), Some(1_000)], rows::redis::frozen;
    a_standard_error_that_nobody_reads_stops_nothing: "29", "standard error is a full pipe",
        "decisions go on, lines are lost", [Some(10), Some(100), Some(5_000)],
        rows::service::logs_blocked;
    too_few_descriptors_end_nothing: "30", "64 file descriptors, 200 connections",
        "serves on, no crash, recovers", [None, None, None], rows::service::no_descriptors;
}
