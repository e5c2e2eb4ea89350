//! Scenario files of `simulate`: YAML with a policy, groups of callers, and a duration.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;

/// The `parameters` section of a scenario file, and its policy, if any. Parsed first, because the rest
/// of the file may contain `${name}` placeholders.
#[derive(Debug, Deserialize)]
struct ParametersOnly {
    #[serde(default)]
    parameters: BTreeMap<String, serde_yaml::Value>,
    policy: Option<serde_yaml::Value>,
}

/// Parsed and validated scenario file. Unknown keys in the file are errors.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Description of the scenario. Its first line is the title of the chart.
    pub about: String,
    /// Policy under test, as the text of a policy file. Begins with blank lines, so that line
    /// numbers in error messages match the scenario file.
    #[serde(default)]
    pub policy: String,
    /// Number of spaces by which the file indents the policy's lines. `None` if the policy is not
    /// a YAML literal block scalar (`policy: |`). In that case, positions in the policy cannot be
    /// mapped to the file.
    #[serde(skip)]
    pub policy_indent: Option<u32>,
    /// Name of the scenario file; empty if there is none.
    #[serde(skip)]
    pub file: String,
    /// Name of the file with the policy; `None` if it is in the scenario.
    #[serde(skip)]
    pub policy_file: Option<String>,
    /// Start of the simulated time, in seconds since the Unix epoch. Determines when aligned
    /// windows begin.
    #[serde(default = "default_start")]
    pub starts_at_s: u64,
    /// Time during which new calls are generated, in seconds.
    pub lasts_s: f64,
    /// Length of a sliding window, in seconds. The report shows the maximum number of hits admitted
    /// in any window of this length.
    #[serde(default = "default_window")]
    pub window_s: f64,
    /// Length of the time slice that each row of the report covers, in seconds. `None` means a
    /// twelfth of `lasts_s`, so that the report has about twelve rows.
    pub slice_s: Option<f64>,
    /// Seed of the random number generator. Runs with the same seed have the same result.
    #[serde(default)]
    pub seed: u64,
    /// Maximum percentage by which Retry-After is lengthened at random, from 0 to 100, as with
    /// `--retry-after-spread`.
    #[serde(default)]
    pub retry_after_spread_percent: u32,
    /// Default values for the `${name}` placeholders in the file. `--set` and `--sweep` override
    /// them.
    #[serde(default)]
    pub parameters: BTreeMap<String, serde_yaml::Value>,
    /// Groups of callers.
    pub groups: Vec<Group>,
}

/// Group of callers with the same behavior.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// Name of the group in tables and charts.
    pub name: String,
    /// Descriptor of every call, as `key=value,key=value`. `{client}` is replaced by the caller's
    /// index.
    pub descriptor: String,
    /// Number of callers in the group. Each caller makes calls at the full rate of `arrivals`.
    #[serde(default = "default_clients")]
    pub clients: u32,
    /// Hits charged by each call.
    #[serde(default = "default_hits")]
    pub hits: u64,
    /// Arrival process of the calls of each caller.
    #[serde(with = "serde_yaml::with::singleton_map")]
    pub arrivals: Arrivals,
    /// Phases of the scenario during which the call rate is modified. May be empty.
    #[serde(default)]
    pub phases: Vec<Phase>,
    /// Behavior of the callers after a call is rejected.
    #[serde(default, with = "serde_yaml::with::singleton_map")]
    pub when_rejected: WhenRejected,
}

impl Group {
    /// Returns the keys and values of the descriptor of the caller with index `client`.
    pub(crate) fn entries(&self, client: u32) -> Vec<(String, String)> {
        let client = client.to_string();
        let pair = |text: &str| {
            let (key, value) = text.trim().split_once('=').unwrap_or((text.trim(), ""));
            (key.to_owned(), value.replace("{client}", &client))
        };
        self.descriptor.split(',').map(pair).collect()
    }
}

/// Arrival process of the calls of one caller.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Arrivals {
    /// Evenly spaced calls.
    Constant {
        /// Calls per second.
        rate: f64,
    },
    /// Calls at random, independent times (a Poisson process).
    Poisson {
        /// Average calls per second.
        rate: f64,
    },
    /// Evenly spaced calls for `on_s` seconds, followed by a pause of `off_s` seconds, repeatedly.
    OnOff {
        /// Calls per second outside of the pauses.
        rate: f64,
        /// Time between two pauses, in seconds.
        on_s: f64,
        /// Length of each pause, in seconds.
        off_s: f64,
    },
    /// Single burst of calls, at once or spread evenly over a period.
    Burst {
        /// Start of the burst, in seconds after the start of the scenario.
        at_s: f64,
        /// Number of calls in the burst.
        count: u64,
        /// Duration of the burst in seconds; 0 sends all calls at once.
        #[serde(default)]
        over_s: f64,
    },
}

