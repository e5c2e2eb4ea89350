//! Each row of a table in docs/SECURITY.md names the tests of its claims, and they exist.

use std::fs;
use std::path::Path;

use crate::hostile::coverage_table::functions;

#[test]
fn each_claim_of_the_security_page_names_its_tests_and_they_exist() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/SECURITY.md");
    let page = fs::read_to_string(page).unwrap();
    let functions = functions();
    let is_rule = |line: &&str| line.starts_with("|---");
    let rows: Vec<&str> = page.lines().filter(|line| line.starts_with('|')).collect();
    let tables = rows.iter().filter(|line| is_rule(line)).count();
    let headings = rows.iter().filter(|line| line.trim_end().ends_with("| tests |")).count();
    assert_eq!(headings, tables, "the last column of each table has its tests");
    let claims = rows.iter().filter(|line| !is_rule(line) && !line.ends_with("| tests |"));
    let mut checked = 0;
    for row in claims {
        let tests = row.trim_end_matches('|').rsplit('|').next().unwrap_or_default();
        let tests: Vec<&str> = tests.split('`').skip(1).step_by(2).collect();
        assert!(!tests.is_empty(), "a claim without a test: {row}");
        for test in tests {
            assert!(functions.contains(test), "{test} does not exist: {row}");
            checked += 1;
        }
    }
    assert!(checked > 30, "{checked}");
}
