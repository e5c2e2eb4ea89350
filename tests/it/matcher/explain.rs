//! `explain` takes the same steps as a request.

use tidegate::policy::{MatchEnd, key_text};

use crate::support::policy_specs::{bucket, descriptor, entry, key, listed, pair, policy, request};

#[test]
fn an_explanation_names_the_step_of_every_level_and_the_counter() {
    let policy = policy([
        pair("a", "y*"),
        pair("a", "x*").shared().over([key("b").over([pair("c", "1")
            .with(listed("all", None, bucket(10, 20)))
            .with(listed("by-b", Some(&[1]), bucket(1, 2)))])]),
    ]);
    let entries = [entry("a", "x9"), entry("b", b"v\n\xff"), entry("c", "1")];
    let explanation = policy.explain("d", &entries);
    let hows: Vec<_> = explanation.steps.iter().map(|step| &*step.how).collect();
    assert_eq!(hows, ["pattern 2 `x*`, one counter for all its values", "default", "exact"]);
    let MatchEnd::Rule(rule) = &explanation.ending else { panic!("{explanation}") };
    let descriptors = [descriptor(&entries)];
    let keys = super::checks_of(&policy, &request(&descriptors), |check| key_text(check.key));
    assert_eq!(rule.limits.iter().map(|limit| key_text(limit.counter)).collect::<Vec<_>>(), keys);
    let text = explanation.to_string();
    for part in [
        "domain d\n",
        "  a=x9: pattern 2 `x*`, one counter for all its values\n",
        "  b=v\\n\\xff: default\n",
        "  c=1: exact\n",
        "rule 0: d.a_x*.b.c_1\n",
        "limit unit=SECOND requests_per_unit=10,",
        "    counter of a=x*, b=v\\n\\xff, c=1\n",
        "    counter of b=v\\n\\xff\n",
        &format!("    key {}", keys[1]),
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
}

#[test]
fn an_explanation_says_why_nothing_matches() {
    let policy = policy([pair("a", "1").over([key("b").limit(1)]), pair("c", "x*").limit(1)]);
    let last = |entries: &[(&str, &str)]| {
        let entries: Vec<_> = entries.iter().map(|(k, v)| entry(*k, *v)).collect();
        let explanation = policy.explain("d", &entries);
        assert_eq!(explanation.ending, MatchEnd::NoMatch);
        explanation.steps.last().unwrap().how.clone()
    };
    let no_value = "no match: neither this value, nor a pattern for it, nor a default";
    assert_eq!(last(&[("a", "2")]), no_value);
    assert_eq!(last(&[("c", "y")]), no_value);
    assert_eq!(last(&[("z", "1")]), "no match: no such key here; there are: a, c");
    let too_long = last(&[("a", "1"), ("b", "1"), ("c", "1")]);
    assert_eq!(too_long, "no match: the path ends above this entry");
}

#[test]
fn an_explanation_tells_apart_the_ways_of_having_no_limit() {
    let policy = policy([key("a").over([key("b").limit(1)]), pair("a", "friend")]);
    let ending = |domain, entries: &[_]| policy.explain(domain, entries).ending;
    assert_eq!(ending("x", &[entry("a", "1")]), MatchEnd::UnknownDomain);
    assert_eq!(ending("d", &[]), MatchEnd::NoEntries);
    assert_eq!(ending("d", &[entry("a", "1")]), MatchEnd::NoRule { has_children: true });
    assert_eq!(ending("d", &[entry("a", "friend")]), MatchEnd::NoRule { has_children: false });
}

#[test]
fn an_explanation_names_what_the_rule_replaces_and_that_it_is_unlimited() {
    let policy = policy([key("a").unlimited().replaces(["x", "y"]), key("b").named("y", 1)]);
    let text = policy.explain("d", &[entry("a", "1")]).to_string();
    assert!(text.ends_with("rule 0: d.a\n  unlimited\n  replaces x, y"), "{text}");
}