/// Phase of a scenario during which the call rate of [`Arrivals`] is modified.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Phase {
    /// Start of the phase, in seconds after the start of the scenario.
    pub from_s: f64,
    /// End of the phase, in seconds after the start of the scenario.
    pub until_s: f64,
    /// Factor by which the call rate is multiplied.
    #[serde(default = "default_factor")]
    pub times: f64,
    /// Calls per second to add after the rate has been multiplied by `times`.
    #[serde(default)]
    pub plus: f64,
}

/// Behavior of a caller after a call is rejected.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum WhenRejected {
    /// Drops the call without a retry.
    #[default]
    GiveUp,
    /// Retries after the time in the Retry-After header, which is a whole number of seconds.
    Honour {
        /// Maximum number of retries after the first attempt.
        tries: u32,
    },
    /// Ignores Retry-After and retries at a fixed interval.
    Insist {
        /// Interval between attempts, in seconds.
        after_s: f64,
        /// Maximum number of retries after the first attempt.
        tries: u32,
    },
}

/// Returns 2027-01-15, 12:00 UTC, in seconds since the Unix epoch. It is a full hour, so that
/// hourly windows start together with the scenario.
fn default_start() -> u64 {
    1_800_014_400
}

/// Returns 60 seconds, the window length of most limits in the example scenarios.
fn default_window() -> f64 {
    60.0
}

fn default_clients() -> u32 {
    1
}
fn default_hits() -> u64 {
    1
}
fn default_factor() -> f64 {
    1.0
}

/// Error in a scenario file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScenarioError {
    /// The YAML is invalid, or a key is unknown or missing.
    Format {
        /// Line and column of the error, from 1; `None` if the error concerns the whole file.
        position: Option<(usize, usize)>,
        /// Description of the error. For some errors, also suggests a correction.
        reason: String,
    },
    /// A number is out of range. The text states the valid range.
    Range(String),
    /// `--set` or `--sweep` sets a parameter that the `parameters` section does not define. Contains
    /// the parameter's name.
    UnknownParameter(String),
}

impl std::error::Error for ScenarioError {}

impl fmt::Display for ScenarioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ScenarioError::Format { reason, .. } => f.write_str(reason),
            ScenarioError::Range(what) => f.write_str(what),
            ScenarioError::UnknownParameter(name) => write!(
                f,
                "the scenario has no parameter `{name}`; add `{name}` with its value under \
                 `parameters` and write ${{{name}}} where it is used, or do not set it with --set \
                 or --sweep"
            ),
        }
    }
}

/// Returns an error at the first place where the text has `part`.
fn error_at(text: &str, part: &str, reason: String) -> ScenarioError {
    let mut lines = text.lines().zip(1..);
    let position = lines.find_map(|(line, nth)| Some((nth, line.find(part)? + 1)));
    ScenarioError::Format { position, reason }
}

/// Words of the YAML parser, and what a user calls them.
const PARSER_WORDS: [(&str, &str); 18] = [
    ("invalid type: ", "found "),
    ("invalid value: ", "found "),
    ("found string ", "found the text "),
    ("found integer ", "found the number "),
    ("found floating point ", "found the number "),
    ("found boolean ", "found "),
    ("found unit value", "found nothing"),
    ("found map", "found a mapping"),
    ("found sequence", "found a list"),
    ("found unit variant", "found a word"),
    (", expected f64", ", but it must be a number"),
    (", expected u64", ", but it must be a whole number from 0"),
    (", expected u32", ", but it must be a whole number from 0"),
    (", expected a string", ", but it must be a text"),
    (", expected a sequence", ", but it must be a list"),
    (", expected a Value", ", but it must be a value"),
    ("missing field ", "missing key "),
    ("unknown variant ", "unknown word "),
];

/// Returns the message of the YAML parser without the names of Rust types. `help` says where to find
/// an example of the file.
fn in_plain_words(text: &str, help: &str) -> String {
    let plain =
        PARSER_WORDS.iter().fold(text.to_owned(), |text, (word, own)| text.replace(word, own));
    match plain.split_once(", expected ") {
        Some((found, rest)) if ["struct", "map", "enum"].iter().any(|it| rest.starts_with(it)) => {
            format!("{found}, but it must be a mapping; {help}")
        }
        _ => plain,
    }
}

