//! `tidegate serve`: every setting of the table.
//!
//! Not here: the flags (`flags`), serving (`app`).

use clap::Args;

use super::flags::{Every, Told};
use super::terminal;
use crate::app::settings::Texts;
use crate::app::{self, Failure};

#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(super) struct Serve {
    /// Print every setting with its value and where it is from, and exit
    #[arg(long)]
    print_settings: bool,
    #[command(flatten)]
    told: Told<Every>,
}

const AFTER_HELP: &str = "\
Every setting can also come from the environment as TIDEGATE_ and its name (--grpc-port:
TIDEGATE_GRPC_PORT), or under the name that envoyproxy/ratelimit gives it. A flag goes before the
environment, the environment before the settings file.

Examples:
  tidegate serve --policy config/first.yaml
  tidegate serve --policy limits/ --headers both --retry-after date --log-format json
  RUNTIME_ROOT=/data RUNTIME_SUBDIRECTORY=ratelimit tidegate";

impl Serve {
    pub(super) fn run(self, environment: &Texts) -> Result<(), Failure> {
        let configured = app::configure(self.told.sources(environment)?)?;
        if self.print_settings {
            return terminal::out(&configured.report());
        }
        app::serve(configured)
    }
}
