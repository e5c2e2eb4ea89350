//! What operators can do on the debug port, as functions over the parts.
//!
//! Not here: routes and the token's check (`admin`), the switches themselves (`switching`).

use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::descriptor_arg::descriptor;
use super::environment::secret_file;
use super::exit_codes::Failure;
use super::log_level::Levels;
use super::profile::profile;
use super::runtime_overrides::Switching;
use super::wiring::store_setup::Deciding;
use crate::admin::{Done, Operate, Order};
use crate::clock::Clock;
use crate::decide::{Standing, Standings};
use crate::domain::{Entry, Micros};
use crate::policy::RuleOverride;
use crate::telemetry::Level;

/// The functions behind the routes.
///
/// # Errors
///
/// [`Failure::File`] for a token that cannot be read. It is read anew for each write; one that
/// cannot be read at all is told at the start.
pub(super) fn operate(
    decider: &Arc<Deciding>,
    switching: &Arc<Switching>,
    levels: &Arc<Levels>,
    token_file: Option<PathBuf>,
) -> Result<Operate, Failure> {
    if let Some(path) = &token_file {
        secret_file(path)?;
    }
    let token = move || {
        let path = token_file.as_ref()?;
        match secret_file(path) {
            Ok(token) => Some(token),
            Err(fault) => {
                tracing::error!(%fault, "the token of the debug port cannot be read");
                None
            }
        }
    };
    let (orderly, held) = (Arc::clone(decider), Arc::clone(switching));
    let (levels, level) = (Arc::clone(levels), Arc::clone(levels));
    let listed = (Arc::clone(decider), Arc::clone(switching));
    let (looks, resets) = (Arc::clone(decider), Arc::clone(decider));
    Ok(Operate {
        token: Arc::new(token),
        orders: Arc::new(move |order| carried_out(&orderly, &held, &levels, order)),
        switches: Arc::new(move || switches(&listed.0, &listed.1)),
        log_level: Arc::new(move || level.told(Clock::System.now())),
        profile: Arc::new(|lasts| Box::pin(profile(lasts))),
        counter: Arc::new(move |domain, text| {
            let decider = Arc::clone(&looks);
            Box::pin(async move { counters(&decider, &domain, &text, false).await })
        }),
        reset: Arc::new(move |domain, text| {
            let decider = Arc::clone(&resets);
            Box::pin(async move { counters(&decider, &domain, &text, true).await })
        }),
    })
}

fn carried_out(decider: &Deciding, switching: &Switching, levels: &Levels, order: Order) -> Done {
    match order {
        Order::Switch { target, to, lasts } => {
            let switch = RuleOverride::read(&to).map_err(|fault| fault.to_string())?;
            switching.set(&target, switch, until(lasts))?;
            Ok(format!("{target}: {switch}; in this replica, until restart or reload\n"))
        }
        Order::Undo { target } => {
            let refunded = switching.undo(target.as_deref());
            Ok(format!("{refunded} refunded\n"))
        }
        Order::LeaveStore { lasts } => {
            let shared = decider.store().redis().ok_or("there is no Redis to leave")?;
            shared.away().disable(until(lasts));
            tracing::warn!(
                seconds = lasts.map(|lasts| lasts.as_secs()),
                "rehearsing without Redis"
            );
            Ok("acting as if Redis were away; in this replica\n".to_owned())
        }
        Order::ReturnToStore => {
            let shared = decider.store().redis().ok_or("there is no Redis to return to")?;
            shared.away().enable();
            tracing::warn!("the rehearsal without Redis is over");
            Ok("asking Redis again\n".to_owned())
        }
        Order::LogLevel { to, lasts } => {
            let level = Level::read(&to).ok_or("a level is off, error, warn, info or debug")?;
            levels.set(level, until(lasts));
            Ok(levels.told(Clock::System.now()))
        }
    }
}

fn until(lasts: Option<Duration>) -> Option<Micros> {
    lasts.map(|lasts| Clock::System.now().saturating_add(Micros::from_secs(lasts.as_secs())))
}

fn switches(decider: &Deciding, switching: &Switching) -> String {
    let now = Clock::System.now();
    let mut text = switching.listed(now);
    if decider.store().redis().is_some_and(|shared| shared.away().is_away(now)) {
        text.push_str("(store): away\n");
    }
    if text.is_empty() {
        text.push_str("no switch is set\n");
    }
    text
}

async fn counters(decider: &Deciding, domain: &str, text: &str, reset: bool) -> Done {
    let pairs = descriptor(text).map_err(|fault| fault.to_string())?;
    let entries: Vec<Entry<'_>> = pairs
        .iter()
        .map(|(key, value)| Entry { key: key.as_bytes(), value: value.as_bytes() })
        .collect();
    let policy = decider.policy();
    let now = Clock::System.now();
    let Standings { each, source } = if reset {
        let standings = decider.reset(&policy, domain, &entries, now).await;
        // Constant but for the rule: a descriptor's values are somebody's data.
        let rule = standings.each.first().map_or("", |standing| standing.rule);
        tracing::warn!(rule, counters = standings.each.len(), "counters were reset by hand");
        standings
    } else {
        decider.standings(&policy, domain, &entries, now).await
    };
    if each.is_empty() {
        return Err("no rule with a limit matches this descriptor".to_owned());
    }
    let mut shown = String::new();
    for standing in &each {
        line(standing, &mut shown);
    }
    // Writing into a String cannot fail.
    let _ = writeln!(shown, "by {}", source.word());
    Ok(shown)
}

fn line(standing: &Standing<'_>, text: &mut String) {
    let Standing { rule, name, rate, capacity, outcome } = standing;
    let unit = rate.unit.map_or("", |unit| unit.word());
    let _ = write!(text, "{rule}");
    if !name.is_empty() {
        let _ = write!(text, " ({name})");
    }
    let _ = match outcome {
        Some(outcome) => writeln!(
            text,
            ": {} of {capacity} left, {} per {} {unit}, nothing used in {} s",
            outcome.available,
            rate.requests_per_unit,
            rate.unit_multiplier,
            outcome.reset_after.ceil_secs()
        ),
        None => writeln!(text, ": the store gave no answer"),
    };
}
