//! JSON form of overrides, in files, in Redis, and on the debug port, with the bounds of an entry.
//!
//! Not here: whether the policy has the target (`lookup::operator_overrides`).

use serde::{Deserialize, Serialize};

use super::override_entry::{
    OverrideChange, OverrideEntry, OverrideError, OverrideMode, OverrideTarget, format_time,
};
use crate::domain::{Bounds, Micros, format_descriptor, parse_descriptor};

/// Maximum size of one override as JSON, in bytes. 100,000 overrides of 640 bytes take 64 MiB; few
/// have long values.
pub const OVERRIDE_BYTES_MAX: usize = 4_096;
/// Maximum length of an override's reason, in bytes.
pub const REASON_BYTES_MAX: usize = 256;
/// Maximum length of the name of who set an override, in bytes.
pub const BY_BYTES_MAX: usize = 128;

/// Fields of the JSON object. Absent fields are left out.
#[derive(Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Fields {
    domain: Box<str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<Box<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    descriptor: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit_name: Option<Box<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    burst: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    anchor: Option<Box<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    scale: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mode: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    set_at: Option<String>,
    #[serde(skip_serializing_if = "str::is_empty")]
    reason: Box<str>,
    #[serde(skip_serializing_if = "str::is_empty")]
    by: Box<str>,
}

impl OverrideEntry {
    /// Returns the override as a JSON object on one line.
    pub fn to_json(&self) -> String {
        let OverrideTarget { domain, rule, entries, limit_name } = self.target.clone();
        let mut fields = Fields {
            domain,
            rule,
            descriptor: (!entries.is_empty()).then(|| format_descriptor(&entries)),
            limit_name,
            until: self.until.map(format_time),
            set_at: (self.set_at > Micros::ZERO).then(|| format_time(self.set_at)),
            reason: self.reason.clone(),
            by: self.by.clone(),
            ..Fields::default()
        };
        match &self.change {
            OverrideChange::Numbers { limit, burst, anchor } => {
                (fields.limit, fields.burst, fields.anchor) = (*limit, *burst, anchor.clone());
            }
            OverrideChange::Scale(percent) => fields.scale = Some(format!("{percent}%")),
            OverrideChange::Mode(mode) => fields.mode = Some(mode.as_str().to_owned()),
        }
        // Fails only for maps whose keys are not text.
        serde_json::to_string(&fields).unwrap_or_default()
    }

    /// Parses an override from a JSON object. `domain` and one change are required: numbers
    /// (`limit`, `burst`, `anchor`), `scale`, or `mode`.
    ///
    /// # Errors
    ///
    /// Returns an error for malformed JSON, an unknown field, and a value that is out of range.
    ///
    /// ```
    /// use tidegate::policy::OverrideEntry;
    /// let text = r#"{"domain":"edge","descriptor":"api_token=acme","limit":500}"#;
    /// assert_eq!(OverrideEntry::from_json(text).unwrap().to_json(), text);
    /// ```
    pub fn from_json(text: &str) -> Result<OverrideEntry, OverrideError> {
        check_length("an override", text.len(), OVERRIDE_BYTES_MAX)?;
        let fields: Fields = serde_json::from_str(text)
            .map_err(|error| OverrideError(format!("the override is not valid JSON: {error}")))?;
        let numbers = (fields.limit, fields.burst, fields.anchor);
        let change = match (numbers, fields.scale, fields.mode) {
            ((None, None, None), Some(scale), None) => {
                OverrideChange::Scale(parse_percent(&scale)?)
            }
            ((None, None, None), None, Some(mode)) => OverrideChange::Mode(parse_mode(&mode)?),
            ((limit, burst, anchor), None, None) => {
                OverrideChange::Numbers { limit, burst, anchor }
            }
            _ => {
                return fault(
                    "an override has either numbers (`limit`, `burst`, `anchor`), or `scale`, or \
                     `mode`; set one override for each",
                );
            }
        };
        let descriptor = fields.descriptor.as_deref().map(parse_descriptor).transpose();
        let target = OverrideTarget {
            domain: fields.domain,
            rule: fields.rule,
            entries: descriptor.map_err(OverrideError)?.unwrap_or_default(),
            limit_name: fields.limit_name,
        };
        let entry = OverrideEntry {
            target,
            change,
            until: fields.until.as_deref().map(parse_time).transpose()?,
            set_at: fields.set_at.as_deref().map(parse_time).transpose()?.unwrap_or_default(),
            reason: fields.reason,
            by: fields.by,
        };
        entry.check_bounds()?;
        Ok(entry)
    }

