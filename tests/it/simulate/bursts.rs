//! Bursts, window edges and swings: what passes under each algorithm.

use super::{admitted, group, simulated};

/// Admitted within the 40 seconds around the edge.
fn around_the_edge(algorithm: &str) -> u64 {
    let result = simulated("window-edge", &[("algorithm", algorithm)]);
    assert_eq!(result.groups[0].tries, 4_000);
    assert_eq!(result.window_max.0, result.groups[0].admitted, "all calls are in those 40 seconds");
    result.window_max.0
}

#[test]
fn window_edge_attack() {
    assert_eq!(around_the_edge("fixed_window"), 2_000);
    assert_eq!(around_the_edge("sliding_log"), 1_000);
    // At the end of the attack a third of the previous window's 1,000 has gone.
    assert_eq!(around_the_edge("sliding_window"), 1_333);
    // Its burst, and what comes back in 40 seconds.
    assert_eq!(around_the_edge("token_bucket"), 1_666);
    assert_eq!(around_the_edge("leaky_bucket"), 667);
}

#[test]
fn two_bursts_on_both_sides_of_the_minute() {
    let second = |algorithm: &str| {
        let admitted = admitted(&simulated("two-bursts", &[("algorithm", algorithm)]));
        assert_eq!(admitted[0], 500, "{algorithm}");
        admitted[1]
    };
    assert_eq!(second("fixed_window"), 600, "another minute, another count");
    assert_eq!(second("token_bucket"), 600, "the bucket is full again");
    assert_eq!(second("sliding_log"), 500, "1,000 in any minute, exactly");
    // Five sixths of the first burst still count.
    assert_eq!(second("sliding_window"), 583);
}

#[test]
fn burst_no_throttle() {
    let result = simulated("burst", &[]);
    let first = group(&result, "first burst");
    assert_eq!((first.admitted, first.refused), (1_000, 0), "the whole capacity, at once");
    assert_eq!(group(&result, "3 s later").admitted, 300, "three seconds of refill");
    assert_eq!(group(&result, "20 s later").admitted, 1_000, "full again");
    assert_eq!(result.one_second_max, 1_000);
}

#[test]
fn a_smaller_burst_throttles_the_peak_and_nothing_else() {
    let result = simulated("burst", &[("burst", "300")]);
    assert_eq!(admitted(&result), [300, 300, 300]);
}

#[test]
fn under_sharp_swings_the_log_keeps_its_bound_and_the_estimate_stays_below_twice_it() {
    let log = simulated("swings", &[("algorithm", "sliding_log")]);
    assert_eq!(log.window_max.0, 100);
    let estimate = simulated("swings", &[("algorithm", "sliding_window")]);
    assert_eq!(estimate.window_max.0, 129, "above 100 and below 200");
    // On the whole the estimate admits about what the log admits.
    let ratio = estimate.groups[0].admitted as f64 / log.groups[0].admitted as f64;
    assert!((0.75..=1.25).contains(&ratio), "{ratio}");
}
