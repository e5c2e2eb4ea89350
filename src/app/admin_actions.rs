//! Carries out the admin actions of the debug port on the running service.
//!
//! `admin` has the routes and checks the token; `runtime_overrides` keeps the overrides.

use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::descriptor_arg::parse_descriptor;
use super::exit_codes::Failure;
use super::files_and_env::read_secret_file;
use super::log_level::LogLevelControl;
use super::offline_engine::to_entries;
use super::runtime_overrides::RuntimeOverrides;
use super::wiring::store_setup::ServiceDecider;
use crate::admin::{AdminAction, AdminHandlers, TextResult};
use crate::clock::Clock;
use crate::decide::{CounterSnapshot, CounterSnapshots};
use crate::domain::Micros;
use crate::policy::RuleOverride;
use crate::telemetry::Verbosity;

/// Returns the functions that the routes of the debug port call to read or change the service.
///
/// # Errors
///
/// [`Failure::File`] if the token file cannot be read. Each write reads the file again, so that the
/// token can be rotated.
pub(super) fn admin_handlers(
    decider: &Arc<ServiceDecider>,
    overrides: &Arc<RuntimeOverrides>,
    log_level: &Arc<LogLevelControl>,
    token_file: Option<PathBuf>,
) -> Result<AdminHandlers, Failure> {
    if let Some(path) = &token_file {
        read_secret_file(path)?;
    }
    let token = move || {
        read_secret_file(token_file.as_ref()?)
            .inspect_err(|error| tracing::error!(%error, "cannot read the debug token file"))
            .ok()
    };
    let counters = |reset: bool| {
        let decider = Arc::clone(decider);
        move |domain: String, descriptor: String| {
            let decider = Arc::clone(&decider);
            async move { counters(&decider, &domain, &descriptor, reset).await }
        }
    };
    let (counter, reset) = (counters(false), counters(true));
    let service = (Arc::clone(decider), Arc::clone(overrides), Arc::clone(log_level));
    let listed = (Arc::clone(decider), Arc::clone(overrides));
    let level = Arc::clone(log_level);
    Ok(AdminHandlers {
        token: Arc::new(token),
        run: Arc::new(move |action| run(&service.0, &service.1, &service.2, action)),
        overrides: Arc::new(move || list_overrides(&listed.0, &listed.1)),
        log_level: Arc::new(move || level.describe(Clock::System.now())),
        counter: Arc::new(move |domain, descriptor| Box::pin(counter(domain, descriptor))),
        reset: Arc::new(move |domain, descriptor| Box::pin(reset(domain, descriptor))),
    })
}

fn run(
    decider: &ServiceDecider,
    overrides: &RuntimeOverrides,
    log_level: &LogLevelControl,
    action: AdminAction,
) -> TextResult {
    match action {
        AdminAction::SetOverride { target, to, lasts } => {
            let value = RuleOverride::read(&to).map_err(|error| error.to_string())?;
            overrides.set(&target, value, expiry(lasts))?;
            Ok(format!("{target}: {value}; in this replica, until restart or reload\n"))
        }
        AdminAction::RemoveOverrides { target } => {
            Ok(format!("{} removed\n", overrides.remove(target.as_deref())))
        }
        AdminAction::DisableStore { lasts } => {
            let redis = decider.store().redis().ok_or("this service does not use Redis")?;
            redis.store_override().disable(expiry(lasts));
            tracing::warn!(seconds = lasts.map(|lasts| lasts.as_secs()), "Redis disabled by hand");
            Ok("acting as if Redis were unavailable, in this replica\n".to_owned())
        }
        AdminAction::EnableStore => {
            let redis = decider.store().redis().ok_or("this service does not use Redis")?;
            redis.store_override().enable();
            tracing::warn!("Redis enabled again");
            Ok("using Redis again\n".to_owned())
        }
        AdminAction::SetLogLevel { level, lasts } => {
            let level =
                Verbosity::parse(&level).ok_or("levels are off, error, warn, info and debug")?;
            log_level.set(level, expiry(lasts));
            Ok(log_level.describe(Clock::System.now()))
        }
    }
}

fn expiry(lasts: Option<Duration>) -> Option<Micros> {
    lasts.map(|lasts| Clock::System.now().saturating_add(Micros::from_secs(lasts.as_secs())))
}

fn list_overrides(decider: &ServiceDecider, overrides: &RuntimeOverrides) -> String {
    let now = Clock::System.now();
    let mut text = overrides.describe(now);
    if decider.store().redis().is_some_and(|redis| redis.store_override().is_disabled(now)) {
        text.push_str("(store): away\n");
    }
    if text.is_empty() {
        text.push_str("no switch is set\n");
    }
    text
}

async fn counters(
    decider: &ServiceDecider,
    domain: &str,
    descriptor: &str,
    reset: bool,
) -> TextResult {
    let pairs = parse_descriptor(descriptor).map_err(|error| error.to_string())?;
    let entries = to_entries(&pairs);
    let policy = decider.policy();
    let now = Clock::System.now();
    let CounterSnapshots { each, source } = if reset {
        let counters = decider.reset(&policy, domain, &entries, now).await;
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
    Ok(text)
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
