//! Hybrid classes beside the two methods that they combine: no class is starved, and idle capacity
//! is used.

use super::class_claims::set_1;
use super::{admitted, simulated};

#[test]
fn nobody_is_starved_under_overload() {
    // A fifth of 40 a second is guaranteed to each class, whatever the others do.
    let hybrid = admitted(&simulated("classes-2-overload", &[("method", "hybrid")]));
    assert!(hybrid.iter().all(|&count| count >= 8 * 60), "{hybrid:?}");
    assert_eq!(hybrid, [1_473, 575, 549]);
    let shared = admitted(&simulated("classes-2-overload", &[("method", "shared")]));
    assert!(shared[2] < 8 * 60, "without a share of its own free nearly starves: {shared:?}");
    assert!(hybrid[0] > hybrid[1] && hybrid[1] > hybrid[2], "and yet in order: {hybrid:?}");
}

#[test]
fn nobody_is_starved_by_a_surge() {
    for surges in 0..3 {
        let hybrid = admitted(&set_1("hybrid", Some(surges)));
        assert!(hybrid.iter().all(|&count| count >= 8 * 60), "{surges} surges: {hybrid:?}");
    }
}

#[test]
fn idle_capacity_is_used() {
    for surges in 0..3 {
        let hybrid = admitted(&set_1("hybrid", Some(surges)))[surges];
        let separate = admitted(&set_1("separate", Some(surges)))[surges];
        assert!(hybrid > separate, "{surges} surges: {hybrid}, separate {separate}");
    }
}

#[test]
fn it_admits_no_more_than_the_bucket_has() {
    for surges in [None, Some(0), Some(1), Some(2)] {
        let all: u64 = admitted(&set_1("hybrid", surges)).iter().sum();
        assert!(all <= 200 + 40 * 60, "{surges:?}: {all}");
    }
}
