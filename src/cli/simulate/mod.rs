//! `tidegate simulate`: the real engine on simulated time over generated traffic.
//!
//! Not here: decisions of its own; it asks the decider that `serve` asks.

mod chart;
mod report;
mod scenario;
mod simulation;
mod traffic;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::app::{self, Engine, Failure};
use crate::domain::{Code, Descriptor, Entry, Hits, Request};
use crate::policy::{self, Options, Policy, Secret};

pub use self::simulation::{GroupRan, Ran, Said, Slice, run};
use super::terminal;
pub use scenario::{Arrivals, Group, Phase, Scenario, ScenarioError, WhenRefused};

/// Counters of one run: four for each caller of the largest scenario. The store takes memory only
/// for those that are used.
const KEYS_MAX: usize = 4_000_000;

/// `tidegate simulate`.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Simulate {
    /// Scenarios: which policy, which callers, for how long
    #[arg(required = true, value_name = "SCENARIO.yaml")]
    scenarios: Vec<PathBuf>,
    /// Write a chart there: a row of panels for each group, a column for each value of the sweep
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Run once for each value of one of the scenario's parameters
    #[arg(long, value_name = "NAME=VALUE,VALUE…", value_parser = sweep)]
    sweep: Option<(String, Vec<String>)>,
    /// Give one of the scenario's parameters another value
    #[arg(long, value_name = "NAME=VALUE", value_parser = set)]
    set: Vec<(String, String)>,
}

const AFTER_HELP: &str = "\
Examples:
  tidegate simulate load/scenarios/retry-storm.yaml
  tidegate simulate load/scenarios/burst.yaml --sweep burst=100,300,1000
  tidegate simulate load/scenarios/broken-bot.yaml --set lasts_s=60 --svg bot.svg";

/// A run, and the word that tells it from the others of a sweep; none if it is alone.
struct Shown {
    label: Option<String>,
    ran: Ran,
}

impl Simulate {
    pub(super) fn run(self) -> Result<(), Failure> {
        if self.svg.is_some() && self.scenarios.len() > 1 {
            let wrong = "--svg draws one scenario, but several are named";
            return Err(Failure::Usage(wrong.to_owned()));
        }
        for (nth, path) in self.scenarios.iter().enumerate() {
            if nth > 0 {
                terminal::out("\n")?;
            }
            self.one(path)?;
        }
        Ok(())
    }

    fn one(&self, path: &Path) -> Result<(), Failure> {
        let text = app::read_text(path)?;
        let read = |values: &[(&str, &str)]| {
            let given = self.set.iter().map(|(name, value)| (name.as_str(), value.as_str()));
            let given: Vec<(&str, &str)> = given.chain(values.iter().copied()).collect();
            let at = |fault| Failure::Usage(format!("{}: {fault}", path.display()));
            Scenario::read(&text, &given).map_err(at)
        };
        let mut shown = Vec::new();
        let scenario = if let Some((name, values)) = &self.sweep {
            for value in values {
                let ran = simulate(&read(&[(name, value)])?)?;
                shown.push(Shown { label: Some(value.clone()), ran });
            }
            let scenario = read(&[])?;
            terminal::out(&report::sweep(&scenario, name, &shown))?;
            scenario
        } else {
            let scenario = read(&[])?;
            shown.push(Shown { label: None, ran: simulate(&scenario)? });
            terminal::out(&report::report(&scenario, &shown[0].ran))?;
            scenario
        };
        if let Some(file) = &self.svg {
            app::write_text(file, &chart::svg(&scenario, &shown))?;
        }
        Ok(())
    }
}

fn set(text: &str) -> Result<(String, String), &'static str> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        Some(_) | None => Err("it takes NAME=VALUE"),
    }
}

fn sweep(text: &str) -> Result<(String, Vec<String>), &'static str> {
    let (name, values) = set(text).map_err(|_| "it takes NAME=VALUE,VALUE…")?;
    Ok((name, values.split(',').map(str::to_owned).collect()))
}

/// Runs a scenario on an embedded store of its own. The same scenario runs the same every time.
///
/// # Errors
///
/// [`Failure::Policy`] with every fault of the scenario's policy.
pub fn simulate(scenario: &Scenario) -> Result<Ran, Failure> {
    let source = policy::Source {
        name: "the scenario's policy".to_owned(),
        text: scenario.policy.as_bytes().to_vec(),
    };
    let compiled = policy::compile(&[source], &Options::default()).map_err(Failure::Policy)?;
    let domain = compiled.domains.first().map_or("", |domain| &*domain.name).to_owned();
    let policy = Policy::build(compiled.domains, Secret::default());
    let engine = Engine::new(Arc::new(policy), KEYS_MAX);
    run(scenario, |group, client, now| {
        let client = client.to_string();
        let pairs: Vec<(&str, String)> = group
            .descriptor
            .split(',')
            .map(|pair| pair.trim().split_once('=').unwrap_or((pair.trim(), "")))
            .map(|(key, value)| (key, value.replace("{client}", &client)))
            .collect();
        let entries: Vec<Entry<'_>> = pairs
            .iter()
            .map(|(key, value)| Entry { key: key.as_bytes(), value: value.as_bytes() })
            .collect();
        let descriptors = [Descriptor {
            entries: &entries,
            hits: Hits(group.hits),
            refund: false,
            limit: None,
            holder: None,
        }];
        let request = Request { domain: &domain, descriptors: &descriptors };
        let decision = engine.decide(&request, now)?;
        Ok(Said {
            admitted: decision.code == Code::Ok,
            retry_after: decision.limited_by.and_then(|by| by.retry_after),
        })
    })
}
