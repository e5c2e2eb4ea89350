//! Groups of quota descriptors (`quota_group`): all limits of a group must pass, and one group is
//! enough.

use std::fs;

use tidegate::decide::GlobalModes;
use tidegate::domain::{Code, Micros};

use super::test_decider::{Bench, TestDescriptor, d};
use crate::envoy::bootstrap::repository;

/// For each model of each backend, a limit for a tenant and one for all.
const TREE: &str = "
descriptors:
  - key: backend
    rate_limit: {unit: hour, requests_per_unit: 1}
    quota_mode: true
    descriptors:
      - key: model
        descriptors:
          - key: tenant
            quota_mode: true
            rate_limit: {name: tenant, unit: hour, requests_per_unit: 3}
          - key: all
            quota_mode: true
            rate_limit: {name: all, unit: hour, requests_per_unit: 100}
          - key: watched
            quota_mode: true
            shadow_mode: true
            rate_limit: {unit: hour, requests_per_unit: 0}
          - key: free
            quota_mode: true
            rate_limit: {unlimited: true}
          - key: vip
            rate_limit: {unit: hour, requests_per_unit: 9, replaces: [{name: tenant}]}
      - key: region
        quota_mode: true
        rate_limit: {unit: hour, requests_per_unit: 2}
  - key: user
    quota_mode: true
    rate_limit: {unit: hour, requests_per_unit: 1}
  - key: client
    rate_limit: {unit: hour, requests_per_unit: 1}
";

fn grouped() -> Bench {
    Bench::new(&format!("domain: t\nquota_group: [backend, model]{TREE}"))
}

/// The descriptors of one candidate.
fn candidate(model: &str) -> [TestDescriptor; 2] {
    ["tenant", "all"].map(|limit| of(model, limit))
}

fn of(model: &str, limit: &str) -> TestDescriptor {
    d(&format!("backend=b > model={model} > {limit}=x"))
}

fn codes(bench: &Bench, descriptors: &[TestDescriptor]) -> (Code, Vec<Code>) {
    let decision = bench.ask(descriptors);
    (decision.code, decision.rows.iter().map(|row| row.code).collect())
}

/// A bench whose candidate `m1` has used up its tenant's limit.
fn used_up() -> Bench {
    let bench = grouped();
    for _ in 0..3 {
        assert!(bench.ask(&candidate("m1")).passes());
    }
    bench
}

const OVER: Code = Code::OverLimit;

#[test]
fn every_limit_of_a_group_must_pass() {
    let bench = used_up();
    assert_eq!(codes(&bench, &candidate("m1")), (OVER, vec![OVER, Code::Ok]));
    assert_eq!(bench.ask(&[of("m1", "all")]).rows[0].remaining, 96, "3 calls and this one");
}

#[test]
fn a_status_tells_a_quota_and_whether_its_group_is_refused() {
    let bench = used_up();
    let call = [&candidate("m1")[..], &candidate("m2"), &[d("client=c")]].concat();
    let answer = bench.ask(&call);
    let (refused, passes, no_quota) = ((true, true), (true, false), (false, false));
    assert_eq!(answer.quotas, [refused, refused, passes, passes, no_quota]);
}

#[test]
fn one_group_that_passes_is_enough() {
    let bench = used_up();
    let both = [candidate("m1"), candidate("m2")].concat();
    for _ in 0..3 {
        assert_eq!(codes(&bench, &both), (Code::Ok, vec![OVER, Code::Ok, Code::Ok, Code::Ok]));
    }
    assert_eq!(codes(&bench, &both), (OVER, vec![OVER, Code::Ok, OVER, Code::Ok]));
}

#[test]
fn descriptors_of_a_group_may_stand_anywhere_in_the_call() {
    let bench = used_up();
    let [tenant1, all1] = candidate("m1");
    let [tenant2, all2] = candidate("m2");
    let mixed = [tenant1, tenant2, all1, all2];
    for _ in 0..3 {
        assert!(bench.ask(&mixed).passes());
    }
    assert_eq!(bench.ask(&mixed).code, OVER);
}

#[test]
fn an_admitted_call_also_charges_what_passes_in_a_group_that_does_not() {
    let bench = used_up();
    assert!(bench.ask(&[candidate("m1"), candidate("m2")].concat()).passes());
    assert_eq!(bench.ask(&[of("m1", "all")]).rows[0].remaining, 95);
}

#[test]
fn without_quota_group_every_descriptor_is_a_group_as_in_ratelimit() {
    let bench = Bench::new(&format!("domain: t{TREE}"));
    let passed = (0..110).filter(|_| bench.ask(&candidate("m1")).passes()).count();
    assert_eq!(passed, 100, "the wider limit outvotes the tenant's");
}

#[test]
fn the_domain_of_ai_gateway_is_grouped_by_backend_and_model_unless_it_says_otherwise() {
    let tree = TREE.replace("key: backend", "key: backend_name");
    let tree = tree.replace("key: model", "key: model_name_override");
    let call = ["tenant", "all"]
        .map(|limit| d(&format!("backend_name=b > model_name_override=m > {limit}=x")));
    let domain = "ai-gateway-quota";
    for (head, expected) in [("", 3), ("quota_group: []\n", 100), ("quota_group:\n", 3)] {
        let bench = Bench::new(&format!("domain: {domain}\n{head}{tree}"));
        let passed = (0..110).filter(|_| bench.ask_domain(domain, &call).passes()).count();
        assert_eq!(passed, expected, "{head:?}");
    }
}

