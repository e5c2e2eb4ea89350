//! A counter belongs to one limit of one rule: no two limits of a random policy have a counter in
//! common, whatever is requested.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use tidegate::domain::{Entry, Limit, Unit};
use tidegate::policy::compiled_policy::{
    ClassSpec, LimitSpec, NodeSpec, TierMethod, TiersSpec, ValueSpec,
};
use tidegate::policy::{MatchEnd, Policy, Secret};

use super::checks_of;
use crate::support::limits::{MINUTE, hybrid};
use crate::support::policy_specs::{
    Node, bringing, bucket, descriptor, domain, entry, key, listed, pair, request, spec, window,
};

/// A limit whose path is not known yet.
#[derive(Clone, Debug)]
struct Draft {
    limit: Arc<Limit>,
    /// One bit for each level whose entry `per` names; `None` without `per`.
    per: Option<usize>,
    tiers: Option<TierMethod>,
}

/// Some limits of a node, the second of which says whether they are a list.
type Drafts = (Vec<Draft>, bool);

fn drafts() -> impl Strategy<Value = Drafts> {
    let per = || prop::option::of(0..8_usize);
    let windows = [Unit::Second, Unit::Minute].map(|unit| window(5, unit));
    let window = (prop::sample::select(windows.to_vec()), per()).prop_map(|(limit, per)| Draft {
        limit,
        per,
        tiers: None,
    });
    let methods = [TierMethod::Shared, TierMethod::Separate, TierMethod::Hybrid].map(Some);
    let method = prop_oneof![Just(None), prop::sample::select(methods.to_vec())];
    let bucket = (per(), method).prop_map(|(per, tiers)| Draft { limit: bucket(5, 5), per, tiers });
    (vec(prop_oneof![window, bucket], 0..4), any::<bool>())
}

fn level() -> impl Strategy<Value = Vec<(NodeSpec, Drafts)>> {
    let value = prop::sample::select(vec!["", "", "x", "y", "x*", "*"]);
    let node = ("[ab]", value, any::<bool>(), drafts()).prop_map(|(key, value, shared, drafts)| {
        let node = pair(&key, value).0;
        (NodeSpec { share_threshold: shared && value.contains('*'), ..node }, drafts)
    });
    vec(node, 0..6)
}

/// Returns a level without second nodes of one key and value, as `compile` rejects them. Each node
/// has the next level of `below` under it. Gives every limit an id, from `next`.
fn built(
    level: &[(NodeSpec, Drafts)],
    below: &[Vec<(NodeSpec, Drafts)>],
    keys: &mut Vec<String>,
    next: &mut u64,
) -> Vec<NodeSpec> {
    let mut seen: Vec<(&str, &ValueSpec)> = Vec::new();
    let mut nodes = Vec::new();
    for (node, (drafts, in_list)) in level {
        if seen.contains(&(&node.key, &node.value)) {
            continue;
        }
        seen.push((&node.key, &node.value));
        keys.push(node.key.to_string());
        let mut with_rule = Node(node.clone());
        for (nth, draft) in drafts.iter().take(if *in_list { 4 } else { 1 }).enumerate() {
            let limit = built_limit(draft, in_list.then_some(nth), &node.value, keys, next);
            with_rule = with_rule.with(limit);
        }
        if let Some((first, rest)) = below.split_first() {
            with_rule.0.children = built(first, rest, keys, next);
        }
        keys.pop();
        nodes.push(with_rule.0);
    }
    nodes
}

/// Returns a limit of the path with these keys. `in_list` is its position in `rate_limits`, and the
/// n-th limits of all lists have the same name.
fn built_limit(
    draft: &Draft,
    in_list: Option<usize>,
    value: &ValueSpec,
    keys: &[String],
    next: &mut u64,
) -> LimitSpec {
    let mut with_id = |limit: &Arc<Limit>| {
        *next += 1;
        Arc::new(Limit { limit_id: *next, ..Limit::clone(limit) })
    };
    let per = draft.per.filter(|_| in_list.is_some()).map(|bits| {
        let named = |at: &usize| bits & 1 << at != 0;
        // A name stands for every level with that key.
        let names: HashSet<&String> = (0..keys.len()).filter(named).map(|at| &keys[at]).collect();
        (0..keys.len()).filter(|at| names.contains(&keys[*at])).collect::<Vec<usize>>()
    });
    let names_class = per.iter().flatten().any(|at| *at + 1 == keys.len());
    let method = draft.tiers.filter(|_| *value == ValueSpec::Any && !names_class);
    let whole = with_id(&draft.limit);
    let tiers = method.map(|method| {
        let class = |(at, name): (usize, &str)| ClassSpec {
            name: name.into(),
            limit: match method {
                TierMethod::Shared => Arc::clone(&whole),
                TierMethod::Separate => with_id(&draft.limit),
                TierMethod::Hybrid => {
                    let limit = hybrid(5, 5, MINUTE, &[50, 50], at);
                    Arc::new(Limit { limit_id: whole.limit_id, ..Limit::clone(&limit) })
                }
            },
            bill_limit: None,
        };
        let classes = ["x", "y"].into_iter().enumerate().map(class).collect();
        Arc::new(TiersSpec { method, classes, default: Some(1) })
    });
    let limit = match in_list {
        Some(nth) => listed(&format!("n{nth}"), per.as_deref(), whole),
        None => spec(None, whole),
    };
    LimitSpec { tiers, ..limit }
}

