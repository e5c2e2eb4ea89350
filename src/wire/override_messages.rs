//! Messages of `tidegate.v1.Limits` about overrides, as and from overrides.
//!
//! Not here: the bounds of an override (`policy`), the service (`server::limits_service`).

use prost::Message as _;
use prost_types::Timestamp;

use super::decode::DecodeError;
use super::messages::{
    ListOverridesResponse, ListedOverride, Override, OverrideNumbers, SetOverrideRequest,
    r#override::Change,
};
use crate::domain::{Micros, format_descriptor, parse_descriptor};
use crate::policy::{OverrideChange, OverrideEntry, OverrideMode, OverrideTarget};

/// Decodes a message of this type.
///
/// # Errors
///
/// Returns an error if the message is malformed.
pub(crate) fn decode<M: prost::Message + Default>(
    message: &[u8],
    name: &'static str,
) -> Result<M, DecodeError> {
    M::decode(message).map_err(|_| DecodeError::MalformedMessage(name))
}

/// Decodes a `SetOverrideRequest`.
///
/// # Errors
///
/// Returns the reason if the message is malformed, or is not an override with an end.
pub(crate) fn decode_set(message: &[u8]) -> Result<OverrideEntry, String> {
    let request: SetOverrideRequest =
        decode(message, "SetOverrideRequest").map_err(|error| error.to_string())?;
    let message = request.r#override.ok_or("`override` is missing")?;
    if message.until.is_some() == request.permanent {
        return Err("set either `until` or `permanent`".to_owned());
    }
    let some = |text: String| (!text.is_empty()).then(|| text.into_boxed_str());
    let change = match message.change.ok_or("the override changes nothing")? {
        Change::Numbers(OverrideNumbers { limit, burst, anchor }) => {
            OverrideChange::Numbers { limit, burst, anchor: some(anchor) }
        }
        Change::ScalePercent(percent) => OverrideChange::Scale(percent),
        Change::Mode(mode) => {
            let mode = OverrideMode::ALL.into_iter().find(|known| known.as_str() == mode);
            OverrideChange::Mode(mode.ok_or("`mode` must be unlimited, deny, or shadow")?)
        }
    };
    let entries = match message.descriptor.is_empty() {
        true => Vec::new(),
        false => parse_descriptor(&message.descriptor)?,
    };
    let target = OverrideTarget {
        domain: message.domain.into(),
        rule: some(message.rule),
        entries,
        limit_name: some(message.limit_name),
    };
    let until = message.until.map(|until| {
        let seconds = u64::try_from(until.seconds).unwrap_or(0);
        let micros = u64::try_from(until.nanos).unwrap_or(0) / 1_000;
        Micros(seconds.saturating_mul(1_000_000).saturating_add(micros))
    });
    let (reason, by) = (message.reason.into(), message.by.into());
    Ok(OverrideEntry { target, change, until, set_at: Micros::ZERO, reason, by })
}

/// Encodes a `ListOverridesResponse`: ids, overrides, and whether the policy has their targets.
pub(crate) fn encode_page(
    listed: Vec<(String, OverrideEntry, bool)>,
    next: Option<String>,
) -> Vec<u8> {
    let item =
        |(id, entry, matched)| ListedOverride { id, r#override: Some(to_message(entry)), matched };
    let overrides = listed.into_iter().map(item).collect();
    ListOverridesResponse { overrides, next: next.unwrap_or_default() }.encode_to_vec()
}

fn to_message(entry: OverrideEntry) -> Override {
    let OverrideTarget { domain, rule, entries, limit_name } = entry.target;
    let text = |text: Option<Box<str>>| text.map(String::from).unwrap_or_default();
    let change = match entry.change {
        OverrideChange::Numbers { limit, burst, anchor } => {
            Change::Numbers(OverrideNumbers { limit, burst, anchor: text(anchor) })
        }
        OverrideChange::Scale(percent) => Change::ScalePercent(percent),
        OverrideChange::Mode(mode) => Change::Mode(mode.as_str().to_owned()),
    };
    let until = entry.until.map(|until| Timestamp {
        seconds: (until.0 / 1_000_000).cast_signed(),
        nanos: i32::try_from(until.0 % 1_000_000 * 1_000).unwrap_or(0),
    });
    Override {
        domain: domain.into(),
        rule: text(rule),
        descriptor: format_descriptor(&entries),
        limit_name: text(limit_name),
        change: Some(change),
        until,
        reason: entry.reason.into(),
        by: entry.by.into(),
    }
}
