//! Flags made from the table of settings: all of them for `serve`, those of the policy for `check` and
//! `explain`, so that a setting is named, given and read the same way wherever it counts.
//!
//! Not here: what a setting means (`app::settings`), flags of one subcommand alone (its own file).

use std::marker::PhantomData;
use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};

use crate::app::{self, Failure};
use crate::settings::{Row, Sources, TABLE, Texts};

/// Which rows of the table a subcommand has.
pub(super) trait Pick {
    /// Paths may follow, so that only `=` tells the value of a switch from the first of them.
    const PATHS_FOLLOW: bool = true;

    fn picks(row: &Row) -> bool;
}

/// All of them.
#[derive(Debug)]
pub(super) struct Every;

/// What decides how policy files are read.
#[derive(Debug)]
pub(super) struct Reading;

/// That, and what decides how counters are named.
#[derive(Debug)]
pub(super) struct Naming;

impl Pick for Every {
    const PATHS_FOLLOW: bool = false;

    fn picks(_: &Row) -> bool {
        true
    }
}

impl Pick for Reading {
    fn picks(row: &Row) -> bool {
        ["merge-domain-config", "policy-file-size", "policy-size"].contains(&row.name)
    }
}

impl Pick for Naming {
    fn picks(row: &Row) -> bool {
        let own = ["key-secret", "key-secret-file", "cache-key-prefix"];
        Reading::picks(row) || own.contains(&row.name)
    }
}

/// The settings that were given as flags, and the file with others.
#[derive(Args, Debug)]
pub(super) struct Told<P: Pick> {
    /// A file with settings: YAML, `name: value` with the names of the flags
    #[arg(long, value_name = "FILE")]
    settings: Option<PathBuf>,
    #[command(flatten)]
    flags: Flags<P>,
}

impl<P: Pick> Told<P> {
    /// All that was given, wherever it was.
    ///
    /// # Errors
    ///
    /// The settings file cannot be used.
    pub(super) fn sources(self, environment: &Texts) -> Result<Sources, Failure> {
        let file = match &self.settings {
            Some(path) => app::settings_file(path)?,
            None => Texts::new(),
        };
        Ok(Sources { flags: self.flags.given, environment: environment.clone(), file })
    }

    /// The same without what is none of the subcommand's business: a port that is none keeps a
    /// service from starting, not its policy from being looked at.
    ///
    /// # Errors
    ///
    /// The settings file cannot be used.
    pub(super) fn own_sources(self, environment: &Texts) -> Result<Sources, Failure> {
        let mut sources = self.sources(environment)?;
        sources.environment.retain(|name, _| {
            picked::<P>().any(|row| row.variable() == *name || row.theirs.contains(&name.as_str()))
        });
        // A name that is no setting stays, to be told.
        let is_others = |name: &str| TABLE.iter().any(|row| row.name == name && !P::picks(row));
        sources.file.retain(|name, _| !is_others(name));
        Ok(sources)
    }
}

/// The flags that were given, by name.
#[derive(Debug)]
struct Flags<P> {
    given: Texts,
    of: PhantomData<P>,
}

fn picked<P: Pick>() -> impl Iterator<Item = &'static Row> {
    TABLE.iter().filter(|row| P::picks(row))
}

impl<P: Pick> Args for Flags<P> {
    fn augment_args(command: Command) -> Command {
        picked::<P>().fold(command, |command, row| {
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
                let switch = flag.num_args(0..=1).default_missing_value("true");
                switch.require_equals(P::PATHS_FOLLOW)
            } else {
                flag
            })
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<P: Pick> FromArgMatches for Flags<P> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = picked::<P>().filter_map(|row| {
            let texts: Vec<&str> =
                matches.get_many::<String>(row.name)?.map(String::as_str).collect();
            Some((row.name.to_owned(), texts.join(",")))
        });
        Ok(Flags { given: given.collect(), of: PhantomData })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
