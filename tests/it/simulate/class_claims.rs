//! Consumer classes: the claims of Seleznev, "Development of API rate limiting methods based on
//! consumer classes" (2025, DOI 10.26102/2310-6018/2025.48.1.013), lettered A to K, as
//! inequalities; and the counts of an independent reference model.

use tidegate_simulate::SimulationResult;

use super::{admitted, simulated};

pub(crate) const CLASSES: [&str; 3] = ["gold", "silver", "free"];

/// Set 1: the load is even, or one class surges.
pub(crate) fn set_1(method: &str, surges: Option<usize>) -> SimulationResult {
    let name = match surges {
        None => "classes-1-even".to_owned(),
        Some(class) => format!("classes-1-{}-surges", CLASSES[class]),
    };
    simulated(&name, &[("method", method)])
}

/// The part of each class's calls that was admitted.
fn accepted(result: &SimulationResult) -> Vec<f64> {
    result.groups.iter().map(|group| group.admitted_share()).collect()
}

/// Each class's part of all admitted calls.
fn shares(result: &SimulationResult) -> Vec<f64> {
    let admitted = admitted(result);
    let all: u64 = admitted.iter().sum();
    admitted.iter().map(|&count| count as f64 / all as f64).collect()
}

/// By how much a class's share of the admitted calls rises when it surges.
fn rise(method: &str, class: usize) -> f64 {
    shares(&set_1(method, Some(class)))[class] - shares(&set_1(method, None))[class]
}

/// By how many a class's admitted calls rise when it surges.
fn more(method: &str, class: usize) -> i64 {
    let admitted = |surges| admitted(&set_1(method, surges))[class] as i64;
    admitted(Some(class)) - admitted(None)
}

/// How unequal the classes' acceptance is.
fn imbalance(result: &SimulationResult) -> f64 {
    let accepted = accepted(result);
    let most = accepted.iter().copied().fold(f64::MIN, f64::max);
    most - accepted.iter().copied().fold(f64::MAX, f64::min)
}

