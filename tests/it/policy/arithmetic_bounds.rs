//! From policy text to limits: every bound of the arithmetic, from both sides.

use tidegate::domain::{
    Algorithm, Charge, Hits, Limit, Micros, OnStoreFailure, Override, Refill, Unit, Window,
};
use tidegate::policy::compiled_policy::LimitSpec;
use tidegate::policy::{DiagnosticKind, compile_override};

use super::compile_helpers::{bad, good, rate_limit};

fn limit(text: &str) -> Limit {
    let rule = good(rate_limit(text)).domains.remove(0).nodes.remove(0).rule.unwrap();
    (*rule.limits[0].limit).clone()
}

fn refill(text: &str) -> (u64, Refill) {
    match limit(&format!("algorithm: token_bucket, {text}")).algorithm {
        Algorithm::Bucket(bucket) => (bucket.burst.0, bucket.refill),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_fixed_window_takes_any_32_bit_number() {
    for number in [0, 1, u32::MAX] {
        let limit =
            limit(&format!("unit: minute, unit_multiplier: 15, requests_per_unit: {number}"));
        let Algorithm::FixedWindow(window) = limit.algorithm else { panic!("{limit:?}") };
        assert_eq!(window.hits, Hits(number.into()));
        assert_eq!(window.window, Window::Epoch { length: Micros::from_secs(900) });
    }
}

#[test]
fn a_bucket_is_kept_as_arrival_time_where_the_window_divides_evenly() {
    let even = |micros| Refill::Arrival { emission: Micros(micros) };
    assert_eq!(refill("unit: second, requests_per_unit: 10, burst: 20"), (20, even(100_000)));
    assert_eq!(refill("unit: second, requests_per_unit: 1000000"), (1_000_000, even(1)));
    assert_eq!(refill("unit: day, requests_per_unit: 5"), (5, even(17_280_000_000)));
}

#[test]
fn a_bucket_is_kept_as_arrival_time_where_rounding_costs_less_than_a_thousandth() {
    // 1,000,000 / 3 = 333,333.3 µs; rounded up, a rate of 0.9999980 of what was asked.
    let (_, kept) = refill("unit: second, requests_per_unit: 3");
    assert_eq!(kept, Refill::Arrival { emission: Micros(333_334) });
    // 1,000,000 / 1,999 = 500.25; rounded up to 501: 0.15 % slower, so credits.
    let (_, kept) = refill("unit: second, requests_per_unit: 1999");
    assert_eq!(kept, Refill::Credits { hits: Hits(1999), window: Micros::SECOND });
    // 1,000,000 / 1,001 = 999.001; rounded up to 1,000: exactly 0.1 % slower, so credits.
    let (_, kept) = refill("unit: second, requests_per_unit: 1001");
    assert_eq!(kept, Refill::Credits { hits: Hits(1001), window: Micros::SECOND });
    // 60,000,000 / 59,941 = 1,000.98; rounded up to 1,001: 0.0016 % slower.
    let (_, kept) = refill("unit: minute, requests_per_unit: 59941");
    assert_eq!(kept, Refill::Arrival { emission: Micros(1_001) });
}

#[test]
fn the_largest_burst_fits_and_one_more_is_refused_by_its_name() {
    for (rate, largest) in [
        // Arrival time: burst · emission < 2^52.
        ("unit: second, requests_per_unit: 10", ((1_u64 << 52) - 1) / 100_000),
        ("unit: year, unit_multiplier: 10, requests_per_unit: 1", 14),
        // Credits: burst · window < 2^53.
        ("unit: second, requests_per_unit: 300000", ((1 << 53) - 1) / 1_000_000),
        ("unit: day, requests_per_unit: 4000000000", 104_249),
        ("unit: month, requests_per_unit: 3999999999", 3_474),
    ] {
        let (burst, _) = refill(&format!("{rate}, burst: {largest}"));
        assert_eq!(burst, largest);
        let text = format!("algorithm: token_bucket, {rate}, burst: {}", largest + 1);
        let faults = bad(rate_limit(&text));
        assert_eq!((faults.len(), faults[0].kind), (1, DiagnosticKind::OutOfRange), "{rate}");
        assert!(
            faults[0].message.contains(&format!("at most {largest} at this rate")),
            "{}",
            faults[0]
        );
    }
}

#[test]
fn a_bucket_without_burst_holds_its_rate_or_says_which_burst_fits() {
    assert_eq!(refill("unit: second, requests_per_unit: 7").0, 7);
    let faults =
        bad(rate_limit("algorithm: token_bucket, unit: day, requests_per_unit: 4000000000"));
    assert_eq!(faults[0].path, "descriptors[0].rate_limit.requests_per_unit");
    assert!(faults[0].message.contains("add `burst` with at most 104249"), "{}", faults[0]);
}

#[test]
fn requests_per_unit_zero_denies_all_under_every_algorithm() {
    for algorithm in ["fixed_window", "token_bucket"] {
        let limit = limit(&format!("algorithm: {algorithm}, unit: day, requests_per_unit: 0"));
        assert_eq!(limit.capacity(), Hits::ZERO);
    }
}

#[test]
fn a_window_of_ten_years_fits_and_one_unit_more_is_refused_by_its_name() {
    for (unit, most) in [
        ("second", 315_360_000_u64),
        ("minute", 5_256_000),
        ("hour", 87_600),
        ("day", 3_650),
        ("week", 521),
        ("month", 121),
        ("year", 10),
    ] {
        let text = |n: u64| format!("unit: {unit}, unit_multiplier: {n}, requests_per_unit: 1");
        assert_eq!(u64::from(limit(&text(most)).rate.unit_multiplier), most);
        let faults = bad(rate_limit(&text(most + 1)));
        assert_eq!(faults[0].kind, DiagnosticKind::OutOfRange);
        assert!(faults[0].message.contains(&most.to_string()), "{}", faults[0]);
    }
}

#[test]
fn a_cost_up_to_the_capacity_fits_and_above_it_is_refused() {
    let cost = |text: &str| {
        let rule = good(rate_limit(text)).domains.remove(0).nodes.remove(0).rule.unwrap();
        rule.limits[0].cost
    };
    assert_eq!(cost("unit: day, requests_per_unit: 5"), 1);
    assert_eq!(cost("unit: day, requests_per_unit: 5, cost: 5"), 5);
    assert_eq!(
        cost("algorithm: token_bucket, unit: day, requests_per_unit: 5, burst: 9, cost: 9"),
        9
    );
    assert_eq!(
        bad(rate_limit("unit: day, requests_per_unit: 5, cost: 6"))[0].kind,
        DiagnosticKind::OutOfRange
    );
    assert_eq!(cost("unit: day, requests_per_unit: 0, cost: 6"), 6, "nothing passes anyway");
}

#[test]
fn charge_and_on_store_failure_are_read_and_the_rules_word_wins() {
    assert_eq!(limit("unit: day, requests_per_unit: 1").charge, Charge::Admitted);
    assert_eq!(limit("unit: day, requests_per_unit: 1, charge: always").charge, Charge::Always);
    for (word, meant) in [
        ("local", OnStoreFailure::Local),
        ("allow", OnStoreFailure::Allow),
        ("deny", OnStoreFailure::Deny),
        ("error", OnStoreFailure::Error),
    ] {
        let text =
            rate_limit(&format!("unit: day, requests_per_unit: 1, on_store_failure: {word}"));
        let rule =
            good(format!("on_store_failure: deny\n{text}")).domains.remove(0).nodes.remove(0);
        assert_eq!(rule.rule.unwrap().limits[0].limit.on_store_failure, meant);
    }
}

#[test]
fn a_family_is_one_for_each_domain_path_name_and_window_and_no_other_number() {
    let base = "unit: minute, requests_per_unit: 5";
    let family = |text: &str| limit(text).limit_id;
    assert_eq!(family(base), family("unit: minute, requests_per_unit: 6"));
    assert_eq!(family(base), family("unit: second, unit_multiplier: 60, requests_per_unit: 5"));
    assert_ne!(family(base), family("unit: hour, requests_per_unit: 5"));
    assert_ne!(family(base), family("unit: minute, requests_per_unit: 5, name: n"));
    let at = |text: &str| good(text).domains.remove(0).nodes.remove(0);
    let family_of = |node: &tidegate::policy::compiled_policy::NodeSpec| {
        node.rule.as_ref().unwrap().limits[0].limit.limit_id
    };
    let limit = "rate_limit: {unit: minute, requests_per_unit: 5}";
    let here = at(&format!("domain: edge\ndescriptors: [{{key: a, {limit}}}]\n"));
    let valued = at(&format!("domain: edge\ndescriptors: [{{key: a, value: b, {limit}}}]\n"));
    let other = at(&format!("domain: other\ndescriptors: [{{key: a, {limit}}}]\n"));
    assert_ne!(family_of(&here), family_of(&valued));
    assert_ne!(family_of(&here), family_of(&other));
    assert_eq!(family_of(&here), family(base));
}

#[test]
fn an_override_is_a_fixed_window_and_zero_denies() {
    let asked = Override { requests_per_unit: 42, unit: Unit::Hour, unit_multiplier: 2 };
    let limit = compile_override("edge", &asked, Charge::Admitted);
    assert_eq!(limit.capacity(), Hits(42));
    assert_eq!(limit.rate.window(), Micros::from_secs(7200));
    let Algorithm::FixedWindow(window) = &limit.algorithm else { panic!("{limit:?}") };
    assert_eq!(window.window, Window::Epoch { length: Micros::from_secs(7200) });
    let denied =
        compile_override("edge", &Override { requests_per_unit: 0, ..asked }, Charge::Admitted);
    assert_eq!(denied.capacity(), Hits::ZERO);
    assert_eq!(limit.limit_id, denied.limit_id, "one counter whatever the number");
    assert_ne!(limit.limit_id, compile_override("other", &asked, Charge::Admitted).limit_id);
}

#[test]
fn an_absurd_override_is_capped() {
    let asked = Override { requests_per_unit: 1, unit: Unit::Year, unit_multiplier: u32::MAX };
    let limit = compile_override("edge", &asked, Charge::Admitted);
    let Algorithm::FixedWindow(window) = &limit.algorithm else { panic!("{limit:?}") };
    assert_eq!(window.window, Window::Epoch { length: tidegate::policy::WINDOW_MAX });
    assert_eq!(limit.rate.unit_multiplier, u32::MAX, "shown as it was sent");
    let zero =
        compile_override("edge", &Override { unit_multiplier: 0, ..asked }, Charge::Admitted);
    assert_eq!(zero.rate.unit_multiplier, 1);
}

#[test]
fn charged_always_half_of_each_bound_applies() {
    for (rate, largest) in [
        ("unit: second, requests_per_unit: 10", ((1_u64 << 51) - 1) / 100_000),
        ("unit: second, requests_per_unit: 300000", ((1 << 52) - 1) / 1_000_000),
    ] {
        let rate = format!("algorithm: token_bucket, charge: always, {rate}");
        assert_eq!(limit(&format!("{rate}, burst: {largest}")).capacity(), Hits(largest));
        let faults = bad(rate_limit(&format!("{rate}, burst: {}", largest + 1)));
        assert!(
            faults[0].message.contains(&format!("at most {largest} at this rate")),
            "{}",
            faults[0]
        );
    }
}

#[test]
fn a_sliding_window_takes_what_its_ticks_leave_room_for() {
    for (window, largest) in [
        ("unit: second", u64::from(u32::MAX)),
        ("unit: second, unit_multiplier: 59", ((1_u64 << 53) - 1) / 59_000_000),
        ("unit: minute", u64::from(u32::MAX)),
        ("unit: year, unit_multiplier: 10", ((1 << 53) - 1) / 315_360_000),
    ] {
        let text = |hits| format!("algorithm: sliding_window, {window}, requests_per_unit: {hits}");
        assert_eq!(limit(&text(largest)).capacity(), Hits(largest));
        assert_eq!(bad(rate_limit(&text(largest + 1))).len(), 1, "{window}");
    }
}

fn classes(text: &str) -> LimitSpec {
    let text = rate_limit(&format!("algorithm: token_bucket, unit: second, {text}"));
    let text = format!("charge: billed\n{text}");
    good(text).domains.remove(0).nodes.remove(0).rule.unwrap().limits[0].clone()
}

#[test]
fn the_largest_burst_of_a_hybrid_fits() {
    let hybrid = "tiers: {method: hybrid, classes: {gold: {share: 5%}}}";
    let spec = classes(&format!("requests_per_unit: 10, burst: 22517998, {hybrid}"));
    assert_eq!(spec.limit.capacity(), Hits(22_517_998));
}

#[test]
fn a_class_of_a_hybrid_charges_only_admitted_hits_even_in_a_billed_domain() {
    let hybrid = "tiers: {method: hybrid, classes: {gold: {share: 50%}}}";
    let spec = classes(&format!("requests_per_unit: 10, {hybrid}"));
    let tiers = spec.tiers.unwrap();
    let class = &tiers.classes[0];
    assert_eq!((class.limit.charge, class.bill_limit.is_none()), (Charge::Admitted, true));
}

#[test]
fn separate_classes_have_ids_of_their_own_which_all_belong_to_the_limit() {
    let separate = "tiers: {method: separate, classes: {gold: {share: 50%}, free: {share: 50%}}}";
    let spec = classes(&format!("requests_per_unit: 10, {separate}"));
    let classes = &spec.tiers.as_ref().unwrap().classes;
    let (gold, free) = (classes[0].limit.limit_id, classes[1].limit.limit_id);
    assert_ne!(gold, free);
    assert!(spec.has_id(gold) && spec.has_id(free) && !spec.has_id(gold ^ 1));
}

#[test]
fn only_the_ids_of_overrides_are_marked_as_such() {
    for multiplier in 1..=64 {
        let text = format!("unit: minute, unit_multiplier: {multiplier}, requests_per_unit: 5");
        assert_eq!(limit(&text).limit_id & Limit::OVERRIDE_BIT, 0, "{multiplier}");
        let asked =
            Override { requests_per_unit: 5, unit: Unit::Minute, unit_multiplier: multiplier };
        let id = compile_override("edge", &asked, Charge::Admitted).limit_id;
        assert_ne!(id & Limit::OVERRIDE_BIT, 0, "{multiplier}");
    }
}
