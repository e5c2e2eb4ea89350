//! What a call would be answered, and then the call: they agree, and the first left no trace.

use tidegate::domain::Micros;

use crate::bench::{Answered, Bench, D, d};

const ALL_KINDS: &str = "
domain: t
descriptors:
  - key: window
    rate_limit: {unit: minute, requests_per_unit: 7}
  - key: bucket
    rate_limit: {unit: second, requests_per_unit: 2, algorithm: token_bucket, burst: 9}
  - key: leaky
    rate_limit: {unit: second, requests_per_unit: 3, algorithm: leaky_bucket, burst: 2}
  - key: sliding
    rate_limit: {unit: minute, requests_per_unit: 8, algorithm: sliding_window}
  - key: log
    rate_limit: {unit: minute, requests_per_unit: 6, algorithm: sliding_log}
  - key: costly
    rate_limit: {unit: minute, requests_per_unit: 20, cost: 3}
  - key: shadow
    shadow_mode: true
    rate_limit: {unit: minute, requests_per_unit: 3}
  - key: quota
    quota_mode: true
    rate_limit: {unit: minute, requests_per_unit: 4}
  - key: list
    rate_limits:
      - {name: short, unit: second, requests_per_unit: 2}
      - {name: long, unit: hour, requests_per_unit: 30}
  - key: free
    rate_limit: {unlimited: true}
";

const KEYS: [&str; 11] = [
    "window", "bucket", "leaky", "sliding", "log", "costly", "shadow", "quota", "list", "free",
    "nobody",
];

/// The same numbers each time (Knuth's MMIX generator).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }
}

/// What both must say alike. When a counter that was charged is as new is only known afterwards.
fn told(answered: &Answered) -> impl PartialEq + std::fmt::Debug {
    let rows =
        answered.rows.iter().map(|row| (row.code, row.limit, row.name.clone(), row.remaining));
    (answered.code, rows.collect::<Vec<_>>(), answered.shadowed)
}

#[test]
fn a_call_is_answered_as_foreseen_and_foreseeing_charges_nothing() {
    let bench = Bench::new(ALL_KINDS);
    let mut numbers = Numbers(7);
    let (mut refused, mut waits) = (0, 0);
    for round in 0..4_000 {
        bench.advance(Micros(numbers.below(1_500_000) as u64));
        let descriptor = |numbers: &mut Numbers| {
            d(&format!("{}={}", KEYS[numbers.below(KEYS.len())], numbers.below(2)))
        };
        let descriptors: Vec<D> =
            (0..=numbers.below(3)).map(|_| descriptor(&mut numbers)).collect();
        let foreseen = bench.foresee(&descriptors);
        assert_eq!(told(&bench.foresee(&descriptors)), told(&foreseen), "round {round}: a trace");
        let real = bench.ask(&descriptors);
        assert_eq!(told(&foreseen), told(&real), "round {round}");
        // What costs a limit more than one hit has a wait that only the call itself can tell, and
        // of several limits that refuse the one with the longest wait is named.
        let told_wait = foreseen.retry_after.is_some();
        let named = |answered: &Answered| (answered.retry_after, answered.limited_by.clone());
        assert!(!told_wait || named(&foreseen) == named(&real), "round {round}");
        waits += usize::from(told_wait);
        refused += usize::from(!real.passes());
    }
    assert!((400..3_600).contains(&refused) && waits > 200, "{refused} {waits}");
}

#[test]
fn several_hits_are_foreseen_too_but_for_their_wait() {
    let bench = Bench::new(ALL_KINDS);
    let mut numbers = Numbers(11);
    for round in 0..2_000 {
        bench.advance(Micros(numbers.below(4_000_000) as u64));
        let path = format!("{}={}", KEYS[numbers.below(KEYS.len())], numbers.below(2));
        let descriptors = [d(&path).hits(numbers.below(12) as u64)];
        let (foreseen, real) = (bench.foresee(&descriptors), bench.ask(&descriptors));
        assert_eq!(foreseen.code, real.code, "round {round}: {path}");
    }
}
