//! Which test covers which bad input in policies and calls. A row fails if it has no test, or if
//! its test no longer exists.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::policy::bad_files;
use crate::support::policy_cases;

/// An input, what becomes of it, and the tests that say so: functions of `tests` or `src`, or cases
/// of `tests/it/policy`, such as `bad/NAME`, each of which a test compares with what it expects.
type Row = (&'static str, &'static str, &'static [&'static str]);

/// In policy files. All of them: the last good policy stays in force, `check` and a start end with
/// 65.
const POLICY: &[Row] = &[
    (
        "a policy with any fault, at the start and on a reload",
        "refused with all faults, or the last good one stays",
        &[
            "every_mistake_gets_a_message_with_its_place_its_cause_and_the_way_out",
            "an_invalid_policy_is_logged_and_the_last_good_one_stays",
            "ten_faults_in_one_file_come_in_one_run",
        ],
    ),
    (
        "a limit of 0",
        "refuses everything, under every algorithm",
        &[
            "requests_per_unit_zero_denies_all_under_every_algorithm",
            "a_limit_of_nothing_refuses_everything_and_no_wait_helps",
        ],
    ),
    (
        "a limit that is negative, not a number, broken, infinite, too large",
        "refused, with the largest that fits",
        &[
            "bad/requests_negative",
            "bad/requests_nan",
            "bad/requests_float",
            "bad/requests_infinite",
            "bad/requests_huge",
            "bad/requests_beyond_32_bits",
            "bad/requests_is_true",
            "bad/sliding_log_too_many",
            "bad/concurrency_too_many",
            "bad/sliding_window_beyond_arithmetic",
        ],
    ),
    (
        "a window of nothing, negative, above ten years, of an unknown unit",
        "refused",
        &[
            "bad/unit_multiplier_zero",
            "bad/unit_multiplier_negative",
            "bad/unit_multiplier_too_long",
            "bad/unit_multiplier_beyond_32_bits",
            "bad/unit_unknown",
            "bad/unit_empty",
            "bad/unit_missing",
            "a_window_of_ten_years_fits_and_one_unit_more_is_refused_by_its_name",
        ],
    ),
    (
        "a burst below 1, beyond the arithmetic, a cost above it",
        "refused, with the largest that fits",
        &[
            "bad/burst_zero",
            "bad/burst_negative",
            "bad/burst_too_large_for_credits",
            "bad/burst_too_large_for_arrival_time",
            "bad/burst_too_large_charged_always",
            "bad/cost_above_burst",
            "bad/cost_above_limit",
            "bad/leaky_cost_above_burst",
            "the_largest_burst_fits_and_one_more_is_refused_by_its_name",
        ],
    ),
    (
        "floors at or above the bucket, equal, out of order; shares or sizes above the whole",
        "refused",
        &[
            "bad/tiers_floor_of_everything",
            "bad/tiers_floors_equal",
            "bad/tiers_floors_out_of_order",
            "bad/tiers_shares_above_whole",
            "bad/tiers_sizes_above_whole",
            "bad/tiers_rates_above_whole",
        ],
    ),
    (
        "descriptors or keys twice, unknown keys, no domain",
        "refused",
        &[
            "bad/duplicate_descriptor",
            "bad/duplicate_key_at_the_top",
            "bad/duplicate_key_in_rate_limit",
            "bad/unknown_key_at_the_top",
            "bad/unknown_key_in_rate_limit",
            "bad/domain_empty",
            "bad/domain_missing",
        ],
    ),
    (
        "limits of one call without a common tag",
        "loaded; a cluster decides the call slot by slot, and no limit is passed",
        &[
            "two_keys_in_different_slots_never_pass_a_limit_and_lose_nothing",
            "racing_calls_over_slots_never_pass_a_limit_and_return_what_they_held",
        ],
    ),
    (
        "aliases that multiply, nesting, size, bytes that are no text, tabs, nothing at all",
        "refused, without reading on; a byte order mark is none",
        &[
            "bad/alias_bomb",
            "bad/alias_of_itself",
            "bad/nested_too_deep",
            "too_many_open_brackets_are_rejected_immediately",
            "files_made_to_blow_up_are_refused",
            "a_file_or_a_sum_beyond_its_bound_is_a_fault",
            "a_file_above_the_maximum_size_ends_with_65",
            "bad/encoding_not_utf8",
            "bad/encoding_utf16_mark",
            "bad/syntax_tab_indentation",
            "bad/empty_file",
            "good/byte_order_mark",
            "a_missing_file_and_an_empty_directory_end_with_65",
        ],
    ),
    (
        "names with braces, colons, control characters, of ten kilobytes",
        "any text up to 255 bytes; values are compared as bytes",
        &[
            "good/any_text",
            "bad/name_too_long",
            "bad/domain_too_long",
            "bad/domain_with_control_character",
            "bad/encoding_control_character",
            "a_scrape_is_openmetrics_with_labels_of_the_policy_only",
            "any_bytes_match_and_an_invalid_byte_is_a_value_like_any_other",
            "a_limits_name_is_made_harmless_before_it_is_a_header",
        ],
    ),
    (
        "a rate that whole microseconds cannot keep within a thousandth",
        "kept exactly, as credits",
        &["a_bucket_is_kept_as_arrival_time_where_rounding_costs_less_than_a_thousandth"],
    ),
    (
        "a file that is being written, swapped, deleted, a pipe, a loop of links",
        "read once it is at rest; the last good one stays",
        &[
            "a_file_that_is_still_being_written_is_not_loaded",
            "the_swapped_links_of_a_config_map_are_followed",
            "a_deleted_file_leaves_the_last_good_policy_until_it_returns",
            "a_policy_that_is_a_pipe_ends_with_65_at_once",
            "a_loop_of_links_is_an_error",
        ],
    ),
    (
        "anything else",
        "a policy or faults, never a panic",
        &["any_bytes_are_a_policy_or_faults_with_a_place"],
    ),
];

