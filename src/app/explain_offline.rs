//! What a request would be answered, without a server: the matching explained, then the decision on
//! counters that nobody has used.
//!
//! Not here: how it is explained (`policy`) and decided (`decide`).

use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Arc;

use super::exit_codes::Failure;
use super::load_policy::load_at;
use super::offline_engine::Engine;
use super::settings::Sources;
use crate::clock::Clock;
use crate::decide::REMAINING_UNLIMITED;
use crate::domain::{Code, Decision, Descriptor, Entry, Hits, Request, Status};
use crate::policy::{MatchEnd, Policy};
use crate::store::redis::keys::Prefix;
use crate::wire::{DESCRIPTORS_MAX, ENTRIES_MAX};

/// A request in plain words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// The domain.
    pub domain: String,
    /// Descriptors: keys and values, in order.
    pub descriptors: Vec<Vec<(String, String)>>,
    /// Hits of each; 0 is a peek.
    pub hits: u64,
}

/// Counters that one rehearsal can need: a call has at most 128 checks.
const KEYS_MAX: usize = 1_024;

/// Which rule each descriptor meets, and why; and where Redis holds its counters.
pub(super) fn explained(policy: &Policy, prefix: &Prefix, asked: &Asked) -> String {
    let one = |pairs: &Vec<_>| explained_one(policy, prefix, &asked.domain, pairs);
    asked.descriptors.iter().map(one).collect()
}

/// The same for one descriptor.
pub(super) fn explained_one(
    policy: &Policy,
    prefix: &Prefix,
    domain: &str,
    pairs: &[(String, String)],
) -> String {
    let explanation = policy.explain(domain, &entries(pairs));
    let mut text = format!("{explanation}\n");
    if let MatchEnd::Rule(rule) = &explanation.ending {
        for limit in &rule.limits {
            let key = prefix.key(&limit.counter, &limit.algorithm);
            // Writing into a String cannot fail.
            let _ = writeln!(text, "  in Redis {}", String::from_utf8_lossy(&key));
        }
    }
    text
}

/// Explains every descriptor by the policy at these paths, with the keys that Redis has for its
/// counters under these settings, and then what the call would be answered if nobody had called
/// before.
///
/// # Errors
///
/// A setting that cannot be used; what is wrong with the policy; [`Failure::Usage`] for what a service
/// would call invalid; [`Failure::Bug`] if the memory store gives no answer.
pub fn explain(paths: &[PathBuf], sources: Sources, asked: &Asked) -> Result<String, Failure> {
    within_bounds(asked).map_err(Failure::Usage)?;
    let (loaded, settings) = load_at(paths, sources)?;
    let policy = Arc::new(loaded.policy);
    let prefix = Prefix::new(&settings.cache_key_prefix);
    let prefix = prefix.map_err(|fault| Failure::Usage(fault.to_string()))?;
    let mut text = explained(&policy, &prefix, asked);
    let entries: Vec<Vec<Entry<'_>>> =
        asked.descriptors.iter().map(|pairs| entries(pairs)).collect();
    let descriptors: Vec<Descriptor<'_>> = entries
        .iter()
        .map(|entries| Descriptor {
            entries,
            hits: Hits(asked.hits),
            refund: false,
            limit: None,
            holder: None,
        })
        .collect();
    let request = Request { domain: &asked.domain, descriptors: &descriptors };
    let engine = Engine::new(policy, KEYS_MAX);
    told(&engine.decide(&request, Clock::System.now())?, &mut text);
    Ok(text)
}

/// A service would answer INVALID_ARGUMENT to more than this.
pub(super) fn within_bounds(asked: &Asked) -> Result<(), String> {
    if asked.domain.is_empty() {
        return Err("the domain must not be empty".to_owned());
    }
    if asked.descriptors.len() > DESCRIPTORS_MAX {
        return Err(format!("at most {DESCRIPTORS_MAX} descriptors in one request"));
    }
    match asked.descriptors.iter().position(|entries| entries.len() > ENTRIES_MAX) {
        Some(at) => Err(format!("descriptor {}: at most {ENTRIES_MAX} entries", at + 1)),
        None => Ok(()),
    }
}

pub(super) fn entries(pairs: &[(String, String)]) -> Vec<Entry<'_>> {
    pairs
        .iter()
        .map(|(key, value)| Entry { key: key.as_bytes(), value: value.as_bytes() })
        .collect()
}

fn told(decision: &Decision<'_>, text: &mut String) {
    let _ = writeln!(text, "a first call would be answered {}", word(decision.code));
    for (at, status) in decision.statuses.iter().enumerate() {
        let _ = writeln!(text, "  descriptor {}: {}", at + 1, shown(status));
    }
}

fn shown(status: &Status<'_>) -> String {
    let mut text = word(status.code).to_owned();
    match (&status.shown, status.remaining) {
        (Some(_), remaining) => {
            let _ = write!(text, ", {remaining} left");
        }
        (None, REMAINING_UNLIMITED) => text.push_str(", unlimited"),
        (None, _) => text.push_str(", no limit"),
    }
    if let Some(reset) = status.reset {
        let _ = write!(text, ", {} s", reset.ceil_secs());
    }
    text
}

pub(super) fn word(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::OverLimit => "OVER_LIMIT",
    }
}
