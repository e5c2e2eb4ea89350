//! `tidegate man`: the manual pages of the program and of each subcommand, for packages.

use std::path::{Path, PathBuf};
use std::{fs, io};

use clap::{Args, Command};
use clap_mangen::Man as Page;

use crate::app::Failure;

#[derive(Args, Debug)]
pub(super) struct Man {
    /// An existing directory, such as ~/.local/share/man/man1
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

impl Man {
    pub(super) fn run(self, program: Command) -> Result<(), Failure> {
        // clap_mangen takes the version of a page from the page's own command.
        let mut program = program.propagate_version(true).disable_help_subcommand(true);
        program.build();
        write_pages(&program, &self.directory)
            .map_err(|error| Failure::Usage(format!("{}: {error}", self.directory.display())))
    }
}

/// Writes the page of a command and those of its subcommands.
fn write_pages(command: &Command, directory: &Path) -> io::Result<()> {
    for subcommand in command.get_subcommands() {
        write_pages(subcommand, directory)?;
    }
    // clap_mangen would fill the lines of this text into a paragraph.
    let examples = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let page = Page::new(command.clone().after_help(None::<&str>));
    let mut text = Vec::new();
    page.render(&mut text)?;
    if !examples.is_empty() {
        text.extend_from_slice(verbatim_section("EXAMPLES", &examples).as_bytes());
    }
    fs::write(directory.join(page.get_filename()), text)
}

/// Returns a section in roff whose lines stay as they are.
fn verbatim_section(title: &str, text: &str) -> String {
    let mut section = format!(".SH {title}\n.nf\n");
    for line in text.trim_start_matches("Examples:\n").lines() {
        // The zero-width \& keeps a dot or an apostrophe from starting a request.
        section.push_str("\\&");
        section.push_str(&line.replace('\\', "\\e").replace('-', "\\-"));
        section.push('\n');
    }
    section + ".fi\n"
}
