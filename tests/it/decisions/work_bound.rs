//! Calls that are more work for Redis than one script call may be are invalid, and charge nothing.

use tidegate::decide::DecideError;

use super::test_decider::{Bench, TestDescriptor, d};

const POLICY: &str = "
domain: t
descriptors:
  - key: window
    rate_limit: {unit: hour, requests_per_unit: 5000}
  - key: sliding
    rate_limit: {algorithm: sliding_window, unit: hour, requests_per_unit: 5000}
  - key: bucket
    rate_limit: {algorithm: token_bucket, unit: hour, requests_per_unit: 5000}
  - key: log
    rate_limit: {algorithm: sliding_log, unit: hour, requests_per_unit: 5000}
  - key: slots
    rate_limit: {algorithm: concurrency, requests_per_unit: 10000}
";

fn same(descriptor: &TestDescriptor, times: usize) -> Vec<TestDescriptor> {
    vec![descriptor.clone(); times]
}

#[test]
fn a_call_of_2048_windows_or_buckets_is_decided() {
    let bench = Bench::new(POLICY);
    for path in ["window=a", "sliding=a", "bucket=a"] {
        assert!(bench.ask(&same(&d(path), 2_048)).passes(), "{path}");
    }
}

#[test]
fn a_call_that_is_too_much_work_is_invalid_and_charges_nothing() {
    let bench = Bench::new(POLICY);
    let slots = |hits| d("slots=a").holder("one").hits(hits);
    // 24,576 us: 50 for a log, 30 and 1 for each slot for slots.
    for (what, descriptor, most) in [
        ("logs", d("log=a"), 491),
        ("a slot each", slots(1), 792),
        ("slots", slots(1_000), 23),
        ("all slots", slots(10_000), 2),
        ("more slots than there are", slots(u64::MAX), 2),
        ("releases", d("slots=a").holder("one").refund(10_000), 819),
        ("peeks", slots(0), 792),
    ] {
        let decided = bench.try_domain("t", &same(&descriptor, most + 1));
        assert_eq!(decided.err(), Some(DecideError::TooMuchWork), "{what}");
        assert!(bench.try_domain("t", &same(&descriptor, most)).is_ok(), "{what}");
    }
    let bench = Bench::new(POLICY);
    assert!(bench.try_domain("t", &same(&d("log=a"), 492)).is_err());
    assert_eq!(bench.one("log=a").rows[0].remaining, 4_999, "nothing was charged");
}
