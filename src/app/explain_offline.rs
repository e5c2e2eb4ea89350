//! `tidegate explain`: explains which rules a request matches, and predicts the decision as if no
//! counter had been charged yet.
//!
//! `policy` writes the explanation, and `decide` makes the decision.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Arc;

use super::load_policy::load_paths;
use super::offline_engine::{OfflineEngine, to_entries};
use super::process::exit_codes::Failure;
use crate::clock::Clock;
use crate::decide::REMAINING_UNLIMITED;
use crate::domain::{
    Decision, Descriptor, Entry, Hits, Request, Status, escaped, nearest_word, parse_descriptor,
};
use crate::policy::{MatchEnd, Policy};
use crate::settings::Sources;
use crate::store::redis::script::keys::Prefix;
use crate::wire::{DESCRIPTORS_MAX, ENTRIES_MAX};

/// Rate limit request entered by an operator for `explain` or `/try`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SampleRequest {
    /// Domain of the request; must not be empty.
    pub domain: String,
    /// Descriptors, each as a list of key-value pairs.
    pub descriptors: Vec<Vec<(String, String)>>,
    /// Hits charged by each descriptor. With 0, limits are checked but not charged.
    pub hits: u64,
}

impl SampleRequest {
    /// Parses descriptors written as `k=v,k2=v2`.
    ///
    /// # Errors
    ///
    /// Returns [`Failure::Usage`] for the first malformed descriptor.
    pub fn parse(
        domain: String,
        descriptors: &[String],
        hits: u64,
    ) -> Result<SampleRequest, Failure> {
        let descriptors: Result<Vec<_>, _> =
            descriptors.iter().map(|text| parse_descriptor(text)).collect();
        Ok(SampleRequest { domain, descriptors: descriptors.map_err(Failure::Usage)?, hits })
    }

    /// Checks the request against the gRPC service's bounds. Returns an error if the service would
    /// reject it with INVALID_ARGUMENT.
    pub(super) fn check_bounds(&self) -> Result<(), String> {
        if self.domain.is_empty() {
            return Err("the domain must not be empty".to_owned());
        }
        if self.descriptors.len() > DESCRIPTORS_MAX {
            return Err(format!("at most {DESCRIPTORS_MAX} descriptors in one request"));
        }
        match self.descriptors.iter().position(|entries| entries.len() > ENTRIES_MAX) {
            Some(at) => Err(format!("descriptor {}: at most {ENTRIES_MAX} entries", at + 1)),
            None => Ok(()),
        }
    }
}

/// Capacity of the memory store for one offline decision, in counters. Sufficient because a call
/// checks at most 2,048 limits.
const COUNTERS_MAX: usize = 4_096;

/// Explains which rule each descriptor matches, and lists the Redis keys of the rule's counters.
pub(super) fn explain_request(policy: &Policy, prefix: &Prefix, request: &SampleRequest) -> String {
    let explain = |pairs: &Vec<_>| explain_descriptor(policy, prefix, &request.domain, pairs);
    request.descriptors.iter().map(explain).collect()
}

/// Explains which rule a descriptor matches, and lists the Redis keys of the rule's counters.
pub(super) fn explain_descriptor(
    policy: &Policy,
    prefix: &Prefix,
    domain: &str,
    pairs: &[(String, String)],
) -> String {
    let explanation = policy.explain(domain, &to_entries(pairs));
    let mut text = format!("{explanation}\n");
    if matches!(explanation.ending, MatchEnd::UnknownDomain) {
        text.push_str(&describe_domains(policy, domain));
    }
    if let MatchEnd::Rule(rule) = &explanation.ending {
        for limit in rule.limits.iter() {
            let key = prefix.key(&limit.counter, &limit.limit.algorithm);
            // Writing into a String cannot fail.
            let _ = writeln!(text, "  in Redis {}", String::from_utf8_lossy(&key));
        }
    }
    text
}

/// Maximum number of existing domains that are listed if the requested one does not exist.
const DOMAINS_MAX: usize = 10;

/// Suggests the domain with the most similar name or, if no name is similar, lists domains of the
/// policy.
fn describe_domains(policy: &Policy, unknown: &str) -> String {
    let domains: BTreeSet<&str> = policy.domain_names().collect();
    if let Some(meant) = nearest_word(unknown, domains.iter().copied()) {
        return format!("  did you mean {}?\n", escaped(meant));
    }
    let listed: Vec<&str> = domains.into_iter().take(DOMAINS_MAX).collect();
    format!("  it has: {}\n", escaped(&listed.join(", ")))
}

/// Loads the policy at `paths`, explains which rules `request` matches, and predicts the request's
/// decision as if no counter had been charged yet.
///
/// # Errors
///
/// Returns [`Failure::Usage`] if the service would reject the request as invalid, and
/// [`Failure::Bug`] if the memory store does not decide immediately. Also returns an error if a
/// setting or the policy is invalid.
pub fn explain(
    paths: &[PathBuf],
    sources: Sources,
    request: &SampleRequest,
) -> Result<String, Failure> {
    request.check_bounds().map_err(Failure::Usage)?;
    let (loaded, settings) = load_paths(paths, sources)?;
    let policy = Arc::new(loaded.policy);
    let prefix = Prefix::new(&settings.cache_key_prefix);
    let prefix = prefix.map_err(|error| Failure::Usage(error.to_string()))?;
    let mut text = explain_request(&policy, &prefix, request);
    let entries: Vec<Vec<Entry<'_>>> =
        request.descriptors.iter().map(|pairs| to_entries(pairs)).collect();
    let descriptors: Vec<Descriptor<'_>> =
        entries.iter().map(|entries| Descriptor::new(entries, Hits(request.hits))).collect();
    let engine = OfflineEngine::new(policy, COUNTERS_MAX);
    let call = Request { domain: &request.domain, descriptors: &descriptors };
    describe_decision(&engine.decide(&call, Clock::System.now())?, &mut text);
    Ok(text)
}

fn describe_decision(decision: &Decision<'_>, text: &mut String) {
    // Writing into a String cannot fail.
    let _ = writeln!(text, "the first call would be answered {}", decision.code.as_str());
    for (at, status) in decision.statuses.iter().enumerate() {
        let _ = writeln!(text, "  descriptor {}: {}", at + 1, describe_status(status));
    }
}

fn describe_status(status: &Status<'_>) -> String {
    let mut text = status.code.as_str().to_owned();
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
