//! JSON form of overrides, in files, in Redis, and on the debug port, with the bounds of an entry.
//!
//! Not here: whether the policy has the target (`lookup::operator_overrides`).

use serde::Deserialize;
use serde_json::{Value, json};

use super::override_entry::{
    OverrideChange, OverrideEntry, OverrideMode, OverrideTarget, fault, format_time,
};
use crate::domain::{Bounds, Micros, NamedEnum as _, format_descriptor, parse_descriptor};

/// Maximum size of one override as JSON, in bytes. 100,000 overrides of 640 bytes take 64 MiB; few
/// have long values.
pub const OVERRIDE_BYTES_MAX: usize = 4_096;
/// Maximum length of an override's reason, in bytes.
pub const REASON_BYTES_MAX: usize = 256;
/// Maximum length of the name of who set an override, in bytes.
pub const BY_BYTES_MAX: usize = 128;

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Fields {
    domain: Box<str>,
    rule: Option<Box<str>>,
    descriptor: Option<String>,
    limit_name: Option<Box<str>>,
    limit: Option<u32>,
    burst: Option<u64>,
    anchor: Option<Box<str>>,
    scale: Option<String>,
    mode: Option<String>,
    until: Option<String>,
    set_at: Option<String>,
    reason: Box<str>,
    by: Box<str>,
}

