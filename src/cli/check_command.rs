//! `tidegate check`: every fault and warning of a policy, before it is served.
//!
//! Not here: what is a fault (`policy`).

use std::path::PathBuf;

use clap::Args;

use super::flags::{Reading, Told};
use super::terminal;
use super::terminal::Paint;
use crate::app::settings::Texts;
use crate::app::{self, Failure};

#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(super) struct Check {
    /// Policy files, or directories with .yaml and .yml files
    #[arg(required = true, value_name = "FILE|DIR")]
    paths: Vec<PathBuf>,
    /// Treat warnings as faults
    #[arg(long)]
    strict: bool,
    #[command(flatten)]
    told: Told<Reading>,
}

const AFTER_HELP: &str = "\
Examples:
  tidegate check limits.yaml
  tidegate check --strict limits/        in CI: warnings fail too (exit code 65)

Of each two limits that can meet in a call it says whether a Redis Cluster keeps their counters
on one node: joined (a call over both is one step), joinable (by naming one of these entries as
hash_tag), or not joinable (both stay exact; a call over both takes up to two rounds).";

impl Check {
    pub(super) fn run(self, environment: &Texts) -> Result<(), Failure> {
        let loaded = app::check(&self.paths, self.told.own_sources(environment)?)?;
        for warning in &loaded.warnings {
            terminal::warning(warning);
        }
        if self.strict && !loaded.warnings.is_empty() {
            return Err(Failure::Strict { warnings: loaded.warnings.len() });
        }
        for meeting in &loaded.colocation {
            terminal::out(&format!("on a Redis Cluster: {meeting}\n"))?;
        }
        let word = Paint::Good.on("ok", terminal::colour());
        let (files, rules) = (loaded.files, loaded.policy.rules().len());
        let warnings = loaded.warnings.len();
        let counted = |count: usize, what: &str| match count {
            1 => format!("1 {what}"),
            _ => format!("{count} {what}s"),
        };
        let all = [counted(files, "file"), counted(rules, "rule"), counted(warnings, "warning")];
        terminal::out(&format!("{word}: {}\n", all.join(", ")))
    }
}
