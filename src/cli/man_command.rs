//! `tidegate man`: writes the manual pages of the program and its subcommands, for packages.

use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, Command};
use clap_mangen::Man as Page;

use crate::app::{self, Failure};

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
    }
}

fn write_pages(command: &Command, directory: &Path) -> Result<(), Failure> {
    for subcommand in command.get_subcommands() {
        write_pages(subcommand, directory)?;
    }
    let page = Page::new(command.clone().after_help(None::<&str>));
    let path = directory.join(page.get_filename());
    // Writing into memory does not fail.
    let text =
        page_text(command, &page).map_err(|_| Failure::Bug("a manual page cannot be rendered"))?;
    Ok(app::write_text_file(&path, &text)?)
}

/// Returns a manual page in roff. Appends the examples from the help text as a verbatim section,
/// because clap_mangen would reflow their lines into one paragraph.
fn page_text(command: &Command, page: &Page) -> io::Result<String> {
    let mut text = Vec::new();
    page.render(&mut text)?;
    let mut text = String::from_utf8_lossy(&text).into_owned();
    if let Some(examples) = command.get_after_help() {
        text.push_str(&verbatim_section("EXAMPLES", &examples.to_string()));
    }
    Ok(text)
}

/// Returns a roff section whose lines are not reflowed.
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
