//! Several limits on one descriptor, each keyed by entries of its own.

use tidegate::domain::{Code, Micros};

use super::test_decider::{Bench, d};

const POLICY: &str = "
domain: t
descriptors:
  - key: token
    descriptors:
      - key: ip
        rate_limits:
          - {name: burst, per: [token], algorithm: token_bucket, unit: second, requests_per_unit: 2, burst: 4}
          - {name: daily, per: [token], algorithm: sliding_window, unit: day, requests_per_unit: 30}
          - {name: ip-cap, per: [ip], unit: second, requests_per_unit: 12}
";

/// The beginning of a day, so that no window ends on the way.
const MIDNIGHT: Micros = Micros(1_800_057_600_000_000);

fn bench() -> Bench {
    let bench = Bench::new(POLICY);
    bench.set(MIDNIGHT);
    bench
}

fn limited_by(bench: &Bench, path: &str) -> Option<String> {
    bench.one(path).limited_by
}

#[test]
fn each_limit_refuses_at_its_own_number() {
    let bench = bench();
    // Four at once are the bucket's.
    assert_eq!(bench.passes("token=a > ip=1", 6), 4);
    assert_eq!(limited_by(&bench, "token=a > ip=1").as_deref(), Some("burst"));
    // Three tokens have twelve hits together, which is the address's own number: so the fourth
    // token meets that, with hits of its own left.
    assert_eq!(bench.passes("token=b > ip=1", 6), 4);
    assert_eq!(bench.passes("token=c > ip=1", 6), 4);
    assert_eq!(limited_by(&bench, "token=d > ip=1").as_deref(), Some("ip-cap"));
    assert!(bench.one("token=d > ip=2").passes(), "another address has room");
    // Thirty a day, by any number of addresses.
    let mut passed = 4;
    for second in 0..20 {
        bench.advance(Micros::SECOND);
        passed += bench.passes(&format!("token=a > ip=x{second}"), 3);
    }
    assert_eq!(passed, 30);
    assert_eq!(limited_by(&bench, "token=a > ip=9").as_deref(), Some("daily"));
}

#[test]
fn a_refusal_by_one_limit_charges_none() {
    let bench = bench();
    for token in ["a", "b", "c"] {
        assert_eq!(bench.passes(&format!("token={token} > ip=1"), 4), 4);
    }
    // The address is full: the fresh token's other limits are not charged by what it refuses.
    assert_eq!(bench.passes("token=d > ip=1", 50), 0);
    let left = bench.ask(&[d("token=d > ip=2").hits(0)]);
    assert_eq!(left.rows[0].remaining, 4, "its whole burst is there");
    assert_eq!(bench.passes("token=d > ip=2", 9), 4);
    // And the other way round: a token without hits takes none of the address's.
    assert_eq!(bench.passes("token=d > ip=2", 50), 0);
    assert_eq!(bench.passes("token=e > ip=2", 9) + bench.passes("token=f > ip=2", 9), 8);
    assert_eq!(limited_by(&bench, "token=g > ip=2").as_deref(), Some("ip-cap"));
}

#[test]
fn a_status_shows_the_limit_with_the_fewest_hits_left_or_the_longest_wait() {
    let bench = bench();
    let first = &bench.one("token=a > ip=1").rows[0];
    assert_eq!((first.name.as_str(), first.limit, first.remaining), ("burst", Some(2), 3));
    for n in 0..26 {
        bench.advance(Micros::SECOND);
        assert!(bench.one(&format!("token=a > ip=y{n}")).passes());
    }
    bench.advance(Micros::SECOND);
    let next = &bench.one("token=a > ip=z").rows[0];
    assert_eq!((next.name.as_str(), next.remaining), ("daily", 2), "2 of a day, 3 of the bucket");
    assert_eq!(bench.passes("token=a > ip=z", 4), 2);
    let over = bench.one("token=a > ip=z");
    assert_eq!((over.rows[0].code, over.rows[0].name.as_str()), (Code::OverLimit, "daily"));
    assert!(over.rows[0].reset_s.unwrap() > 3_600, "not the bucket's half second");
}

#[test]
fn equal_rests_are_shown_in_file_order_and_never_is_the_longest_wait() {
    let bench = Bench::new(
        "
domain: t
descriptors:
  - key: k
    rate_limits:
      - {name: one, unit: hour, requests_per_unit: 5}
      - {name: two, unit: day, requests_per_unit: 5}
      - {name: most, unit: minute, requests_per_unit: 9}
",
    );
    assert_eq!(bench.one("k=a").rows[0].name, "one");
    let never = bench.ask(&[d("k=a").hits(7)]);
    assert_eq!((never.limited_by.as_deref(), never.retry_after), (Some("one"), None));
}

#[test]
fn a_replaced_limit_of_a_list_leaves_the_others() {
    let bench = Bench::new(
        "
domain: t
descriptors:
  - key: k
    rate_limits:
      - {name: small, unit: hour, requests_per_unit: 1}
      - {name: large, unit: hour, requests_per_unit: 3}
  - key: vip
    rate_limit: {name: vip, unlimited: true, replaces: [{name: small}]}
",
    );
    let passed = (0..9).filter(|_| bench.ask(&[d("k=a"), d("vip")]).passes()).count();
    assert_eq!(passed, 3);
}
