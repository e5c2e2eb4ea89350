//! Command line in drop-in mode, where the program runs in place of envoyproxy/ratelimit. Command
//! lines of envoyproxy/ratelimit must work unchanged.
//!
//! If the program is called as `ratelimit`, or without a subcommand while RUNTIME_ROOT is set, it
//! runs `serve`. envoyproxy/ratelimit parses no arguments, but some control planes pass arguments
//! anyway. Therefore, arguments that are not flags of `serve` are ignored.

use std::ffi::OsString;
use std::path::Path;

use clap::{Arg, Command, CommandFactory};

use super::Cli;
use crate::settings::DropIn;

/// Maximum number of ignored arguments that are logged, one line each.
const LOGGED_ARGUMENTS_MAX: usize = 20;
/// Maximum length of a logged argument, in characters. Longer arguments are truncated.
const LOGGED_ARGUMENT_CHARS_MAX: usize = 64;

/// Command line to parse, and whether the program runs in drop-in mode.
pub(super) struct CommandLine {
    /// Program name and the arguments that are not ignored.
    pub(super) arguments: Vec<OsString>,
    /// Ignored arguments in drop-in mode; `None` in any other mode.
    pub(super) drop_in: Option<DropIn>,
}

impl CommandLine {
    /// Creates the command line. In drop-in mode, inserts the `serve` subcommand and removes
    /// unknown arguments. Otherwise, keeps the arguments unchanged. `has_runtime_root` states
    /// whether RUNTIME_ROOT is set.
    pub(super) fn new(arguments: Vec<OsString>, has_runtime_root: bool) -> CommandLine {
        let name = arguments.first().and_then(|name| Path::new(name).file_name());
        let is_ratelimit = name.is_some_and(|name| name == "ratelimit");
        let first = arguments.get(1).and_then(|first| first.to_str());
        let is_command =
            |word: &str| Cli::command().find_subcommand(word).is_some() || word == "help";
        let has_command = match first {
            Some("--help" | "-h" | "--version" | "-V") => true,
            Some(word) if !word.starts_with('-') => !is_ratelimit || is_command(word),
            Some(_) | None => false,
        };
        if has_command || !(is_ratelimit || has_runtime_root) {
            return CommandLine { arguments, drop_in: None };
        }
        let command = Cli::command();
        let serve = command.find_subcommand("serve");
        let flags: Vec<&Arg> = serve.into_iter().flat_map(Command::get_arguments).collect();
        let mut arguments = arguments.into_iter();
        let program = arguments.next();
        let (known, ignored_arguments) = split_known_flags(&flags, arguments);
        let arguments = program.into_iter().chain(["serve".into()]).chain(known).collect();
        CommandLine { arguments, drop_in: Some(DropIn { ignored_arguments }) }
    }
}

/// Separates known flags and their values from unknown arguments. Returns the known arguments, and
/// the unknown arguments for the log. An unknown argument is shortened, and its value after `=` is
/// omitted. An argument that follows an unknown flag is in neither list, because it may be the
/// flag's value and a secret.
fn split_known_flags(
    flags: &[&Arg],
    arguments: impl Iterator<Item = OsString>,
) -> (Vec<OsString>, Vec<String>) {
    let (mut known, mut ignored) = (Vec::new(), Vec::new());
    let is_flag =
        |argument: &OsString| argument.len() > 1 && argument.to_string_lossy().starts_with('-');
    let mut arguments = arguments.peekable();
    while let Some(argument) = arguments.next() {
        let text = argument.to_string_lossy().into_owned();
        let name = text.split('=').next().unwrap_or_default();
        let flag = flags
            .iter()
            .find(|flag| flag.get_long().is_some() && flag.get_long() == name.strip_prefix("--"));
        let is_known = flag.is_some() || name == "--help";
        let values_max = match flag {
            _ if name != text || !is_flag(&argument) => 0,
            Some(flag) if flag.get_action().takes_values() => {
                flag.get_num_args().map_or(1, |count| count.max_values())
            }
            Some(_) => 0,
            None => usize::from(!is_known),
        };
        match is_known {
            true => known.push(argument),
            false => ignored.push(truncate_argument(name)),
        }
        for _ in 0..values_max {
            let Some(value) = arguments.next_if(|next| !is_flag(next)) else { break };
            known.extend(is_known.then_some(value));
        }
    }
    ignored.truncate(LOGGED_ARGUMENTS_MAX);
    (known, ignored)
}