    /// Checks the bounds of an override that was not parsed from JSON, and that its fields fit
    /// together.
    ///
    /// # Errors
    ///
    /// Returns an error for a field that is empty, too long, out of range, or not allowed here.
    pub fn check_bounds(&self) -> Result<(), OverrideError> {
        let OverrideTarget { domain, rule, entries, limit_name } = &self.target;
        if domain.is_empty() {
            return fault("an override must have a `domain`; `/rlconfig` lists them");
        }
        if [rule, limit_name].into_iter().any(|name| name.as_deref() == Some("")) {
            return fault("`rule` and `limit_name` must not be empty; leave them out");
        }
        let entries_max = Bounds::DEFAULT.entries_max;
        if entries.len() > entries_max {
            return fault(format!("a target must not have more than {entries_max} entries"));
        }
        if entries.iter().any(|(key, _)| key.is_empty() || key.contains('=')) {
            return fault("every entry of a target must have a key without `=`: write k=v,k2=v2");
        }
        match &self.change {
            OverrideChange::Numbers { limit: None, burst: None, anchor: None } => {
                return fault(
                    "an override must change something: give `limit`, `scale`, or `mode`",
                );
            }
            OverrideChange::Scale(percent) if !(1..=100).contains(percent) => {
                return fault(PERCENT_FAULT);
            }
            OverrideChange::Scale(_) | OverrideChange::Mode(_) if limit_name.is_some() => {
                return fault("`limit_name` is only allowed with numbers; remove it");
            }
            OverrideChange::Numbers { .. } | OverrideChange::Scale(_) | OverrideChange::Mode(_) => {
            }
        }
        check_length("`reason`", self.reason.len(), REASON_BYTES_MAX)?;
        check_length("`by`", self.by.len(), BY_BYTES_MAX)?;
        check_length("an override", self.to_json().len(), OVERRIDE_BYTES_MAX)
    }
}

const PERCENT_FAULT: &str = "`scale` must be a whole percentage from `1%` to `100%`; use `mode` \
                             with `deny` to allow nothing, or numbers to allow more";

fn fault<T>(message: impl Into<String>) -> Result<T, OverrideError> {
    Err(OverrideError(message.into()))
}

fn check_length(what: &str, length: usize, length_max: usize) -> Result<(), OverrideError> {
    if length <= length_max {
        return Ok(());
    }
    fault(format!(
        "{what} must not be longer than {length_max} bytes, and has {length}; shorten it"
    ))
}

fn parse_percent(text: &str) -> Result<u32, OverrideError> {
    let digits = text.strip_suffix('%').filter(|digits| !digits.starts_with('+'));
    let percent = digits.and_then(|digits| digits.parse().ok());
    percent.filter(|percent| (1..=100).contains(percent)).map_or_else(|| fault(PERCENT_FAULT), Ok)
}

fn parse_mode(text: &str) -> Result<OverrideMode, OverrideError> {
    let mode = OverrideMode::ALL.into_iter().find(|mode| mode.as_str() == text);
    mode.map_or_else(|| fault("`mode` must be `unlimited`, `deny`, or `shadow`"), Ok)
}

/// Parses a time after 1970 as in RFC 3339.
fn parse_time(text: &str) -> Result<Micros, OverrideError> {
    let time = text.parse::<jiff::Timestamp>().ok();
    let micros = time.and_then(|time| u64::try_from(time.as_microsecond()).ok());
    let message = "`until` and `set_at` must be times such as `2026-12-01T00:00:00Z`";
    micros.map(Micros).map_or_else(|| fault(message), Ok)
}
