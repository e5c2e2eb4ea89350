//! A scenario: which policy, which callers, for how long. Read from YAML.
//!
//! Not here: generating the traffic (`traffic`), running it (`run`).

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;

/// What must be known of a scenario before its parameters stand in their places.
#[derive(Debug, Deserialize)]
struct Raw {
    #[serde(default)]
    parameters: BTreeMap<String, serde_yaml::Value>,
}

/// A scenario file. Unknown keys are refused.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// What it shows. The first line is the chart's title.
    pub about: String,
    /// The policy, as the text of a policy file.
    pub policy: String,
    /// When it begins, in seconds since the Unix epoch: where the windows' edges fall.
    #[serde(default = "default_start")]
    pub starts_at_s: u64,
    /// How long calls are generated, in seconds.
    pub lasts_s: f64,
    /// The window in which the largest number of admitted hits is searched, in seconds.
    #[serde(default = "default_window")]
    pub window_s: f64,
    /// The length of one row of the table over time, in seconds; about twelve rows if absent.
    pub slice_s: Option<f64>,
    /// The seed of everything random.
    #[serde(default)]
    pub seed: u64,
    /// How far refused callers are spread, in per cent of their wait (the server's setting).
    #[serde(default)]
    pub retry_after_spread_percent: u32,
    /// Named values that stand as `${name}` anywhere in the file; `--sweep` varies one.
    #[serde(default)]
    pub parameters: BTreeMap<String, serde_yaml::Value>,
    /// Who calls.
    pub groups: Vec<Group>,
}

/// Callers of one kind.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// Its name in tables and charts.
    pub name: String,
    /// The descriptor they send, as `key=value,key=value`; `{client}` is the caller's number.
    pub descriptor: String,
    /// How many callers; each has the whole rate.
    #[serde(default = "one")]
    pub clients: u32,
    /// Hits of each call.
    #[serde(default = "one_hit")]
    pub hits: u64,
    /// When they call.
    #[serde(with = "serde_yaml::with::singleton_map")]
    pub arrivals: Arrivals,
    /// Times at which the rate is another.
    #[serde(default)]
    pub phases: Vec<Phase>,
    /// What they do when they are refused.
    #[serde(default, with = "serde_yaml::with::singleton_map")]
    pub when_refused: WhenRefused,
}

/// When a caller calls.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Arrivals {
    /// Evenly.
    Constant {
        /// Calls per second.
        rate: f64,
    },
    /// At random: exponential gaps.
    Poisson {
        /// Calls per second on average.
        rate: f64,
    },
    /// Evenly for `on_s` seconds, then silent for `off_s`.
    OnOff {
        /// Calls per second while on.
        rate: f64,
        /// Seconds on.
        on_s: f64,
        /// Seconds off.
        off_s: f64,
    },
    /// Many at one instant, or spread evenly over a time.
    Burst {
        /// Seconds after the beginning.
        at_s: f64,
        /// How many.
        count: u64,
        /// Spread over so many seconds; 0: all at one instant.
        #[serde(default)]
        over_s: f64,
    },
}

/// A time at which a group's rate is another.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Phase {
    /// From so many seconds after the beginning.
    pub from_s: f64,
    /// Until.
    pub until_s: f64,
    /// The rate is multiplied by this.
    #[serde(default = "once")]
    pub times: f64,
    /// And this many calls per second are added.
    #[serde(default)]
    pub plus: f64,
}

/// What a caller does when it is refused.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum WhenRefused {
    /// Nothing: the call is lost.
    #[default]
    GiveUp,
    /// It waits as long as Retry-After says (whole seconds, as the header has them) and tries
    /// again, so many times.
    Honour {
        /// Tries after the first one.
        tries: u32,
    },
    /// It ignores the answer and tries again after a fixed time, so many times.
    Insist {
        /// Seconds between the tries.
        after_s: f64,
        /// Tries after the first one.
        tries: u32,
    },
}

/// 2027-01-15, 12:00 UTC: a full hour, so that windows begin with the scenario.
fn default_start() -> u64 {
    1_800_014_400
}

/// A minute: the window of most limits in the scenarios.
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

/// Why a scenario cannot be run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScenarioError {
    /// The YAML does not have a scenario's shape.
    Shape(String),
    /// A number is out of its range: which, and what is allowed.
    Range(String),
    /// A parameter is used or given a value that the scenario does not have.
    NoParameter(String),
}

impl std::error::Error for ScenarioError {}

