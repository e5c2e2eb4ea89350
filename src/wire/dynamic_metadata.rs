//! Dynamic metadata of a response, for Envoy's access log and for later calls: the refusing limit and
//! the source of the decision; the holder of concurrency slots that the call took; on request, the
//! keys of envoyproxy/ratelimit, which repeat the request.
//!
//! Not here: which of them are sent (`response_config`).

use prost_types::value::Kind;
use prost_types::{ListValue, Struct, Value};
use serde_json::Value as Json;

use super::decode::DecodedRequest;
use super::response_headers::name_of;
use crate::domain::{Code, Decision, Descriptor, HolderToken, Override};
use crate::policy::Policy;

/// Key of Tidegate's own metadata.
const OURS: &str = "tidegate";

/// Key of the slot holder. At the top level, not nested under [`OURS`], because Envoy's `metadata`
/// action reads it at this path. It is set only if the call took slots, so that Envoy sends no release
/// for other calls.
const SLOT: &str = "slot";

/// Adds `{limited_by, retry_after_ms, source}` under [`OURS`]; without `retry_after_ms` if waiting
/// does not help.
pub(super) fn of_refusal(decision: &Decision<'_>, into: &mut Struct) {
    let mut ours = Struct::default();
    if let Some(limited_by) = &decision.limited_by {
        put(&mut ours, "limited_by", text(name_of(limited_by)));
        if let Some(wait) = limited_by.retry_after {
            put(&mut ours, "retry_after_ms", number(wait.ceil_millis()));
        }
    }
    put(&mut ours, "source", text(decision.source.as_str()));
    put(into, OURS, Kind::StructValue(ours));
}

/// Adds the holder of the slots that the call took, under [`SLOT`].
pub(super) fn of_slot(slot: &HolderToken, into: &mut Struct) {
    put(into, SLOT, text(slot.as_str()));
}

/// Adds the keys of envoyproxy/ratelimit: `domain`, `descriptors`, `hitsAddend` and the merged `metadata` of
/// the rules that passed.
pub(super) fn of_request(
    asked: &DecodedRequest<'_>,
    descriptors: &[Descriptor<'_>],
    decision: &Decision<'_>,
    rules: &Policy,
    into: &mut Struct,
) {
    put(into, "domain", text(asked.domain));
    let listed = asked
        .heads
        .iter()
        .zip(descriptors)
        .map(|(head, descriptor)| {
            let mut shown = Struct::default();
            let entries = descriptor.entries.iter().map(|entry| {
                let (key, value) =
                    (String::from_utf8_lossy(entry.key), String::from_utf8_lossy(entry.value));
                Kind::StringValue(format!("{key}={value}"))
            });
            put(&mut shown, "entries", list(entries));
            if let Some(limit) = &head.limit {
                put(&mut shown, "limit", Kind::StringValue(override_text(limit)));
            }
            if let Some(hits) = head.hits_addend {
                put(&mut shown, "hitsAddend", number(hits));
            }
            Kind::StructValue(shown)
        })
        .collect::<Vec<_>>();
    put(into, "descriptors", list(listed));
    if asked.hits_addend != 0 {
        put(into, "hitsAddend", number(u64::from(asked.hits_addend)));
    }
    let metadata = of_passing_rules(decision, rules);
    if !metadata.fields.is_empty() {
        put(into, "metadata", Kind::StructValue(metadata));
    }
}

/// Merges the metadata of the passing rules: maps merge, for other values the first one wins. Builds a
/// new value, so that the policy is never changed by a request.
fn of_passing_rules(decision: &Decision<'_>, rules: &Policy) -> Struct {
    let mut merged = Struct::default();
    for status in &decision.statuses {
        if status.code != Code::Ok || status.shown.is_none() {
            continue;
        }
        let rule = status.rule.and_then(|id| rules.rule(id));
        if let Some(metadata) = rule.and_then(|rule| rule.metadata.as_deref()) {
            merge(&mut merged, metadata);
        }
    }
    merged
}

fn merge(into: &mut Struct, from: &serde_json::Map<String, Json>) {
    for (key, value) in from {
        match (into.fields.get_mut(key).and_then(|held| held.kind.as_mut()), value) {
            (None, _) => put(into, key, of_json(value)),
            (Some(Kind::StructValue(held)), Json::Object(map)) => merge(held, map),
            (Some(_), _) => {}
        }
    }
}

pub(super) fn of_json(value: &Json) -> Kind {
    match value {
        Json::Null => Kind::NullValue(0),
        Json::Bool(truth) => Kind::BoolValue(*truth),
        Json::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or_default()),
        Json::String(words) => text(words),
        Json::Array(values) => list(values.iter().map(of_json)),
        Json::Object(map) => {
            let mut of_map = Struct::default();
            merge(&mut of_map, map);
            Kind::StructValue(of_map)
        }
    }
}

/// Formats a request override as envoyproxy/ratelimit prints it.
fn override_text(limit: &Override) -> String {
    let unit = limit.unit.as_str().to_uppercase();
    let hits = limit.requests_per_unit;
    let rate = if hits == 0 { String::new() } else { format!("requests_per_unit:{hits} ") };
    let multiplier = match limit.unit_multiplier {
        1 => String::new(),
        many => format!(" unit_multiplier:{{value:{many}}}"),
    };
    format!("{rate}unit:{unit}{multiplier}")
}

fn put(into: &mut Struct, key: &str, kind: Kind) {
    into.fields.insert(key.to_owned(), Value { kind: Some(kind) });
}

fn text(words: &str) -> Kind {
    Kind::StringValue(words.to_owned())
}

/// Converts a number; a `Struct` holds doubles, exact up to 2^53.
#[allow(clippy::cast_precision_loss, reason = "the format has no other number")]
fn number(value: u64) -> Kind {
    Kind::NumberValue(value as f64)
}

fn list(kinds: impl IntoIterator<Item = Kind>) -> Kind {
    let values = kinds.into_iter().map(|kind| Value { kind: Some(kind) }).collect();
    Kind::ListValue(ListValue { values })
}
