//! `tidegate test`: the shipped test files, and what it prints about others.

use std::fs;
use std::path::PathBuf;

use crate::envoy::bootstrap::repository;
use crate::support::tidegate_process::{ProcessOutput, run, run_with};

const FIVE_A_DAY: &str = "
domain: edge
descriptors:
  - key: client
    rate_limit: {unit: day, requests_per_unit: 5}
";

#[test]
fn every_example_has_a_test_file_and_all_of_them_pass() {
    let examples = fs::read_dir(repository("config/examples")).expect("the examples");
    let mut files: Vec<PathBuf> = examples
        .map(|example| example.expect("an entry").path().join("policy.test.yaml"))
        .chain([repository("config/first.test.yaml")])
        .collect();
    files.sort();
    let names: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
    let missing: Vec<_> = files.iter().filter(|file| !file.is_file()).collect();
    assert!(missing.is_empty() && files.len() >= 13, "{missing:?}");
    let mut arguments = vec!["test"];
    arguments.extend(names.iter().map(String::as_str));
    let ran = run(&arguments).with_code(0);
    assert!(ran.out.ends_with(" tests passed\n"), "{}", ran.out);
}

#[test]
fn the_first_policies_of_pages_have_test_files() {
    for (page, test) in [
        ("README.md", include_str!("../docs/readme.test.yaml")),
        ("docs/BUDGETS.md", include_str!("../docs/budgets.test.yaml")),
    ] {
        let text = fs::read_to_string(repository(page)).expect("a page");
        let block = text.split("```yaml policy\n").nth(1).and_then(|rest| rest.split("```").next());
        let policy = block.expect("a policy");
        let files = [("policy.yaml", policy), ("page.test.yaml", test)];
        run_with(&files, &["test", "page.test.yaml"]).with_code(0);
    }
}

/// Runs a test file on the policy "five a day per client".
fn tested(test: &str) -> ProcessOutput {
    run_with(&[("policy.yaml", FIVE_A_DAY), ("t.yaml", test)], &["test", "t.yaml"])
}

fn with_steps(steps: &str) -> String {
    format!("policy: [policy.yaml]\ntests:\n  - name: five a day\n    steps:\n{steps}")
}

const ASK: &str = "ask: {domain: edge, descriptors: ['client=ann']}";

#[test]
fn a_failed_test_shows_its_step_what_was_expected_what_came_and_the_rule() {
    let wrong = with_steps(&format!(
        "      - {{at: 0s, {ASK}, expect: {{code: OK, limit: 5/day, remaining: 4}}}}\n      \
         - {{at: 1h, times: 9, {ASK}, expect: {{code: OK, retry_after: none, marks: {{}}}}}}\n"
    ));
    let ran = tested(&wrong).with_code(1);
    for expected in [
        "t.yaml: five a day\n",
        "  step 2, at 1h, call 5 of 9\n",
        "    code: expected OK, got OVER_LIMIT\n",
        "    retry_after: expected none, got 82800s\n",
        "    domain edge\n      client=ann: default\n",
        "edge.client\n",
    ] {
        assert!(ran.out.contains(expected), "{expected:?} is not in {}", ran.out);
    }
    assert!(!ran.out.contains("marks:"), "{}", ran.out);
    assert_eq!(ran.err.trim_end(), "error: 1 of 1 tests failed");
}

#[test]
fn every_test_begins_without_counters_and_the_others_run_if_one_fails() {
    let text = with_steps(&format!("      - {{at: 0s, times: 5, {ASK}, expect: {{code: OK}}}}\n"));
    let again = text.split_once("tests:\n").expect("tests").1.replace("five a day", "again");
    let failing = again.replace("again", "failing").replace("code: OK", "code: OVER_LIMIT");
    tested(&[text.as_str(), &again].concat()).with_code(0);
    let ran = tested(&[text.as_str(), &failing, &again].concat()).with_code(1);
    assert_eq!(ran.err.trim_end(), "error: 1 of 3 tests failed");
}

#[test]
fn refunds_hits_and_limits_of_a_request_count_as_those_of_a_caller() {
    let ask = |descriptor: &str| {
        format!("ask: {{domain: edge, descriptors: [{{entries: client=ann, {descriptor}}}]}}")
    };
    let [three, back, fewer, none] =
        ["hits: 3", "hits: 2, refund: true", "limit: 4/day", "hits: 0"].map(ask);
    let steps = format!(
        "      - {{at: 0s, {three}, expect: {{remaining: 2}}}}\n      \
         - {{at: 0s, {back}, expect: {{code: OK, remaining: 4}}}}\n      \
         - {{at: 0s, {fewer}, expect: {{limit: 4/day, remaining: 2}}}}\n      \
         - {{at: 0s, {none}, expect: {{limit: 5/day, remaining: 3}}}}\n      \
         - {{at: 24h, {none}, expect: {{limit: [5/day], remaining: [5]}}}}\n"
    );
    tested(&with_steps(&steps)).with_code(0);
}

#[test]
fn a_wrong_file_ends_with_65_and_says_where() {
    for (steps, expected) in [
        (format!("{{at: 0s, {ASK}, expect: {{cod: OK}}}}"), "t.yaml:5:"),
        (
            format!("{{at: 0s, {ASK}, expect: {{cod: OK}}}}"),
            "unknown key `cod`; did you mean `code`?",
        ),
        (format!("{{at: now, {ASK}}}"), "five a day: step 1: `at` "),
        (
            format!("{{at: 2s, {ASK}}}\n      - {{at: 1s, {ASK}}}"),
            "step 2: `at` is before the step above; sort the steps by time",
        ),
        (
            format!("{{at: 0s, {ASK}, expect: {{retry_after: 1500ms}}}}"),
            "step 1: `retry_after` must be whole seconds, such as 2s, or none",
        ),
        (
            "{at: 0s, ask: {domain: edge, descriptors: [{entries: client=a, limit: 4 a day}]}}"
                .to_owned(),
            "step 1: `limit` must be written as 4/minute or 30/10 second, not \"4 a day\"",
        ),
        (
            "{at: 0s, ask: {domain: edge, descriptors: ['client: ann']}}".to_owned(),
            "write client=ann",
        ),
        (
            "{at: 0s, ask: {domain: edge, descriptors: []}}".to_owned(),
            "descriptors must not be empty",
        ),
    ] {
        let ran = tested(&with_steps(&format!("      - {steps}\n"))).with_code(65);
        assert!(ran.err.contains(expected), "{expected:?} is not in {}", ran.err);
    }
    let started = with_steps(&format!("      - {{at: 0s, {ASK}}}\n"));
    let ran = tested(&format!("start: noon\n{started}")).with_code(65);
    assert!(ran.err.contains("`start` must be a time such as 2024-01-01T00:00:00Z"), "{}", ran.err);
    let ran = tested(&started.replace("policy.yaml", "none.yaml")).with_code(65);
    assert!(ran.err.contains("none.yaml"), "{}", ran.err);
    assert!(tested(FIVE_A_DAY).with_code(65).err.contains("this is a policy"));
}

#[test]
fn a_directory_that_is_a_policy_may_hold_its_test_files() {
    let test = with_steps(&format!("      - {{at: 0s, {ASK}, expect: {{code: OK}}}}\n"));
    let files = [("policy.yaml", FIVE_A_DAY), ("policy.test.yaml", &*test)];
    let checked = run_with(&files, &["check", "."]).with_code(0);
    assert!(checked.out.starts_with("ok: 1 file, "), "{}", checked.out);
    run_with(&files, &["test", "policy.test.yaml"]).with_code(0);
}
