//! `tidegate explain`: shows which rule a request matches and why, its counters, and the predicted
//! decision.

use std::path::PathBuf;

use clap::Args;

use super::flags::{CounterFlags, SettingFlags};
use super::terminal;
use super::usage_errors::DESCRIPTORS_PLACEHOLDER;
use crate::app::{self, Failure, SampleRequest};
use crate::settings::TextMap;

#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(super) struct Explain {
    /// Policy files, or directories with .yaml and .yml files
    #[arg(long, required = true, value_name = "FILE|DIR")]
    policy: Vec<PathBuf>,
    /// Domain of the request
    domain: String,
    /// Descriptors, each as k=v,k2=v2 (write \, for a comma inside a value)
    #[arg(required = true, value_name = DESCRIPTORS_PLACEHOLDER)]
    descriptors: Vec<String>,
    /// Hits charged by the request; 0 only checks the limits
    #[arg(long, default_value_t = 1)]
    hits: u64,
    #[command(flatten)]
    settings: SettingFlags<CounterFlags>,
}

const AFTER_HELP: &str = "\
Examples:
  tidegate explain --policy limits.yaml edge remote_address=10.0.0.1
  tidegate explain --policy limits/ edge api_token=t1,remote_address=10.0.0.1 plan=free";

impl Explain {
    pub(super) fn run(self, environment: &TextMap) -> Result<(), Failure> {
        let request = SampleRequest::parse(self.domain, &self.descriptors, self.hits)?;
        let sources = self.settings.read_used_sources(environment)?;
        terminal::print(&app::explain(&self.policy, sources, &request)?)
    }
}
