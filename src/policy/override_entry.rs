//! Overrides that operators set at run time: what they target, what they change, and until when.
//!
//! Not here: their JSON form and its bounds (`override_json`), which rules they apply to
//! (`lookup::operator_overrides`), where they are stored and when they end (`app`).

use std::fmt;

use crate::domain::{Micros, escaped, format_descriptor, named_enum};

/// Change of limits that an operator set at run time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverrideEntry {
    /// Domain, rule, or values to which the override applies.
    pub target: OverrideTarget,
    /// Effect on the target's limits.
    pub change: OverrideChange,
    /// Time at which the override ends, since the Unix epoch; `None` if it is permanent.
    pub until: Option<Micros>,
    /// Time at which the override was set, since the Unix epoch. Of two overrides that are equally
    /// specific, the later one applies.
    pub set_at: Micros,
    /// Why the override was set, such as the number of a ticket.
    pub reason: Box<str>,
    /// Who set the override.
    pub by: Box<str>,
}

/// Domain, rule, or values to which an override applies.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OverrideTarget {
    /// Domain of the policy.
    pub domain: Box<str>,
    /// Path of the only rule to which the override applies, as in `/rlconfig`; `None` for all.
    pub rule: Option<Box<str>>,
    /// Keys and values of the descriptors to which the override applies; empty for all. A descriptor
    /// matches if it has exactly these keys in this order, and these values. In a value, each `*`
    /// matches zero or more characters, as in policies.
    pub entries: Vec<(String, String)>,
    /// Name of the limit to which numbers apply, on rules with several limits.
    pub limit_name: Option<Box<str>>,
}

/// Effect of an override.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OverrideChange {
    /// Replaces the numbers of a limit. At least one of them is set.
    Numbers {
        /// Replaces `requests_per_unit`, or the number of slots; `None` keeps it.
        limit: Option<u32>,
        /// Replaces the burst of a bucket. If `None`, the burst changes in proportion to `limit`.
        burst: Option<u64>,
        /// Replaces the day on which calendar months or years start, as in policies: `15`, `04-01`.
        anchor: Option<Box<str>>,
    },
    /// Scales the numbers in force to this percentage, 1 to 100; rounded up, at least 1.
    Scale(u32),
    /// Decides without the counter, or in shadow mode.
    Mode(OverrideMode),
}

named_enum! {
    /// Mode of an override.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum OverrideMode {
        /// Allows every call without counting.
        Unlimited => "unlimited",
        /// Rejects every call without counting; counters keep their state.
        Deny => "deny",
        /// Counts calls but never rejects any.
        Shadow => "shadow",
    }
}

/// Returns the reason why an override cannot be set. Says what to do instead; retrying does not help.
pub(super) fn fault<T>(message: impl Into<String>) -> Result<T, String> {
    Err(message.into())
}

impl OverrideEntry {
    /// Returns the identity of the override: its target, the limit's name, and the kind of its
    /// change. Setting another override with the same id replaces this one. Different identities
    /// have different texts.
    pub fn id(&self) -> String {
        let OverrideTarget { domain, rule, entries, limit_name } = &self.target;
        let descriptor = (!entries.is_empty()).then(|| format_descriptor(entries));
        serde_json::json!([domain, rule, descriptor, limit_name, self.change.kind()]).to_string()
    }

    /// Returns the domain of the override with this id; `None` if the text is not an id.
    #[cfg(feature = "server")]
    pub fn domain_of_id(id: &str) -> Option<String> {
        serde_json::from_str::<Vec<Option<String>>>(id).ok()?.into_iter().next()?
    }
}

impl OverrideChange {
    /// Returns the kind of the change: `numbers`, `scale`, or `mode`. Changes of different kinds
    /// apply to one target together.
    pub fn kind(&self) -> &'static str {
        match self {
            OverrideChange::Numbers { .. } => "numbers",
            OverrideChange::Scale(_) => "scale",
            OverrideChange::Mode(_) => "mode",
        }
    }
}

impl fmt::Display for OverrideTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&escaped(&self.domain))?;
        if let Some(rule) = &self.rule {
            write!(f, " rule {}", escaped(rule))?;
        }
        if !self.entries.is_empty() {
            write!(f, " {}", escaped(&format_descriptor(&self.entries)))?;
        }
        match &self.limit_name {
            Some(name) => write!(f, " limit {}", escaped(name)),
            None => Ok(()),
        }
    }
}

impl fmt::Display for OverrideChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OverrideChange::Numbers { limit, burst, anchor } => {
                let numbers = [
                    limit.map(|limit| format!("limit {limit}")),
                    burst.map(|burst| format!("burst {burst}")),
                    anchor.as_ref().map(|anchor| format!("anchor {}", escaped(anchor))),
                ];
                f.write_str(&numbers.into_iter().flatten().collect::<Vec<_>>().join(", "))
            }
            OverrideChange::Scale(percent) => write!(f, "scale {percent}%"),
            OverrideChange::Mode(mode) => f.write_str(mode.as_str()),
        }
    }
}

/// Formats an override on one line: `edge api_token=acme: limit 500, until 2026-12-01T00:00:00Z, set
/// by ann: T-42`.
impl fmt::Display for OverrideEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}, ", self.target, self.change)?;
        match self.until {
            Some(until) => write!(f, "until {}", format_time(until))?,
            None => f.write_str("permanent")?,
        }
        if !self.by.is_empty() {
            write!(f, ", set by {}", escaped(&self.by))?;
        }
        if !self.reason.is_empty() {
            write!(f, ": {}", escaped(&self.reason))?;
        }
        Ok(())
    }
}

/// Formats a time as in RFC 3339, in UTC. A time after the year 9999 is formatted as that year's end.
pub(super) fn format_time(at: Micros) -> String {
    let micros = i64::try_from(at.0).unwrap_or(i64::MAX);
    jiff::Timestamp::from_microsecond(micros).unwrap_or(jiff::Timestamp::MAX).to_string()
}
