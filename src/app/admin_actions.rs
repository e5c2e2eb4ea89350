//! Carries out the admin actions of the debug port on the running service.
//!
//! `debug_port` has the routes, and `admin` checks the token; `operator_overrides` keeps the overrides.

use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Arc;

use super::admin_wiring::AdminWiring;
use super::offline_engine::to_entries;
use super::process::exit_codes::Failure;
use super::process::files_and_env::read_secret_file;
use super::process::watcher_thread::WatchedValue;
use super::wiring::store_setup::ServiceDecider;
use crate::admin::{Query, TextResult};
use crate::clock::Clock;
use crate::decide::CounterSnapshot;
use crate::domain::{Entry, Hits, Op, Source, Verbosity, parse_descriptor};
use crate::limiter::redis_stack::RedisStack;
use crate::policy::{MatchEnd, Policy};

/// Starts a background thread that rereads the operator's token from its file every second, so that
/// the token can be rotated. The routes never read the file themselves, so a hanging file system
/// cannot block them.
///
/// # Errors
///
/// Returns an error if the token file cannot be read or the thread cannot be started.
pub(super) fn watch_token(path: PathBuf) -> Result<WatchedValue<String>, Failure> {
    let on_failure = |error: &Failure| tracing::error!(%error, "cannot read the debug token file");
    WatchedValue::start("debug-token", move || Ok(read_secret_file(&path)?), on_failure)
}

/// Ends a rehearsed outage of Redis.
pub(super) fn enable_store(redis: &RedisStack) {
    redis.enable_store();
    tracing::warn!("Redis enabled again");
}

pub(super) async fn set_override(wiring: Arc<AdminWiring>, query: Query) -> TextResult {
    wiring.overrides.set(wiring.overrides.parse(&query)?).await
}

pub(super) async fn delete_overrides(wiring: Arc<AdminWiring>, query: Query) -> TextResult {
    wiring.overrides.delete(wiring.overrides.select(&query)?).await
}

/// Makes the service act as if Redis were unavailable, to simulate an outage.
pub(super) async fn disable_store(wiring: Arc<AdminWiring>, query: Query) -> TextResult {
    let lifetime = query.parse_lifetime()?;
    redis_of(&wiring)?
        .disable_store(lifetime.map(|lifetime| Clock::System.monotonic_now() + lifetime));
    let seconds = lifetime.map(|lifetime| lifetime.as_secs());
    tracing::warn!(seconds, "Redis disabled by hand");
    let end = match seconds {
        Some(seconds) => format!("for {seconds} s or until it is ended"),
        None => "until it is ended or the process ends".to_owned(),
    };
    Ok(format!("acting as if Redis were unavailable, on this replica, {end}\n"))
}

pub(super) async fn return_to_redis(wiring: Arc<AdminWiring>, _: Query) -> TextResult {
    enable_store(redis_of(&wiring)?);
    Ok("using Redis again\n".to_owned())
}

fn redis_of(wiring: &AdminWiring) -> Result<&RedisStack, &'static str> {
    wiring.decider.store().redis().ok_or("this service does not use Redis")
}

pub(super) async fn set_log_level(wiring: Arc<AdminWiring>, query: Query) -> TextResult {
    let (level, lifetime) = (query.required("to")?, query.parse_lifetime()?);
    let level = Verbosity::parse(level).ok_or("must be off, error, warn, info, or debug")?;
    let now = Clock::System.monotonic_now();
    wiring.log_level.set(level, lifetime.map(|lifetime| now + lifetime), now);
    Ok(wiring.log_level.describe(now))
}

/// Reads the counters of a descriptor without charging them.
pub(super) async fn read_counters(wiring: Arc<AdminWiring>, query: Query) -> TextResult {
    inspect_or_reset(&wiring.decider, &query.without_empty()?, false).await
}

pub(super) async fn reset_counters(wiring: Arc<AdminWiring>, query: Query) -> TextResult {
    inspect_or_reset(&wiring.decider, &query, true).await
}

