//! Overrides that operators set at run time with `tidegate switch` or `POST /switch`.
//!
//! An override applies to this process until it is removed or expires, the process ends, or the
//! policy is reloaded. `policy` defines the effect on a rule; `admin` checks the token.

use std::fmt::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;

use super::wiring::store_setup::ServiceDecider;
use crate::domain::Micros;
use crate::policy::{Policy, RuleOverride};

/// Maximum number of active overrides. Each slows down policy changes a little, and nobody can keep
/// track of more.
const OVERRIDES_MAX: usize = 64;

/// Active overrides of this process, applied on top of the loaded policy.
#[derive(Debug)]
pub(super) struct RuntimeOverrides {
    decider: Arc<ServiceDecider>,
    state: Mutex<OverrideState>,
}

#[derive(Debug)]
struct OverrideState {
    /// Policy as compiled from the files, without overrides.
    loaded: Arc<Policy>,
    active: Vec<ActiveOverride>,
}

#[derive(Debug)]
struct ActiveOverride {
    target: String,
    value: RuleOverride,
    /// Expiry; `None` if the override lasts until it is removed.
    until: Option<Micros>,
}

/// An active override as listed on the live page and by `/switches`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct OverrideView {
    /// Domain, or path of a rule, that the override applies to.
    pub(super) target: String,
    /// `shadow`, `allow`, `deny`, or a percentage such as `20%`.
    pub(super) to: String,
    /// Remaining lifetime, rounded up; `None` if the override lasts until it is removed.
    pub(super) seconds_left: Option<u64>,
}

impl RuntimeOverrides {
    /// Creates an empty set of overrides on top of the decider's current policy.
    pub(super) fn new(decider: Arc<ServiceDecider>) -> RuntimeOverrides {
        let loaded = Arc::clone(&decider.policy());
        let state = Mutex::new(OverrideState { loaded, active: Vec::new() });
        RuntimeOverrides { decider, state }
    }

    /// Sets the override of a domain or a rule, replacing an earlier override of the same target.
    ///
    /// # Errors
    ///
    /// Returns a message for the operator if the policy has no such target, the value does not suit
    /// it, or 64 overrides are active.
    pub(super) fn set(
        &self,
        target: &str,
        value: RuleOverride,
        until: Option<Micros>,
    ) -> Result<(), String> {
        let mut state = self.state();
        state.loaded.accepts(target, value).map_err(|error| error.to_string())?;
        state.active.retain(|active| active.target != target);
        if state.active.len() >= OVERRIDES_MAX {
            return Err(format!("{OVERRIDES_MAX} switches are set already; undo some first"));
        }
        state.active.push(ActiveOverride { target: target.to_owned(), value, until });
        tracing::warn!(target, switch = %value, until = until.map(|at| at.0), "switch set");
        self.activate(&state);
        Ok(())
    }

    /// Removes the override of a target, or all overrides if `target` is `None`. Returns the number
    /// removed.
    pub(super) fn remove(&self, target: Option<&str>) -> usize {
        self.remove_where("undone", |active| target.is_none_or(|only| active.target == only))
    }

    /// Removes overrides that have expired by `now`.
    pub(super) fn expire(&self, now: Micros) {
        self.remove_where("expired", |active| active.until.is_some_and(|until| until <= now));
    }

    /// Replaces the policy after a reload, and removes all overrides.
    pub(super) fn replace_policy(&self, policy: Arc<Policy>) {
        let mut state = self.state();
        if !state.active.is_empty() {
            tracing::warn!(
                switches = state.active.len(),
                "all switches removed by a policy reload"
            );
        }
        *state = OverrideState { loaded: policy, active: Vec::new() };
        self.activate(&state);
    }

    /// Lists the active overrides.
    pub(super) fn list(&self, now: Micros) -> Vec<OverrideView> {
        let view = |active: &ActiveOverride| OverrideView {
            target: active.target.clone(),
            to: active.value.to_string(),
            seconds_left: active.until.map(|until| until.saturating_sub(now).ceil_secs()),
        };
        self.state().active.iter().map(view).collect()
    }

    /// Formats the active overrides for operators, one per line.
    pub(super) fn describe(&self, now: Micros) -> String {
        let mut text = String::new();
        for OverrideView { target, to, seconds_left } in self.list(now) {
            // Writing into a String cannot fail.
            let _ = match seconds_left {
                Some(seconds) => writeln!(text, "{target}: {to}, for {seconds} s more"),
                None => writeln!(text, "{target}: {to}"),
            };
        }
        text
    }

    fn remove_where(&self, reason: &str, ends: impl Fn(&ActiveOverride) -> bool) -> usize {
        let mut state = self.state();
        let removed: Vec<_> = state.active.extract_if(.., |active| ends(active)).collect();
        for ActiveOverride { target, value, .. } in &removed {
            tracing::warn!(target, switch = %value, reason, "switch removed");
        }
        if !removed.is_empty() {
            self.activate(&state);
        }
        removed.len()
    }

    /// Activates the loaded policy with the overrides applied. The caller holds the lock, so that a
    /// concurrent reload cannot activate an older policy afterwards.
    fn activate(&self, state: &OverrideState) {
        let policy = if state.active.is_empty() {
            Arc::clone(&state.loaded)
        } else {
            let overrides = state.active.iter().map(|active| (&*active.target, active.value));
            Arc::new(state.loaded.with_overrides(overrides))
        };
        self.decider.replace_policy(policy);
        self.decider.store().clear_refusals();
    }

    fn state(&self) -> MutexGuard<'_, OverrideState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
