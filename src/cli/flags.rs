//! Generates flags from the table of settings. `serve` has a flag for every setting. `check` and
//! `explain` have flags for the settings in [`PolicyFlags`]. `explain` also has flags for the
//! settings that affect the names of counters. A setting has the same name and sources in every
//! subcommand.

use std::ffi::OsStr;
use std::marker::PhantomData;
use std::path::PathBuf;

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};

use crate::app::{self, Failure};
use crate::settings::{SettingRow, Sources, TABLE, TextMap};

/// Settings that `tidegate serve -h` lists: those that most installations set. `--help` lists all.
const COMMON_SETTINGS: [&str; 8] = [
    "policy",
    "grpc-port",
    "debug-token-file",
    "key-secret-file",
    "replicas",
    "redis-url",
    "redis-type",
    "redis-auth-file",
];

/// Set of settings that a subcommand accepts as flags.
pub(super) trait FlagSet {
    /// Whether the short help lists only [`COMMON_SETTINGS`].
    const IS_LONG: bool = false;

    /// Whether the subcommand accepts paths after its flags. If so, the value of a boolean flag
    /// must follow an `=`, so that a path is not parsed as the value.
    const ACCEPTS_PATHS: bool = true;

    fn accepts(row: &SettingRow) -> bool;
}

/// Flag set with all settings.
#[derive(Debug)]
pub(super) struct AllFlags;

/// Flag set with the settings that affect how policy files are read.
#[derive(Debug)]
pub(super) struct PolicyFlags;

/// Flag set with the settings that affect how policy files are read and how counters are named.
#[derive(Debug)]
pub(super) struct CounterFlags;

impl FlagSet for AllFlags {
    const IS_LONG: bool = true;
    const ACCEPTS_PATHS: bool = false;

    fn accepts(row: &SettingRow) -> bool {
        row.has_flag()
    }
}

impl FlagSet for PolicyFlags {
    fn accepts(row: &SettingRow) -> bool {
        ["merge-domain-config", "policy-file-size", "policy-size", "charge"].contains(&row.name)
    }
}

impl FlagSet for CounterFlags {
    fn accepts(row: &SettingRow) -> bool {
        let own = ["key-secret", "key-secret-file", "cache-key-prefix"];
        PolicyFlags::accepts(row) || own.contains(&row.name)
    }
}

/// Command-line flags for settings, and the `--settings` flag that names a settings file.
#[derive(Args, Debug)]
pub(super) struct SettingFlags<S: FlagSet> {
    /// YAML file with settings, as `name: value` pairs that use the names of the flags
    #[arg(long, value_name = "FILE")]
    settings: Option<PathBuf>,
    #[command(flatten)]
    flags: FlagValues<S>,
}

impl<S: FlagSet> SettingFlags<S> {
    /// Reads the settings file and combines it with the flags and the environment.
    ///
    /// # Errors
    ///
    /// Returns an error if the settings file cannot be read.
    pub(super) fn read_sources(self, environment: &TextMap) -> Result<Sources, Failure> {
        let (file, file_positions) = match &self.settings {
            Some(path) => app::read_settings_file(path)?,
            None => Default::default(),
        };
        let environment = environment.clone();
        let flags = self.flags.values;
        Ok(Sources { flags, environment, file, file_positions, ..Sources::default() })
    }

    /// Combines the settings file, the flags and the environment, but drops settings that this
    /// subcommand does not use. For example, an invalid port is an error for `serve`, but not for
    /// `check`, which does not use the port.
    ///
    /// # Errors
    ///
    /// Returns an error if the settings file cannot be read.
    pub(super) fn read_used_sources(self, environment: &TextMap) -> Result<Sources, Failure> {
        let mut sources = self.read_sources(environment)?;
        sources.environment.retain(|name, _| {
            setting_rows::<S>()
                .any(|row| row.variable() == *name || row.compat_names.contains(&name.as_str()))
        });
        // Keep unknown names, so that they are reported.
        let is_unused = |name: &str| TABLE.iter().any(|row| row.name == name && !S::accepts(row));
        sources.file.retain(|name, _| !is_unused(name));
        Ok(sources)
    }
}

/// Values of the flags given on the command line, keyed by setting name.
#[derive(Debug)]
struct FlagValues<S> {
    values: TextMap,
    flag_set: PhantomData<S>,
}

/// Parser that accepts every text, because the settings check their values themselves. Shell
/// completions suggest the words of a value name such as `off|read|write`.
#[derive(Clone, Copy, Debug)]
struct SuggestedValues(&'static str);

impl TypedValueParser for SuggestedValues {
    type Value = String;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &OsStr,
    ) -> Result<String, clap::Error> {
        StringValueParser::new().parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let is_word = |word: &str| word.chars().all(|c| c.is_ascii_lowercase() || "_-".contains(c));
        let words = self.0.split('|');
        let are_words = self.0.contains('|') && words.clone().all(is_word);
        are_words.then(|| Box::new(words.map(PossibleValue::new)) as _)
    }
}

fn setting_rows<S: FlagSet>() -> impl Iterator<Item = &'static SettingRow> {
    TABLE.iter().filter(|row| S::accepts(row))
}

impl<S: FlagSet> Args for FlagValues<S> {
    fn augment_args(command: Command) -> Command {
        setting_rows::<S>().fold(command, |command, row| {
            let shown = if row.default.is_empty() { "none" } else { row.default };
            let mut names = row.variable();
            for compat in row.compat_names {
                names = format!("{names}, {compat}");
            }
            let flag = Arg::new(row.name)
                .long(row.name)
                .value_name(row.value_name)
                .value_parser(SuggestedValues(row.value_name))
                .hide_possible_values(true)
                .hide_short_help(S::IS_LONG && !COMMON_SETTINGS.contains(&row.name))
                .help_heading(row.section)
                .help(row.help.trim().trim_end_matches('.'))
                .long_help(format!("{}\n[default: {shown}] [env: {names}]", row.help.trim()));
            // Accept several paths, because a shell expands a glob into several arguments.
            command.arg(if row.name == "policy" {
                flag.num_args(1..).action(ArgAction::Append)
            } else if row.default == "false" {
                let boolean = flag.num_args(0..=1).default_missing_value("true");
                boolean.require_equals(S::ACCEPTS_PATHS)
            } else {
                flag
            })
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<S: FlagSet> FromArgMatches for FlagValues<S> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let values = setting_rows::<S>().filter_map(|row| {
            let texts: Vec<&str> =
                matches.get_many::<String>(row.name)?.map(String::as_str).collect();
            Some((row.name.to_owned(), texts.join(",")))
        });
        Ok(FlagValues { values: values.collect(), flag_set: PhantomData })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
