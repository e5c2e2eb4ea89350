//! What a request would be answered, without a server: the matching explained, then the decision on
//! counters that nobody has used.
//!
//! Not here: how it is explained (`policy`) and decided (`decide`).

use std::fmt::Write;
use std::sync::Arc;

use super::engine::Engine;
use super::failure::Failure;
use crate::clock::Clock;
use crate::decide::REMAINING_UNLIMITED;
use crate::domain::{Code, Decision, Descriptor, Entry, Hits, Request, Status};
use crate::policy::Policy;

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

/// Which rule each descriptor meets, and why.
pub(super) fn explained(policy: &Policy, asked: &Asked) -> String {
    let mut text = String::new();
    for pairs in &asked.descriptors {
        // Writing into a String cannot fail.
        let _ = writeln!(text, "{}", policy.explain(&asked.domain, &entries(pairs)));
    }
    text
}

/// Explains every descriptor and then what the call would be answered if nobody had called before.
///
/// # Errors
///
/// [`Failure::Bug`] if the memory store gives no answer.
pub fn explain(policy: Arc<Policy>, asked: &Asked) -> Result<String, Failure> {
    let mut text = explained(&policy, asked);
    let entries: Vec<Vec<Entry<'_>>> =
        asked.descriptors.iter().map(|pairs| entries(pairs)).collect();
    let descriptors: Vec<Descriptor<'_>> = entries
        .iter()
        .map(|entries| Descriptor {
            entries,
            hits: Hits(asked.hits),
            give_back: false,
            limit: None,
            holder: None,
        })
        .collect();
    let request = Request { domain: &asked.domain, descriptors: &descriptors };
    let engine = Engine::new(policy, KEYS_MAX);
    told(&engine.decide(&request, Clock::System.now())?, &mut text);
    Ok(text)
}

fn entries(pairs: &[(String, String)]) -> Vec<Entry<'_>> {
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

fn word(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::OverLimit => "OVER_LIMIT",
    }
}
