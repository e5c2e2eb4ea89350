//! Simulator for rate limit policies: makes the calls of a scenario in simulated time, and reports
//! how many are admitted, rejected, and retried. Also parses the test files of `tidegate test`.
//!
//! Not here: the policy engine, files, and the terminal, which `tidegate simulate` supplies
//! (`src/cli/simulate_command.rs`).

mod call_times;
mod chart;
mod policy_test;
mod report;
mod scenario;
mod simulation;

use std::fmt;
use std::path::PathBuf;

pub use self::policy_test::{
    Ask, AskedDescriptor, Expected, ExpectedCode, OneOrList, PolicyTest, Step, TestFile,
};
pub use self::scenario::{Arrivals, Group, Phase, Scenario, ScenarioError, WhenRejected};
pub use self::simulation::{Attempt, AttemptResult, GroupResult, SimulationResult, TimeSlice, run};

/// Flags of `tidegate simulate`.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Simulate {
    /// Scenario files, each with a policy, groups of callers and a duration
    #[arg(required = true, value_name = "SCENARIO.yaml")]
    pub scenarios: Vec<PathBuf>,
    /// Policy file to run instead of the policies in the scenarios
    #[arg(long, value_name = "FILE")]
    pub policy: Option<PathBuf>,
    /// Write an SVG chart to this file, with a row per group and a column per swept value
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Run each scenario once for each value of a parameter
    #[arg(long, value_name = "NAME=VALUE,VALUE…", value_parser = parse_sweep)]
    sweep: Option<(String, Vec<String>)>,
    /// Set a parameter of the scenarios
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_assignment)]
    set: Vec<(String, String)>,
}

const AFTER_HELP: &str = "\
A scenario:
  about: one user who calls twice a second
  policy: |
    domain: edge
    descriptors:
      - key: user
        rate_limit: {unit: minute, requests_per_unit: 100}
  lasts_s: 60
  groups:
    - {name: users, descriptor: 'user=u{client}', arrivals: {constant: {rate: 2}}}

Examples:
  tidegate simulate load/scenarios/retry-storm.yaml
  tidegate simulate load/scenarios/burst.yaml --sweep burst=100,300,1000
  tidegate simulate load/scenarios/burst.yaml --policy policy.yaml
  tidegate simulate load/scenarios/broken-bot.yaml --set lasts_s=60 --svg bot.svg";

/// Result of one run, labeled with the value of the swept parameter.
struct LabeledResult {
    /// Value of the swept parameter, or `None` for a run without `--sweep`.
    label: Option<String>,
    result: SimulationResult,
}

/// Output of [`Simulate::run_scenario`].
#[derive(Debug)]
pub struct Output {
    /// Tables with the results.
    pub text: String,
    /// SVG chart of the results.
    pub svg: String,
}

/// Error in a scenario file or in the flags, with the file and, if known, the position.
#[derive(Debug)]
pub struct UsageError(String);

impl std::error::Error for UsageError {}

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Simulate {
    /// Checks the flags against each other.
    ///
    /// # Errors
    ///
    /// Returns an error if `--svg` is set and there are several scenarios.
    pub fn validate(&self) -> Result<(), UsageError> {
        match self.svg.is_some() && self.scenarios.len() > 1 {
            true => Err(UsageError("--svg needs exactly one scenario".to_owned())),
            false => Ok(()),
        }
    }

    /// Runs the scenario with the text `text`, once for each value of a swept parameter. `file` is
    /// its name in error messages, and `policy` the text of the file in [`policy`](Self::policy), if
    /// one is given. `simulate` compiles the scenario's policy and calls [`run`].
    ///
    /// # Errors
    ///
    /// Returns an error if the scenario is invalid, or the first error that `simulate` returns.
    pub fn run_scenario<E: From<UsageError>>(
        &self,
        file: &str,
        text: &str,
        policy: Option<&str>,
        simulate: impl Fn(&Scenario) -> Result<SimulationResult, E>,
    ) -> Result<Output, E> {
        let read = |swept: Option<(&str, &str)>| {
            let set = self.set.iter().map(|(name, value)| (name.as_str(), value.as_str()));
            let parameters: Vec<(&str, &str)> = set.chain(swept).collect();
            match Scenario::parse_with(text, policy, &parameters) {
                Ok(scenario) => {
                    let policy_file = self.policy.as_ref().map(|path| path.display().to_string());
                    Ok(Scenario { file: file.to_owned(), policy_file, ..scenario })
                }
                Err(error) => Err(UsageError(match error {
                    ScenarioError::Format { position: Some((line, column)), .. } => {
                        format!("{file}:{line}:{column}: {error}")
                    }
                    _ => format!("{file}: {error}"),
                })),
            }
        };
        let simulate = |scenario: &Scenario| {
            let result = simulate(scenario)?;
            let unlimited = result.groups.iter().find(|group| group.is_unlimited);
            match unlimited {
                Some(group) => Err(E::from(unlimited_error(file, text, &group.name))),
                None => Ok(result),
            }
        };
        let Some((name, values)) = &self.sweep else {
            let scenario = read(None)?;
            let result = simulate(&scenario)?;
            let text = report::format_report(&scenario, &result);
            let results = [LabeledResult { label: None, result }];
            return Ok(Output { text, svg: chart::render_svg(&scenario, &results) });
        };
        let mut results = Vec::new();
        for value in values {
            let result = simulate(&read(Some((name, value)))?)?;
            results.push(LabeledResult { label: Some(value.clone()), result });
        }
        let scenario = read(None)?;
        let text = report::format_sweep(&scenario, name, &results);
        Ok(Output { text, svg: chart::render_svg(&scenario, &results) })
    }
}

/// Returns the error for a group to whose calls no limit applies, with the first line that has its name.
fn unlimited_error(file: &str, text: &str, group: &str) -> UsageError {
    let is_group = |line: &str| line.contains("name:") && line.contains(group);
    let line = text.lines().position(is_group).map_or(1, |nth| nth + 1);
    UsageError(format!(
        "{file}:{line}: no limit applies to group `{group}`: the policy has no rule for its descriptor; \
         correct the descriptor or the policy"
    ))
}

fn parse_assignment(text: &str) -> Result<(String, String), &'static str> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        Some(_) | None => Err("expected NAME=VALUE"),
    }
}

fn parse_sweep(text: &str) -> Result<(String, Vec<String>), &'static str> {
    let (name, values) = parse_assignment(text).map_err(|_| "expected NAME=VALUE,VALUE…")?;
    Ok((name, values.split(',').map(str::to_owned).collect()))
}
