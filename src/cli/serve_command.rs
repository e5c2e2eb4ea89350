//! `tidegate serve`: runs the service. Accepts all settings as flags.

use clap::Args;

use super::flags::{AllFlags, SettingFlags};
use super::terminal;
use crate::app::{self, Configuration, Failure};
use crate::settings::{DropIn, Sources, TextMap};

#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP, after_long_help = AFTER_LONG_HELP)]
pub(super) struct Serve {
    /// Print every setting with its value and source, and exit
    #[arg(long)]
    print_settings: bool,
    #[command(flatten)]
    settings: SettingFlags<AllFlags>,
}

const AFTER_HELP: &str = "\
These are the most common settings; --help lists all, with their defaults and other names.

Examples:
  tidegate serve --policy config/first.yaml
  tidegate serve --policy limits/ --redis-url redis:6379 --replicas 3";

const AFTER_LONG_HELP: &str = "\
Every setting can also be set in the environment, as TIDEGATE_ and its name (--grpc-port:
TIDEGATE_GRPC_PORT) or under its name in envoyproxy/ratelimit, or in a settings file. Flags override
the environment, and the environment overrides the file.

Examples:
  tidegate serve --policy config/first.yaml
  tidegate serve --policy limits/ --headers both --retry-after date --log-format json
  RUNTIME_ROOT=/data RUNTIME_SUBDIRECTORY=ratelimit tidegate";

impl Serve {
    pub(super) fn run(self, environment: &TextMap, drop_in: Option<DropIn>) -> Result<(), Failure> {
        let sources = Sources { drop_in, ..self.settings.read_sources(environment)? };
        let configuration = Configuration::read(sources)?;
        if self.print_settings {
            return terminal::print(&configuration.report());
        }
        app::serve(configuration)
    }
}
