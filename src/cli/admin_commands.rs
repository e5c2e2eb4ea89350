//! `tidegate reset` and `tidegate switch`: unblock one customer; switch a rule or a domain for now.
//!
//! Not here: how the service is asked (`app`), what it does then.

use std::path::PathBuf;

use clap::Args;

use super::terminal;
use crate::app::{self, Failure};

/// Where the service is asked, and by what right.
#[derive(Args, Debug)]
struct Side {
    /// The service's debug port
    #[arg(long, default_value = "127.0.0.1:6070", value_name = "HOST:PORT")]
    debug: String,
    /// File with the token that the service has as --debug-token-file
    #[arg(long, env = "TIDEGATE_DEBUG_TOKEN_FILE", value_name = "FILE")]
    debug_token_file: PathBuf,
}

#[derive(Args, Debug)]
#[command(after_help = RESET_HELP)]
pub(super) struct Reset {
    #[command(flatten)]
    side: Side,
    /// The domain
    domain: String,
    /// The descriptor, as k=v,k2=v2 (a comma inside a value: \,)
    #[arg(value_name = "K=V,K2=V2")]
    descriptor: String,
}

const RESET_HELP: &str = "\
Examples:
  tidegate reset edge api_token=t1 --debug-token-file token

With Redis the counters are every replica's; what a replica remembers of a refusal ends within a
second. Without, they are one replica's. Slots of concurrency stay with their holders.";

impl Reset {
    pub(super) fn run(self) -> Result<(), Failure> {
        let parameters = [("domain", &*self.domain), ("descriptor", &*self.descriptor)];
        ordered(&self.side, "/reset", &parameters)
    }
}

#[derive(Args, Debug)]
#[command(after_help = SWITCH_HELP)]
pub(super) struct Switch {
    #[command(flatten)]
    side: Side,
    /// A domain, or a rule's path as /rlconfig lists it; `all` with `undo`
    target: String,
    /// shadow, allow, deny, a per cent such as 20%, or undo
    to: String,
    /// For so many seconds; else until it is refunded
    #[arg(long, value_name = "SECONDS")]
    r#for: Option<u64>,
}

const SWITCH_HELP: &str = "\
Examples:
  tidegate switch edge 20% --for 600 --debug-token-file token     a fifth of every limit
  tidegate switch edge.api_token shadow --debug-token-file token
  tidegate switch all undo --debug-token-file token

A switch holds in one replica, until it is refunded, its time is up, the replica ends or the policy is
reloaded: the policy wins.";

impl Switch {
    pub(super) fn run(self) -> Result<(), Failure> {
        let seconds = self.r#for.map(|seconds| seconds.to_string());
        let mut parameters = Vec::new();
        let undo = self.to == "undo";
        if !(undo && self.target == "all") {
            parameters.push(("target", &*self.target));
        }
        if undo {
            return ordered(&self.side, "/undo", &parameters);
        }
        parameters.push(("to", &self.to));
        parameters.extend(seconds.as_deref().map(|seconds| ("for", seconds)));
        ordered(&self.side, "/switch", &parameters)
    }
}

fn ordered(side: &Side, path: &str, parameters: &[(&str, &str)]) -> Result<(), Failure> {
    terminal::out(&app::order(&side.debug, path, parameters, &side.debug_token_file)?)
}
