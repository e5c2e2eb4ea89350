//! The store's contract (`src/store/mod.rs`): one numbered list of cases, run against every store,
//! and what only the memory store promises.
//!
//! To plug in a store: implement [`bench::Bench`] and say `contract!(your_module, your_bench)`,
//! where `your_bench` is an expression that makes a fresh bench.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::disallowed_methods,
    missing_docs,
    unreachable_pub,
    dead_code,
    reason = "tests panic to fail, and share support modules that not every crate uses up"
)]

mod bench;
mod cases_call;
mod cases_counter;
mod memory;
mod memory_full;
mod model;
#[path = "../support/random.rs"]
mod random;
mod random_calls;
mod redis;
#[path = "../support/redis.rs"]
mod redis_server;
#[path = "../support"]
mod support {
    pub mod acl;
    pub mod cluster;
    pub mod process;
    pub mod proxy;
    pub mod sentinel;
}
#[path = "../support/vectors.rs"]
mod vectors;
mod vectors_hold;

/// Hands the list of cases to a macro: its name, what it is told besides, then each case.
macro_rules! cases {
    ($then:ident, $($told:tt)*) => {
        crate::$then! {
            [$($told)*]
            cases_call: c01_a_call_is_decided_at_one_instant,
            cases_call: c01_racing_callers_admit_exactly_the_limit,
            cases_call: c02_refunds_come_first_whatever_becomes_of_the_call,
            cases_call: c02_a_refund_to_an_unknown_counter_has_no_effect,
            cases_call: c03_required_checks_must_all_pass,
            cases_call: c03_one_quota_check_must_pass,
            cases_call: c03_shadow_checks_have_no_say,
            cases_call: c04_a_refused_call_charges_nothing,
            cases_call: c04_an_admitted_call_charges_every_check_that_passes,
            cases_call: c05_independent_charges_what_passes_though_the_call_is_refused,
            cases_call: c06_a_refusal_is_free,
            cases_call: c07_always_is_charged_whatever_becomes_of_the_call,
            cases_call: c07_a_peek_then_a_charge_of_150_on_100_refuses_the_next_peek,
            cases_call: c09_the_same_counter_twice_sees_the_first_charge,
            cases_call: c09_the_same_counter_twice_keeps_nothing_of_a_refused_call,
            cases_call: c13_what_is_left_is_told_as_of_after_the_call,
            cases_call: c13_there_is_one_answer_per_check_in_order,
            cases_counter: c02_slots_are_returned_by_their_holders_only,
            cases_counter: c08_a_peek_takes_nothing,
            cases_counter: c10_too_much_at_once_is_refused_without_a_wait,
            cases_counter: c11_waiting_exactly_retry_after_passes_and_one_tick_less_does_not,
            cases_counter: c12_reset_is_the_windows_end_or_the_full_bucket,
            cases_counter: c14_a_changed_limit_meets_the_old_counter,
            cases_counter: c15_a_clock_that_steps_back_refills_nothing_twice,
            cases_counter: c15_a_counter_from_the_far_future_does_not_freeze,
            cases_counter: c16_a_receipt_is_refunded_into_its_own_window_only,
            cases_counter: c16_a_receipt_is_refunded_less_what_refilled,
            cases_counter: c16_receipts_of_a_call_go_back_together,
            cases_counter: c17_a_counter_is_kept_until_an_absent_one_means_the_same,
            vectors_hold: the_vectors_hold_for_calls_of_one_check,
            vectors_hold: the_vectors_hold_for_checks_of_larger_calls,
            random_calls: c04_a_refused_call_leaves_every_counter_as_it_was,
            random_calls: random_calls_are_answered_as_the_model_answers_them,
        }
    };
}
pub(crate) use cases;

/// Makes one test of each case for one store.
macro_rules! contract {
    ($module:ident, $bench:expr) => {
        mod $module {
            #[allow(unused_imports, reason = "the expression may need what stands around it")]
            use super::*;
            crate::cases!(one_test_each, $bench);
        }
    };
}
pub(crate) use contract;

macro_rules! one_test_each {
    ([$bench:expr] $($room:ident: $case:ident,)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn $case() {
                crate::$room::$case(std::sync::Arc::new($bench)).await;
            }
        )*
    };
}
pub(crate) use one_test_each;

/// Runs every case after the other, each on a bench of its own, on servers that all of them share.
macro_rules! all_cases {
    ($bench:expr) => {
        crate::cases!(one_after_another, $bench);
    };
}
pub(crate) use all_cases;

macro_rules! one_after_another {
    ([$bench:expr] $($room:ident: $case:ident,)*) => {
        $(
            println!(stringify!($case));
            crate::$room::$case(std::sync::Arc::new($bench)).await;
        )*
    };
}
pub(crate) use one_after_another;
