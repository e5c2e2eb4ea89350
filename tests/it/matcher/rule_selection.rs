//! The rule that a descriptor matches.

use tidegate::policy::{DescriptorMatch, Policy, Secret};

use super::{met, met_bytes};
use crate::support::policy_specs::{descriptor, domain, entry, key, pair, policy, request};

#[test]
fn a_domain_is_looked_up_exactly_and_an_unknown_one_has_no_limit() {
    let policy = policy([key("a").limit(1)]);
    let entries = [entry("a", "x")];
    let descriptors = [descriptor(&entries), descriptor(&entries)];
    for (domain, known) in [("d", true), ("D", false), ("d.", false), ("", false), ("dd", false)] {
        let request = tidegate::domain::Request { domain, descriptors: &descriptors };
        let matches = policy.find(&request);
        assert_eq!(matches.found.len(), 2);
        assert!(
            matches.found.iter().all(|f| matches!(f, DescriptorMatch::Limited(_)) == known),
            "{domain}"
        );
        assert_eq!(policy.has_domain(domain), known);
        assert_eq!(policy.checks(&request, &matches).spans.len(), 2);
    }
}

#[test]
fn the_same_descriptor_meets_the_rule_of_its_own_domain() {
    let specs = vec![domain("d", [key("a").limit(1)]), domain("e", [key("a").limit(2)])];
    let policy = Policy::build(specs, Secret::default());
    let entries = [entry("a", "x")];
    let descriptors = [descriptor(&entries)];
    let request = tidegate::domain::Request { domain: "e", descriptors: &descriptors };
    let found = policy.find(&request).found[0];
    assert!(matches!(found, DescriptorMatch::Limited(rule) if &*rule.path == "e.a"), "{found:?}");
}

#[test]
fn an_exact_value_goes_before_patterns_and_patterns_before_the_default() {
    let policy = policy([key("a").limit(1), pair("a", "f*").limit(2), pair("a", "foo").limit(3)]);
    assert_eq!(met(&policy, &[("a", "foo")]), Some("d.a_foo"));
    assert_eq!(met(&policy, &[("a", "foot")]), Some("d.a_f*"));
    assert_eq!(met(&policy, &[("a", "goo")]), Some("d.a"));
    assert_eq!(met(&policy, &[("b", "foo")]), None);
}

#[test]
fn of_several_patterns_the_first_in_the_file_wins_not_the_longest() {
    let policy = policy([
        pair("a", "f*").limit(1),
        pair("a", "foo*").limit(2),
        pair("a", "*o").limit(3),
        pair("a", "b*").limit(4),
    ]);
    assert_eq!(met(&policy, &[("a", "foobar")]), Some("d.a_f*"));
    assert_eq!(met(&policy, &[("a", "bo")]), Some("d.a_*o"));
    assert_eq!(met(&policy, &[("a", "be")]), Some("d.a_b*"));
}

#[test]
fn the_first_pattern_in_the_file_wins_among_many_siblings_too() {
    let mut nodes: Vec<_> = (0..500).map(|n| pair("a", &format!("x{n}*")).0).collect();
    nodes.insert(100, pair("a", "*5").limit(1).0);
    nodes.insert(300, pair("a", "*44*4*").limit(2).0);
    for (n, node) in (1000..).zip(&mut nodes) {
        *node = crate::support::policy_specs::Node(node.clone()).limit(n).0;
    }
    let mut spec = domain("d", []);
    spec.nodes = nodes;
    let policy = Policy::build(vec![spec], Secret::default());
    assert_eq!(met(&policy, &[("a", "x25")]), Some("d.a_x2*"));
    assert_eq!(met(&policy, &[("a", "y25")]), Some("d.a_*5"));
    assert_eq!(met(&policy, &[("a", "y4434")]), Some("d.a_*44*4*"));
    assert_eq!(met(&policy, &[("a", "y44")]), None);
}

#[test]
fn a_lone_star_after_many_siblings_matches_the_values_that_they_leave() {
    let mut spec = domain("d", [key("a").limit(1)]);
    spec.nodes.extend((0..20).map(|n| pair("a", &format!("x{n}*")).limit(1).0));
    spec.nodes.extend(["*", "y*"].map(|pattern| pair("a", pattern).limit(1).0));
    let policy = Policy::build(vec![spec], Secret::default());
    assert_eq!(met(&policy, &[("a", "x7z")]), Some("d.a_x7*"));
    assert_eq!(met(&policy, &[("a", "z")]), Some("d.a_*"));
    assert_eq!(met(&policy, &[("a", "y1")]), Some("d.a_*"), "the first in the file");
}

#[test]
fn the_way_down_never_turns_back() {
    let policy = policy([
        pair("a", "x").over([pair("b", "1").limit(1)]),
        pair("a", "x*").over([key("b").limit(2)]),
        key("a").over([key("b").limit(3)]),
    ]);
    assert_eq!(met(&policy, &[("a", "x"), ("b", "1")]), Some("d.a_x.b_1"));
    assert_eq!(met(&policy, &[("a", "x"), ("b", "2")]), None);
    assert_eq!(met(&policy, &[("a", "xx"), ("b", "2")]), Some("d.a_x*.b"));
    assert_eq!(met(&policy, &[("a", "y"), ("b", "2")]), Some("d.a.b"));
}