fn truncate_argument(text: &str) -> String {
    text.chars().take(LOGGED_ARGUMENT_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str], has_root: bool) -> (Vec<String>, Option<Vec<String>>) {
        let arguments = arguments.iter().map(OsString::from).collect();
        let line = CommandLine::new(arguments, has_root);
        let texts = line.arguments.into_iter().map(|argument| argument.into_string().unwrap());
        (texts.collect(), line.drop_in.map(|drop_in| drop_in.ignored_arguments))
    }

    fn parse_as_ratelimit(arguments: &[&str]) -> (Vec<String>, Vec<String>) {
        let (known, ignored) = parse(&[&["/bin/ratelimit"], arguments].concat(), false);
        (known[2..].to_vec(), ignored.expect("drop-in mode"))
    }

    #[test]
    fn a_program_called_ratelimit_runs_serve() {
        let (line, ignored) = parse(&["/bin/ratelimit"], false);
        assert_eq!((line, ignored), (vec!["/bin/ratelimit".into(), "serve".into()], Some(vec![])));
        assert_eq!(parse(&["ratelimit", "--json", "on"], false).0[1], "serve");
        assert_eq!(parse(&["ratelimit", "check", "x"], false).0[1], "check");
        assert_eq!(parse(&["ratelimit", "--version"], false).0[1], "--version");
    }

    #[test]
    fn without_a_subcommand_but_with_a_runtime_root_serve_runs() {
        assert_eq!(parse(&["tidegate"], true).0, ["tidegate", "serve"]);
        assert_eq!(parse(&["tidegate"], false), (vec!["tidegate".into()], None));
        assert_eq!(parse(&["tidegate", "check", "x"], true).0[1], "check");
        assert_eq!(parse(&["tidegate", "serve"], true).1, None, "not in place of ratelimit");
    }

    #[test]
    fn arguments_that_are_not_flags_are_ignored_and_never_logged_with_a_value() {
        let (known, unknown) = parse_as_ratelimit(&["--quotaRateLimitServiceAddr=secret:8081"]);
        assert_eq!((known, unknown), (vec![], vec!["--quotaRateLimitServiceAddr".to_owned()]));
        let (known, unknown) =
            parse_as_ratelimit(&["-v", "--password", "secret", "run", "--json", "on"]);
        assert_eq!(known, ["--json", "on"]);
        assert_eq!(unknown, ["-v", "--password", "run"]);
        assert_eq!(parse_as_ratelimit(&["password=secret"]).1, ["password"]);
    }

    #[test]
    fn flags_of_serve_keep_their_values() {
        for kept in [
            &["--policy", "a.yaml", "b.yaml", "--shadow-mode", "--json=on"][..],
            &["--shadow-mode", "true", "--grpc-port", "1", "--settings", "f.yaml"],
            &["--print-settings"],
        ] {
            assert_eq!(
                parse_as_ratelimit(kept),
                (kept.iter().map(|&a| a.to_owned()).collect(), vec![])
            );
        }
        assert_eq!(parse_as_ratelimit(&["--print-settings", "x"]).1, ["x"], "takes no value");
    }

    #[test]
    fn the_logged_arguments_are_bounded() {
        let long = "x".repeat(1_000);
        let many = vec![long.as_str(); 1_000];
        let (_, unknown) = parse_as_ratelimit(&many);
        assert_eq!(unknown.len(), LOGGED_ARGUMENTS_MAX);
        assert_eq!(unknown[0].len(), LOGGED_ARGUMENT_CHARS_MAX);
    }
}
