//! The scenarios of `load/scenarios` on the real decider in simulated time, each with the claim it
//! demonstrates. Every number is the same on every run.
//!
//! Not here: the command (`cli`), the generated traffic (the simulator's own tests).

mod bursts;
mod class_claims;
mod hybrid;
mod retries;

use std::fs;
use std::path::{Path, PathBuf};

use tidegate::cli::simulate_command::simulate;
use tidegate_simulate::{GroupResult, Scenario, SimulationResult};

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("load/scenarios")
}

/// Runs a scenario with these parameters.
fn simulated(name: &str, parameters: &[(&str, &str)]) -> SimulationResult {
    let text = fs::read_to_string(directory().join(format!("{name}.yaml"))).expect("a scenario");
    let scenario =
        Scenario::parse(&text, parameters).unwrap_or_else(|error| panic!("{name}: {error}"));
    simulate(&scenario).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The result of one group.
fn group<'r>(result: &'r SimulationResult, name: &str) -> &'r GroupResult {
    result.groups.iter().find(|group| group.name == name).expect("a group of that name")
}

/// Admitted tries of each group, in the order of the scenario.
fn admitted(result: &SimulationResult) -> Vec<u64> {
    result.groups.iter().map(|group| group.admitted).collect()
}

#[test]
fn every_scenario_runs() {
    let mut count = 0;
    for file in fs::read_dir(directory()).expect("the scenarios") {
        let path = file.expect("a file").path();
        if path.extension().is_none_or(|extension| extension != "yaml") {
            continue;
        }
        let name = path.file_stem().and_then(|name| name.to_str()).expect("a name").to_owned();
        // The bot's three hours have a shorter run of their own.
        let given: &[(&str, &str)] = if name == "broken-bot" { &[("lasts_s", "10")] } else { &[] };
        let result = simulated(&name, given);
        assert!(result.groups.iter().all(|group| group.tries > 0), "{name}: a silent group");
        count += 1;
    }
    assert!(count >= 15, "only {count} scenarios");
}
