//! `tidegate man`: the manual pages of the program and of each subcommand, for packages.

use std::path::PathBuf;

use clap::Args;

use crate::app::Failure;

#[derive(Args, Debug)]
pub(super) struct Man {
    /// An existing directory, such as ~/.local/share/man/man1
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

impl Man {
    pub(super) fn run(self, program: clap::Command) -> Result<(), Failure> {
        // clap_mangen prints the version of a page from its own command.
        let program = program.propagate_version(true);
        clap_mangen::generate_to(program, &self.directory)
            .map_err(|error| Failure::Usage(format!("{}: {error}", self.directory.display())))
    }
}