/// In calls.
const CALLS: &[Row] = &[
    (
        "no domain, no descriptors",
        "INVALID_ARGUMENT",
        &[
            "what_is_no_request_is_invalid_and_charges_nobody",
            "an_empty_domain_or_no_descriptor_is_invalid",
        ],
    ),
    (
        "a domain or a path that no rule knows",
        "OK, a status without a limit",
        &[
            "a_path_without_entries_and_an_unknown_domain_meet_no_limit",
            "what_no_rule_matches_passes_with_a_bare_status",
            "requests_that_no_rule_knows_pass_without_headers",
        ],
    ),
    (
        "a descriptor without entries; an empty key; an empty value",
        "no match; INVALID_ARGUMENT; a value like any other",
        &[
            "a_descriptor_without_entries_matches_nothing",
            "an_empty_key_is_invalid_an_empty_value_and_an_empty_descriptor_are_not",
            "values_that_look_alike_have_counters_of_their_own",
        ],
    ),
    (
        "65 descriptors, 17 entries, 8,193 fields, a message above 1 MiB; a value of any bytes and length",
        "INVALID_ARGUMENT before any counter is asked; counted",
        &[
            "what_is_no_request_is_invalid_and_charges_nobody",
            "too_many_descriptors_or_entries_are_rejected_with_the_bound",
            "a_message_larger_than_the_maximum_size_is_rejected",
            "a_long_message_of_tiny_parts_is_rejected_before_they_are_allocated",
            "a_value_of_forty_kilobytes_is_limited_like_any_other",
            "the_longest_value_in_sixteen_descriptors_is_limited_like_any_other",
        ],
    ),
    (
        "0 hits of the request, of a descriptor",
        "one hit; a question",
        &[
            "no_hits_of_the_request_mean_one_and_no_hits_of_a_descriptor_mean_a_peek",
            "a_peek_takes_nothing_and_refuses_at_exactly_the_limit",
        ],
    ),
    (
        "hits up to 2^64 - 1, taken and refunded",
        "refused without a charge or a wait; never more than the limit comes back",
        &[
            "hits_beyond_any_limit_are_refused_without_a_trace_or_a_wait",
            "hits_at_the_ends_of_their_range_are_refused_without_a_trace",
            "however_much_is_refunded_no_counter_holds_more_than_its_limit",
        ],
    ),
    (
        "the same descriptor twice",
        "charged for each, in one step",
        &[
            "the_same_descriptor_many_times_is_charged_each_time_and_ends",
            "the_same_descriptor_twice_is_charged_twice",
        ],
    ),
    (
        "values with separators, control characters, invalid bytes; paths that spell one another",
        "a counter each, one slot rule, in no log",
        &[
            "values_that_look_alike_have_counters_of_their_own",
            "every_value_has_its_own_counter",
            "joins_by_underscore_do_not_meet",
            "different_parts_make_different_keys",
            "a_prefix_cannot_take_over_the_tag",
            "what_a_caller_writes_is_in_no_log",
            "any_bytes_are_a_request_or_invalid_and_every_path_has_its_own_counter",
        ],
    ),
    (
        "a limit of the caller's own that is 0, the largest, of an unknown unit",
        "refuses; capped; INVALID_ARGUMENT",
        &[
            "limits_of_the_callers_own_are_held_to_what_a_limit_can_be",
            "an_override_of_nothing_refuses",
            "an_absurd_override_is_capped",
            "an_override_of_an_unknown_unit_is_invalid",
        ],
    ),
    (
        "a deadline of 0, of a microsecond, over, malformed",
        "DEADLINE_EXCEEDED and no charge; ignored",
        &[
            "a_deadline_that_is_over_consumes_nothing_and_one_that_is_none_is_ignored",
            "a_deadline_is_read_and_a_malformed_one_ignored",
            "a_decision_that_takes_longer_than_the_caller_waits_exceeds_its_deadline",
        ],
    ),
    (
        "a caller that leaves",
        "its call ends, what may have run is not refunded",
        &[
            "a_caller_that_leaves_ends_its_call_and_no_other",
            "a_caller_that_leaves_in_the_middle_leaves_the_others_alone",
            "resets_of_an_impatient_caller_disturb_nothing",
        ],
    ),
    (
        "another method, JSON, HTTP/1.1, compressed messages",
        "UNIMPLEMENTED, 415, closed; never unpacked",
        &[
            "what_is_no_call_gets_the_status_that_says_so_and_is_not_unpacked",
            "what_is_no_unary_call_of_grpc_gets_the_status_that_says_so",
            "a_caller_of_http_1_is_closed",
            "a_connection_that_is_not_http_is_closed_and_affects_no_other",
            "any_text_is_a_request_in_json_or_a_bad_one",
        ],
    ),
    (
        "a counter that somebody else wrote: of another type, text, negative, from the future",
        "answered and mended, counted, never an error",
        &[
            "damage_is_answered_and_mended_never_an_error",
            "whatever_stands_under_a_key_is_answered_and_never_an_error",
            "any_state_under_any_limit_at_any_time_is_answered",
            "any_reply_is_read_or_a_fault",
        ],
    ),
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn sources(directory: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push(path);
        }
    }
}

