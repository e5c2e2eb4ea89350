//! Overrides as operators see them: as JSON, on the live page, over gRPC, and in metrics.

use std::ops::Bound;
use std::sync::atomic::Ordering;

use futures_util::future::BoxFuture;
use serde_json::{Value, json};

use super::{ChangeKind, OperatorOverrides, is_matched};
use crate::clock::Clock;
use crate::domain::Micros;
use crate::policy::{OverrideChange, OverrideEntry, OverrideMode};
use crate::server::{OverrideControl, OverridePage};

/// Maximum size of the overrides of a page with their ids, 256 KiB. Escaped as JSON, they fit in the
/// response that the command line reads.
const PAGE_BYTES_MAX: usize = 256 << 10;

/// Returns the change of an override as the live page lists it.
pub(super) fn to_event(at: Micros, kind: ChangeKind, entry: &OverrideEntry) -> Value {
    json!({
        "at_ms": at.0 / 1_000,
        "kind": kind.as_str(),
        "target": entry.target.to_string(),
        "change": entry.change.to_string(),
        "until_ms": entry.until.map(|until| until.0 / 1_000),
        "by": entry.by,
        "reason": entry.reason,
    })
}

/// Returns what an override does to the calls of its target, for operators.
pub(super) fn effect_of(change: &OverrideChange) -> &'static str {
    match change {
        OverrideChange::Numbers { .. } => "limits have these numbers instead of the policy's",
        OverrideChange::Scale(_) => "limits are this percentage of what the policy says",
        OverrideChange::Mode(OverrideMode::Shadow) => {
            "calls over a limit pass, and are counted as calls that would be rejected"
        }
        OverrideChange::Mode(OverrideMode::Unlimited) => "every call passes, and none is counted",
        OverrideChange::Mode(OverrideMode::Deny) => "every call is rejected, and none is counted",
    }
}

impl OperatorOverrides {
    /// Lists overrides in force as JSON.
    pub(crate) fn page_as_json(&self, after: &str) -> String {
        let ((listed, next), (total, _)) = (self.list("", after), self.counts());
        let item = |(id, entry, matched): (String, OverrideEntry, bool)| {
            let content = serde_json::from_str::<Value>(&entry.to_json()).unwrap_or_default();
            json!({"id": id, "override": content, "text": entry.to_string(), "matched": matched})
        };
        let listed: Vec<Value> = listed.into_iter().map(item).collect();
        let age = self.age_seconds();
        json!({"total": total, "known_seconds_ago": age, "overrides": listed, "next": next})
            .to_string()
            + "\n"
    }

    /// Returns the latest changes, the last one first.
    pub(crate) fn recent_changes(&self) -> Vec<Value> {
        self.state.lock().recent.iter().cloned().collect()
    }

    /// Returns the time since Redis last said what it has, in seconds; 0 without Redis.
    pub(crate) fn age_seconds(&self) -> u64 {
        let at = *self.known_at.lock();
        at.map_or(0, |at| Clock::System.monotonic_now().saturating_duration_since(at).as_secs())
    }

    /// Returns the number of overrides in force, and of those without an end.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let state = self.state.lock();
        let permanent = state.in_force.values().filter(|entry| entry.until.is_none());
        (state.in_force.len(), permanent.count())
    }

    /// Returns the number of changes since the process started, by kind.
    pub(crate) fn change_counts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let count = |kind: ChangeKind| {
            (kind.as_str(), self.change_counts[kind as usize].load(Ordering::Relaxed))
        };
        ChangeKind::ALL.into_iter().map(count)
    }

    /// Returns whether the content of the file of overrides is invalid.
    pub(crate) fn is_base_broken(&self) -> bool {
        self.state.lock().is_base_broken
    }
}

impl OverrideControl for OperatorOverrides {
    fn set(&self, entry: OverrideEntry) -> BoxFuture<'_, Result<String, String>> {
        Box::pin(OperatorOverrides::set(self, entry))
    }

    fn delete(&self, id: String) -> BoxFuture<'_, Result<String, String>> {
        Box::pin(async move {
            if !self.state.lock().in_force.contains_key(&id) {
                return Err("no such override is in force".to_owned());
            }
            OperatorOverrides::delete(self, vec![id]).await
        })
    }

    /// Lists overrides in force of one domain or, if that is empty, of all, in the order of their ids:
    /// those after the id `after`, at most [`PAGE_BYTES_MAX`].
    fn list(&self, domain: &str, after: &str) -> OverridePage {
        let (state, mut bytes) = (self.state.lock(), 0);
        let rest = state.in_force.range::<str, _>((Bound::Excluded(after), Bound::Unbounded));
        let mut listed: Vec<(String, OverrideEntry, bool)> = Vec::new();
        for (id, entry) in rest {
            if !domain.is_empty() && *entry.target.domain != *domain {
                continue;
            }
            bytes += id.len() + entry.to_json().len();
            if bytes > PAGE_BYTES_MAX {
                let next = listed.last().map(|(id, ..)| id.clone());
                return (listed, next);
            }
            listed.push((
                id.clone(),
                OverrideEntry::clone(entry),
                is_matched(&state.loaded, entry),
            ));
        }
        (listed, None)
    }
}
