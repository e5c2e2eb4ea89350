//! The events that an observer receives for each check, and the hits that telemetry counts by them.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidegate::decide::{Decider, GlobalModes};
use tidegate::domain::{CheckEvent, Code, Hits, Micros, Request, RuleId, Verdict};
use tidegate::store::memory::MemoryStore;
use tidegate::telemetry::{MetricsPage, RuleName, Telemetry};

use super::test_decider::{Bench, NOON, TestDescriptor, answered, compiled, d};
use crate::support::random::Random;

const POLICY: &str = "
domain: t
descriptors:
  - key: k
    rate_limit: {name: mine, unit: hour, requests_per_unit: 10}
  - key: quiet
    shadow_mode: true
    rate_limit: {unit: hour, requests_per_unit: 1}
  - key: small
    rate_limit: {unit: hour, requests_per_unit: 1}
  - key: vip
    rate_limit: {unit: hour, requests_per_unit: 5, replaces: [{name: mine}]}
  - key: free
    rate_limit: {unlimited: true}
  - key: list
    rate_limits:
      - {name: wide, unit: hour, requests_per_unit: 9}
      - {name: narrow, unit: day, requests_per_unit: 1}
";

fn told(bench: &Bench) -> Vec<CheckEvent> {
    std::mem::take(&mut bench.told.0.lock().unwrap())
}

fn one(bench: &Bench) -> CheckEvent {
    let facts = told(bench);
    assert_eq!(facts.len(), 1);
    facts[0]
}

#[test]
fn hits_are_told_as_asked_whether_they_pass_or_not() {
    let bench = Bench::new(POLICY);
    bench.ask(&[d("k=a").hits(7)]);
    let passed = one(&bench);
    assert_eq!((passed.hits, passed.outcome.charged, passed.admitted), (Hits(7), Hits(7), true));
    bench.ask(&[d("k=a").hits(7)]);
    let refused = one(&bench);
    assert_eq!((refused.hits, refused.outcome.verdict), (Hits(7), Verdict::Refuse));
    assert_eq!((refused.capacity, refused.outcome.available), (Hits(10), Hits(3)));
}

#[test]
fn hits_of_a_call_that_another_check_refused_are_told_as_not_charged() {
    let bench = Bench::new(POLICY);
    bench.ask(&[d("small=a")]);
    told(&bench);
    bench.ask(&[d("k=a").hits(4), d("small=a")]);
    let facts = told(&bench);
    assert_eq!((facts[0].outcome.verdict, facts[0].outcome.charged), (Verdict::Pass, Hits(0)));
    assert!(!facts[0].admitted);
}

#[test]
fn a_call_that_only_global_shadow_mode_lets_pass_is_told_as_not_admitted() {
    let bench = Bench::with_modes(POLICY, GlobalModes { shadow: true, quota: false });
    bench.ask(&[d("small=a")]);
    assert!(one(&bench).admitted);
    assert!(bench.ask(&[d("k=a").hits(4), d("small=a")]).passes());
    let facts = told(&bench);
    assert_eq!(facts.iter().map(|facts| facts.admitted).collect::<Vec<_>>(), [false, false]);
}

#[test]
fn a_shadowed_check_and_a_refund_are_told_as_such() {
    let bench = Bench::new(POLICY);
    bench.passes("quiet=a", 2);
    assert!(told(&bench).iter().all(|facts| facts.shadow));
    bench.ask(&[d("k=a").refund(3)]);
    assert!(one(&bench).is_refund);
}

#[test]
fn replaced_and_unmatched_descriptors_are_not_counted() {
    let bench = Bench::new(POLICY);
    bench.ask(&[d("k=a"), d("vip=a"), d("nobody=a")]);
    let facts = told(&bench);
    assert_eq!(facts.len(), 1, "only vip's own limit was counted: {facts:?}");
}

#[test]
fn hits_on_an_unlimited_rule_are_told_as_charged() {
    let bench = Bench::new(POLICY);
    bench.ask(&[d("free=a").hits(7)]);
    let passed = one(&bench);
    assert_eq!((passed.hits, passed.outcome.charged), (Hits(7), Hits(7)));
    assert_eq!((passed.outcome.verdict, passed.capacity), (Verdict::Pass, Hits(u64::MAX)));
    assert!(passed.rule.is_some() && passed.admitted && !passed.is_refund && !passed.is_peek);
    bench.ask(&[d("free=a").refund(7)]);
    assert!(one(&bench).is_refund);
    bench.ask(&[d("free=a").hits(0)]);
    assert!(one(&bench).is_peek);
}

#[test]
fn a_refusal_is_told_with_the_position_of_its_limit_and_whether_it_is_enforced() {
    let bench = Bench::new(POLICY);
    let call = [d("list=a"), d("quiet=a")];
    assert!(bench.ask(&call).passes());
    assert!(!bench.ask(&call).passes());
    assert_eq!(*bench.told.2.lock().unwrap(), [(1, false), (0, true)]);
}

/// A decider whose hits telemetry counts.
struct Counted {
    decider: Decider<MemoryStore, Telemetry>,
    page: MetricsPage,
}

/// For each rule, its hits by metric.
type HitsByRule = BTreeMap<String, BTreeMap<String, u64>>;