impl fmt::Display for ScenarioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ScenarioError::Shape(what) => write!(f, "not a scenario: {what}"),
            ScenarioError::Range(what) => f.write_str(what),
            ScenarioError::NoParameter(name) => {
                write!(f, "the scenario has no entry `{name}` under `parameters`")
            }
        }
    }
}

/// A scenario runs for at most a day: what is longer says nothing more.
const LASTS_S_MAX: f64 = 86_400.0;

/// Callers of one group; their number bounds the memory of a run.
const CLIENTS_MAX: u32 = 1_000_000;

impl Scenario {
    /// Reads a scenario, with `${name}` replaced by the entries of `parameters`, or by those that
    /// are `given` instead.
    ///
    /// # Errors
    ///
    /// [`ScenarioError`] says what is wrong.
    pub fn read(text: &str, given: &[(&str, &str)]) -> Result<Scenario, ScenarioError> {
        let shape = |fault: serde_yaml::Error| ScenarioError::Shape(fault.to_string());
        let raw: Raw = serde_yaml::from_str(text).map_err(shape)?;
        let mut values = BTreeMap::new();
        for (name, value) in &raw.parameters {
            let value = serde_yaml::to_string(value).map_err(shape)?;
            values.insert(name.as_str(), value.trim().to_owned());
        }
        for &(name, value) in given {
            match values.get_mut(name) {
                Some(known) => value.clone_into(known),
                None => return Err(ScenarioError::NoParameter(name.to_owned())),
            }
        }
        let mut filled = text.to_owned();
        for (name, value) in values {
            filled = filled.replace(&format!("${{{name}}}"), &value);
        }
        if let Some((_, unknown)) = filled.split_once("${") {
            let name = unknown.split_once('}').map_or(unknown, |(name, _)| name);
            return Err(ScenarioError::NoParameter(name.to_owned()));
        }
        let scenario: Scenario = serde_yaml::from_str(&filled).map_err(shape)?;
        scenario.checked()
    }

    fn checked(self) -> Result<Scenario, ScenarioError> {
        let range = |ok: bool, what: &str| {
            if ok { Ok(()) } else { Err(ScenarioError::Range(what.to_owned())) }
        };
        range(
            self.lasts_s > 0.0 && self.lasts_s <= LASTS_S_MAX,
            "`lasts_s` is a number of seconds above 0 and at most 86400",
        )?;
        range(self.window_s > 0.0, "`window_s` is a number of seconds above 0")?;
        range(self.slice_s.is_none_or(|s| s > 0.0), "`slice_s` is a number of seconds above 0")?;
        range(self.retry_after_spread_percent <= 100, "`retry_after_spread_percent` is 0 to 100")?;
        range(!self.groups.is_empty(), "`groups` names at least one group of callers")?;
        for group in &self.groups {
            let clients = (1..=CLIENTS_MAX).contains(&group.clients);
            range(clients, "`clients` is 1 to 1000000")?;
            let sane = match group.arrivals {
                Arrivals::Constant { rate } | Arrivals::Poisson { rate } => rate >= 0.0,
                Arrivals::OnOff { rate, on_s, off_s } => rate >= 0.0 && on_s > 0.0 && off_s >= 0.0,
                Arrivals::Burst { at_s, over_s, .. } => at_s >= 0.0 && over_s >= 0.0,
            };
            range(sane, "rates and times of `arrivals` are not negative, and `on_s` is above 0")?;
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
    fn parameters_stand_anywhere_and_a_sweep_varies_one() {
        assert_eq!(Scenario::read(TEXT, &[]).unwrap().policy, "limit 7");
        assert_eq!(Scenario::read(TEXT, &[("limit", "9")]).unwrap().policy, "limit 9");
        let fault = Scenario::read(TEXT, &[("other", "9")]).unwrap_err();
        assert_eq!(fault, ScenarioError::NoParameter("other".to_owned()));
        let fault = Scenario::read(&TEXT.replace("${limit}", "${limt}"), &[]).unwrap_err();
        assert_eq!(fault, ScenarioError::NoParameter("limt".to_owned()));
    }

    #[test]
    fn unknown_keys_and_numbers_out_of_range_are_refused() {
        assert!(Scenario::read(&TEXT.replace("about", "abuot"), &[]).is_err());
        assert!(Scenario::read(&TEXT.replace("lasts_s: 10", "lasts_s: 0"), &[]).is_err());
        assert!(Scenario::read(&TEXT.replace("rate: 2", "rate: -2"), &[]).is_err());
    }
}
