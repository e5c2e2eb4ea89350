//! Overrides that operators set at run time with `tidegate switch` or `POST /switch`.
//!
//! An override applies to this process until it is removed or expires, or until the process ends.
//! Overrides survive a policy reload, unless their target no longer exists. `policy` defines the
//! effect of an override on a rule; `admin` checks the token.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::wiring::store_setup::ServiceDecider;
use crate::domain::{Lock, Micros};
use crate::limiter::redis_stack::RedisStack;
use crate::policy::{Fit, OverrideChange, OverrideEntry, OverrideMode, OverrideTarget, Policy};

/// Maximum number of active overrides. Each one slows down policy reloads slightly, and more would
/// be hard for operators to keep track of.
const OVERRIDES_MAX: usize = 64;

/// Active overrides of this process, applied on top of the loaded policy.
#[derive(Debug)]
pub(super) struct RuntimeOverrides {
    decider: Arc<ServiceDecider>,
    state: Lock<OverrideState>,
}

#[derive(Debug)]
struct OverrideState {
    /// Policy as loaded, without overrides.
    loaded: Arc<Policy>,
    active: Vec<ActiveOverride>,
    /// Time at which a simulated outage of Redis ends, or `None` if there is no simulated outage or
    /// it has no time limit.
    store_disabled_until: Option<Instant>,
}

#[derive(Debug)]
struct ActiveOverride {
    target: String,
    word: String,
    entry: Arc<OverrideEntry>,
    /// Time at which the override expires, or `None` if it lasts until it is removed. Uses the
    /// monotonic clock, so that changes to the wall clock neither end nor prolong the override.
    until: Option<Instant>,
    set_at: Instant,
}

/// Active override, as listed on the live page and by `/switches`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct OverrideView {
    /// Target of the override: a domain, or the path of a rule.
    pub(super) target: String,
    /// Effect of the override: `shadow`, `allow`, `deny`, or a percentage such as `20%`.
    pub(super) to: String,
    /// Remaining lifetime in seconds, rounded up, or `None` if the override lasts until it is
    /// removed.
    pub(super) seconds_left: Option<u64>,
    /// Time since the override was set, in seconds.
    pub(super) set_seconds_ago: u64,
    /// What happens to the calls of the target, for operators.
    pub(super) effect: &'static str,
}

/// Returns the words of the overrides that apply to a rule: to the rule itself or to its domain.
pub(super) fn words_for<'o>(
    overrides: &'o [OverrideView],
    domain: &str,
    rule: &str,
) -> impl Iterator<Item = &'o str> {
    let applies = move |set: &&OverrideView| set.target == rule || set.target == domain;
    overrides.iter().filter(applies).map(|set| &*set.to)
}

impl fmt::Display for OverrideView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OverrideView { target, to, seconds_left, .. } = self;
        write!(f, "{target}: {to}")?;
        seconds_left.map_or(Ok(()), |seconds| write!(f, ", for {seconds} s more"))
    }
}

/// Returns what an override does to the calls of its target, for operators.
fn effect_of(change: &OverrideChange) -> &'static str {
    match change {
        OverrideChange::Mode(OverrideMode::Shadow) => {
            "calls over a limit pass, and count as would be rejected"
        }
        OverrideChange::Mode(OverrideMode::Unlimited) => "every call passes, and none is counted",
        OverrideChange::Mode(OverrideMode::Deny) => "every call is rejected, and none is counted",
        OverrideChange::Scale(_) | OverrideChange::Numbers { .. } => {
            "limits are this percentage of what the policy says"
        }
    }
}

/// Parses `shadow`, `allow`, `deny`, or a percentage such as `20%`.
fn parse_word(word: &str) -> Result<OverrideChange, String> {
    let percent = word.strip_suffix('%').and_then(|digits| digits.parse().ok());
    match (word, percent) {
        ("shadow", _) => Ok(OverrideChange::Mode(OverrideMode::Shadow)),
        ("allow", _) => Ok(OverrideChange::Mode(OverrideMode::Unlimited)),
        ("deny", _) => Ok(OverrideChange::Mode(OverrideMode::Deny)),
        (_, Some(percent @ 1..=100)) => Ok(OverrideChange::Scale(percent)),
        (_, _) => Err(format!(
            "`{}` is no switch; give shadow, allow, deny, or a per cent from 1% to 100%",
            word.escape_debug()
        )),
    }
}

/// Returns the domain or rule that an operator named.
fn find_target(policy: &Policy, name: &str) -> Result<OverrideTarget, String> {
    let rule = policy.rules().iter().find(|rule| *rule.path == *name);
    let (domain, rule) = match rule {
        _ if policy.has_domain(name) => (name, None),
        Some(rule) => (policy.domain_name(rule), Some(name.into())),
        None => {
            return Err(format!(
                "the policy has neither a domain nor a rule `{}`; give a path as /rlconfig lists it",
                name.escape_debug()
            ));
        }
    };
    Ok(OverrideTarget { domain: domain.into(), rule, entries: Vec::new(), limit_name: None })
}

