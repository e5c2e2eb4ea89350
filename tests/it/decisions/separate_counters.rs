//! Limits whose counter key lacks entries of the path (`tiers`, `per`) do not meet on one counter.
//! Decided by both stores, on a clock that stands still.

use std::sync::Arc;

use tidegate::decide::{Decider, GlobalModes};
use tidegate::domain::{Code, Descriptor, Entry, Request};
use tidegate::store::Store;
use tidegate::store::memory::MemoryStore;
use tidegate::store::redis::RedisStore;
use tidegate::store::redis::script::keys::Prefix;
use tidegate::store::redis::store::TimeSource;

use super::test_decider::{NOON, TestDescriptor, compiled, d};
use crate::support::plain_transport::Plain;
use crate::support::redis_server::Server;

/// A call's descriptors, how often it is made, and how many of these calls must pass.
type Step<'a> = (&'a [&'a str], usize, usize);

/// Makes the calls of all steps in order, with counters in memory and with counters in Redis.
async fn on_each_store(policy: &str, steps: &[Step<'_>]) {
    let memory = passes(MemoryStore::new(1_000), policy, steps).await;
    let server = Server::start(&[]);
    let transport = Plain(server.connect().await);
    let redis = RedisStore::new(transport, Prefix::default(), TimeSource::Call);
    let redis = passes(redis, policy, steps).await;
    let expected: Vec<usize> = steps.iter().map(|(.., expected)| *expected).collect();
    assert_eq!(
        [("memory", memory), ("Redis", redis)],
        ["memory", "Redis"].map(|store| (store, expected.clone()))
    );
}

/// How many calls of each step pass.
async fn passes(store: impl Store, policy: &str, steps: &[Step<'_>]) -> Vec<usize> {
    let decider =
        Decider::new(Arc::new(compiled(policy)), store, Arc::new(()), GlobalModes::default());
    let policy = decider.policy();
    let mut passed = Vec::new();
    for (paths, calls, _) in steps {
        let paths: Vec<TestDescriptor> = paths.iter().map(|path| d(path)).collect();
        let entries: Vec<Vec<Entry<'_>>> = paths.iter().map(TestDescriptor::entries).collect();
        let descriptors: Vec<Descriptor<'_>> =
            paths.iter().zip(&entries).map(|(path, entries)| path.of(entries)).collect();
        let request = Request { domain: "t", descriptors: &descriptors };
        let mut count = 0;
        for _ in 0..*calls {
            let decision = decider.decide(&policy, &request, NOON).await.unwrap();
            count += usize::from(decision.code == Code::Ok);
        }
        passed.push(count);
    }
    passed
}

#[tokio::test]
async fn a_tenants_bucket_and_the_classes_below_it_do_not_meet() {
    let policy = "
domain: t
descriptors:
  - key: tenant
    rate_limit: {algorithm: token_bucket, unit: second, requests_per_unit: 100, burst: 300}
    descriptors:
      - key: plan
        rate_limit:
          algorithm: token_bucket
          unit: hour
          requests_per_unit: 60
          burst: 10
          tiers: {method: shared, classes: {gold: {floor: 0%}, free: {floor: 50%}}}
";
    let (tenant, plan) = ("tenant=a", "tenant=a > plan=free");
    let steps: &[Step<'_>] = &[
        (&[plan], 20, 6),
        (&[tenant], 1, 1),
        (&[plan], 20, 0),
        (&[tenant, plan], 1, 0),
        (&[tenant], 400, 299),
    ];
    on_each_store(policy, steps).await;
}

#[tokio::test]
async fn hybrid_classes_of_siblings_do_not_meet() {
    let tiers = |key: &str, requests: u64, shares: [u32; 2]| {
        let [a, b] = shares;
        format!(
            "
      - key: {key}
        rate_limit:
          algorithm: token_bucket
          unit: minute
          requests_per_unit: {requests}
          tiers: {{method: hybrid, classes: {{a: {{share: {a}%}}, b: {{share: {b}%}}}}}}"
        )
    };
    let siblings = [tiers("plan", 1_000, [60, 40]), tiers("role", 100, [10, 90])].concat();
    let policy = format!("domain: t\ndescriptors:\n  - key: tenant\n    descriptors:{siblings}\n");
    let (plan, role) = ("tenant=x > plan=a", "tenant=x > role=a");
    let steps: &[Step<'_>] =
        &[(&[plan], 999, 600), (&[role], 1, 1), (&[plan], 999, 0), (&[role], 99, 9)];
    on_each_store(&policy, steps).await;
}

#[tokio::test]
async fn limits_of_one_name_and_the_same_per_in_two_rules_do_not_meet() {
    let rule = |route: &str| {
        format!(
            "
  - key: route
    value: {route}
    descriptors:
      - key: ip
        rate_limits:
          - {{name: burst, per: [ip], unit: hour, requests_per_unit: 5}}"
        )
    };
    let policy = format!("domain: t\ndescriptors:{}{}\n", rule("login"), rule("search"));
    on_each_store(
        &policy,
        &[
            (&["route=search > ip=1"], 9, 5),
            (&["route=login > ip=1"], 9, 5),
            (&["route=login > ip=2"], 9, 5),
        ],
    )
    .await;
}

#[tokio::test]
async fn shared_classes_side_by_side_have_a_bucket_each() {
    let tiers = |key: &str| {
        format!(
            "
  - key: {key}
    rate_limit:
      algorithm: token_bucket
      unit: hour
      requests_per_unit: 10
      tiers: {{method: shared, classes: {{gold: {{floor: 0%}}, free: {{floor: 50%}}}}}}"
        )
    };
    let policy = format!("domain: t\ndescriptors:{}{}\n", tiers("plan"), tiers("role"));
    on_each_store(
        &policy,
        &[(&["plan=gold"], 20, 10), (&["role=free"], 20, 6), (&["role=gold"], 20, 4)],
    )
    .await;
}

/// One counter for all routes is what `per` is for.
#[tokio::test]
async fn the_values_that_one_rule_matches_share_its_counter_of_per() {
    let policy = "
domain: t
descriptors:
  - key: route
    descriptors:
      - key: ip
        rate_limits:
          - {name: burst, per: [ip], unit: hour, requests_per_unit: 5}
";
    on_each_store(policy, &[(&["route=a > ip=1"], 3, 3), (&["route=b > ip=1"], 9, 2)]).await;
}