/// Converts an error of the YAML parser. For an unknown key, suggests the most similar valid key;
/// if none is similar, keeps the parser's list of valid keys. `help` says where to find an example of
/// the file.
pub(crate) fn format_error(error: &serde_yaml::Error, help: &str) -> ScenarioError {
    let text = error.to_string();
    let (position, text) = match error.location() {
        Some(at) => {
            let (line, column) = (at.line(), at.column());
            let place = format!(" at line {line} column {column}");
            (Some((line, column)), text.strip_suffix(&place).unwrap_or(&text).to_owned())
        }
        None => (None, text),
    };
    // The first quoted word is the unknown key, and the others are the valid keys.
    let mut quoted = text.split('`').skip(1).step_by(2);
    let unknown = quoted.next().filter(|_| text.contains("unknown field"));
    let reason = match unknown.and_then(|given| Some((given, nearest_key(given, quoted)?))) {
        Some((given, known)) => format!("unknown key `{given}`; did you mean `{known}`?"),
        None => in_plain_words(&text, help).replace("unknown field", "unknown key"),
    };
    ScenarioError::Format { position, reason }
}

/// Returns the key that was probably meant: one within an edit distance of one letter, or of two if
/// `given` has more than five, or that `given` abbreviates.
fn nearest_key<'k>(given: &str, known: impl Iterator<Item = &'k str>) -> Option<&'k str> {
    let distance_max = if given.len() > 5 { 2 } else { 1 };
    let rated = known.map(|key| (strsim::osa_distance(given, key), key));
    rated
        .filter(|(distance, key)| {
            *distance <= distance_max || (given.len() >= 3 && key.starts_with(given))
        })
        .min()
        .map(|(_, key)| key)
}

/// Returns the first line of the policy in the file, counted from 0, and the number of spaces by
/// which the policy is indented. Returns `None` unless the policy is a YAML literal block scalar
/// (`policy: |`).
fn find_policy_block(text: &str) -> Option<(usize, u32)> {
    let (nth, header) = text.lines().enumerate().find(|(_, line)| line.starts_with("policy: |"))?;
    let written = header.chars().find_map(|c| c.to_digit(10));
    let first = text.lines().skip(nth + 1).find(|line| !line.trim().is_empty())?;
    let counted = first.chars().take_while(|c| *c == ' ').count();
    Some((nth + 1, written.or_else(|| u32::try_from(counted).ok())?))
}

/// Returns the text with each `${name}` replaced by 0, so that it can be parsed as YAML before the
/// parameters are known.
fn replace_placeholders(text: &str) -> String {
    let mut pieces = text.split("${");
    let mut replaced = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        match piece.split_once('}') {
            Some((_, after)) => replaced.extend(["0", after]),
            None => replaced.extend(["${", piece]),
        }
    }
    replaced
}

/// Maximum duration of a scenario, one day in seconds.
const DURATION_S_MAX: f64 = 86_400.0;

/// Maximum number of callers in a group. Limits the memory usage of a run.
const CLIENTS_MAX: u32 = 1_000_000;

impl Scenario {
    /// Parses a scenario file. Replaces each `${name}` with its value from `overrides` or, if
    /// `overrides` has none, from the file's `parameters`.
    ///
    /// # Errors
    ///
    /// Returns an error if the YAML, a number or a parameter is invalid.
    pub fn parse(text: &str, overrides: &[(&str, &str)]) -> Result<Scenario, ScenarioError> {
        Scenario::parse_with(text, None, overrides)
    }