impl RuntimeOverrides {
    /// Creates an empty set of overrides on top of the decider's current policy.
    pub(super) fn new(decider: Arc<ServiceDecider>) -> RuntimeOverrides {
        let loaded = Arc::clone(&decider.policy());
        let state =
            Lock::new(OverrideState { loaded, active: Vec::new(), store_disabled_until: None });
        RuntimeOverrides { decider, state }
    }

    /// Sets an override on a domain or a rule, replacing any earlier override of the same target.
    ///
    /// # Errors
    ///
    /// Returns a message for the operator if the policy has no such target, the override does not
    /// apply to the target, or 64 overrides are active.
    pub(super) fn set(
        &self,
        target: &str,
        word: &str,
        lifetime: Option<Duration>,
        now: Instant,
    ) -> Result<(), String> {
        let until = lifetime.map(|lifetime| now + lifetime);
        let mut state = self.state.lock();
        let change = parse_word(word)?;
        let entry = OverrideEntry {
            target: find_target(&state.loaded, target)?,
            change,
            until: None,
            set_at: Micros::ZERO,
            reason: "".into(),
            by: "".into(),
        };
        state.loaded.check_override(&entry).map_err(|error| error.to_string())?;
        state.active.retain(|active| active.target != target);
        if state.active.len() >= OVERRIDES_MAX {
            return Err(format!("{OVERRIDES_MAX} switches are set already; undo some first"));
        }
        let (effect, entry) = (effect_of(&entry.change), Arc::new(entry));
        let (target, word) = (target.to_owned(), word.to_owned());
        let seconds = until.map(|until| seconds_left(until, now));
        tracing::warn!(target, switch = word, seconds, effect, "switch set");
        state.active.push(ActiveOverride { target, word, entry, until, set_at: now });
        self.activate(&state);
        Ok(())
    }

    /// Removes the override of a target, or all overrides if `target` is `None`. Returns the number
    /// of overrides removed.
    pub(super) fn remove(&self, target: Option<&str>) -> usize {
        self.remove_where("undone", |active| target.is_none_or(|only| active.target == only))
    }

    /// Makes the service act as if Redis were unavailable, for `lifetime` or, if that is `None`,
    /// until [`enable_store`](Self::enable_store) is called.
    pub(super) fn disable_store(
        &self,
        redis: &RedisStack,
        lifetime: Option<Duration>,
        now: Instant,
    ) {
        let mut state = self.state.lock();
        state.store_disabled_until = lifetime.map(|lifetime| now + lifetime);
        redis.set_store_disabled(true);
        tracing::warn!(
            seconds = lifetime.map(|lifetime| lifetime.as_secs()),
            "Redis disabled by hand"
        );
    }

    /// Ends a simulated outage of Redis.
    pub(super) fn enable_store(&self, redis: &RedisStack) {
        self.state.lock().store_disabled_until = None;
        redis.set_store_disabled(false);
        tracing::warn!("Redis enabled again");
    }

    /// Removes overrides that have expired by `now`, and ends a simulated outage of Redis if its
    /// time is over.
    pub(super) fn expire(&self, now: Instant) {
        let is_over = self.state.lock().store_disabled_until.is_some_and(|until| until <= now);
        if let Some(redis) = self.decider.store().redis().filter(|_| is_over) {
            self.enable_store(redis);
        }
        self.remove_where("expired", |active| active.until.is_some_and(|until| until <= now));
    }

    /// Replaces the policy after a reload. Keeps the overrides, because the author of the new
    /// policy may not know why an operator set them. Removes an override that cannot be applied to
    /// the new policy, for example because its rule no longer exists.
    pub(super) fn replace_policy(&self, policy: Arc<Policy>) {
        let mut state = self.state.lock();
        let is_rejected = |active: &mut ActiveOverride| {
            let ActiveOverride { target, word, entry, .. } = active;
            let rejected = match policy.check_override(entry) {
                Ok(Fit::Matched) => None,
                Ok(Fit::Unmatched) => Some("the policy has no such rule".to_owned()),
                Err(error) => Some(error.to_string()),
            };
            if let Some(reason) = &rejected {
                tracing::warn!(target, switch = word, %reason, "switch removed");
            }
            rejected.is_some()
        };
        state.active.extract_if(.., is_rejected).for_each(drop);
        state.loaded = policy;
        self.activate(&state);
    }

