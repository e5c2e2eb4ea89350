//! `tidegate simulate`: the real engine on simulated time over generated traffic.
//!
//! Not here: decisions of its own; it asks the decider that `serve` asks.

mod chart;
mod report;
mod run;
mod scenario;
mod traffic;

use std::path::PathBuf;

use crate::app;
use crate::domain::{Code, Descriptor, Entry, Hits, Micros, Request};

pub use run::{GroupRan, Ran, Said, Slice};
pub use scenario::{Scenario, ScenarioFault};

/// Try a policy on generated traffic, on simulated time.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  tidegate simulate load/scenarios/window_edge.yaml
  tidegate simulate load/scenarios/classes_even.yaml --svg classes.svg
  tidegate simulate load/scenarios/classes_even.yaml --sweep floor=0,24,48,62,80")]
pub struct Simulate {
    /// The scenario: which policy, which callers, for how long
    #[arg(value_name = "SCENARIO.yaml")]
    pub scenario: PathBuf,
    /// Write the chart of the run there
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Run once for each value of one of the scenario's parameters
    #[arg(long, value_name = "NAME=VALUE,VALUE…")]
    pub sweep: Option<String>,
}

/// What a simulation can fail with.
#[derive(Debug)]
pub enum SimulateFault {
    /// A file cannot be read or written.
    File(PathBuf, std::io::Error),
    /// The scenario.
    Scenario(ScenarioFault),
    /// The scenario's policy: its faults, as `check` prints them.
    Policy(String),
    /// `--sweep` is not NAME=VALUE,VALUE.
    Sweep,
}

impl std::fmt::Display for SimulateFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SimulateFault::File(path, fault) => write!(f, "{}: {fault}", path.display()),
            SimulateFault::Scenario(fault) => fault.fmt(f),
            SimulateFault::Policy(faults) => write!(f, "the scenario's policy has faults:\n{faults}"),
            SimulateFault::Sweep => f.write_str("--sweep takes NAME=VALUE,VALUE…"),
        }
    }
}

/// Runs the command and returns what it prints.
///
/// # Errors
///
/// [`SimulateFault`], in the words that the command prints.
pub fn simulate(args: &Simulate) -> Result<String, SimulateFault> {
    let text = app::read_text(&args.scenario)
        .map_err(|fault| SimulateFault::File(args.scenario.clone(), fault))?;
    let Some(sweep) = &args.sweep else {
        let scenario = Scenario::read(&text, None).map_err(SimulateFault::Scenario)?;
        let ran = ran(&scenario)?;
        if let Some(path) = &args.svg {
            app::write_text(path, &chart::svg(&scenario, &ran))
                .map_err(|fault| SimulateFault::File(path.clone(), fault))?;
        }
        return Ok(report::report(&scenario, &ran));
    };
    let (name, values) = sweep.split_once('=').ok_or(SimulateFault::Sweep)?;
    let mut out = String::new();
    for value in values.split(',') {
        let scenario =
            Scenario::read(&text, Some((name, value))).map_err(SimulateFault::Scenario)?;
        let ran = ran(&scenario)?;
        if out.is_empty() {
            out = report::sweep_head(name, &ran) + "\n";
        }
        out += &(report::sweep_line(value, &ran) + "\n");
    }
    Ok(out)
}

/// Runs a scenario on the embedded store.
///
/// # Errors
///
/// [`SimulateFault::Policy`] if the scenario's policy has faults.
pub fn ran(scenario: &Scenario) -> Result<Ran, SimulateFault> {
    let engine = app::Engine::new(&scenario.policy)
        .map_err(|faults| SimulateFault::Policy(faults.to_string()))?;
    let paths: Vec<Vec<(String, String)>> = scenario
        .groups
        .iter()
        .map(|group| {
            let steps = group.descriptor.split(',').map(str::trim);
            steps
                .map(|step| step.split_once('=').unwrap_or((step, "")))
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .collect()
        })
        .collect();
    Ok(run::run(scenario, |group, nth, client, now| {
        let client = client.to_string();
        let path: Vec<(&str, String)> = paths[nth]
            .iter()
            .map(|(key, value)| (key.as_str(), value.replace("{client}", &client)))
            .collect();
        let entries: Vec<Entry<'_>> = path
            .iter()
            .map(|(key, value)| Entry { key: key.as_bytes(), value: value.as_bytes() })
            .collect();
        ask(&engine, &entries, Hits(group.hits), now)
    }))
}

fn ask(engine: &app::Engine, entries: &[Entry<'_>], hits: Hits, now: Micros) -> Said {
    let descriptors = [Descriptor { entries, hits, give_back: false, limit: None, holder: None }];
    let (code, retry_after) = engine.decide(&descriptors, now);
    Said { admitted: code == Code::Ok, retry_after }
}