#[test]
fn a_descriptor_without_some_of_the_entries_is_grouped_by_those_that_it_has() {
    let bench = used_up();
    let (whole, region) = (d("backend=b"), d("backend=b > region=r"));
    assert!(bench.one("backend=b").passes(), "now it is used up");
    let call = [whole.clone(), region.clone()];
    assert_eq!(codes(&bench, &call), (OVER, vec![OVER, Code::Ok]), "neither has a model");
    let call = [candidate("m2").to_vec(), call.to_vec()].concat();
    assert!(bench.ask(&call).passes(), "those with a model are another group");
    let call = [whole, d("backend=c > region=r")];
    assert!(bench.ask(&call).passes(), "another backend is another group");
}

#[test]
fn a_descriptor_with_none_of_the_entries_is_a_group_of_its_own() {
    let bench = used_up();
    assert!(bench.one("user=1").passes());
    let call = [d("user=1"), d("user=2")];
    assert!(bench.ask(&call).passes());
    assert_eq!(bench.ask(&call).code, OVER);
    assert!(bench.ask(&[d("user=1"), d("user=3"), of("m1", "tenant")]).passes());
}

#[test]
fn what_has_no_say_is_no_member_of_a_group() {
    let bench = used_up();
    assert!(bench.ask(&[of("m2", "watched")]).passes(), "shadow mode passes");
    let both = [candidate("m1").to_vec(), vec![of("m1", "watched"), of("m1", "free")]].concat();
    assert_eq!(bench.ask(&both).code, OVER, "and does not outvote its group");
    let call = [of("m1", "tenant"), of("m2", "watched")];
    assert!(bench.ask(&call).passes(), "a group of nothing else always passes");
    assert_eq!(bench.ask(&[of("m1", "tenant"), of("m2", "free")]).code, OVER);
    assert_eq!(bench.ask(&[of("m1", "tenant"), of("m2", "tenant").refund(1)]).code, OVER);
    let replaced = [of("m1", "tenant"), of("m1", "all"), of("m1", "vip")];
    assert!(bench.ask(&replaced).passes(), "the tenant's limit makes no check");
}

#[test]
fn a_limit_that_is_no_quota_must_pass_beside_any_group() {
    let bench = grouped();
    let call = [candidate("m1").to_vec(), vec![d("client=c")]].concat();
    assert!(bench.ask(&call).passes());
    assert_eq!(bench.ask(&call).code, OVER);
    assert_eq!(bench.ask(&[of("m1", "tenant")]).rows[0].remaining, 1, "nothing was charged");
}

#[test]
fn under_global_quota_mode_an_unmatched_descriptor_passes_within_its_group_only() {
    let yaml = format!("domain: t\nquota_group: [backend, model]{TREE}");
    let bench = Bench::with_modes(&yaml, GlobalModes { quota: true, shadow: false });
    let call = [of("m1", "tenant"), of("m1", "unknown")];
    for _ in 0..3 {
        assert!(bench.ask(&call).passes());
    }
    assert_eq!(bench.ask(&call).code, OVER);
    assert!(bench.ask(&[of("m1", "tenant"), of("m2", "unknown")]).passes());
}

/// For each group, a minute and an hour of some numbers.
const WAITS: &str = "
domain: t
quota_group: [g]
descriptors:
  - key: g
    descriptors:
      - key: minute
        quota_mode: true
        rate_limit: {name: minute, unit: minute, requests_per_unit: 1}
      - key: hour
        quota_mode: true
        rate_limit: {name: hour, unit: hour, requests_per_unit: 1}
      - key: day
        quota_mode: true
        rate_limit: {name: day, unit: day, requests_per_unit: 1}
  - key: required
    rate_limit: {name: required, unit: second, requests_per_unit: 1}
";

#[test]
fn the_wait_is_the_shortest_of_the_groups_and_within_a_group_the_longest() {
    let bench = Bench::new(WAITS);
    let slow = [d("g=slow > minute=x"), d("g=slow > day=x")];
    let fast = [d("g=fast > minute=x"), d("g=fast > hour=x")];
    let both = [slow, fast].concat();
    assert!(bench.ask(&both).passes());
    let rejected = bench.ask(&both);
    assert_eq!(rejected.code, OVER);
    assert_eq!(rejected.limited_by.as_deref(), Some("hour"));
    assert_eq!(bench.dry_run(&both).limited_by.as_deref(), Some("hour"));
    let wait = rejected.retry_after.expect("waiting helps");
    let with_required = [both.clone(), vec![d("required=x")]].concat();
    assert_eq!(bench.ask(&with_required).limited_by.as_deref(), Some("hour"), "the longer one");
    bench.advance(Micros(wait.0 - 1));
    assert_eq!(bench.ask(&both).code, OVER);
    assert_eq!(bench.dry_run(&both).code, OVER);
    bench.advance(Micros(1));
    assert_eq!(bench.dry_run(&both).code, Code::Ok);
    assert!(bench.ask(&both).passes());
}

/// The example of the page, which asks for two candidates.
#[test]
fn the_example_in_the_documentation_does_what_the_page_says() {
    let page = fs::read_to_string(repository("docs/POLICY.md")).expect("the page");
    let (_, section) = page.split_once("\n## Quota groups\n").expect("the section");
    let (_, example) = section.split_once("```yaml policy\n").expect("an example");
    let (example, _) = example.split_once("```").expect("its end");
    let bench = Bench::new(example);
    let candidate = |model: &str| {
        ["tenant=x", "service=all"].map(|last| d(&format!("backend=b > model={model} > {last}")))
    };
    let ask = |descriptors: &[TestDescriptor]| bench.ask_domain("models", descriptors).code;
    let small = candidate("small");
    assert_eq!((0..4).map(|_| ask(&small)).filter(|code| *code == Code::Ok).count(), 3);
    let both = [small, candidate("large")].concat();
    assert_eq!((0..4).map(|_| ask(&both)).filter(|code| *code == Code::Ok).count(), 3);
}