    /// Lists the active overrides.
    pub(super) fn list(&self, now: Instant) -> Vec<OverrideView> {
        let view = |active: &ActiveOverride| OverrideView {
            target: active.target.clone(),
            to: active.word.clone(),
            seconds_left: active.until.map(|until| seconds_left(until, now)),
            set_seconds_ago: now.saturating_duration_since(active.set_at).as_secs(),
            effect: effect_of(&active.entry.change),
        };
        self.state.lock().active.iter().map(view).collect()
    }

    /// Returns the policy as loaded, without overrides.
    pub(super) fn loaded(&self) -> Arc<Policy> {
        Arc::clone(&self.state.lock().loaded)
    }

    fn remove_where(&self, reason: &str, ends: impl Fn(&ActiveOverride) -> bool) -> usize {
        let mut state = self.state.lock();
        let removed: Vec<_> = state.active.extract_if(.., |active| ends(active)).collect();
        for ActiveOverride { target, word, .. } in &removed {
            tracing::warn!(target, switch = word, reason, "switch removed");
        }
        if !removed.is_empty() {
            self.activate(&state);
        }
        removed.len()
    }

    /// Activates the loaded policy with the overrides applied. The caller must hold the lock on
    /// `state`, so that a concurrent reload cannot activate an older policy afterwards.
    fn activate(&self, state: &OverrideState) {
        let policy = if state.active.is_empty() {
            Arc::clone(&state.loaded)
        } else {
            let overrides = state.active.iter().map(|active| &active.entry);
            Arc::new(state.loaded.with_overrides(overrides))
        };
        self.decider.replace_policy(policy);
        self.decider.observer().record_overrides(state.active.len());
        self.decider.store().retire_policy();
    }
}

/// Returns the number of seconds until a deadline, rounded up.
pub(super) fn seconds_left(until: Instant, now: Instant) -> u64 {
    let left = until.saturating_duration_since(now);
    left.as_secs() + u64::from(left.subsec_nanos() > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::decide::{Decider, GlobalModes};
    use crate::limiter::any_store::AnyStore;
    use crate::policy::{Options, Secret, Source, compile};
    use crate::telemetry::Telemetry;

    /// Returns overrides on top of a policy with the rules `d.k0` to `d.k64`.
    fn overrides() -> RuntimeOverrides {
        let rule =
            |n| format!("  - {{key: k{n}, rate_limit: {{unit: hour, requests_per_unit: 5}}}}\n");
        let rules: String = (0..=OVERRIDES_MAX).map(rule).collect();
        let text = format!("domain: d\ndescriptors:\n{rules}").into_bytes();
        let source = Source { name: "p.yaml".to_owned(), text };
        let domains = compile(&[source], &Options::default()).unwrap().domains;
        let policy = Arc::new(Policy::build(domains, Secret::default()));
        let (store, telemetry) = (AnyStore::in_memory(1_024), Arc::new(Telemetry::new(0.8)));
        let decider = Decider::new(policy, store, telemetry, GlobalModes::default());
        RuntimeOverrides::new(Arc::new(decider))
    }

    #[test]
    fn an_override_ends_at_its_time_and_the_loaded_policy_is_active_again() {
        let (overrides, now) = (overrides(), Clock::System.monotonic_now());
        let loaded = Arc::clone(&overrides.decider.policy());
        let is_loaded = || Arc::ptr_eq(&overrides.decider.policy(), &loaded);
        let second = Duration::from_secs(1);
        overrides.set("d.k0", "deny", Some(60 * second), now).unwrap();
        let left = |since: Duration| overrides.list(now + since)[0].seconds_left;
        let whole = [left(Duration::ZERO), left(second / 2), left(second)];
        assert_eq!(whole, [Some(60), Some(60), Some(59)], "rounded up");
        overrides.expire(now + 60 * second - Duration::from_nanos(1));
        assert_eq!((overrides.list(now).len(), is_loaded()), (1, false));
        overrides.expire(now + 60 * second);
        assert_eq!((overrides.list(now).len(), is_loaded()), (0, true));
    }

    #[test]
    fn sixty_four_overrides_fit_and_one_of_them_can_be_replaced() {
        let (overrides, now) = (overrides(), Clock::System.monotonic_now());
        let set = |n: usize, word: &str| overrides.set(&format!("d.k{n}"), word, None, now);
        for n in 0..OVERRIDES_MAX {
            assert_eq!(set(n, "deny"), Ok(()), "{n}");
        }
        assert!(set(OVERRIDES_MAX, "deny").is_err());
        assert_eq!(set(0, "allow"), Ok(()));
        assert_eq!(overrides.list(now).len(), 64);
        assert_eq!((overrides.remove(Some("d.k0")), overrides.remove(None)), (1, 63));
    }
}
