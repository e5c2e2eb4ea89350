//! Carries out the admin actions of the debug port on the running service.
//!
//! `admin` has the routes and checks the token; `runtime_overrides` keeps the overrides.

use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

use super::descriptor_arg::parse_descriptor;
use super::log_level::LogLevelControl;
use super::offline_engine::to_entries;
use super::process::exit_codes::Failure;
use super::process::files_and_env::read_secret_file;
use super::process::watcher_thread::WatchedValue;
use super::runtime_overrides::RuntimeOverrides;
use super::wiring::store_setup::ServiceDecider;
use crate::admin::{AdminAction, TextResult};
use crate::clock::Clock;
use crate::decide::{CounterSnapshot, CounterSnapshots};
use crate::policy::RuleOverride;
use crate::telemetry::Verbosity;

/// Starts a background thread that rereads the operator's token from its file every second, so that
/// the token can be rotated. The routes never read the file themselves, so a hanging file system
/// cannot block them.
///
/// # Errors
///
/// Returns [`Failure::File`] if the token file cannot be read, or [`Failure::Runtime`] if the
/// thread cannot be started.
pub(super) fn watch_token(path: PathBuf) -> Result<WatchedValue<String>, Failure> {
    let on_failure = |error: &Failure| tracing::error!(%error, "cannot read the debug token file");
    WatchedValue::start("debug-token", move || Ok(read_secret_file(&path)?), on_failure)
}

/// Carries out an operator's change.
pub(super) fn run_action(
    decider: &ServiceDecider,
    overrides: &RuntimeOverrides,
    log_level: &LogLevelControl,
    action: AdminAction,
) -> TextResult {
    let now = Clock::System.monotonic_now();
    let redis = || decider.store().redis().ok_or("this service does not use Redis");
    match action {
        AdminAction::SetOverride { target, to, lifetime } => {
            let value = RuleOverride::read(&to).map_err(|error| error.to_string())?;
            overrides.set(&target, value, lifetime, now)?;
            Ok(format!("{target}: {value} on this replica, {}\n", describe_lifetime(lifetime)))
        }
        AdminAction::RemoveOverrides { target } => {
            match (overrides.remove(target.as_deref()), target) {
                (0, Some(target)) => Err(format!("no switch is set on {target}")),
                (removed, _) => Ok(format!("{removed} removed on this replica\n")),
            }
        }
        AdminAction::DisableStore { lifetime } => {
            overrides.disable_store(redis()?, lifetime, now);
            let lifetime = describe_lifetime(lifetime);
            Ok(format!("acting as if Redis were unavailable, on this replica, {lifetime}\n"))
        }
        AdminAction::EnableStore => {
            overrides.enable_store(redis()?);
            Ok("using Redis again\n".to_owned())
        }
        AdminAction::SetLogLevel { level, lifetime } => {
            let level =
                Verbosity::parse(&level).ok_or("levels are off, error, warn, info and debug")?;
            log_level.set(level, lifetime.map(|lifetime| now + lifetime), now);
            Ok(log_level.describe(now))
        }
    }
}

/// Returns how long a change applies, as text for an operator.
fn describe_lifetime(lifetime: Option<Duration>) -> String {
    match lifetime {
        Some(lifetime) => format!("for {} s or until it is undone", lifetime.as_secs()),
        None => "until it is undone or the process ends".to_owned(),
    }
}

/// Lists the active overrides.
pub(super) fn list_overrides(decider: &ServiceDecider, overrides: &RuntimeOverrides) -> String {
    let mut text = overrides.describe(Clock::System.monotonic_now());
    if decider.store().redis().is_some_and(|redis| redis.store_override().is_disabled()) {
        text.push_str("(store): away\n");
    }
    if text.is_empty() {
        text.push_str("no switch is set\n");
    }
    text
}

/// Reads or resets the counters of a descriptor.
pub(super) async fn inspect_or_reset(
    decider: &ServiceDecider,
    domain: &str,
    descriptor: &str,
    reset: bool,
) -> TextResult {
    let pairs = parse_descriptor(descriptor).map_err(|error| error.to_string())?;
    let entries = to_entries(&pairs);
    let policy = decider.policy();
    let now = Clock::System.now();
    let mut was_unused = false;
    let CounterSnapshots { each, source } = if reset {
        let before = decider.inspect_counters(&policy, domain, &entries, now).await;
        was_unused = before.each.iter().all(is_unused);
        let counters = decider.reset_counters(&policy, domain, &entries, now).await;
        // The log names only the rule, because a descriptor's values may be personal data.
        let rule = counters.each.first().map_or("", |counter| counter.rule);
        tracing::warn!(rule, counters = counters.each.len(), "counters reset by hand");
        counters
    } else {
        decider.inspect_counters(&policy, domain, &entries, now).await
    };
    if each.is_empty() {
        return Err("no rule with a limit matches this descriptor".to_owned());
    }
    let mut text = String::new();
    for counter in &each {
        describe_counter(counter, &mut text);
    }
    // Writing into a String cannot fail.
    let _ = writeln!(text, "by {}", source.as_str());
    if was_unused {
        text.push_str("nothing to reset: no hits were counted for these values\n");
    }
    Ok(text)
}

/// Returns whether a counter has its full capacity available.
fn is_unused(counter: &CounterSnapshot<'_>) -> bool {
    counter.outcome.is_some_and(|outcome| outcome.available >= counter.capacity)
}

fn describe_counter(counter: &CounterSnapshot<'_>, text: &mut String) {
    let CounterSnapshot { rule, name, rate, capacity, outcome } = counter;
    let unit = rate.unit.map_or("", |unit| unit.as_str());
    let _ = write!(text, "{rule}");
    if !name.is_empty() {
        let _ = write!(text, " ({name})");
    }
    let _ = match outcome {
        Some(outcome) => writeln!(
            text,
            ": {} of {capacity} left, {} per {} {unit}, reset in {} s",
            outcome.available,
            rate.requests_per_unit,
            rate.unit_multiplier,
            outcome.reset_after.ceil_secs()
        ),
        None => writeln!(text, ": the store did not answer"),
    };
}
