//! JSON data of the live page: the active policy, the keys with the most rejections, and current
//! rates.
//!
//! Clients depend on the field names, which docs/ADMIN.md documents, so fields must not be renamed.
//! `debug_port` has the routes; `try_request` has the data of `/try`.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde::Serialize;
use serde_json::Value;

use super::admin_wiring::AdminWiring;
use super::peers::{PeerAnswer, Peers};
use super::request_rates::{CurrentRates, RuleRate};
use super::try_request::to_json;
use crate::admin::{Backend as _, Query, Scope, TextResult};
use crate::clock::Clock;
use crate::control_plane::{ControlPlaneState, ControlPlaneStatus};
use crate::decide::GlobalModes;
use crate::domain::{RuleId, UnreadableCallers, UnreadableKind};
use crate::policy::{Policy, Rule, RuleView};
use crate::store::SharedStore as _;
use crate::store::redis::client::node_stats::NodeReport;
use crate::telemetry::{HISTORY_RULES_MAX, Latency, LimitName, NoLimitCount, RejectedBills, TopBy};

/// Default and maximum value of the `most` parameter of `/policy`, which limits the number of rules
/// in the response. Larger than any policy, so that the default lists every rule: tools that
/// compare policies need the full list.
const RULES_MAX: u64 = 10_000_000;

/// Default of the `rules` parameter of `/history`: the rules that an operator looks at first.
const HISTORY_RULES: u64 = 20;

/// Maximum number of keys per limit in a response of `/top`.
const LISTED_KEYS_MAX: usize = 20;

/// What peers are asked for each list of keys, in the order of [`TopBy::ALL`].
const TOP_PATHS: [&str; TopBy::ALL.len()] = ["/top?by=rejected", "/top?by=used", "/top?by=near"];

/// Returns the domain, rule and name of a limit, or `None` if the policy has no such rule or limit.
pub(super) fn limit_name(policy: &Policy, rule: RuleId, limit: usize) -> Option<LimitName> {
    let rule = policy.rule(rule)?;
    let spec = rule.limits.get(limit)?;
    Some(LimitName {
        domain: policy.domain_name(rule).into(),
        rule: (*rule.path).into(),
        limit: spec.name.clone().unwrap_or_default(),
    })
}

/// Response of `/top`, `/now`, or `/history`.
#[derive(Serialize)]
struct OfReplicas<R> {
    #[serde(flatten)]
    response: R,
    replicas: Vec<ReplicaState>,
}

/// Whether a replica has answered, and if not, why.
#[derive(Serialize)]
struct ReplicaState {
    name: String,
    answered: bool,
    reason: Option<String>,
    /// Answer of the replica, unless it is added to that of this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    answer: Option<Value>,
}

/// Reports the current rates, the latency percentiles and the state of Redis or of the memory.
pub(super) async fn now(wiring: Arc<AdminWiring>, query: Query) -> TextResult {
    let scope = query.parse_scope()?;
    let rates = wiring.rates.sample(Clock::System.now(), || wiring.telemetry.snapshot());
    Ok(add_peers(build_now_response(&wiring, &rates), &wiring.peers, "/now", scope).await)
}

/// Reports the rates of the last hour.
pub(super) async fn history(wiring: Arc<AdminWiring>, query: Query) -> TextResult {
    let rules_max = query.parse_number("rules", HISTORY_RULES, HISTORY_RULES_MAX as u64)?;
    let (rules_max, scope) = (rules_max as usize, query.parse_scope()?);
    Ok(add_peers(wiring.telemetry.history(rules_max), &wiring.peers, "/history", scope).await)
}

