//! Dynamic metadata of a response, which Envoy makes available to its access log and to later
//! filters.
//!
//! On a rejection, the metadata names the limit that rejected the call and the source of the
//! decision. If the call acquired concurrency slots without naming a holder, the metadata contains
//! the token that Tidegate generated for the holder. If it holds hits, the metadata contains their id. If enabled, it also repeats the request under
//! the keys of envoyproxy/ratelimit.
//!
//! Not here: the settings that enable each part of the metadata (`response_config`).

use prost_types::value::Kind;
use prost_types::{ListValue, Struct, Value};
use serde_json::Value as Json;

use super::decode::DecodedRequest;
use super::response_headers::limit_name;
use crate::domain::{Code, Decision, Descriptor, HoldId, Override, WaitPrecision};
use crate::policy::Policy;

/// Metadata key of the object that describes a rejection.
const TIDEGATE_KEY: &str = "tidegate";

/// Metadata key of the token that names the holder of concurrency slots. The key is at the top
/// level, because documented Envoy configurations read it at this path. It is set only if the call
/// acquired slots, so that Envoy sends no release for other calls.
const HOLDER_KEY: &str = "slot";

/// Metadata key of the id with which the caller settles its hold. At the top level, and set only if the
/// call was admitted and holds hits, for the same reasons.
const HOLD_KEY: &str = "hold";

/// Maximum size in bytes of the merged metadata of all rules that passed. A call can have thousands
/// of descriptors, each with its own metadata, and Envoy keeps the merged metadata for each
/// request.
const MERGED_METADATA_BYTES_MAX: usize = 64 * 1024;

/// Assumed overhead in bytes of an encoded metadata field, in addition to its text: numbers, tags
/// and lengths.
const FIELD_OVERHEAD_BYTES: usize = 16;

/// Adds the fields of a rejection under [`TIDEGATE_KEY`]: `limited_by`, `retry_after_ms` and
/// `source`. Leaves out `retry_after_ms` if waiting does not help. Adds `retry_after_is: at_least`
/// if a limit that was not checked may require a longer wait.
pub(super) fn add_refusal(decision: &Decision<'_>, target: &mut Struct) {
    let mut refusal = Struct::default();
    if let Some(limited_by) = &decision.limited_by {
        insert_field(&mut refusal, "limited_by", string_kind(limit_name(limited_by)));
        if let Some(wait) = limited_by.retry_after {
            insert_field(&mut refusal, "retry_after_ms", number_kind(wait.ceil_millis()));
            if limited_by.precision == WaitPrecision::AtLeast {
                insert_field(&mut refusal, "retry_after_is", string_kind("at_least"));
            }
        }
    }
    insert_field(&mut refusal, "source", string_kind(decision.source.as_str()));
    insert_field(target, TIDEGATE_KEY, Kind::StructValue(refusal));
}