/// The names of all functions in the tests of `src` and `tests`.
pub(crate) fn functions() -> BTreeSet<String> {
    let mut files = Vec::new();
    for directory in ["src", "tests"] {
        sources(&root().join(directory), &mut files);
    }
    let mut functions = BTreeSet::new();
    for file in files {
        let text = fs::read_to_string(file).unwrap();
        for line in text.lines() {
            let after = line.trim_start().trim_start_matches("async ").strip_prefix("fn ");
            functions
                .extend(after.and_then(|rest| rest.split(['(', '<']).next()).map(str::to_owned));
        }
    }
    functions
}

#[test]
fn every_bad_input_has_tests_and_they_are_there() {
    let functions = functions();
    let cases = [("bad", bad_files::cases()), ("good", policy_cases::read("good"))];
    let policies: BTreeSet<String> = cases
        .iter()
        .flat_map(|(directory, cases)| {
            cases.iter().map(move |it| format!("{directory}/{}", it.name))
        })
        .collect();
    let there = |test: &str| functions.contains(test) || policies.contains(test);
    let mut gone = Vec::new();
    for (input, answer, tests) in POLICY.iter().chain(CALLS) {
        assert!(!tests.is_empty(), "{input}: {answer}: no test");
        gone.extend(
            tests.iter().filter(|test| !there(test)).map(|test| format!("{input}: {test}")),
        );
    }
    assert!(gone.is_empty(), "tests that are gone:\n{}", gone.join("\n"));
}
