//! Soft limits: which calls carry the marks of `mark`, and which call `log_near` reports.

use tidegate::decide::GlobalModes;
use tidegate::domain::Micros;

use super::test_decider::{Bench, d};

/// A shadow rule `soft` and a hard rule `hard` on keys of their own, both marked.
const SOFT_AND_HARD: &str = "
domain: t
descriptors:
  - key: soft
    shadow_mode: true
    rate_limit:
      unit: minute
      requests_per_unit: 10
      mark: {near: {X-Quota: near}, over: {x-quota: over}, near_at: 80%}
  - key: hard
    rate_limit:
      unit: minute
      requests_per_unit: 12
      mark: {over: {x-last: yes}}
";

fn marks(bench: &Bench, path: &str, calls: usize) -> Vec<String> {
    (0..calls).map(|_| bench.one(path).marks.join(", ")).collect()
}

fn limit(keys: &str) -> Bench {
    let mark = "mark: {near: {q: near}, over: {q: over}, near_at: 80%}";
    Bench::new(&format!("domain: t\ndescriptors: [{{key: k, rate_limit: {{{keys}, {mark}}}}}]"))
}

#[test]
fn ten_a_minute_in_shadow_pass_unmarked_then_near_and_over_from_the_last_hit_on() {
    let bench = Bench::new(SOFT_AND_HARD);
    let seen = marks(&bench, "soft=a", 13);
    assert_eq!(seen[..7], [""; 7]);
    assert_eq!(seen[7..9], ["x-quota: near"; 2]);
    assert_eq!(seen[9..], ["x-quota: over"; 4]);
    assert!(bench.one("soft=a").passes());
    assert_eq!(marks(&bench, "soft=b", 1), [""], "another counter");
    bench.advance(Micros::from_secs(60));
    assert_eq!(marks(&bench, "soft=a", 1), [""], "a new window");
}

#[test]
fn a_call_over_the_soft_limit_is_rejected_at_the_hard_one_without_marks() {
    let bench = Bench::new(SOFT_AND_HARD);
    let both = || bench.ask(&[d("soft=a"), d("hard=a")]);
    let seen: Vec<_> = (0..13).map(|_| both()).collect();
    assert_eq!(seen[10].marks, ["x-quota: over"]);
    assert_eq!(seen[11].marks, ["x-quota: over", "x-last: yes"]);
    assert!(seen[11].passes() && !seen[12].passes());
    assert!(seen[12].marks.is_empty());
}

#[test]
fn a_soft_limit_charges_nothing_beyond_itself() {
    let bench = Bench::new(SOFT_AND_HARD);
    let over = bench.ask(&[d("soft=a").hits(11)]);
    assert!(over.passes());
    assert_eq!(over.marks, ["x-quota: over"]);
    assert_eq!(bench.one("soft=a").rows[0].remaining, 9);
}

#[test]
fn a_header_that_several_limits_set_has_the_value_of_the_first_that_is_over() {
    let bench = Bench::new(
        "
domain: t
descriptors:
  - key: k
    rate_limits:
      - {name: a, unit: day, requests_per_unit: 5, mark: {near: {q: a-near}, over: {q: a-over}, near_at: 20%}}
      - {name: b, unit: day, requests_per_unit: 3, mark: {near: {q: b-near, b: near}, over: {q: b-over}, near_at: 20%}}
      - {name: c, unit: day, requests_per_unit: 9, mark: {near: {c: near}, near_at: 1%}}
",
    );
    let mut seen = (0..3).map(|_| bench.one("k=x").marks);
    assert_eq!(seen.next().unwrap(), ["q: a-near", "b: near", "c: near"]);
    assert_eq!(seen.next().unwrap(), ["q: a-near", "b: near", "c: near"]);
    assert_eq!(seen.next().unwrap(), ["q: b-over", "c: near"]);
}