#[test]
fn an_exact_sibling_without_a_limit_hides_pattern_and_default() {
    let policy = policy([key("a").limit(1), pair("a", "x*").limit(2), pair("a", "x1")]);
    assert_eq!(met(&policy, &[("a", "x1")]), None);
    assert_eq!(met(&policy, &[("a", "x2")]), Some("d.a_x*"));
}

#[test]
fn a_request_is_as_deep_as_the_path_of_its_rule() {
    let policy = policy([key("a").limit(1).over([key("b").over([key("c").limit(3)])])]);
    assert_eq!(met(&policy, &[("a", "1")]), Some("d.a"));
    assert_eq!(met(&policy, &[("a", "1"), ("b", "1")]), None, "a limit above does not apply");
    assert_eq!(met(&policy, &[("a", "1"), ("b", "1"), ("c", "1")]), Some("d.a.b.c"));
    assert_eq!(met(&policy, &[("a", "1"), ("b", "1"), ("c", "1"), ("e", "1")]), None);
}

#[test]
fn the_order_of_entries_matters() {
    let policy = policy([key("a").over([key("b").limit(1)])]);
    assert_eq!(met(&policy, &[("a", "1"), ("b", "1")]), Some("d.a.b"));
    assert_eq!(met(&policy, &[("b", "1"), ("a", "1")]), None);
}

#[test]
fn a_descriptor_without_entries_matches_nothing() {
    assert_eq!(met(&policy([key("a").limit(1)]), &[]), None);
}

#[test]
fn a_node_without_limit_and_children_is_an_explicit_allow() {
    let policy = policy([key("a").limit(1), pair("a", "friend")]);
    assert_eq!(met(&policy, &[("a", "friend")]), None);
}

#[test]
fn a_star_stands_for_zero_or_more_bytes_anywhere_and_any_number_of_times() {
    let cases = [
        ("*", vec!["", "x", "anything"], vec![]),
        ("**", vec!["", "x"], vec![]),
        ("a*", vec!["a", "ab", "a*"], vec!["", "ba", "A"]),
        ("*a", vec!["a", "ba", "aa"], vec!["", "ab"]),
        ("a*b", vec!["ab", "axb", "abb"], vec!["a", "b", "ba"]),
        ("*a*", vec!["a", "xax", "aaa"], vec!["", "x"]),
        ("a*b*c", vec!["abc", "a.b.c", "abbc", "abcbc"], vec!["ac", "acb", "ab"]),
        ("*ab*ba*", vec!["abba", "xabxbax"], vec!["aba", "baab"]),
        ("a**b", vec!["ab", "axb"], vec!["a"]),
        ("ab*ba", vec!["abba", "abxba"], vec!["aba"]),
        ("a.c*", vec!["a.c"], vec!["abc"]),
    ];
    for (pattern, fits, fits_not) in cases {
        let policy = policy([pair("k", pattern).limit(1)]);
        for value in fits {
            assert!(met(&policy, &[("k", value)]).is_some(), "{pattern} {value}");
        }
        for value in fits_not {
            assert!(met(&policy, &[("k", value)]).is_none(), "{pattern} {value}");
        }
    }
}

#[test]
fn the_front_and_the_back_of_a_pattern_do_not_overlap_in_a_value() {
    let policy = policy([pair("k", "aba*aba").limit(1)]);
    assert_eq!(met(&policy, &[("k", "aba")]), None);
    assert_eq!(met(&policy, &[("k", "ababa")]), None);
    assert_eq!(met(&policy, &[("k", "abaaba")]), Some("d.k_aba*aba"));
}

#[test]
fn among_many_siblings_an_inner_literal_does_not_overlap_the_front_or_the_back_either() {
    // As many siblings share the front and the back, each is found by its own inner literal.
    let sibling = |n: usize| pair("k", &format!("ab*b{}c*cd", 10 + n)).limit(1);
    let policy = policy(std::array::from_fn::<_, 50, _>(sibling));
    assert_eq!(met(&policy, &[("k", "abb37ccd")]), Some("d.k_ab*b37c*cd"));
    assert_eq!(met(&policy, &[("k", "ab-b37c-cd")]), Some("d.k_ab*b37c*cd"));
    assert_eq!(met(&policy, &[("k", "abb37cd")]), None, "one c is in the literal and in the back");
    assert_eq!(met(&policy, &[("k", "ab37ccd")]), None, "one b is in the front and in the literal");
    assert_eq!(met(&policy, &[("k", "ab37cd")]), None);
}