impl Counted {
    fn new(yaml: &str) -> Counted {
        let (policy, telemetry) = (compiled(yaml), Arc::new(Telemetry::new(0.8)));
        let name = |path: &str| RuleName { domain: "t".into(), path: path.into() };
        let names: Vec<_> = policy.rules().iter().map(|rule| name(&rule.path)).collect();
        telemetry.record_policy_load(RuleId(0), names, "", NOON);
        let counted = Arc::clone(&telemetry);
        let page = MetricsPage::new(Arc::new(move |sink| counted.emit(sink)));
        let store = MemoryStore::new(1_000);
        let decider = Decider::new(Arc::new(policy), store, telemetry, GlobalModes::default());
        Counted { decider, page }
    }

    async fn ask(&self, now: Micros, descriptors: &[TestDescriptor]) -> Vec<Code> {
        let policy = self.decider.policy();
        let entries: Vec<_> = descriptors.iter().map(TestDescriptor::entries).collect();
        let each = descriptors.iter().zip(&entries);
        let each: Vec<_> = each.map(|(descriptor, entries)| descriptor.of(entries)).collect();
        let request = Request { domain: "t", descriptors: &each };
        let decision = answered(&self.decider.decide(&policy, &request, now).await.unwrap());
        decision.rows.iter().map(|row| row.code).collect()
    }

    fn hits(&self) -> HitsByRule {
        let mut hits = HitsByRule::new();
        for line in self.page.text().unwrap().lines() {
            let Some(series) = line.strip_prefix("tidegate_rule_") else { continue };
            let Some((metric, labels)) = series.split_once("hits_total{") else { continue };
            let Some((_, rule)) = labels.split_once("rule=\"t.") else { continue };
            let (rule, value) = rule.split_once("\"} ").unwrap();
            let metric = metric.trim_end_matches('_').to_owned();
            hits.entry(rule.to_owned()).or_default().insert(metric, value.parse().unwrap());
        }
        hits
    }
}

#[tokio::test]
async fn every_hit_of_a_check_is_counted_once_as_within_over_or_uncharged() {
    let rules = [
        "{key: a, rate_limit: {unit: hour, requests_per_unit: 20}}",
        "{key: b, rate_limit: {algorithm: token_bucket, unit: minute, requests_per_unit: 9}}",
        "{key: c, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 7}}",
        "{key: d, rate_limit: {unit: minute, requests_per_unit: 9, charge: billed}}",
        "{key: e, rate_limit: {unit: minute, requests_per_unit: 9, charge: always}}",
        "{key: f, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 9}}",
        "{key: g, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 5}}",
    ];
    for accounting in ["all_or_nothing", "independent"] {
        let head = format!("domain: t, accounting: {accounting}");
        let counted = Counted::new(&format!("{{{head}, descriptors: [{}]}}", rules.join(", ")));
        let (mut random, mut now) = (Random::seeded(7), NOON);
        let (mut before, mut rejected, mut partly) = (counted.hits(), 0, 0);
        for step in 0..3_000 {
            now = now.saturating_add(Micros(random.below(10_000_000)));
            let descriptors: Vec<TestDescriptor> = (0..=random.below(3))
                .map(|_| {
                    let key = &["a", "b", "c", "d", "e", "f", "g"][random.below(7) as usize];
                    d(&format!("{key}=x")).hits(random.below(5))
                })
                .collect();
            let codes = counted.ask(now, &descriptors).await;
            let after = counted.hits();
            for (rule, after) in &after {
                let context = format!("{accounting}, step {step}, {rule}: {after:?}");
                let more = |metric: &str| after[metric] - before[rule][metric];
                let of = |key: &TestDescriptor| key.path[0].0 == *rule;
                let asked: u64 =
                    descriptors.iter().filter(|key| of(key)).filter_map(|key| key.hits).sum();
                assert_eq!(more(""), asked, "{context}");
                let sum = more("within_limit") + more("over_limit") + more("uncharged");
                assert_eq!(sum, asked, "{context}");
                assert!(more("near_limit") <= more("within_limit"), "{context}");
                if rule == "c" {
                    assert_eq!(more("shadow_mode"), more("over_limit"), "{context}");
                    continue;
                }
                let each = descriptors.iter().zip(&codes);
                let refused = each.filter(|(key, code)| of(key) && **code == Code::OverLimit);
                let refused: u64 = refused.filter_map(|(key, _)| key.hits).sum();
                assert_eq!(more("over_limit"), refused, "{context}");
                rejected += u64::from(refused > 0);
                partly += u64::from(refused > 0 && more("uncharged") > 0);
            }
            before = after;
        }
        let all_or_nothing = accounting == "all_or_nothing";
        assert!(rejected > 300 && (partly > 10 || !all_or_nothing), "{rejected} {partly}");
    }
}

/// 19 of 20 used, 3 more rejected; and one hit left for two descriptors on one counter.
#[tokio::test]
async fn all_hits_of_a_rejected_check_are_over_the_limit() {
    let policy =
        "{domain: t, descriptors: [{key: a, rate_limit: {unit: hour, requests_per_unit: 20}}]}";
    let counted = Counted::new(policy);
    counted.ask(NOON, &[d("a=x").hits(19)]).await;
    assert_eq!(counted.ask(NOON, &[d("a=x").hits(3)]).await, [Code::OverLimit]);
    assert_eq!(counted.hits()["a"]["over_limit"], 3);
    assert_eq!(counted.ask(NOON, &[d("a=x"), d("a=x")]).await, [Code::Ok, Code::OverLimit]);
    assert_eq!((counted.hits()["a"]["over_limit"], counted.hits()["a"]["uncharged"]), (4, 1));
}
