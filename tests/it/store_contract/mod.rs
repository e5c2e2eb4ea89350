//! The store contract (`src/store/mod.rs`): one numbered list of cases that runs against every
//! store, and the memory store's own promises.
//!
//! To add a store, implement [`store_under_test::Bench`] and write
//! `contract!(your_module, your_bench)`, where `your_bench` is an expression that creates a bench.

mod block_cases;
mod budget_calls;
mod budget_model;
mod call_cases;
mod counter_cases;
mod full_table;
mod key_floods;
mod memory_bound;
pub(crate) mod memory_store;
pub(crate) mod random_calls;
pub(crate) mod random_limits;
mod redis_store;
mod reference_store;
pub(crate) mod store_under_test;
mod vector_cases;

/// Hands the list of cases to a macro: its name, what it is told besides, then each case.
macro_rules! cases {
    ($then:ident, $($told:tt)*) => {
        crate::store_contract::$then! {
            [$($told)*]
            call_cases: c01_a_call_is_decided_at_one_instant,
            call_cases: c01_racing_callers_admit_exactly_the_limit,
            call_cases: c02_refunds_come_first_whatever_becomes_of_the_call,
            call_cases: c02_a_refund_to_an_unknown_counter_has_no_effect,
            call_cases: c03_required_checks_must_all_pass,
            call_cases: c03_one_quota_check_must_pass,
            call_cases: c03_all_checks_of_one_quota_descriptor_must_pass,
            call_cases: c03_the_checks_of_a_quota_group_may_stand_anywhere_in_the_call,
            call_cases: c03_shadow_checks_have_no_say,
            call_cases: c04_a_refused_call_charges_nothing,
            call_cases: c04_an_admitted_call_charges_every_check_that_passes,
            call_cases: c05_independent_charges_what_passes_though_the_call_is_refused,
            call_cases: c06_a_refusal_is_free,
            call_cases: c07_always_is_charged_whatever_becomes_of_the_call,
            call_cases: c07_a_peek_then_a_charge_of_150_on_100_refuses_the_next_peek,
            call_cases: c09_the_same_counter_twice_sees_the_first_charge,
            call_cases: c09_the_same_counter_twice_keeps_nothing_of_a_refused_call,
            call_cases: c09_a_refund_and_takes_of_one_counter_in_one_call,
            call_cases: c13_what_is_left_is_told_as_of_after_the_call,
            call_cases: c13_there_is_one_answer_per_check_in_order,
            counter_cases: c02_slots_are_returned_by_their_holders_only,
            counter_cases: c08_a_peek_takes_nothing,
            counter_cases: c10_too_much_at_once_is_refused_without_a_wait,
            counter_cases: c11_waiting_exactly_retry_after_passes_and_one_tick_less_does_not,
            counter_cases: c12_reset_is_the_windows_end_or_the_full_bucket,
            counter_cases: c14_a_changed_limit_meets_the_old_counter,
            counter_cases: c14_a_refund_under_a_lower_limit_gives_back_only_its_own_hits,
            counter_cases: c14_a_call_under_a_lower_limit_cuts_no_count,
            counter_cases: c14_a_limit_of_the_request_takes_from_the_counter_of_the_rule,
            counter_cases: c14_a_refusal_under_a_limit_of_the_request_rewrites_nothing,
            counter_cases: c14_a_refund_of_everything_empties_a_counter_above_its_limit,
            counter_cases: c15_a_clock_that_steps_back_refills_nothing_twice,
            counter_cases: c15_a_counter_from_the_far_future_does_not_freeze,
            counter_cases: c16_a_receipt_is_refunded_into_its_own_window_only,
            counter_cases: c16_a_receipt_is_refunded_less_what_refilled,
            counter_cases: c16_receipts_of_a_call_go_back_together,
            counter_cases: c16_a_receipt_goes_back_into_the_share_and_the_pool_that_it_came_from,
            counter_cases: c17_a_counter_is_kept_until_an_absent_one_means_the_same,
            block_cases: c18_a_rejection_blocks_and_asking_does_not_prolong_it,
            block_cases: c18_a_window_that_is_still_full_blocks_anew,
            block_cases: c18_a_peek_that_is_refused_blocks,
            block_cases: c18_what_cannot_pass_or_may_not_block_blocks_nothing,
            block_cases: c18_while_blocked_only_hits_that_count_in_any_case_are_charged,
            block_cases: c18_later_checks_see_the_block_and_a_rejected_call_keeps_it,
            block_cases: c18_a_lowered_block_ends_earlier_and_a_raised_one_is_for_new_blocks,
            block_cases: c18_a_reset_lifts_the_block,
            block_cases: c18_a_shadow_limit_blocks_in_shadow,
            block_cases: c18_racing_callers_begin_one_block,
            vector_cases: the_vectors_hold_for_calls_of_one_check,
            vector_cases: the_vectors_hold_for_checks_of_larger_calls,
            random_calls: c04_a_refused_call_leaves_every_counter_as_it_was,
            random_calls: random_calls_are_answered_as_the_model_answers_them,
            random_calls: random_holds_are_answered_as_the_model_answers_them,
            budget_calls: random_calls_are_answered_as_the_budget_model_answers_them,
            budget_calls: a_call_holds_in_all_its_limits_or_in_none,
            budget_calls: a_hold_that_is_never_settled_gives_its_hits_back,
            budget_calls: the_receipt_of_a_renewed_hold_refunds_nothing_once_it_has_ended,
            budget_calls: ten_thousand_holds_are_the_most,
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
            crate::store_contract::cases!(one_test_each, $bench);
        }
    };
}
pub(crate) use contract;

macro_rules! one_test_each {
    ([$bench:expr] $($room:ident: $case:ident,)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn $case() {
                crate::store_contract::$room::$case(std::sync::Arc::new($bench)).await;
            }
        )*
    };
}
pub(crate) use one_test_each;

/// Runs every case after the other, each on a bench of its own, on servers that all of them share.
macro_rules! all_cases {
    ($bench:expr) => {
        crate::store_contract::cases!(one_after_another, $bench);
    };
}
pub(crate) use all_cases;

macro_rules! one_after_another {
    ([$bench:expr] $($room:ident: $case:ident,)*) => {
        $(
            println!(stringify!($case));
            crate::store_contract::$room::$case(std::sync::Arc::new($bench)).await;
        )*
    };
}
pub(crate) use one_after_another;