    /// Parses a scenario file, likewise, with this policy instead of its own.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`parse`](Self::parse).
    pub fn parse_with(
        text: &str,
        policy: Option<&str>,
        overrides: &[(&str, &str)],
    ) -> Result<Scenario, ScenarioError> {
        if text.lines().any(|line| line.starts_with("descriptors:")) {
            let reason = "this is a policy, but `tidegate simulate` needs a scenario: write a file \
                          that has the policy under `policy: |`, beside `lasts_s` and `groups`, or \
                          give both, SCENARIO.yaml --policy FILE; `tidegate simulate --help` shows a \
                          scenario";
            return Err(ScenarioError::Format { position: None, reason: reason.to_owned() });
        }
        let help = "`tidegate simulate --help` shows a scenario";
        let format = |error: serde_yaml::Error| format_error(&error, help);
        // In a flow map, `${rate}` alone is not YAML.
        let raw: ParametersOnly =
            serde_yaml::from_str(&replace_placeholders(text)).map_err(format)?;
        let mut values = BTreeMap::new();
        for (name, value) in &raw.parameters {
            let value = serde_yaml::to_string(value).map_err(format)?;
            values.insert(name.as_str(), value.trim().to_owned());
        }
        for &(name, value) in overrides {
            match values.get_mut(name) {
                Some(known) => value.clone_into(known),
                None => return Err(ScenarioError::UnknownParameter(name.to_owned())),
            }
        }
        let mut filled = text.to_owned();
        for (name, value) in values {
            filled = filled.replace(&format!("${{{name}}}"), &value);
        }
        if let Some((_, unknown)) = filled.split_once("${") {
            let name = unknown.split(['}', '\n']).next().unwrap_or_default();
            let reason = format!(
                "`${{{name}}}` is not a parameter; add `{name}` with its value under `parameters`"
            );
            return Err(error_at(text, &format!("${{{name}"), reason));
        }
        let mut scenario: Scenario = serde_yaml::from_str(&filled).map_err(format)?;
        for group in &scenario.groups {
            let descriptor = group.descriptor.replace("{client}", "");
            if let Some((_, unknown)) = descriptor.split_once('{') {
                let name = unknown.split('}').next().unwrap_or_default();
                let reason =
                    format!("`{{{name}}}` is not a placeholder; the only one is {{client}}");
                return Err(error_at(text, &format!("{{{name}}}"), reason));
            }
        }
        if raw.policy.is_none() && policy.is_none() {
            let reason =
                "`policy` is missing: write the policy under `policy: |`, or give --policy";
            return Err(ScenarioError::Format { position: None, reason: reason.to_owned() });
        }
        if let Some(policy) = policy {
            policy.clone_into(&mut scenario.policy);
        } else if let Some((line, indent)) = find_policy_block(&filled) {
            scenario.policy.insert_str(0, &"\n".repeat(line));
            scenario.policy_indent = Some(indent);
        }
        scenario.validate()
    }

    /// Returns the name of the policy in error messages.
    pub fn policy_name(&self) -> String {
        match (&self.policy_file, self.policy_indent) {
            (Some(name), _) => name.clone(),
            (None, Some(_)) => self.file.clone(),
            (None, None) => format!("the policy in {}", self.file),
        }
    }