impl OverrideEntry {
    /// Returns the override as a JSON object on one line, without absent fields.
    pub fn to_json(&self) -> String {
        let OverrideTarget { domain, rule, entries, limit_name } = &self.target;
        let mut object = serde_json::Map::new();
        let mut push = |name: &str, value: Value| {
            let is_absent = value.is_null() || value == "";
            object.extend((!is_absent).then(|| (name.to_owned(), value)));
        };
        push("domain", json!(domain));
        push("rule", json!(rule));
        push("descriptor", json!(format_descriptor(entries)));
        push("limit_name", json!(limit_name));
        match &self.change {
            OverrideChange::Numbers { limit, burst, anchor } => {
                push("limit", json!(limit));
                push("burst", json!(burst));
                push("anchor", json!(anchor));
            }
            OverrideChange::Scale(percent) => push("scale", json!(format!("{percent}%"))),
            OverrideChange::Mode(mode) => push("mode", json!(mode.as_str())),
        }
        push("until", json!(self.until.map(format_time)));
        let set_at = Some(self.set_at).filter(|at| *at > Micros::ZERO);
        push("set_at", json!(set_at.map(format_time)));
        push("reason", json!(self.reason));
        push("by", json!(self.by));
        Value::Object(object).to_string()
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
    /// let text = r#"{"descriptor":"api_token=acme","domain":"edge","limit":500}"#;
    /// assert_eq!(OverrideEntry::from_json(text).unwrap().to_json(), text);
    /// ```
    pub fn from_json(text: &str) -> Result<OverrideEntry, String> {
        check_length("an override", text.len(), OVERRIDE_BYTES_MAX)?;
        let fields: Fields = serde_json::from_str(text)
            .map_err(|error| format!("the override is not valid JSON: {error}"))?;
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
        let descriptor = fields.descriptor.as_deref().map(parse_descriptor).transpose()?;
        let target = OverrideTarget {
            domain: fields.domain,
            rule: fields.rule,
            entries: descriptor.unwrap_or_default(),
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
    pub fn check_bounds(&self) -> Result<(), String> {
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

fn check_length(what: &str, length: usize, length_max: usize) -> Result<(), String> {
    if length <= length_max {
        return Ok(());
    }
    fault(format!(
        "{what} must not be longer than {length_max} bytes, and has {length}; shorten it"
    ))
}

fn parse_percent(text: &str) -> Result<u32, String> {
    let digits = text.strip_suffix('%').filter(|digits| !digits.starts_with('+'));
    let percent = digits.and_then(|digits| digits.parse().ok());
    percent.filter(|percent| (1..=100).contains(percent)).map_or_else(|| fault(PERCENT_FAULT), Ok)
}

fn parse_mode(text: &str) -> Result<OverrideMode, String> {
    let mode = OverrideMode::from_name(text, false);
    mode.map_or_else(|| fault("`mode` must be `unlimited`, `deny`, or `shadow`"), Ok)
}

/// Parses a time after 1970 as in RFC 3339.
fn parse_time(text: &str) -> Result<Micros, String> {
    let time = text.parse::<jiff::Timestamp>().ok();
    let micros = time.and_then(|time| u64::try_from(time.as_microsecond()).ok());
    let message = "`until` and `set_at` must be times such as `2026-12-01T00:00:00Z`";
    micros.map(Micros).map_or_else(|| fault(message), Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_override_is_read_as_it_was_written() {
        for text in [
            r#"{"domain":"d","limit":0}"#,
            r#"{"anchor":"04-01","burst":7,"domain":"d","limit":5,"limit_name":"day","rule":"d.a"}"#,
            r#"{"by":"ann","domain":"d","mode":"deny","reason":"T-42","until":"2026-12-01T00:00:00Z"}"#,
            r#"{"descriptor":"a=\\,\\\\,b=*","domain":"d","scale":"20%","set_at":"2026-12-01T00:00:00.5Z"}"#,
        ] {
            let entry = OverrideEntry::from_json(text).unwrap();
            assert_eq!(entry.to_json(), text);
            assert_eq!(OverrideEntry::from_json(&entry.to_json()), Ok(entry));
        }
    }

    #[test]
    fn what_is_not_an_override_is_refused_with_the_way_out() {
        let long = |field: &str, length: usize| {
            format!(r#"{{"domain":"d","limit":1,"{field}":"{}"}}"#, "x".repeat(length))
        };
        let descriptor = |count: usize| {
            format!(r#"{{"domain":"d","limit":1,"descriptor":"a{}"}}"#, ",a".repeat(count - 1))
        };
        for (text, expected) in [
            ("", "is not valid JSON"),
            (r#"{"domain":"d","limits":1}"#, "unknown field `limits`, expected one of"),
            (r#"{"domain":"d","limit":-1}"#, "expected u32"),
            (r#"{"limit":1}"#, "must have a `domain`"),
            (r#"{"domain":"d"}"#, "must change something"),
            (r#"{"domain":"d","limit":1,"mode":"deny"}"#, "set one override for each"),
            (r#"{"domain":"d","scale":"0%"}"#, "from `1%` to `100%`"),
            (r#"{"domain":"d","scale":"101%"}"#, "from `1%` to `100%`"),
            (r#"{"domain":"d","scale":"+5%"}"#, "from `1%` to `100%`"),
            (r#"{"domain":"d","scale":"50"}"#, "from `1%` to `100%`"),
            (r#"{"domain":"d","mode":"allow"}"#, "must be `unlimited`, `deny`, or `shadow`"),
            (r#"{"domain":"d","mode":"deny","limit_name":"x"}"#, "only allowed with numbers"),
            (r#"{"domain":"d","limit":1,"rule":""}"#, "must not be empty"),
            (r#"{"domain":"d","limit":1,"descriptor":"a: b"}"#, "has no `=`"),
            (r#"{"domain":"d","limit":1,"until":"1969-12-31T00:00:00Z"}"#, "must be times such as"),
            (r#"{"domain":"d","limit":1,"until":"tomorrow"}"#, "must be times such as"),
            (&*long("reason", 257), "`reason` must not be longer than 256 bytes, and has 257"),
            (&*long("by", 129), "`by` must not be longer than 128 bytes"),
            (&*long("rule", 4_096), "must not be longer than 4096 bytes"),
            (&*descriptor(161), "must not have more than 160 entries"),
        ] {
            let error = OverrideEntry::from_json(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
        for text in [long("reason", 256), long("by", 128), descriptor(160)] {
            assert!(OverrideEntry::from_json(&text).is_ok(), "{text}");
        }
    }

    #[test]
    fn different_identities_have_different_texts_and_the_kind_is_part_of_them() {
        let texts = [
            r#"{"domain":"d","limit":1}"#,
            r#"{"domain":"d","scale":"1%"}"#,
            r#"{"domain":"d","mode":"deny"}"#,
            r#"{"domain":"d","rule":"d.a","limit":1}"#,
            r#"{"domain":"d","descriptor":"d.a","limit":1}"#,
            r#"{"domain":"d","descriptor":"a=1,b=2","limit":1}"#,
            r#"{"domain":"d","descriptor":"a=1\\,b=2","limit":1}"#,
            r#"{"domain":"d","limit_name":"d.a","limit":1}"#,
        ];
        let id = |text: &str| OverrideEntry::from_json(text).unwrap().id();
        let ids: std::collections::BTreeSet<String> = texts.iter().map(|text| id(text)).collect();
        assert_eq!(ids.len(), texts.len(), "{ids:?}");
        assert_eq!(id(texts[0]), id(r#"{"domain":"d","burst":9,"by":"x"}"#));
        assert_eq!(id(texts[2]), r#"["d",null,null,null,"mode"]"#);
    }
}