#[test]
fn matching_is_case_sensitive_and_knows_no_escape() {
    let policy = policy([pair("a", "Foo").limit(1), pair("a", r"b\*").limit(2)]);
    assert_eq!(met(&policy, &[("a", "foo")]), None);
    assert_eq!(met(&policy, &[("A", "Foo")]), None);
    assert_eq!(met(&policy, &[("a", "b*")]), None);
    assert_eq!(met(&policy, &[("a", r"b\anything")]), Some(r"d.a_b\*"));
}

#[test]
fn key_and_value_are_two_things_not_their_concatenation() {
    let policy = policy([
        key("a_b").limit(1),
        pair("c", "d_e").limit(2),
        pair("f", "x*").limit(3),
        pair("g", "h").limit(4),
        key("g_h").limit(5),
    ]);
    assert_eq!(met(&policy, &[("a", "b")]), None);
    assert_eq!(met(&policy, &[("a_b", "x")]), Some("d.a_b"));
    assert_eq!(met(&policy, &[("c_d", "e")]), None);
    assert_eq!(met(&policy, &[("c", "d_e")]), Some("d.c_d_e"));
    assert_eq!(met(&policy, &[("f_x", "")]), None);
    assert_eq!(met(&policy, &[("g", "h")]), Some("d.g_h"));
    let entries = [entry("g_h", "z")];
    let descriptors = [descriptor(&entries)];
    let found = policy.find(&request(&descriptors)).found[0];
    assert!(
        matches!(found, DescriptorMatch::Limited(rule) if rule.limits[0].limit.rate.requests_per_unit == 5)
    );
}

#[test]
fn a_star_in_a_key_is_a_plain_character() {
    let policy = policy([key("a*").limit(1)]);
    assert_eq!(met(&policy, &[("a*", "x")]), Some("d.a*"));
    assert_eq!(met(&policy, &[("ab", "x")]), None);
}

#[test]
fn an_empty_value_tries_the_patterns_and_then_the_default() {
    let with_star = policy([pair("a", "x*").limit(1), pair("a", "*").limit(2), key("a").limit(3)]);
    assert_eq!(met(&with_star, &[("a", "")]), Some("d.a_*"));
    let without = policy([pair("a", "x*").limit(1), key("a").limit(3)]);
    assert_eq!(met(&without, &[("a", "")]), Some("d.a"));
    let neither = policy([pair("a", "x").limit(1)]);
    assert_eq!(met(&neither, &[("a", "")]), None);
}

#[test]
fn any_bytes_match_and_an_invalid_byte_is_a_value_like_any_other() {
    let policy =
        policy([pair("a", "x*").limit(1), pair("a", "\u{ff}").limit(2), key("a").limit(3)]);
    assert_eq!(met_bytes(&policy, &[entry("a", b"x\xff\0\n")]), Some("d.a_x*"));
    assert_eq!(met_bytes(&policy, &[entry("a", b"\xff")]), Some("d.a"));
    assert_eq!(met_bytes(&policy, &[entry("a", &vec![b'x'; 40_000])]), Some("d.a_x*"));
    assert_eq!(met_bytes(&policy, &[entry(b"\xff", "x")]), None);
}

#[test]
fn a_long_hostile_value_is_matched_like_any_other() {
    let mut spec = domain("d", []);
    for n in 0..300 {
        let own = format!("*aab{n}*baa*{n}c*");
        spec.nodes.push(pair("a", &own).limit(n + 1).0);
    }
    spec.nodes.push(pair("a", "*aa*b*aa").limit(999).0);
    let policy = Policy::build(vec![spec], Secret::default());
    let every_first_piece: String = (0..300).rev().map(|n| format!("aab{n}")).collect();
    let repeated = every_first_piece.repeat(20);
    assert!(repeated.len() > 30_000);
    assert_eq!(met(&policy, &[("a", &repeated)]), None);
    assert_eq!(met(&policy, &[("a", &(repeated.clone() + "aa"))]), Some("d.a_*aa*b*aa"));
    assert_eq!(met(&policy, &[("a", &(repeated + "baa7c"))]), Some("d.a_*aab7*baa*7c*"),);
}

#[test]
fn a_rule_without_limits_is_found_as_unlimited() {
    let policy = policy([key("a").unlimited()]);
    let entries = [entry("a", "x")];
    let descriptors = [descriptor(&entries)];
    let matches = policy.find(&request(&descriptors));
    assert!(matches!(matches.found[0], DescriptorMatch::Unlimited(rule) if rule.limits.is_empty()));
    assert!(policy.checks(&request(&descriptors), &matches).each.is_empty());
}

#[test]
fn rules_are_numbered_in_file_order_a_node_before_those_below_it() {
    let policy = policy([
        key("b").limit(1).over([key("z").limit(2), pair("z", "1").limit(3)]),
        key("a").limit(4),
    ]);
    let paths: Vec<&str> = policy.rules().iter().map(|rule| &*rule.path).collect();
    assert_eq!(paths, ["d.b", "d.b.z", "d.b.z_1", "d.a"]);
    for (at, rule) in policy.rules().iter().enumerate() {
        assert_eq!(rule.id.0 as usize, at);
        assert_eq!(policy.rule(rule.id).unwrap().path, rule.path);
    }
}