    fn validate(self) -> Result<Scenario, ScenarioError> {
        let range = |ok: bool, what: &str| {
            if ok { Ok(()) } else { Err(ScenarioError::Range(what.to_owned())) }
        };
        range(
            self.lasts_s > 0.0 && self.lasts_s <= DURATION_S_MAX,
            "`lasts_s` must be above 0 and at most 86400 seconds",
        )?;
        range(self.window_s > 0.0, "`window_s` must be above 0 seconds")?;
        range(self.slice_s.is_none_or(|s| s > 0.0), "`slice_s` must be above 0 seconds")?;
        range(
            self.retry_after_spread_percent <= 100,
            "`retry_after_spread_percent` must be 0 to 100",
        )?;
        range(!self.groups.is_empty(), "`groups` must contain at least one group")?;
        for group in &self.groups {
            let clients = (1..=CLIENTS_MAX).contains(&group.clients);
            range(clients, "`clients` must be 1 to 1000000")?;
            let is_valid = match group.arrivals {
                Arrivals::Constant { rate } | Arrivals::Poisson { rate } => rate >= 0.0,
                Arrivals::OnOff { rate, on_s, off_s } => rate >= 0.0 && on_s > 0.0 && off_s >= 0.0,
                Arrivals::Burst { at_s, over_s, .. } => at_s >= 0.0 && over_s >= 0.0,
            };
            range(
                is_valid,
                "rates and times of `arrivals` must not be negative, and `on_s` must be above 0",
            )?;
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCENARIO: &str = "
about: a test
policy: 'limit ${limit}'
lasts_s: 10
parameters: {limit: 7}
groups:
  - {name: a, descriptor: 'k=v', arrivals: {constant: {rate: 2}}}
";

    #[test]
    fn parameters_are_substituted_anywhere() {
        assert_eq!(Scenario::parse(SCENARIO, &[]).unwrap().policy, "limit 7");
        assert_eq!(Scenario::parse(SCENARIO, &[("limit", "9")]).unwrap().policy, "limit 9");
        let error = Scenario::parse(SCENARIO, &[("other", "9")]).unwrap_err();
        assert_eq!(error, ScenarioError::UnknownParameter("other".to_owned()));
    }

    #[test]
    fn errors_have_a_place_and_no_names_of_types() {
        for (from, to, place, part) in [
            ("${limit}", "${limt}", (3, 16), "`${limt}` is not a parameter; add `limt`"),
            (
                "k=v",
                "k={clent}",
                (7, 29),
                "`{clent}` is not a placeholder; the only one is {client}",
            ),
            ("k=v", "k={}", (7, 29), "`{}` is not a placeholder"),
            ("rate: 2", "rate: two", (7, 6), "found the text \"two\", but it must be a number"),
            ("lasts_s: 10", "lasts_s: ten", (4, 10), "but it must be a number"),
            ("lasts_s: 10", "lasts_s: [1]", (4, 10), "found a list, but it must be a number"),
            ("lasts_s: 10", "lasts_s: 10\nseed: -1", (5, 7), "must be a whole number from 0"),
            ("about: a test", "about: [a]", (2, 8), "found a list, but it must be a text"),
            ("{constant: {rate: 2}}", "constant", (7, 6), "must be a mapping"),
            ("{constant: {rate: 2}}", "{steady: {rate: 2}}", (7, 6), "unknown word `steady`"),
            ("lasts_s: 10", "", (2, 1), "missing key `lasts_s`"),
        ] {
            let text = SCENARIO.replacen(from, to, 1);
            match Scenario::parse(&text, &[]).unwrap_err() {
                ScenarioError::Format { position, reason } => {
                    assert!(reason.contains(part), "{to}: {reason}");
                    assert_eq!(position.map(|(line, _)| line), Some(place.0), "{to}: {reason}");
                    let names = ["f64", "u32", "u64", "struct", "enum", "variant", "Arrivals"];
                    assert!(!names.iter().any(|name| reason.contains(name)), "{to}: {reason}");
                }
                other => panic!("{to}: {other}"),
            }
        }
    }

    #[test]
    fn a_policy_of_its_own_replaces_that_of_the_scenario() {
        let scenario = Scenario::parse_with(SCENARIO, Some("own"), &[]).unwrap();
        assert_eq!((&*scenario.policy, scenario.policy_indent), ("own", None));
        let without = SCENARIO.replace("policy: 'limit ${limit}'\n", "");
        assert_eq!(Scenario::parse_with(&without, Some("own"), &[]).unwrap().policy, "own");
        let error = Scenario::parse(&without, &[]).unwrap_err().to_string();
        assert!(error.starts_with("`policy` is missing"), "{error}");
    }

    #[test]
    fn a_placeholder_needs_no_quotes_in_a_flow_mapping() {
        let text = SCENARIO.replace("{rate: 2}", "{rate: ${limit}}");
        let scenario = Scenario::parse(&text, &[("limit", "2.5")]).unwrap();
        assert!(matches!(scenario.groups[0].arrivals, Arrivals::Constant { rate: 2.5 }));
    }

    #[test]
    fn an_unknown_key_is_reported_with_its_position_and_valid_keys() {
        let error = |text: &str| match Scenario::parse(text, &[]).unwrap_err() {
            ScenarioError::Format { position, reason } => (position, reason),
            other => panic!("{other}"),
        };
        let (position, reason) = error(&SCENARIO.replace("lasts_s", "last_s"));
        assert_eq!(position, Some((4, 1)));
        assert_eq!(reason, "unknown key `last_s`; did you mean `lasts_s`?");
        let (_, reason) = error(&SCENARIO.replace("lasts_s", "duration"));
        assert!(reason.starts_with("unknown key `duration`, expected one of `about`"), "{reason}");
    }

    #[test]
    fn the_indentation_is_known_if_the_policy_is_a_block_scalar() {
        let block = SCENARIO.replace("policy: 'limit ${limit}'", "policy: |\n\n   a:\n     b");
        let scenario = Scenario::parse(&block, &[]).unwrap();
        assert_eq!((scenario.policy_indent, &*scenario.policy), (Some(3), "\n\n\n\na:\n  b\n"));
        assert_eq!(Scenario::parse(SCENARIO, &[]).unwrap().policy_indent, None);
    }

    #[test]
    fn unknown_keys_and_numbers_out_of_range_are_errors() {
        assert!(Scenario::parse(&SCENARIO.replace("about", "abuot"), &[]).is_err());
        assert!(Scenario::parse(&SCENARIO.replace("lasts_s: 10", "lasts_s: 0"), &[]).is_err());
        assert!(Scenario::parse(&SCENARIO.replace("rate: 2", "rate: -2"), &[]).is_err());
    }
}