/// Adds the answers of the peers to a response, unless `scope` excludes them.
async fn add_peers(
    response: impl Serialize,
    peers: &Peers,
    path: &'static str,
    scope: Scope,
) -> String {
    let answers = match scope {
        Scope::All => peers.ask(path).await,
        Scope::Replica => Arc::default(),
    };
    let state = |peer: &PeerAnswer| {
        let (answer, reason) = (peer.result.clone().ok(), peer.result.clone().err());
        ReplicaState { name: peer.name.clone(), answered: answer.is_some(), reason, answer }
    };
    to_json(&OfReplicas { response, replicas: answers.iter().map(state).collect() })
}

/// Lists the first keys of each limit, of this replica and, unless the scope excludes them, its peers.
pub(super) async fn list_top_keys(wiring: Arc<AdminWiring>, query: Query) -> TextResult {
    let by = match query.value("by") {
        None => TopBy::default(),
        Some(word) => TopBy::ALL.into_iter().find(|by| by.as_str() == word).ok_or(query.usage)?,
    };
    let scope = query.parse_scope()?;
    let names = |rule, limit| limit_name(&wiring.decider.policy(), rule, limit);
    let mut report = wiring.telemetry.top_keys().report(by, Clock::System.now(), &names);
    let state = |name: &str, reason: Option<String>| {
        let (name, answered) = (name.to_owned(), reason.is_none());
        ReplicaState { name, answered, reason, answer: None }
    };
    let mut replicas = vec![state("this replica", None)];
    if scope == Scope::All {
        for answer in &*wiring.peers.ask(TOP_PATHS[by as usize]).await {
            let reason = answer.read().map(|theirs| report.merge(theirs)).err();
            replicas.push(state(&answer.name, reason));
        }
        report.keep_first(LISTED_KEYS_MAX);
    }
    Ok(to_json(&OfReplicas { response: report, replicas }))
}

/// Describes, for each override in force on a rule, what it changes.
pub(super) fn changes_of(active: &Policy, rule: RuleId) -> impl Iterator<Item = String> {
    let overrides = active.rule(rule).map_or(&[][..], Rule::overrides);
    overrides.iter().map(|entry| entry.change.to_string())
}

#[derive(Serialize)]
struct RuleListing<'p> {
    rules_total: usize,
    rules_found: usize,
    rules: Vec<ListedRule<'p>>,
}

/// Rule of the loaded policy, with the change of each override in force on it.
#[derive(Serialize)]
struct ListedRule<'p> {
    #[serde(flatten)]
    rule: RuleView<'p>,
    overrides: Vec<String>,
}

/// Lists rules of the loaded policy: each with its own numbers, and with the capacity that its
/// limits have with overrides.
pub(super) async fn list_rules(wiring: Arc<AdminWiring>, query: Query) -> TextResult {
    let (policy, active) = (wiring.overrides.loaded(), wiring.decider.policy());
    let rules_max = query.parse_number("most", RULES_MAX, RULES_MAX)? as usize;
    let search = query.value("search").map(str::to_lowercase);
    let mut rules_found = 0;
    let mut rules = Vec::new();
    for rule in policy.rules() {
        let mut view = policy.view(rule);
        if !search.as_ref().is_none_or(|text| matches_search(&view, text)) {
            continue;
        }
        rules_found += 1;
        if rules.len() < rules_max {
            let overrides = changes_of(&active, rule.id).collect();
            let in_force = active.rule(rule.id).map_or(&[][..], |rule| &rule.limits);
            for (limit, spec) in view.limits.iter_mut().zip(in_force) {
                limit.capacity = spec.limit.capacity().0;
            }
            rules.push(ListedRule { rule: view, overrides });
        }
    }
    let rules_total = policy.rules().len();
    Ok(to_json(&RuleListing { rules_total, rules_found, rules }))
}

/// Returns whether the path, the file name, or a limit name of a rule contains `lowercase_text`,
/// ignoring the case of the rule's text.
fn matches_search(view: &RuleView<'_>, lowercase_text: &str) -> bool {
    let names = view.limits.iter().filter_map(|limit| limit.name);
    let mut texts = [view.rule].into_iter().chain(view.file).chain(names);
    texts.any(|text| text.to_lowercase().contains(lowercase_text))
}

