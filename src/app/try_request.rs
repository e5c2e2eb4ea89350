//! What a request would be answered now, with the explanation, as JSON. It charges nothing.
//!
//! Not here: the foreseeing (`decide`), the explaining (`policy`).

use serde::Serialize;

use super::descriptor_arg::descriptor;
use super::explain_offline;
use super::explain_offline::Asked;
use super::explain_offline::entries;
use super::wiring::store_setup::Deciding;
use crate::admin::{Attempt, Told};
use crate::clock::Clock;
use crate::decide::{Foreseen, ForeseenLimit};
use crate::domain::{Code, Descriptor, Entry, Hits, Micros, Request, Status};
use crate::policy::Policy;
use crate::store::redis::keys::Prefix;

#[derive(Serialize)]
struct Answered<'a> {
    charges_nothing: bool,
    /// OK, OVER_LIMIT, or UNAVAILABLE where the store gives no answer and a rule wants an error.
    code: &'static str,
    source: Option<&'static str>,
    /// Over the limit, and global shadow mode lets it pass.
    shadowed: bool,
    limited_by: Option<&'a str>,
    retry_after_ms: Option<u64>,
    descriptors: Vec<Answer<'a>>,
}

#[derive(Serialize)]
struct Answer<'a> {
    code: &'static str,
    /// The path of the rule that matched.
    rule: Option<&'a str>,
    remaining: Option<u32>,
    explanation: String,
    limits: Vec<LimitAnswer<'a>>,
}

#[derive(Serialize)]
struct LimitAnswer<'a> {
    name: Option<&'a str>,
    capacity: u64,
    cost: u64,
    available: Option<u64>,
    passes: bool,
    shadow: bool,
}

/// Tries a request.
pub(super) async fn attempt(decider: &Deciding, prefix: &Prefix, attempt: &Attempt) -> Told {
    let descriptors = attempt.descriptors.iter().map(|text| descriptor(text));
    let asked = Asked {
        domain: attempt.domain.clone(),
        descriptors: descriptors.collect::<Result<_, _>>().map_err(|fault| fault.to_string())?,
        hits: attempt.hits,
    };
    explain_offline::within_bounds(&asked)?;
    let policy = decider.policy();
    let entries: Vec<Vec<Entry<'_>>> = asked.descriptors.iter().map(|d| entries(d)).collect();
    let plain = |entries| Descriptor {
        entries,
        hits: Hits(asked.hits),
        refund: false,
        limit: None,
        holder: None,
    };
    let descriptors: Vec<Descriptor<'_>> = entries.iter().map(|e| plain(e)).collect();
    let request = Request { domain: &asked.domain, descriptors: &descriptors };
    let explained: Vec<String> = asked
        .descriptors
        .iter()
        .map(|descriptor| {
            explain_offline::explained_one(&policy, prefix, &asked.domain, descriptor)
        })
        .collect();
    let foreseen = decider.foresee(&policy, &request, Clock::System.now()).await;
    Ok(match &foreseen {
        Ok(foreseen) => written(&answered(&policy, foreseen, explained)),
        Err(_) => written(&Answered {
            charges_nothing: true,
            code: "UNAVAILABLE",
            source: None,
            shadowed: false,
            limited_by: None,
            retry_after_ms: None,
            descriptors: Vec::new(),
        }),
    })
}

fn answered<'a>(
    policy: &'a Policy,
    Foreseen { decision, limits }: &Foreseen<'a>,
    explained: Vec<String>,
) -> Answered<'a> {
    let each = decision.statuses.iter().zip(limits).zip(explained);
    let answer = |((status, limits), explanation): ((&Status<'a>, &Vec<_>), String)| Answer {
        code: explain_offline::word(status.code),
        rule: status.rule.and_then(|id| policy.rule(id)).map(|rule| &*rule.path),
        remaining: status.shown.is_some().then_some(status.remaining),
        explanation,
        limits: limits.iter().map(limit).collect(),
    };
    Answered {
        charges_nothing: true,
        code: explain_offline::word(decision.code),
        source: Some(decision.source.word()),
        shadowed: decision.shadowed,
        limited_by: decision.limited_by.map(|by| by.name),
        retry_after_ms: decision
            .limited_by
            .and_then(|by| by.retry_after)
            .map(Micros::ceil_millis)
            .filter(|_| decision.code == Code::OverLimit),
        descriptors: each.map(answer).collect(),
    }
}

fn limit<'a>(limit: &ForeseenLimit<'a>) -> LimitAnswer<'a> {
    LimitAnswer {
        name: Some(limit.name).filter(|name| !name.is_empty()),
        capacity: limit.capacity.0,
        cost: limit.cost.0,
        available: limit.available.map(|hits| hits.0),
        passes: limit.passes,
        shadow: limit.shadow,
    }
}

/// JSON. Writing values that are JSON already cannot fail.
pub(super) fn written(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default() + "\n"
}
