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
mod random_calls;
#[path = "../support/vectors.rs"]
mod vectors;
mod vectors_hold;

/// Makes one test of each case for one store.
macro_rules! contract {
    ($module:ident, $bench:expr) => {
        mod $module {
            #[allow(unused_imports, reason = "the expression may need what stands around it")]
            use super::*;
            contract!(@cases $bench, cases_call: [
                c01_a_call_is_decided_at_one_instant,
                c01_racing_callers_admit_exactly_the_limit,
                c02_give_backs_come_first_whatever_becomes_of_the_call,
                c02_a_give_back_to_an_unknown_counter_has_no_effect,
                c03_required_checks_must_all_pass,
                c03_one_quota_check_must_pass,
                c03_shadow_checks_have_no_say,
                c04_a_refused_call_charges_nothing,
                c04_an_admitted_call_charges_every_check_that_passes,
                c05_independent_charges_what_passes_though_the_call_is_refused,
                c06_a_refusal_is_free,
                c07_always_is_charged_whatever_becomes_of_the_call,
                c07_a_peek_then_a_charge_of_150_on_100_refuses_the_next_peek,
                c09_the_same_counter_twice_sees_the_first_charge,
                c09_the_same_counter_twice_keeps_nothing_of_a_refused_call,
                c13_what_is_left_is_told_as_of_after_the_call,
                c13_there_is_one_answer_per_check_in_order,
            ]);
            contract!(@cases $bench, cases_counter: [
                c02_slots_are_returned_by_their_holders_only,
                c08_a_peek_takes_nothing,
                c10_too_much_at_once_is_refused_without_a_wait,
                c11_waiting_exactly_retry_after_passes_and_one_tick_less_does_not,
                c12_reset_is_the_windows_end_or_the_full_bucket,
                c14_a_changed_limit_meets_the_old_counter,
                c15_a_clock_that_steps_back_refills_nothing_twice,
                c15_a_counter_from_the_far_future_does_not_freeze,
                c16_a_receipt_is_given_back_into_its_own_window_only,
                c16_a_receipt_is_given_back_less_what_refilled,
                c16_receipts_of_a_call_go_back_together,
                c17_a_counter_is_kept_until_an_absent_one_means_the_same,
            ]);
            contract!(@cases $bench, vectors_hold: [
                the_vectors_hold_for_calls_of_one_check,
                the_vectors_hold_for_checks_of_larger_calls,
            ]);
            contract!(@cases $bench, random_calls: [
                c04_a_refused_call_leaves_every_counter_as_it_was,
                random_calls_are_answered_as_the_model_answers_them,
            ]);
        }
    };
    (@cases $bench:expr, $cases:ident: [$($case:ident,)*]) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn $case() {
                crate::$cases::$case(std::sync::Arc::new($bench)).await;
            }
        )*
    };
}
pub(crate) use contract;