#[derive(Serialize)]
struct NowResponse<'a> {
    version: &'static str,
    /// Whether the replica accepts calls.
    ready: bool,
    policy_fingerprint: String,
    time_ms: u64,
    rules_total: usize,
    #[serde(flatten)]
    rates: &'a CurrentRates,
    /// Rules with traffic, busiest first, at most 50.
    rules: Vec<RuleNow<'a>>,
    modes: ModesView,
    /// Latest changes of overrides, the last one first, at most 50.
    override_changes: Vec<Value>,
    latency: Option<Latency>,
    /// Number of rejected bills since the process started, and a rule that rejected some of them;
    /// `None` if no bill was rejected. A bill is a descriptor that reports hits after they were
    /// used. It is counted only if its rule was checked with 0 hits before.
    lost_bills: Option<RejectedBills>,
    /// Calls to which no limit applied, those with advice first; at most 50 domains and reasons.
    without_limit: Vec<NoLimitCount>,
    /// Callers that cannot be understood, those kinds of which there were some.
    unreadable_callers: Vec<UnreadableView>,
    store: StoreView,
    /// State of the control plane client; absent if policies come from files.
    #[serde(skip_serializing_if = "Option::is_none")]
    control_plane: Option<ControlPlaneView>,
}

/// Rates of a rule, and why it may reject fewer calls than its limits say.
#[derive(Serialize)]
struct RuleNow<'a> {
    #[serde(flatten)]
    rate: &'a RuleRate,
    /// `shadow`, `unlimited`, and `override: ` with the change of each override.
    modes: Vec<String>,
}

/// Modes that make decisions differ from the policy.
#[derive(Serialize)]
struct ModesView {
    shadow_mode: bool,
    quota_mode: bool,
    /// Whether no policy has arrived from the control plane yet, so that every call passes.
    without_policy: bool,
}

/// Adds the modes of the rules to their rates.
fn rules_now<'a>(policy: &Policy, active: &Policy, rates: &'a CurrentRates) -> Vec<RuleNow<'a>> {
    let name = |rate: &'a RuleRate| (&*rate.domain, &*rate.rule);
    let mut modes: BTreeMap<_, Vec<String>> =
        rates.rules.iter().map(|rate| (name(rate), Vec::new())).collect();
    // A policy may have 100,000 rules, of which few have such a mode.
    let has_mode = |rule: &&Rule| {
        rule.shadow_mode || rule.limits.is_empty() || changes_of(active, rule.id).next().is_some()
    };
    for rule in policy.rules().iter().filter(has_mode) {
        if let Some(modes) = modes.get_mut(&(policy.domain_name(rule), &*rule.path)) {
            modes.extend(rule.shadow_mode.then(|| "shadow".to_owned()));
            modes.extend(rule.limits.is_empty().then(|| "unlimited".to_owned()));
            modes.extend(changes_of(active, rule.id).map(|change| format!("override: {change}")));
        }
    }
    let rule_now = |rate| RuleNow { rate, modes: modes.remove(&name(rate)).unwrap_or_default() };
    rates.rules.iter().map(rule_now).collect()
}

/// Callers of a kind that cannot be understood, since the process started.
#[derive(Serialize)]
struct UnreadableView {
    kind: &'static str,
    meaning: &'static str,
    advice: &'static str,
    callers: u64,
}

fn unreadable_views(callers: &UnreadableCallers) -> Vec<UnreadableView> {
    let view = |kind: &UnreadableKind| {
        let (callers, (kind, meaning, advice)) = (callers.count(*kind), kind.describe());
        UnreadableView { kind, meaning, advice, callers }
    };
    UnreadableKind::ALL.iter().map(view).filter(|view| view.callers > 0).collect()
}

#[derive(Serialize)]
struct ControlPlaneView {
    connected: bool,
    /// State of the client, with at most 100 errors found in the last response.
    #[serde(flatten)]
    state: ControlPlaneState,
}

