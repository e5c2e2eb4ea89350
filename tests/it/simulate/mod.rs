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

use tidegate::cli::simulate::{GroupRan, Ran, Scenario, simulate};

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("load/scenarios")
}

/// Runs a scenario, with other values for some of its parameters.
fn ran(name: &str, given: &[(&str, &str)]) -> Ran {
    let text = fs::read_to_string(directory().join(format!("{name}.yaml"))).expect("a scenario");
    let scenario = Scenario::read(&text, given).unwrap_or_else(|fault| panic!("{name}: {fault}"));
    simulate(&scenario).unwrap_or_else(|fault| panic!("{name}: {fault}"))
}

/// What became of one group.
fn group<'r>(ran: &'r Ran, name: &str) -> &'r GroupRan {
    ran.groups.iter().find(|group| group.name == name).expect("a group of that name")
}

/// How many of each group's tries were admitted, in the scenario's order.
fn admitted(ran: &Ran) -> Vec<u64> {
    ran.groups.iter().map(|group| group.admitted).collect()
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
        let ran = ran(&name, given);
        assert!(ran.groups.iter().all(|group| group.tries > 0), "{name}: a silent group");
        count += 1;
    }
    assert!(count >= 15, "only {count} scenarios");
}
