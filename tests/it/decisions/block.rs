//! Block of a key after a rejection (`block`), from descriptors to statuses.

use tidegate::decide::GlobalModes;
use tidegate::domain::{Code, Micros, Override, Unit};

use super::test_decider::{Bench, d};

const POLICY: &str = "
domain: t
descriptors:
  - key: hard
    rate_limit: {unit: second, unit_multiplier: 10, requests_per_unit: 1, block: 600}
  - key: billed
    rate_limit: {unit: minute, requests_per_unit: 5, charge: billed, block: 600}
  - key: shadow
    shadow_mode: true
    rate_limit: {unit: second, unit_multiplier: 10, requests_per_unit: 1, block: 600}
  - key: quota
    quota_mode: true
    rate_limit: {unit: second, unit_multiplier: 10, requests_per_unit: 1, block: 600}
";

const SECOND: u64 = 1_000_000;

#[test]
fn the_wait_is_the_end_of_the_block_and_the_status_shows_it() {
    let bench = Bench::new(POLICY);
    assert!(bench.one("hard=a").passes());
    let rejected = bench.one("hard=a");
    let row = &rejected.rows[0];
    assert_eq!((row.code, row.remaining, row.reset_s), (Code::OverLimit, 0, Some(600)));
    bench.advance(Micros(300 * SECOND));
    assert_eq!(bench.one("hard=a").retry_after, Some(Micros(300 * SECOND)));
    bench.advance(Micros(300 * SECOND));
    assert!(bench.one("hard=a").passes());
}

/// A gateway asks with 0 hits, and bills afterwards.
#[test]
fn a_question_that_is_refused_blocks_and_a_bill_does_not() {
    let bench = Bench::new(POLICY);
    let wait = |hits| bench.ask(&[d("billed=a").hits(hits)]).retry_after.map(Micros::ceil_secs);
    assert_eq!(wait(0), None);
    assert_eq!(wait(5), None, "a bill that fits");
    let own = wait(4).unwrap();
    assert!(own <= 60, "a bill that does not fit: {own}");
    assert_eq!(wait(0), Some(600));
    bench.advance(Micros(599 * SECOND));
    assert_eq!((wait(1), wait(0)), (Some(1), Some(1)), "a bill is refused, too");
    bench.advance(Micros(SECOND));
    assert_eq!(wait(0), None, "the window has ended");
}

/// An estimate is no bill, although a descriptor names its hits.
#[test]
fn a_hold_that_is_refused_blocks_also_where_bills_are_charged() {
    let policy = POLICY.replace("charge: billed,", "charge: billed, reserve: {ttl: 60},");
    let bench = Bench::new(&policy);
    let wait = |asked| bench.ask(&[asked]).retry_after.map(Micros::ceil_secs);
    assert_eq!(wait(d("billed=a").hits(3).hold("first")), None);
    assert_eq!(wait(d("billed=a").hits(3).hold("second")), Some(600));
    assert_eq!(wait(d("billed=a").hits(1).settle("first")), None);
    assert_eq!(wait(d("billed=a").hits(1).hold("third")), Some(600), "blocked");
}

#[test]
fn a_shadow_limit_blocks_in_shadow_and_a_quota_blocks_nothing() {
    let bench = Bench::new(POLICY);
    for _ in 0..3 {
        assert!(bench.one("shadow=a").passes());
    }
    bench.advance(Micros(30 * SECOND));
    let shadow = bench.one("shadow=a");
    assert_eq!((shadow.passes(), shadow.rows[0].remaining), (true, 0), "still blocked");
    assert!(bench.one("quota=a").passes());
    assert!(!bench.one("quota=a").passes());
    bench.advance(Micros(10 * SECOND));
    assert!(bench.one("quota=a").passes());
    let all_quotas = GlobalModes { quota: true, ..GlobalModes::default() };
    let bench = Bench::with_modes(POLICY, all_quotas);
    assert_eq!(bench.passes("hard=a", 2), 1);
    bench.advance(Micros(10 * SECOND));
    assert!(bench.one("hard=a").passes());
}

#[test]
fn a_dry_run_sees_a_block_and_begins_none() {
    let bench = Bench::new(POLICY);
    assert!(bench.one("hard=a").passes());
    assert!(!bench.dry_run(&[d("hard=a")]).passes());
    bench.advance(Micros(10 * SECOND));
    assert!(bench.one("hard=a").passes());
    assert!(!bench.one("hard=a").passes());
    bench.advance(Micros(10 * SECOND));
    let foreseen = bench.dry_run(&[d("hard=a")]);
    assert_eq!(foreseen.retry_after, Some(Micros(590 * SECOND)));
}

#[test]
fn a_limit_in_the_request_and_the_largest_refund_keep_the_block() {
    let bench = Bench::new(POLICY);
    let nine = Override { requests_per_unit: 9, unit: Unit::Second, unit_multiplier: 10 };
    assert!(bench.one("hard=a").passes());
    assert!(!bench.one("hard=a").passes());
    assert!(!bench.ask(&[d("hard=a").limit(nine)]).passes());
    assert!(bench.ask(&[d("hard=a").refund(u64::MAX)]).passes());
    assert!(!bench.one("hard=a").passes());
    for _ in 0..9 {
        assert!(bench.ask(&[d("hard=b").limit(nine)]).passes());
    }
    assert_eq!(
        bench.ask(&[d("hard=b").limit(nine)]).retry_after,
        Some(Micros(600 * SECOND)),
        "the rest of the rule applies to it"
    );
}