/// Reads or resets the counters of a descriptor, and lists the overrides in force on them.
async fn inspect_or_reset(decider: &ServiceDecider, query: &Query, reset: bool) -> TextResult {
    let (domain, descriptor) = (query.required("domain")?, query.required("descriptor")?);
    let pairs = parse_descriptor(descriptor)?;
    let (entries, policy) = (to_entries(&pairs), decider.policy());
    let now = Clock::System.now();
    let before = decider.counters(&policy, domain, &entries, Op::PEEK, now).await;
    let Some(CounterSnapshot { rule, .. }) = before.each.first() else {
        let reason = find_no_counter_reason(&policy, domain, &entries);
        if reset {
            tracing::info!(domain, reason, "nothing to reset");
        }
        return Err(reason.to_owned());
    };
    let after = match reset {
        true => decider.counters(&policy, domain, &entries, Op::RESET, now).await,
        false => before.clone(),
    };
    let (mut text, mut changed, mut unanswered) = (String::new(), 0, 0);
    for (before, after) in before.each.iter().zip(&after.each) {
        let available = |counter: &CounterSnapshot<'_>| counter.outcome.map(|it| it.available);
        changed += usize::from(available(before) != available(after));
        unanswered += usize::from(after.outcome.is_none());
        describe_counter(after, &mut text);
    }
    let is_used = |counter: &CounterSnapshot<'_>| {
        counter.outcome.is_some_and(|outcome| outcome.available < counter.capacity)
    };
    let is_local = after.source == Source::Local;
    // Writing into a String cannot fail.
    let _ = writeln!(text, "by {}", after.source.as_str());
    if reset {
        let advice = match () {
            () if unanswered > 0 => "not reset: Redis did not answer, try again",
            () if is_local => "reset on this replica only: Redis does not answer",
            () if changed > 0 => "",
            () if before.each.iter().any(is_used) => {
                "nothing was reset: concurrency slots are held until released or their lease ends"
            }
            () => "nothing to reset: no hits were counted for these values",
        };
        // The log names only the rule, because a descriptor's values may be personal data.
        if changed > 0 {
            tracing::warn!(domain, rule, counters = changed, "counters reset by hand");
        } else {
            tracing::info!(domain, rule, reason = advice, "nothing to reset");
        }
        let _ = if advice.is_empty() { Ok(()) } else { writeln!(text, "{advice}") };
    }
    for entry in policy.overrides_in_force(domain, &entries) {
        let _ = writeln!(text, "override {entry}");
    }
    Ok(text)
}

/// Returns why a descriptor has no counter.
fn find_no_counter_reason(policy: &Policy, domain: &str, entries: &[Entry<'_>]) -> &'static str {
    match policy.explain(domain, entries).ending {
        MatchEnd::UnknownDomain => {
            "no rule with a limit matches this descriptor: the policy has no such domain"
        }
        MatchEnd::Rule(rule) if rule.unlimited => {
            "no rule with a limit matches this descriptor: its rule is unlimited"
        }
        MatchEnd::Rule(_) => {
            "no rule with a limit matches this descriptor: its value belongs to no consumer class"
        }
        MatchEnd::NoEntries | MatchEnd::NoMatch | MatchEnd::NoRule { .. } => {
            "no rule with a limit matches this descriptor; /explain says where matching ends"
        }
    }
}

fn describe_counter(counter: &CounterSnapshot<'_>, text: &mut String) {
    let CounterSnapshot { rule, name, rate, capacity, outcome } = counter;
    let unit = rate.unit.map_or("", |unit| unit.as_str());
    let _ = write!(text, "{rule}");
    if !name.is_empty() {
        let _ = write!(text, " ({name})");
    }
    let held = outcome.map_or(Hits::ZERO, |outcome| outcome.held);
    let held = if held > Hits::ZERO { format!(", {held} held") } else { String::new() };
    let _ = match outcome {
        Some(outcome) => writeln!(
            text,
            ": {} of {capacity} left{held}, {} per {} {unit}, reset in {} s",
            outcome.available,
            rate.requests_per_unit,
            rate.unit_multiplier,
            outcome.reset_after.ceil_secs()
        ),
        None => writeln!(text, ": Redis did not answer"),
    };
}
