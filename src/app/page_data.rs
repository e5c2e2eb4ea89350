//! What the debug port tells as JSON, as functions over the parts: the policy in force, the keys
//! that are refused, what goes on now.
//!
//! The names of the fields are an interface: docs/ADMIN.md describes them. Not here: routes
//! (`admin`), trying a request (`attempt`).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde::Serialize;

use super::rates::{Rates, Sample};
use super::runtime_overrides::{SwitchSet, Switching};
use super::try_request::{attempt, written};
use super::wiring::store_setup::{Deciding, Shared, connections};
use crate::admin::{Live, Search};
use crate::clock::Clock;
use crate::domain::RuleId;
use crate::policy::{Policy, RuleView};
use crate::store::redis::client::node_stats::NodeReport;
use crate::store::redis::keys::Prefix;
use crate::telemetry::{LimitName, Telemetry};

/// The functions behind the routes.
pub(super) fn live(
    decider: &Arc<Deciding>,
    telemetry: &Arc<Telemetry>,
    switching: &Arc<Switching>,
    prefix: Prefix,
) -> Live {
    let (listed, switches) = (Arc::clone(decider), Arc::clone(switching));
    let (refusing, noted) = (Arc::clone(decider), Arc::clone(telemetry));
    let (going, counted) = (Arc::clone(decider), Arc::clone(telemetry));
    let rates = Rates::default();
    let tried = Arc::clone(decider);
    let prefix = Arc::new(prefix);
    Live {
        policy: Arc::new(move |search| {
            let set = switches.set_now(Clock::System.now());
            written(&policy(&listed.policy(), &set, search))
        }),
        top: Arc::new(move || {
            let names = |rule, limit| limit_name(&refusing.policy(), rule, limit);
            written(&noted.top().report(Clock::System.now(), &names))
        }),
        now: Arc::new(move || {
            let sample = rates.sample(Clock::System.now(), || counted.sums());
            written(&now(&going, &counted, &sample))
        }),
        tries: Arc::new(move |asked| {
            let (decider, prefix) = (Arc::clone(&tried), Arc::clone(&prefix));
            Box::pin(async move { attempt(&decider, &prefix, &asked).await })
        }),
    }
}

/// How a limit of the policy in force is named.
pub(super) fn limit_name(policy: &Policy, rule: RuleId, limit: usize) -> Option<LimitName> {
    let rule = policy.rule(rule)?;
    let spec = rule.limits.get(limit)?;
    Some(LimitName {
        domain: policy.domain_name(rule).into(),
        rule: rule.path.clone(),
        limit: spec.name.clone().unwrap_or_default(),
    })
}

#[derive(Serialize)]
struct Listing<'p> {
    rules_total: usize,
    rules_found: usize,
    switches: &'p [SwitchSet],
    rules: Vec<RuleInForce<'p>>,
}

/// A rule, and the switches that are set on it or on its domain.
#[derive(Serialize)]
struct RuleInForce<'p> {
    #[serde(flatten)]
    rule: RuleView<'p>,
    switched: Vec<&'p str>,
}

fn policy<'p>(policy: &'p Policy, switches: &'p [SwitchSet], search: &Search) -> Listing<'p> {
    let wanted = search.text.as_ref().map(|text| text.to_lowercase());
    let mut found = 0;
    let mut rules = Vec::new();
    for rule in policy.rules() {
        let view = policy.view(rule);
        if !wanted.as_ref().is_none_or(|text| has(&view, text)) {
            continue;
        }
        found += 1;
        if rules.len() < search.most {
            let meant = |set: &&SwitchSet| set.target == view.rule || set.target == view.domain;
            let switched = switches.iter().filter(meant).map(|set| &*set.to).collect();
            rules.push(RuleInForce { rule: view, switched });
        }
    }
    let rules_total = policy.rules().len();
    Listing { rules_total, rules_found: found, switches, rules }
}

fn has(view: &RuleView<'_>, text: &str) -> bool {
    let names = view.limits.iter().filter_map(|limit| limit.name);
    [view.rule]
        .into_iter()
        .chain(view.file)
        .chain(names)
        .any(|name| name.to_lowercase().contains(text))
}

#[derive(Serialize)]
struct Now<'a> {
    version: &'static str,
    time_ms: u64,
    rules_total: usize,
    #[serde(flatten)]
    rates: &'a Sample,
    latency: Option<Percentiles>,
    store: StoreNow,
}

/// In milliseconds.
#[derive(Serialize)]
struct Percentiles {
    p50_ms: f64,
    p99_ms: f64,
    p999_ms: f64,
}

#[derive(Serialize)]
struct StoreNow {
    /// `memory` or `redis`.
    kind: &'static str,
    /// Counters in this process's memory.
    keys_in_memory: u64,
    /// Why calls are answered without Redis.
    degraded: Option<String>,
    /// Each Redis server that decides.
    nodes: Vec<NodeNow>,
}

#[derive(Serialize)]
struct NodeNow {
    address: String,
    connections: u64,
    /// Breakers of its connections that are open or half-open.
    open_breakers: u64,
    /// Script calls that were written to it, since the start.
    calls: u64,
    /// Connections that were lost or dropped, since the start.
    losses: u64,
}

fn now<'a>(decider: &Deciding, telemetry: &Telemetry, rates: &'a Sample) -> Now<'a> {
    let at = Clock::System.now();
    let memory = decider.store().memory().counters();
    let shared = decider.store().redis();
    let outage = |shared: &Shared| shared.degraded().outage(at).map(|outage| outage.to_string());
    let ms = |duration: Duration| duration.as_secs_f64() * 1e3;
    Now {
        version: env!("CARGO_PKG_VERSION"),
        time_ms: at.0 / 1_000,
        rules_total: decider.policy().rules().len(),
        rates,
        latency: telemetry.latency().map(|latency| Percentiles {
            p50_ms: ms(latency.p50),
            p99_ms: ms(latency.p99),
            p999_ms: ms(latency.p999),
        }),
        store: StoreNow {
            kind: if shared.is_some() { "redis" } else { "memory" },
            keys_in_memory: memory.live.load(Ordering::Relaxed),
            degraded: shared.and_then(outage),
            nodes: shared.map_or_else(Vec::new, |shared| {
                connections(shared).report().into_iter().map(node).collect()
            }),
        },
    }
}

fn node(report: NodeReport) -> NodeNow {
    let counters = &report.counters;
    NodeNow {
        connections: counters.connected.get(),
        open_breakers: counters.open_now.get(),
        calls: counters.items.get(),
        losses: counters.losses.get(),
        address: report.address,
    }
}
