//! Scenario files: policy, callers and duration, in YAML.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;

/// The part of a scenario that is read before its parameters are substituted.
#[derive(Debug, Deserialize)]
struct ParametersOnly {
    #[serde(default)]
    parameters: BTreeMap<String, serde_yaml::Value>,
}

/// A scenario file. Unknown keys are errors.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Description. The first line is the title of the chart.
    pub about: String,
    /// The policy, as the text of a policy file.
    pub policy: String,
    /// Start, in seconds since the Unix epoch. It determines where windows begin.
    #[serde(default = "default_start")]
    pub starts_at_s: u64,
    /// How long new calls are generated, in seconds.
    pub lasts_s: f64,
    /// Length of the window for the largest number of admitted hits, in seconds.
    #[serde(default = "default_window")]
    pub window_s: f64,
    /// Length of a row of the table over time, in seconds; by default about twelve rows.
    pub slice_s: Option<f64>,
    /// Seed of the random numbers.
    #[serde(default)]
    pub seed: u64,
    /// The setting `--retry-after-spread` of the service, in percent of the wait.
    #[serde(default)]
    pub retry_after_spread_percent: u32,
    /// Values of `${name}` anywhere in the file; `--sweep` varies one.
    #[serde(default)]
    pub parameters: BTreeMap<String, serde_yaml::Value>,
    /// Groups of callers.
    pub groups: Vec<Group>,
}

/// Callers of one kind.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// Name in tables and charts.
    pub name: String,
    /// Descriptor of every call, as `key=value,key=value`; `{client}` is the number of the caller.
    pub descriptor: String,
    /// Number of callers; each calls at the whole rate.
    #[serde(default = "one")]
    pub clients: u32,
    /// Hits of each call.
    #[serde(default = "one_hit")]
    pub hits: u64,
    /// Times of the calls.
    #[serde(with = "serde_yaml::with::singleton_map")]
    pub arrivals: Arrivals,
    /// Times with a different rate.
    #[serde(default)]
    pub phases: Vec<Phase>,
    /// Behavior after a refusal.
    #[serde(default, with = "serde_yaml::with::singleton_map")]
    pub when_refused: WhenRefused,
}

/// Arrival process of the calls of one caller.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Arrivals {
    /// Evenly spaced.
    Constant {
        /// Calls per second.
        rate: f64,
    },
    /// Poisson process.
    Poisson {
        /// Calls per second on average.
        rate: f64,
    },
    /// Evenly spaced for `on_s` seconds, then none for `off_s`.
    OnOff {
        /// Calls per second while on.
        rate: f64,
        /// Seconds on.
        on_s: f64,
        /// Seconds off.
        off_s: f64,
    },
    /// Many calls at once, or spread evenly over a time.
    Burst {
        /// Seconds after the start.
        at_s: f64,
        /// Number of calls.
        count: u64,
        /// Seconds over which they are spread; 0: all at once.
        #[serde(default)]
        over_s: f64,
    },
}

/// A time with a different rate.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Phase {
    /// Start, in seconds after the start of the scenario.
    pub from_s: f64,
    /// End.
    pub until_s: f64,
    /// Factor of the rate.
    #[serde(default = "once")]
    pub times: f64,
    /// Calls per second added after that.
    #[serde(default)]
    pub plus: f64,
}

/// Behavior of a caller after a refusal.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum WhenRefused {
    /// Drops the call.
    #[default]
    GiveUp,
    /// Waits as long as Retry-After says (in whole seconds), then retries.
    Honour {
        /// Retries after the first try.
        tries: u32,
    },
    /// Ignores Retry-After and retries after a fixed time.
    Insist {
        /// Seconds between tries.
        after_s: f64,
        /// Retries after the first try.
        tries: u32,
    },
}

/// 2027-01-15, 12:00 UTC: a full hour, so that windows start with the scenario.
fn default_start() -> u64 {
    1_800_014_400
}

/// A minute, the window of most limits in the scenarios.
fn default_window() -> f64 {
    60.0
}

fn one() -> u32 {
    1
}
fn one_hit() -> u64 {
    1
}
fn once() -> f64 {
    1.0
}

/// An error in a scenario.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScenarioError {
    /// The YAML does not have the format of a scenario.
    Format(String),
    /// A number is out of range.
    Range(String),
    /// A parameter is used or set that the scenario does not define.
    UnknownParameter(String),
}

impl std::error::Error for ScenarioError {}

impl fmt::Display for ScenarioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ScenarioError::Format(what) => write!(f, "invalid scenario: {what}"),
            ScenarioError::Range(what) => f.write_str(what),
            ScenarioError::UnknownParameter(name) => {
                write!(f, "the scenario has no entry `{name}` under `parameters`")
            }
        }
    }
}

/// Longest scenario: a day.
const LASTS_S_MAX: f64 = 86_400.0;

/// Most callers of one group. It bounds the memory of a run.
const CLIENTS_MAX: u32 = 1_000_000;

impl Scenario {
    /// Parses a scenario. Replaces `${name}` by the value in `overrides`, else by the one under
    /// `parameters`.
    ///
    /// # Errors
    ///
    /// [`ScenarioError`].
    pub fn read(text: &str, overrides: &[(&str, &str)]) -> Result<Scenario, ScenarioError> {
        let format = |error: serde_yaml::Error| ScenarioError::Format(error.to_string());
        let raw: ParametersOnly = serde_yaml::from_str(text).map_err(format)?;
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
            let name = unknown.split_once('}').map_or(unknown, |(name, _)| name);
            return Err(ScenarioError::UnknownParameter(name.to_owned()));
        }
        let scenario: Scenario = serde_yaml::from_str(&filled).map_err(format)?;
        scenario.validate()
    }

    fn validate(self) -> Result<Scenario, ScenarioError> {
        let range = |ok: bool, what: &str| {
            if ok { Ok(()) } else { Err(ScenarioError::Range(what.to_owned())) }
        };
        range(
            self.lasts_s > 0.0 && self.lasts_s <= LASTS_S_MAX,
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

    const TEXT: &str = "
about: a test
policy: 'limit ${limit}'
lasts_s: 10
parameters: {limit: 7}
groups:
  - {name: a, descriptor: 'k=v', arrivals: {constant: {rate: 2}}}
";

    #[test]
    fn parameters_are_substituted_anywhere() {
        assert_eq!(Scenario::read(TEXT, &[]).unwrap().policy, "limit 7");
        assert_eq!(Scenario::read(TEXT, &[("limit", "9")]).unwrap().policy, "limit 9");
        let error = Scenario::read(TEXT, &[("other", "9")]).unwrap_err();
        assert_eq!(error, ScenarioError::UnknownParameter("other".to_owned()));
        let error = Scenario::read(&TEXT.replace("${limit}", "${limt}"), &[]).unwrap_err();
        assert_eq!(error, ScenarioError::UnknownParameter("limt".to_owned()));
    }

    #[test]
    fn unknown_keys_and_numbers_out_of_range_are_errors() {
        assert!(Scenario::read(&TEXT.replace("about", "abuot"), &[]).is_err());
        assert!(Scenario::read(&TEXT.replace("lasts_s: 10", "lasts_s: 0"), &[]).is_err());
        assert!(Scenario::read(&TEXT.replace("rate: 2", "rate: -2"), &[]).is_err());
    }
}
