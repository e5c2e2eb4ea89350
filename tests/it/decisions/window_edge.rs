//! What an attacker gains at the edge of a window, and what a burst gains, under each algorithm.

use tidegate::domain::Micros;

use super::test_decider::Bench;

/// A whole hour, so that a minute begins here.
const EDGE: Micros = Micros(1_800_054_000_000_000);

fn policy(limit: &str) -> String {
    format!(
        "{{domain: t, descriptors: [{{key: k, rate_limit: {{requests_per_unit: 1000, {limit}}}}}]}}"
    )
}

#[test]
fn burst_no_throttle() {
    for limit in [
        "unit: minute",
        "unit: minute, algorithm: sliding_window",
        "unit: minute, algorithm: sliding_log",
        "unit: minute, algorithm: token_bucket",
        "unit: minute, algorithm: leaky_bucket, burst: 1000",
        "algorithm: concurrency",
    ] {
        let bench = Bench::new(&policy(limit));
        bench.set(EDGE);
        assert_eq!(bench.passes("k=a", 1_000), 1_000, "{limit}: all at once");
        assert!(!bench.one("k=a").passes(), "{limit}: and not one more");
    }
}

/// 1,000 per minute, and an attacker who sends 50 a tenth of a second from 20 seconds before the
/// edge of a minute to 20 seconds after it.
#[test]
fn window_edge_attack() {
    for (limit, admitted) in [
        ("unit: minute", 2_000..=2_000),
        ("unit: minute, algorithm: sliding_log", 1_000..=1_000),
        // L, and what leaves the window within the 20 seconds after the edge: a third.
        ("unit: minute, algorithm: sliding_window", 1_000..=1_334),
        // B + r·40 s.
        ("unit: minute, algorithm: token_bucket", 1_600..=1_667),
        // 1 + r·40 s.
        ("unit: minute, algorithm: leaky_bucket", 200..=668),
    ] {
        let bench = Bench::new(&policy(limit));
        bench.set(Micros(EDGE.0 - 20_000_000));
        let mut passed = 0;
        for _ in 0..400 {
            passed += bench.passes("k=a", 50);
            bench.advance(Micros(100_000));
        }
        assert!(admitted.contains(&passed), "{limit}: {passed}");
    }
}
