//! The switches that operators set at run time: which are set, until when, and the policy that
//! comes of them. A switch holds in this process until it is refunded, its time is up, the process
//! ends or the policy is reloaded: the policy wins.
//!
//! Not here: what a switch makes of a rule (`policy`), who may set one (`admin`).

use std::fmt::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;

use super::wiring::store_setup::Deciding;
use crate::domain::Micros;
use crate::policy::{Policy, RuleOverride, RuleOverrideError};

/// Switches set at a time; each makes a change of the policy a little dearer, and nobody oversees
/// more.
const SWITCHES_MAX: usize = 64;

/// The switches of this process.
#[derive(Debug)]
pub(super) struct Switching {
    decider: Arc<Deciding>,
    held: Mutex<Held>,
}

#[derive(Debug)]
struct Held {
    /// The policy as it was loaded.
    written: Arc<Policy>,
    set: Vec<Set>,
}

/// A switch as listings show it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct SwitchSet {
    /// A domain or a rule's path.
    pub(super) target: String,
    /// `shadow`, `allow`, `deny`, `20%`.
    pub(super) to: String,
    /// `None`: until it is refunded.
    pub(super) seconds_left: Option<u64>,
}

#[derive(Debug)]
struct Set {
    target: String,
    switch: RuleOverride,
    /// `None`: until it is refunded.
    until: Option<Micros>,
}

impl Switching {
    /// No switch is set; the decider's policy is the one that was loaded.
    pub(super) fn new(decider: Arc<Deciding>) -> Switching {
        let written = Arc::clone(&decider.policy());
        Switching { decider, held: Mutex::new(Held { written, set: Vec::new() }) }
    }

    /// Sets a switch on a domain or a rule's path; it takes the place of the one that is set there.
    ///
    /// # Errors
    ///
    /// Why it cannot be set, in words.
    pub(super) fn set(
        &self,
        target: &str,
        switch: RuleOverride,
        until: Option<Micros>,
    ) -> Result<(), String> {
        let mut held = self.held();
        let refused = |fault: RuleOverrideError| fault.to_string();
        held.written.accepts(target, switch).map_err(refused)?;
        held.set.retain(|set| set.target != target);
        if held.set.len() >= SWITCHES_MAX {
            return Err(format!("{SWITCHES_MAX} switches are set already; undo some"));
        }
        held.set.push(Set { target: target.to_owned(), switch, until });
        tracing::warn!(target, switch = %switch, until = until.map(|at| at.0), "a switch is set");
        self.put_in_force(&held);
        Ok(())
    }

    /// Undoes the switch on a target, or every one; how many there were.
    pub(super) fn undo(&self, target: Option<&str>) -> usize {
        self.drop_those("a switch is refunded", |set| target.is_none_or(|only| set.target == only))
    }

    /// Undoes the switches whose time is up.
    pub(super) fn expire(&self, now: Micros) {
        self.drop_those("a switch has expired", |set| set.until.is_some_and(|until| until <= now));
    }

    /// A policy was loaded: it is in force as it is written.
    pub(super) fn replaced(&self, policy: Arc<Policy>) {
        let mut held = self.held();
        if !held.set.is_empty() {
            tracing::warn!(switches = held.set.len(), "the new policy undoes every switch");
        }
        *held = Held { written: policy, set: Vec::new() };
        self.put_in_force(&held);
    }

    /// Every switch that is set now.
    pub(super) fn set_now(&self, now: Micros) -> Vec<SwitchSet> {
        let held = self.held();
        let set = held.set.iter().map(|set| SwitchSet {
            target: set.target.clone(),
            to: set.switch.to_string(),
            seconds_left: set.until.map(|until| until.saturating_sub(now).ceil_secs()),
        });
        set.collect()
    }

    /// Every switch on a line: target, switch, seconds left.
    pub(super) fn listed(&self, now: Micros) -> String {
        let mut text = String::new();
        for Set { target, switch, until } in &self.held().set {
            // Writing into a String cannot fail.
            let _ = match until {
                Some(until) => {
                    let left = until.saturating_sub(now).ceil_secs();
                    writeln!(text, "{target}: {switch}, for {left} s more")
                }
                None => writeln!(text, "{target}: {switch}"),
            };
        }
        text
    }

    fn drop_those(&self, what: &str, goes: impl Fn(&Set) -> bool) -> usize {
        let mut held = self.held();
        let before = held.set.len();
        held.set.retain(|set| {
            let goes = goes(set);
            if goes {
                tracing::warn!(target = set.target, switch = %set.switch, what, "a switch is gone");
            }
            !goes
        });
        let gone = before - held.set.len();
        if gone > 0 {
            self.put_in_force(&held);
        }
        gone
    }

    /// Under the lock, so that a reload and a switch do not overtake each other.
    fn put_in_force(&self, held: &Held) {
        let policy = if held.set.is_empty() {
            Arc::clone(&held.written)
        } else {
            let switches = held.set.iter().map(|set| (set.target.as_str(), set.switch));
            Arc::new(held.written.switched(switches))
        };
        self.decider.replace_policy(policy);
        self.decider.store().forget();
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
