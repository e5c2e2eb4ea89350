//! `tidegate serve`: flags made from the table of settings.
//!
//! Not here: serving (`app`).

use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};

use super::print;
use crate::app::settings::{Sources, TABLE, Texts};
use crate::app::{self, Failure};

#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(super) struct Serve {
    /// Print every setting with its value and where it is from, and exit
    #[arg(long)]
    print_settings: bool,
    /// A file with settings: YAML, `name: value` with the names of the flags
    #[arg(long, value_name = "FILE")]
    settings: Option<PathBuf>,
    #[command(flatten)]
    flags: Flags,
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
        let file = match &self.settings {
            Some(path) => app::settings_file(path)?,
            None => Texts::new(),
        };
        let sources = Sources { flags: self.flags.0, environment: environment.clone(), file };
        let configured = app::configure(sources)?;
        if self.print_settings {
            return print::out(&configured.report());
        }
        app::serve(configured)
    }
}

/// The flags that were given, by name.
#[derive(Debug)]
struct Flags(Texts);

impl Args for Flags {
    fn augment_args(command: Command) -> Command {
        TABLE.iter().fold(command, |command, row| {
            let shown = if row.default.is_empty() { "none" } else { row.default };
            let mut names = row.variable();
            for theirs in row.theirs {
                names = format!("{names}, {theirs}");
            }
            let flag = Arg::new(row.name)
                .long(row.name)
                .value_name("VALUE")
                .help(row.help.trim().trim_end_matches('.'))
                .long_help(format!("{}\n[default: {shown}] [env: {names}]", row.help.trim()));
            // A list may be written with blanks, as a shell spreads it.
            command.arg(if row.name == "policy" {
                flag.num_args(1..).action(ArgAction::Append).value_name("FILE|DIR")
            } else if row.default == "false" {
                flag.num_args(0..=1).default_missing_value("true")
            } else {
                flag
            })
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Flags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = TABLE.iter().filter_map(|row| {
            let texts: Vec<&str> =
                matches.get_many::<String>(row.name)?.map(String::as_str).collect();
            Some((row.name.to_owned(), texts.join(",")))
        });
        Ok(Flags(given.collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
