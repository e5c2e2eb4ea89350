//! `tidegate simulate`: runs the decision engine on generated traffic, in simulated time.
//!
//! Not here: scenarios, traffic, and reports (the package in `load/simulate`).

use std::sync::Arc;

use tidegate_simulate::{AttemptResult, Scenario, Simulate, SimulationResult, UsageError};

use super::terminal;
use crate::app::{self, Failure, OfflineEngine, to_entries};
use crate::domain::{Code, Descriptor, Hits, Micros, Request};
use crate::policy::{self, Diagnostic, Diagnostics, Options, Policy, Secret};

/// Capacity of the memory store for one run, in counters: four for each caller of the largest
/// possible group. Unused capacity uses no memory.
const STORE_COUNTERS_MAX: usize = 4_000_000;

impl From<UsageError> for Failure {
    fn from(error: UsageError) -> Self {
        Failure::Usage(error.to_string())
    }
}

pub(super) fn run(command: &Simulate) -> Result<(), Failure> {
    command.validate()?;
    let policy = command.policy.as_deref().map(app::read_text_file).transpose()?;
    for (nth, path) in command.scenarios.iter().enumerate() {
        if nth > 0 {
            terminal::print("\n")?;
        }
        let text = app::read_text_file(path)?;
        let output = command.run_scenario(
            &path.display().to_string(),
            &text,
            policy.as_deref(),
            simulate,
        )?;
        terminal::print(&output.text)?;
        if let Some(file) = &command.svg {
            app::write_text_file(file, &output.svg)?;
        }
    }
    Ok(())
}

/// Runs a scenario with a new memory store. Runs of the same scenario give the same result.
///
/// # Errors
///
/// Returns [`Failure::Policy`] with all errors in the scenario's policy.
pub fn simulate(scenario: &Scenario) -> Result<SimulationResult, Failure> {
    let source =
        policy::Source { name: scenario.policy_name(), text: scenario.policy.as_bytes().to_vec() };
    let indent = scenario.policy_indent.unwrap_or(0);
    let compiled = policy::compile(&[source], &Options::default()).map_err(|errors| {
        let in_scenario = |error: Diagnostic| error.indented_by(indent);
        Failure::Policy(Diagnostics(errors.0.into_iter().map(in_scenario).collect()))
    })?;
    let domain = compiled.domains.first().map_or("", |domain| &*domain.name).to_owned();
    let policy = Policy::build(compiled.domains, Secret::default());
    let engine = OfflineEngine::new(Arc::new(policy), STORE_COUNTERS_MAX);
    let mut progress = terminal::Progress::new(true);
    tidegate_simulate::run(scenario, |attempt| {
        let simulated_us = attempt.now_us - scenario.starts_at_s * 1_000_000;
        progress.show(simulated_us, (scenario.lasts_s * 1e6) as u64);
        let entries = to_entries(&attempt.entries);
        let descriptors = [Descriptor::new(&entries, Hits(attempt.hits))];
        let request = Request { domain: &domain, descriptors: &descriptors };
        let decision = engine.decide(&request, Micros(attempt.now_us))?;
        let retry_after = decision.limited_by.and_then(|by| by.retry_after);
        Ok(AttemptResult {
            has_limit: decision.statuses.iter().any(|status| status.rule.is_some()),
            admitted: decision.code == Code::Ok,
            retry_after_us: retry_after.map(|wait| wait.0),
        })
    })
}