#[test]
fn a_peek_and_a_dry_run_are_marked_by_the_state_that_they_find() {
    let bench = Bench::new(SOFT_AND_HARD);
    let peek = || bench.ask(&[d("soft=a").hits(0)]).marks;
    assert!(peek().is_empty());
    bench.ask(&[d("soft=a").hits(8)]);
    assert_eq!(peek(), ["x-quota: near"]);
    bench.ask(&[d("soft=a").hits(1)]);
    assert_eq!(bench.dry_run(&[d("soft=a")]).marks, ["x-quota: over"]);
    bench.ask(&[d("soft=a").hits(1)]);
    assert_eq!(peek(), ["x-quota: over"]);
    assert_eq!(bench.ask(&[d("soft=a").refund(2)]).marks, ["x-quota: near"]);
}

#[test]
fn global_shadow_mode_marks_what_passes() {
    let modes = GlobalModes { shadow: true, ..GlobalModes::default() };
    let bench = Bench::with_modes(SOFT_AND_HARD, modes);
    let seen = marks(&bench, "hard=a", 14);
    assert_eq!(seen[10..], ["", "x-last: yes", "x-last: yes", "x-last: yes"]);
}

#[test]
fn every_algorithm_marks_by_the_hits_that_are_in_use() {
    for keys in [
        "unit: day, requests_per_unit: 10",
        "unit: day, requests_per_unit: 10, align: calendar",
        "algorithm: sliding_window, unit: day, requests_per_unit: 10",
        "algorithm: sliding_log, unit: day, requests_per_unit: 10",
        "algorithm: token_bucket, unit: day, requests_per_unit: 1, burst: 10",
        "algorithm: leaky_bucket, unit: day, requests_per_unit: 1, burst: 10",
        "algorithm: concurrency, requests_per_unit: 10",
    ] {
        let seen = marks(&limit(keys), "k=a", 11).join(" ");
        assert_eq!(seen.trim(), "q: near q: near q: over", "{keys}");
    }
}

#[test]
fn a_class_is_near_when_it_has_used_up_what_the_class_may_use() {
    for (tiers, hits) in [
        ("shared, classes: {gold: {floor: 0%}, free: {floor: 50%}}", 11),
        ("separate, classes: {gold: {share: 50%}, free: {share: 50%}}", 10),
        ("hybrid, classes: {gold: {share: 40%, floor: 0%}, free: {share: 10%, floor: 20%}}", 11),
    ] {
        let bench = limit(&format!(
            "algorithm: token_bucket, unit: day, requests_per_unit: 20, tiers: {{method: {tiers}}}"
        ));
        let seen = marks(&bench, "k=free", hits);
        // 80 % of 10 and of 11 hits are 8 and 9.
        let near = (hits * 8).div_ceil(10) - 1;
        assert_eq!(seen[..near], vec![""; near], "{tiers}");
        assert_eq!(seen[near..hits - 1], vec!["q: near"; hits - 1 - near], "{tiers}");
        assert_eq!(seen[hits - 1], "q: over", "{tiers}");
    }
}

#[test]
fn near_at_is_rounded_up_and_has_the_default_of_the_setting() {
    let bench = Bench::new(
        "domain: t
descriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 7, mark: {near: {q: near}}}}]",
    );
    // 80 % of 7 is 5.6.
    assert_eq!(marks(&bench, "k=a", 7), ["", "", "", "", "", "q: near", ""]);
}

#[test]
fn log_near_reports_the_call_that_reaches_near_at_once_per_key_and_window() {
    let bench = Bench::new(
        "domain: t
descriptors: [{key: k, rate_limit: {unit: minute, requests_per_unit: 10, log_near: true}}]",
    );
    for _ in 0..12 {
        bench.one("k=a");
    }
    bench.ask(&[d("k=b").hits(9)]);
    bench.ask(&[d("k=b").hits(0)]);
    bench.ask(&[d("k=c").hits(11)]);
    bench.advance(Micros::from_secs(60));
    bench.ask(&[d("k=a").hits(10)]);
    let near = bench.told.3.lock().unwrap().clone();
    assert_eq!(near, [("a".to_owned(), 8), ("b".to_owned(), 9), ("a".to_owned(), 10)]);
}