/// What a counter belongs to.
#[derive(Clone, Debug, PartialEq)]
enum Owner {
    Limit(u64),
    /// The limits in requests with these entries and this unit.
    Request(Vec<(String, String)>, Unit),
}

proptest! {
    #[test]
    fn no_two_limits_of_a_policy_have_a_counter_in_common(
        levels in vec(level(), 3),
        hash_tag in prop::option::of("[ab]"),
        requests in vec(vec(("[ab]", prop_oneof!["[xy]{0,2}", Just("x*".to_owned())]), 1..4), 1..80),
    ) {
        let mut spec = domain("d", []);
        spec.hash_tag = hash_tag.iter().map(|key| key.as_str().into()).collect();
        spec.nodes = built(&levels[0], &levels[1..], &mut Vec::new(), &mut 0);
        let policy = Policy::build(vec![spec], Secret::default());
        let mut owners: HashMap<u128, Owner> = HashMap::new();
        let mut own = |identity: u128, owner: Owner| {
            let first = owners.entry(identity).or_insert_with(|| owner.clone()).clone();
            prop_assert_eq!(first, owner);
            Ok(())
        };
        for path in requests {
            let entries: Vec<Entry<'_>> = path.iter().map(|(key, value)| entry(key, value)).collect();
            let checks = checks_of(&policy, &request(&[descriptor(&entries)]), |check| {
                (check.key, check.limit.limit_id)
            });
            let explained = match policy.explain("d", &entries).ending {
                MatchEnd::Rule(rule) => rule.limits.iter().map(|limit| limit.counter).collect(),
                _ => vec![],
            };
            prop_assert_eq!(&explained, &checks.iter().map(|(key, _)| *key).collect::<Vec<_>>());
            for (key, limit_id) in &checks {
                own(key.identity, Owner::Limit(*limit_id))?;
            }
            for unit in [Unit::Second, Unit::Minute] {
                let brought = [bringing(&entries, 5, unit)];
                let key = checks_of(&policy, &request(&brought), |check| check.key)[0];
                // A limit in a request may count on the counter of the only limit that it replaces.
                match checks[..] {
                    [(only, _)] if only == key => {}
                    _ => own(key.identity, Owner::Request(path.clone(), unit))?,
                }
            }
        }
    }
}

#[test]
fn a_hash_tag_puts_limits_of_tiers_and_per_of_different_rules_into_one_slot() {
    let tiers = TiersSpec {
        method: TierMethod::Shared,
        classes: vec![ClassSpec { name: "x".into(), limit: bucket(5, 5), bill_limit: None }],
        default: Some(0),
    };
    let plan = LimitSpec { tiers: Some(Arc::new(tiers)), ..spec(None, bucket(5, 5)) };
    let per_tenant = listed("n", Some(&[0]), window(5, Unit::Hour));
    let below = [key("plan").with(plan), key("ip").with(per_tenant.clone())];
    let other = pair("tenant", "t*").over([key("ip").with(per_tenant)]);
    let mut tagged = domain("d", [key("tenant").limit(1).over(below), other]);
    tagged.hash_tag = ["tenant".into()].into();
    let policy = Policy::build(vec![tagged], Secret::default());
    let keys: Vec<_> = [
        &[entry("tenant", "a")][..],
        &[entry("tenant", "a"), entry("plan", "x")],
        &[entry("tenant", "a"), entry("ip", "1")],
    ]
    .iter()
    .flat_map(|entries| checks_of(&policy, &request(&[descriptor(entries)]), |check| check.key))
    .collect();
    assert_eq!(keys.iter().map(|key| key.tag).collect::<HashSet<_>>().len(), 1, "{keys:?}");
    assert!(keys[0].tag.is_some());
    assert_eq!(keys.iter().map(|key| key.identity).collect::<HashSet<_>>().len(), 3, "{keys:?}");
}
