//! `tidegate simulate`: runs the real decision engine on generated traffic, in simulated time.

mod call_times;
mod chart;
mod report;
mod scenario;
mod simulation;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::app::{self, Failure, OfflineEngine, plain_descriptor, to_entries};
use crate::domain::{Code, Request};
use crate::policy::{self, Diagnostic, Diagnostics, Options, Policy, Secret};

pub use self::simulation::{AttemptResult, GroupResult, SimulationResult, TimeSlice, run};
use super::terminal;
pub use scenario::{Arrivals, Group, Phase, Scenario, ScenarioError, WhenRefused};

/// Capacity of the memory store for one run, in counters: four for each caller of the largest
/// possible group. Unused capacity uses no memory.
const STORE_COUNTERS_MAX: usize = 4_000_000;

/// Flags of `tidegate simulate`.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Simulate {
    /// Scenario files, each with a policy, groups of callers and a duration
    #[arg(required = true, value_name = "SCENARIO.yaml")]
    scenarios: Vec<PathBuf>,
    /// Write an SVG chart to this file, with a row per group and a column per swept value
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
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
  tidegate simulate load/scenarios/broken-bot.yaml --set lasts_s=60 --svg bot.svg";

/// Result of one run, labeled with the value of the swept parameter.
struct LabeledResult {
    /// Value of the swept parameter, or `None` for a run without `--sweep`.
    label: Option<String>,
    result: SimulationResult,
}

impl Simulate {
    pub(super) fn run(self) -> Result<(), Failure> {
        if self.svg.is_some() && self.scenarios.len() > 1 {
            let reason = "--svg needs exactly one scenario";
            return Err(Failure::Usage(reason.to_owned()));
        }
        for (nth, path) in self.scenarios.iter().enumerate() {
            if nth > 0 {
                terminal::print("\n")?;
            }
            self.run_scenario(path)?;
        }
        Ok(())
    }

    fn run_scenario(&self, path: &Path) -> Result<(), Failure> {
        let text = app::read_text_file(path)?;
        let read = |values: &[(&str, &str)]| {
            let set = self.set.iter().map(|(name, value)| (name.as_str(), value.as_str()));
            let parameters: Vec<(&str, &str)> = set.chain(values.iter().copied()).collect();
            let file = path.display().to_string();
            match Scenario::parse(&text, &parameters) {
                Ok(scenario) => Ok(Scenario { file, ..scenario }),
                Err(error) => Err(Failure::Usage(match error {
                    ScenarioError::Format { position: Some((line, column)), .. } => {
                        format!("{file}:{line}:{column}: {error}")
                    }
                    _ => format!("{file}: {error}"),
                })),
            }
        };
        let mut results = Vec::new();
        let scenario = if let Some((name, values)) = &self.sweep {
            for value in values {
                let result = simulate(&read(&[(name, value)])?)?;
                results.push(LabeledResult { label: Some(value.clone()), result });
            }
            let scenario = read(&[])?;
            terminal::print(&report::format_sweep(&scenario, name, &results))?;
            scenario
        } else {
            let scenario = read(&[])?;
            let result = simulate(&scenario)?;
            terminal::print(&report::format_report(&scenario, &result))?;
            results.push(LabeledResult { label: None, result });
            scenario
        };
        if let Some(file) = &self.svg {
            app::write_text_file(file, &chart::render_svg(&scenario, &results))?;
        }
        Ok(())
    }
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

/// Runs a scenario with a new memory store. Runs of the same scenario give the same result.
///
/// # Errors
///
/// Returns [`Failure::Policy`] with all errors in the scenario's policy.
pub fn simulate(scenario: &Scenario) -> Result<SimulationResult, Failure> {
    let name = match scenario.policy_indent {
        Some(_) => scenario.file.clone(),
        None => format!("the policy in {}", scenario.file),
    };
    let source = policy::Source { name, text: scenario.policy.as_bytes().to_vec() };
    let indent = scenario.policy_indent.unwrap_or(0);
    let compiled = policy::compile(&[source], &Options::default()).map_err(|errors| {
        let in_scenario = |error: Diagnostic| error.indented_by(indent);
        Failure::Policy(Diagnostics(errors.0.into_iter().map(in_scenario).collect()))
    })?;
    let domain = compiled.domains.first().map_or("", |domain| &*domain.name).to_owned();
    let policy = Policy::build(compiled.domains, Secret::default());
    let engine = OfflineEngine::new(Arc::new(policy), STORE_COUNTERS_MAX);
    run(scenario, |group, client, now| {
        let client = client.to_string();
        let pairs: Vec<(String, String)> = group
            .descriptor
            .split(',')
            .map(|pair| pair.trim().split_once('=').unwrap_or((pair.trim(), "")))
            .map(|(key, value)| (key.to_owned(), value.replace("{client}", &client)))
            .collect();
        let entries = to_entries(&pairs);
        let descriptors = [plain_descriptor(&entries, group.hits)];
        let request = Request { domain: &domain, descriptors: &descriptors };
        let decision = engine.decide(&request, now)?;
        Ok(AttemptResult {
            admitted: decision.code == Code::Ok,
            retry_after: decision.limited_by.and_then(|by| by.retry_after),
        })
    })
}