#[test]
fn set_1_admits_what_the_reference_model_admits() {
    let expected = [
        ("shared", None, [840, 840, 794]),
        ("shared", Some(0), [1_400, 463, 357]),
        ("shared", Some(1), [560, 1_290, 365]),
        ("shared", Some(2), [560, 560, 1_062]),
        ("separate", None, [840, 840, 840]),
        ("separate", Some(0), [865, 560, 560]),
        ("separate", Some(1), [560, 865, 560]),
        ("separate", Some(2), [560, 560, 865]),
    ];
    let mut wrong = Vec::new();
    for (method, surges, expected) in expected {
        let got = admitted(&set_1(method, surges));
        let within = |(&got, expected): (&u64, u64)| {
            (got as f64 - expected as f64).abs() <= 0.02 * expected as f64
        };
        if !got.iter().zip(expected).all(within) {
            wrong.push(format!("{method}, surge of {surges:?}: {got:?}, not {expected:?}"));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn a_both_methods_limit_effectively() {
    // 200 at first and 40 a second for a minute.
    for method in ["shared", "separate"] {
        for surges in [None, Some(0), Some(1), Some(2)] {
            let all: u64 = admitted(&set_1(method, surges)).iter().sum();
            assert!(all <= 200 + 40 * 60, "{method}, {surges:?}: {all}");
        }
        let all: u64 =
            admitted(&simulated("classes-2-overload", &[("method", method)])).iter().sum();
        assert!((2_400..=2_600).contains(&all), "{method}, overload: {all}");
    }
}

#[test]
fn b_a_shared_bucket_shifts_success_towards_the_higher_classes() {
    let even = shares(&set_1("shared", None));
    assert!(even[0] >= even[1] && even[1] > even[2], "{even:?}");
    let overload = shares(&simulated("classes-2-overload", &[("method", "shared")]));
    assert!(overload[0] > overload[1] && overload[1] > overload[2], "{overload:?}");
}

#[test]
fn c_under_steadily_high_load_the_lowest_class_is_in_difficulties_first() {
    let result = simulated("classes-2-overload", &[("method", "shared")]);
    let first: Vec<Option<f64>> =
        result.groups.iter().map(|group| group.first_rejection_s).collect();
    assert_eq!(first[0], None, "gold is never refused");
    let (silver, free) = (first[1].unwrap(), first[2].unwrap());
    assert!(free < silver, "{free} {silver}");
    // The reference model: 1.9 s and 7.6 s; 1.00, 0.56 and 0.03 are accepted.
    assert!((free - 1.9).abs() <= 0.1 && (silver - 7.6).abs() <= 0.2, "{free} {silver}");
    let accepted = accepted(&result);
    let near = |got: f64, expected: f64| (got - expected).abs() <= 0.01;
    assert!(near(accepted[0], 1.0) && near(accepted[1], 0.56) && near(accepted[2], 0.03));
}

#[test]
fn d_separate_buckets_are_more_balanced() {
    assert!(imbalance(&set_1("separate", None)) < imbalance(&set_1("shared", None)));
    let overload = |method| simulated("classes-2-overload", &[("method", method)]);
    assert!(imbalance(&overload("separate")) < 0.01);
    assert!(imbalance(&overload("shared")) > 0.9);
    for accepted in accepted(&overload("separate")) {
        assert!((accepted - 0.54).abs() <= 0.01, "{accepted}");
    }
}

#[test]
fn e_a_surge_markedly_affects_the_share_of_its_own_class() {
    for method in ["shared", "separate"] {
        for class in 0..3 {
            assert!(rise(method, class) > 0.05, "{method}, {class}: {}", rise(method, class));
        }
    }
}

#[test]
fn f_how_much_depends_on_the_method() {
    for class in 0..3 {
        assert!(rise("shared", class) > rise("separate", class) + 0.01, "{class}");
    }
}

#[test]
fn g_in_a_shared_bucket_a_surge_of_a_higher_class_considerably_limits_the_lower_ones() {
    let even = accepted(&set_1("shared", None));
    let gold = accepted(&set_1("shared", Some(0)));
    assert!(gold[1] < 0.9 * even[1] && gold[2] < 0.75 * even[2], "{even:?} {gold:?}");
    let silver = accepted(&set_1("shared", Some(1)));
    assert!(silver[2] < 0.75 * even[2], "{even:?} {silver:?}");
    assert!((silver[0] - 1.0).abs() < 1e-9, "a lower class does not limit a higher one");
}

#[test]
fn h_separate_buckets_keep_the_quotas_of_all_classes() {
    for surges in 0..3 {
        let accepted = accepted(&set_1("separate", Some(surges)));
        for class in (0..3).filter(|&class| class != surges) {
            assert!(accepted[class] > 0.999, "{surges} surges: {accepted:?}");
        }
    }
}

#[test]
fn i_surges_of_lower_classes_raise_the_share_of_those_classes_too() {
    for method in ["shared", "separate"] {
        assert!(rise(method, 1) > 0.0 && rise(method, 2) > 0.0, "{method}");
    }
}

#[test]
fn j_in_a_shared_bucket_the_rise_is_weaker_the_lower_the_priority() {
    let rises = [0, 1, 2].map(|class| more("shared", class));
    assert!(rises[0] > rises[1] && rises[1] > rises[2], "{rises:?}");
    let rises = [0, 1, 2].map(|class| rise("shared", class));
    assert!(rises[0] > rises[1] && rises[1] > rises[2], "{rises:?}");
}

#[test]
fn k_with_separate_buckets_the_rise_is_about_the_same_whatever_the_priority() {
    let rises = [0, 1, 2].map(|class| more("separate", class));
    assert!(rises.iter().all(|&rise| rise > 0), "{rises:?}");
    let spread = rises.iter().max().unwrap() - rises.iter().min().unwrap();
    assert!(spread <= 3, "{rises:?}");
}

#[test]
fn set_3_shows_the_methods_under_different_intensities() {
    // Shown, not claimed: only that the surge of a class never lets more pass than the bucket has.
    for class in CLASSES {
        for method in ["shared", "separate", "hybrid"] {
            let result = simulated(&format!("classes-3-{class}-surges"), &[("method", method)]);
            assert!(admitted(&result).iter().sum::<u64>() <= 200 + 40 * 60, "{class}, {method}");
        }
    }
}
