//! `tidegate reset` and `tidegate rehearse-outage`: reset the counters of one descriptor, and
//! simulate an outage of Redis.
//!
//! Both send their request to the debug port of a running service through `app::admin_client`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::terminal;
use super::usage_errors::DESCRIPTORS_PLACEHOLDER;
use crate::app::{self, Failure};
use crate::settings;

/// Flag for reading from the debug port of a running service.
#[derive(Args, Debug)]
pub(super) struct DebugAddress {
    /// Address of the service's debug port
    #[arg(long, default_value = "127.0.0.1:6070", value_name = "HOST:PORT")]
    pub(super) debug: String,
}

/// Flags for changes on the debug port of a running service.
#[derive(Args, Debug)]
pub(super) struct DebugPortFlags {
    #[command(flatten)]
    address: DebugAddress,
    /// File that contains the token, as given to the service with --debug-token-file
    #[arg(long, env = "TIDEGATE_DEBUG_TOKEN_FILE", value_name = "FILE")]
    debug_token_file: PathBuf,
}

impl DebugPortFlags {
    /// Sends a request, and prints the response.
    pub(super) fn post(&self, path: &str, parameters: &[(&str, &str)]) -> Result<(), Failure> {
        terminal::print(&self.send(path, parameters)?)
    }

    /// Sends a request, and returns the response.
    pub(super) fn send(&self, path: &str, parameters: &[(&str, &str)]) -> Result<String, Failure> {
        app::post_to_debug_port(&self.address.debug, path, parameters, &self.debug_token_file)
    }
}

#[derive(Args, Debug)]
#[command(after_help = RESET_HELP)]
pub(super) struct Reset {
    #[command(flatten)]
    port: DebugPortFlags,
    /// Domain of the counters
    domain: String,
    /// Descriptor of the counters, as k=v,k2=v2 (write \, for a comma inside a value)
    #[arg(value_name = DESCRIPTORS_PLACEHOLDER)]
    descriptor: String,
}

const RESET_HELP: &str = "\
Examples:
  tidegate reset edge api_token=t1 --debug-token-file token

With Redis, this resets the counters of every replica; cached rejections on other replicas expire
within a second. Without Redis, it resets one replica. Concurrency slots stay with their holders.";

impl Reset {
    pub(super) fn run(self) -> Result<(), Failure> {
        let parameters = [("domain", &*self.domain), ("descriptor", &*self.descriptor)];
        self.port.post("/reset", &parameters)
    }
}
#[derive(Args, Debug)]
#[command(after_help = REHEARSE_OUTAGE_HELP)]
pub(super) struct RehearseOutage {
    #[command(flatten)]
    port: DebugPortFlags,
    /// End the rehearsal after this time, such as 5m, or this many seconds
    #[arg(long, default_value = "60s", value_name = "DURATION")]
    #[arg(value_parser = settings::parse_lifetime)]
    r#for: Duration,
    /// End a rehearsal immediately
    #[arg(long, conflicts_with = "for")]
    end: bool,
}

const REHEARSE_OUTAGE_HELP: &str = "\
Examples:
  tidegate rehearse-outage --for 60s --debug-token-file token
  tidegate rehearse-outage --end --debug-token-file token

One replica then decides as if Redis were unavailable: on_store_failure of each rule applies. Redis
and the other replicas are not affected. docs/DEPLOYING.md says what to watch and what must hold.";

impl RehearseOutage {
    pub(super) fn run(self) -> Result<(), Failure> {
        if self.end {
            return self.port.post("/return-to-redis", &[]);
        }
        let seconds = self.r#for.as_secs().to_string();
        self.port.post("/leave-redis", &[("for", &*seconds)])
    }
}
