//! `/try` on the debug port: predicts the decision on a request without charging any counter, and
//! explains the prediction, as JSON.
//!
//! `decide` makes the prediction, and `policy` writes the explanation.

use serde::Serialize;

use super::explain_offline::{SampleRequest, explain_descriptor};
use super::offline_engine::to_entries;
use super::wiring::store_setup::ServiceDecider;
use crate::admin::TextResult;
use crate::clock::Clock;
use crate::decide::{DryRun, DryRunLimit};
use crate::domain::{Code, Descriptor, Entry, Hits, Micros, Request, Status};
use crate::policy::Policy;
use crate::store::redis::script::keys::Prefix;

#[derive(Default, Serialize)]
struct TryResponse<'a> {
    charges_nothing: bool,
    /// Predicted code: `OK`, `OVER_LIMIT`, or `UNAVAILABLE` if the store does not respond and a
    /// rule has `on_store_failure: error`.
    code: &'static str,
    source: Option<&'static str>,
    /// Whether the call passes only because of shadow mode, global or of a rule.
    would_be_rejected: bool,
    /// Whether global shadow mode admits the call although a limit is reached or the store does not
    /// respond.
    shadowed: bool,
    limited_by: Option<&'a str>,
    retry_after_ms: Option<u64>,
    descriptors: Vec<DescriptorPrediction<'a>>,
}

#[derive(Serialize)]
struct DescriptorPrediction<'a> {
    code: &'static str,
    /// Path of the rule that the descriptor matches, or `None` if no rule matches.
    rule: Option<&'a str>,
    remaining: Option<u32>,
    explanation: String,
    limits: Vec<LimitPrediction<'a>>,
}

#[derive(Serialize)]
struct LimitPrediction<'a> {
    name: Option<&'a str>,
    capacity: u64,
    cost: u64,
    available: Option<u64>,
    passes: bool,
    shadow: bool,
}

/// Predicts the decision on a request without charging any counter, and formats it as JSON.
pub(super) async fn dry_run_request(
    decider: &ServiceDecider,
    prefix: &Prefix,
    sample: &SampleRequest,
) -> TextResult {
    sample.check_bounds()?;
    let policy = decider.policy();
    let entries: Vec<Vec<Entry<'_>>> =
        sample.descriptors.iter().map(|pairs| to_entries(pairs)).collect();
    let descriptors: Vec<Descriptor<'_>> =
        entries.iter().map(|entries| Descriptor::new(entries, Hits(sample.hits))).collect();
    let explain = |pairs: &Vec<_>| explain_descriptor(&policy, prefix, &sample.domain, pairs);
    let explanations: Vec<String> = sample.descriptors.iter().map(explain).collect();
    let request = Request { domain: &sample.domain, descriptors: &descriptors };
    let response = match &decider.dry_run(&policy, &request, Clock::System.now()).await {
        Ok(prediction) => to_json(&build_response(&policy, prediction, explanations)),
        Err(_) => to_json(&TryResponse {
            charges_nothing: true,
            code: "UNAVAILABLE",
            ..TryResponse::default()
        }),
    };
    Ok(response)
}

fn build_response<'a>(
    policy: &'a Policy,
    DryRun { decision, limits }: &DryRun<'a>,
    explanations: Vec<String>,
) -> TryResponse<'a> {
    let any_over_in_shadow = limits.iter().flatten().any(|limit| limit.shadow && !limit.passes);
    let each = decision.statuses.iter().zip(limits).zip(explanations);
    let descriptor =
        |((status, limits), explanation): ((&Status<'a>, &Vec<_>), String)| DescriptorPrediction {
            code: status.code.as_str(),
            rule: status.rule.and_then(|id| policy.rule(id)).map(|rule| &*rule.path),
            remaining: status.shown.is_some().then_some(status.remaining),
            explanation,
            limits: limits.iter().map(predict_limit).collect(),
        };
    TryResponse {
        charges_nothing: true,
        code: decision.code.as_str(),
        source: Some(decision.source.as_str()),
        would_be_rejected: decision.shadowed || decision.code == Code::Ok && any_over_in_shadow,
        shadowed: decision.shadowed,
        limited_by: decision.limited_by.map(|by| by.name),
        retry_after_ms: decision
            .limited_by
            .and_then(|by| by.retry_after)
            .map(Micros::ceil_millis)
            .filter(|_| decision.code == Code::OverLimit),
        descriptors: each.map(descriptor).collect(),
    }
}

fn predict_limit<'a>(limit: &DryRunLimit<'a>) -> LimitPrediction<'a> {
    LimitPrediction {
        name: Some(limit.name).filter(|name| !name.is_empty()),
        capacity: limit.capacity.0,
        cost: limit.cost.0,
        available: limit.available.map(|hits| hits.0),
        passes: limit.passes,
        shadow: limit.shadow,
    }
}

/// Serializes a response as one line of JSON. Serialization cannot fail, because all map keys are
/// strings.
pub(super) fn to_json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default() + "\n"
}