/// Adds the token that names the holder of the acquired concurrency slots, under [`HOLDER_KEY`], and the
/// id of the hold under [`HOLD_KEY`].
pub(super) fn add_holders(
    decision: &Decision<'_>,
    descriptors: &[Descriptor<'_>],
    target: &mut Struct,
) {
    if let Some(holder) = &decision.slot {
        insert_field(target, HOLDER_KEY, string_kind(holder.as_str()));
    }
    let id = match &decision.hold {
        None => return,
        Some(HoldId::Generated(token)) => token.as_str().into(),
        Some(HoldId::Sent) => {
            let sent = descriptors.iter().filter_map(|descriptor| descriptor.hold);
            let id = sent.map(|hold| hold.id()).find(|id| !id.is_empty());
            String::from_utf8_lossy(id.unwrap_or_default())
        }
    };
    insert_field(target, HOLD_KEY, string_kind(&id));
}

/// Adds the request under the keys of envoyproxy/ratelimit (`domain`, `descriptors`, and
/// `hitsAddend`). Under the key `metadata`, adds the merged metadata of the rules that passed.
pub(super) fn add_request(
    request: &DecodedRequest<'_>,
    descriptors: &[Descriptor<'_>],
    decision: &Decision<'_>,
    rules: &Policy,
    target: &mut Struct,
) {
    insert_field(target, "domain", string_kind(request.domain));
    let listed = descriptors.iter().map(|descriptor| {
        let mut shown = Struct::default();
        let entries = descriptor.entries.iter().map(|entry| {
            let (key, value) =
                (String::from_utf8_lossy(entry.key), String::from_utf8_lossy(entry.value));
            Kind::StringValue(format!("{key}={value}"))
        });
        insert_field(&mut shown, "entries", list_kind(entries));
        if let Some(limit) = &descriptor.limit {
            insert_field(&mut shown, "limit", Kind::StringValue(format_override(limit)));
        }
        if descriptor.has_hits_addend {
            insert_field(&mut shown, "hitsAddend", number_kind(descriptor.hits.0));
        }
        Kind::StructValue(shown)
    });
    insert_field(target, "descriptors", list_kind(listed));
    if request.hits_addend != 0 {
        insert_field(target, "hitsAddend", number_kind(u64::from(request.hits_addend)));
    }
    let metadata = merge_rule_metadata(decision, rules);
    if !metadata.fields.is_empty() {
        insert_field(target, "metadata", Kind::StructValue(metadata));
    }
}

/// Merges the metadata of the rules that passed, except those in a refused quota group. Maps under
/// the same key are merged recursively; for any other value, the first rule takes precedence.
/// Leaves out values that do not fit into [`MERGED_METADATA_BYTES_MAX`].
fn merge_rule_metadata(decision: &Decision<'_>, rules: &Policy) -> Struct {
    let (mut merged, mut bytes_left) = (Struct::default(), MERGED_METADATA_BYTES_MAX);
    for status in &decision.statuses {
        if status.code != Code::Ok || status.group_refused || status.shown.is_none() {
            continue;
        }
        let rule = status.rule.and_then(|id| rules.rule(id));
        if let Some(metadata) = rule.and_then(|rule| rule.metadata.as_deref()) {
            merge_fields(&mut merged, metadata, &mut bytes_left);
        }
    }
    merged
}

fn merge_fields(
    target: &mut Struct,
    source: &serde_json::Map<String, Json>,
    bytes_left: &mut usize,
) {
    for (key, value) in source {
        match (target.fields.get_mut(key).and_then(|held| held.kind.as_mut()), value) {
            (None, _) => {
                if let Some(left) = bytes_left.checked_sub(estimate_field_bytes(key, value)) {
                    *bytes_left = left;
                    insert_field(target, key, json_to_kind(value));
                }
            }
            (Some(Kind::StructValue(held)), Json::Object(map)) => {
                merge_fields(held, map, bytes_left)
            }
            (Some(_), _) => {}
        }
    }
}

/// Returns the approximate size of an encoded metadata field in bytes: the length of its text plus
/// [`FIELD_OVERHEAD_BYTES`] for each value.
fn estimate_field_bytes(key: &str, value: &Json) -> usize {
    FIELD_OVERHEAD_BYTES
        + key.len()
        + match value {
            Json::Null | Json::Bool(_) | Json::Number(_) => 0,
            Json::String(text) => text.len(),
            Json::Array(values) => values.iter().map(|value| estimate_field_bytes("", value)).sum(),
            Json::Object(map) => {
                map.iter().map(|(key, value)| estimate_field_bytes(key, value)).sum()
            }
        }
}

/// Converts a JSON value to a value of `google.protobuf.Struct`.
pub(super) fn json_to_kind(value: &Json) -> Kind {
    match value {
        Json::Null => Kind::NullValue(0),
        Json::Bool(truth) => Kind::BoolValue(*truth),
        Json::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or_default()),
        Json::String(text) => string_kind(text),
        Json::Array(values) => list_kind(values.iter().map(json_to_kind)),
        Json::Object(map) => {
            let fields = map
                .iter()
                .map(|(key, value)| (key.clone(), Value { kind: Some(json_to_kind(value)) }));
            Kind::StructValue(Struct { fields: fields.collect() })
        }
    }
}

/// Formats a request override as envoyproxy/ratelimit does: `requests_per_unit:5 unit:MINUTE`.
fn format_override(limit: &Override) -> String {
    let unit = limit.unit.as_str().to_uppercase();
    let hits = limit.requests_per_unit;
    let rate = if hits == 0 { String::new() } else { format!("requests_per_unit:{hits} ") };
    let multiplier = match limit.unit_multiplier {
        1 => String::new(),
        many => format!(" unit_multiplier:{{value:{many}}}"),
    };
    format!("{rate}unit:{unit}{multiplier}")
}

fn insert_field(target: &mut Struct, key: &str, kind: Kind) {
    target.fields.insert(key.to_owned(), Value { kind: Some(kind) });
}

fn string_kind(text: &str) -> Kind {
    Kind::StringValue(text.to_owned())
}

/// Converts an integer to a double, the only number type of a `Struct`. The result is exact up to
/// 2^53.
#[allow(clippy::cast_precision_loss, reason = "the format has no other number")]
fn number_kind(value: u64) -> Kind {
    Kind::NumberValue(value as f64)
}

fn list_kind(kinds: impl IntoIterator<Item = Kind>) -> Kind {
    let values = kinds.into_iter().map(|kind| Value { kind: Some(kind) }).collect();
    Kind::ListValue(ListValue { values })
}