/// Maximum number of domains and reasons that the live page lists for calls without a limit.
const NO_LIMIT_COUNTS_MAX: usize = 50;

/// Maximum number of errors in the control plane's last response that the live page lists.
const REJECTIONS_MAX: usize = 100;

fn control_plane_view(status: &ControlPlaneStatus) -> ControlPlaneView {
    let mut state = status.state();
    state.rejections.truncate(REJECTIONS_MAX);
    ControlPlaneView { connected: status.connected.load(Ordering::Relaxed), state }
}

#[derive(Serialize)]
struct StoreView {
    /// Type of the configured store: `memory` or `redis`.
    kind: &'static str,
    /// Number of counters in the memory store, which is the fallback if Redis is configured.
    keys_in_memory: u64,
    /// Reason why calls are decided without Redis, or `None` while Redis decides them.
    degraded: Option<String>,
    /// Redis servers that hold counters. Empty if counters are in memory.
    nodes: Vec<NodeView>,
}

#[derive(Serialize)]
struct NodeView {
    address: String,
    connections: u64,
    /// Number of open circuit breakers for this Redis node.
    open_breakers: u64,
    /// Number of calls, or parts of calls, sent to this Redis node since the process started.
    calls: u64,
    /// Number of connections to this Redis node that were lost, or closed after an error, since the
    /// process started.
    losses: u64,
    /// Number of error replies from this Redis node since the process started, by kind, without zeros.
    errors: BTreeMap<&'static str, u64>,
}

fn build_now_response<'a>(wiring: &AdminWiring, rates: &'a CurrentRates) -> NowResponse<'a> {
    let AdminWiring { decider, telemetry, .. } = wiring;
    let now = Clock::System.now();
    let GlobalModes { shadow: shadow_mode, quota: quota_mode } = decider.modes();
    let without_policy = !telemetry.has_policy();
    let memory = decider.store().memory().stats();
    let redis = decider.store().redis();
    let mut calls_without_limit = telemetry.calls_without_limit();
    calls_without_limit.sort_by_key(|count| (count.advice.is_empty(), Reverse(count.calls)));
    calls_without_limit.truncate(NO_LIMIT_COUNTS_MAX);
    NowResponse {
        version: env!("CARGO_PKG_VERSION"),
        ready: wiring.is_ready(),
        policy_fingerprint: telemetry.policy_fingerprint(),
        time_ms: now.0 / 1_000,
        rules_total: decider.policy().rules().len(),
        rates,
        rules: rules_now(&wiring.overrides.loaded(), &decider.policy(), rates),
        modes: ModesView { shadow_mode, quota_mode, without_policy },
        override_changes: wiring.overrides.recent_changes(),
        latency: telemetry.latency(Clock::System.monotonic_now()),
        control_plane: wiring.control_plane.as_deref().map(control_plane_view),
        lost_bills: telemetry.rejected_bills(),
        without_limit: calls_without_limit,
        unreadable_callers: unreadable_views(&wiring.unreadable),
        store: StoreView {
            kind: if redis.is_some() { "redis" } else { "memory" },
            keys_in_memory: memory.live.load(Ordering::Relaxed),
            degraded: redis.and_then(|redis| redis.outage(now)).map(|outage| outage.to_string()),
            nodes: redis.map_or_else(Vec::new, |redis| {
                redis.remote().nodes().into_iter().map(node_view).collect()
            }),
        },
    }
}

fn node_view(report: NodeReport) -> NodeView {
    let stats = &report.stats;
    let errors = stats.errors().filter(|(_, count)| *count > 0);
    NodeView {
        connections: stats.connected.get(),
        open_breakers: stats.breaker_open.get(),
        calls: stats.calls.get(),
        losses: stats.losses.get(),
        errors: errors.map(|(kind, count)| (kind.as_str(), count)).collect(),
        address: report.address,
    }
}
