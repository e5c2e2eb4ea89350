//! The command line: what can be asked for, and one file per subcommand.
//!
//! Exit codes: 0 fine · 64 flags or settings · 65 policy · 69 an address or the store is not to be
//! had · 70 a bug of ours. Not here: what the subcommands do (`app`, `policy`, `wire::client`).

mod admin_commands;
mod ask_command;
mod check_command;
mod explain_command;
mod flags;
mod serve_command;
pub mod simulate;
mod terminal;

use std::ffi::OsString;
use std::panic;
use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use crate::app::{self, Failure};

/// Decides whether requests may pass: a rate limit service for Envoy and for microservices.
#[derive(Debug, Parser)]
#[command(name = "tidegate", version, max_term_width = 100, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  tidegate check config/                         every fault and warning of a policy
  tidegate serve --policy config/first.yaml      serve it on ports 8081 (gRPC), 8080, 6070
  tidegate ask localhost:8081 edge user=ann      ask as Envoy would
  tidegate explain --policy config/ edge user=ann    why that answer

Exit codes: 64 flags or settings, 65 policy, 69 address or store unavailable, 70 a bug of ours.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Answer calls until told to stop
    Serve(Box<serve_command::Serve>),
    /// Find every fault and warning of a policy
    Check(check_command::Check),
    /// Show which rule a request meets, how it was found, and what it would be answered
    Explain(explain_command::Explain),
    /// Ask a running service, as Envoy would
    Ask(ask_command::Ask),
    /// Make the counters of one descriptor as good as new: unblock a customer
    Reset(admin_commands::Reset),
    /// Switch a rule or a domain of a running service for now
    Switch(admin_commands::Switch),
    /// Try a policy on generated traffic, on simulated time
    Simulate(simulate::Simulate),
    /// Print the JSON Schema of policy files, for editors
    Schema,
    /// Print completions for a shell
    Completions {
        /// bash, elvish, fish, powershell or zsh
        shell: clap_complete::Shell,
    },
}

/// Runs the program with these arguments (the first is its name) and returns its exit code.
///
/// A panic is a bug of ours: it ends the process with 70 and the place that the panic printed.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments = arguments.into_iter().collect();
    let ran = panic::catch_unwind(|| parse_and_run(arguments));
    ran.unwrap_or_else(|_| ExitCode::from(Failure::BUG))
}

fn parse_and_run(arguments: Vec<OsString>) -> ExitCode {
    let environment = app::environment();
    let root = environment.get("RUNTIME_ROOT").is_some_and(|root| !root.is_empty());
    let arguments = as_their_name_asks(arguments, root);
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version go to standard output and are no faults; the rest is told on
            // standard error. If nobody can be told, the exit code still tells.
            let _ = error.print();
            return if error.use_stderr() {
                ExitCode::from(Failure::USAGE)
            } else {
                ExitCode::SUCCESS
            };
        }
    };
    let is_service = matches!(cli.command, Command::Serve(_));
    let done = match cli.command {
        Command::Serve(serve) => serve.run(&environment),
        Command::Check(check) => check.run(&environment),
        Command::Explain(explain) => explain.run(&environment),
        Command::Ask(ask) => ask.run(),
        Command::Reset(reset) => reset.run(),
        Command::Switch(switch) => switch.run(),
        Command::Simulate(simulate) => simulate.run(),
        Command::Schema => terminal::out(&(app::schema() + "\n")),
        Command::Completions { shell } => completions(shell),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // A service's standard error is its log.
            if is_service {
                terminal::failure_in_lines(&failure);
            } else {
                terminal::failure(&failure);
            }
            ExitCode::from(failure.exit_code())
        }
    }
}

fn completions(shell: clap_complete::Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "tidegate", &mut script);
    terminal::out(&String::from_utf8_lossy(&script))
}

/// Called as `ratelimit`, or without a subcommand while RUNTIME_ROOT is set, it serves: swapping
/// the image of envoyproxy/ratelimit is enough.
fn as_their_name_asks(mut arguments: Vec<OsString>, runtime_root: bool) -> Vec<OsString> {
    let called = arguments.first().and_then(|name| Path::new(name).file_name());
    let theirs = called.is_some_and(|name| name == "ratelimit");
    let first = arguments.get(1).and_then(|first| first.to_str());
    let is_command = |word: &str| Cli::command().find_subcommand(word).is_some() || word == "help";
    let asks_for_something = match first {
        Some("--help" | "-h" | "--version" | "-V") => true,
        Some(word) if !word.starts_with('-') => !theirs || is_command(word),
        Some(_) | None => false,
    };
    if (theirs || runtime_root) && !asks_for_something {
        arguments.insert(1.min(arguments.len()), "serve".into());
    }
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    fn becomes(given: &[&str], root: bool) -> Vec<String> {
        let given = given.iter().map(OsString::from).collect();
        let become_ = as_their_name_asks(given, root).into_iter();
        become_.map(|argument| argument.into_string().unwrap()).collect()
    }

    #[test]
    fn the_parser_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn called_as_ratelimit_it_serves() {
        assert_eq!(becomes(&["/bin/ratelimit"], false), ["/bin/ratelimit", "serve"]);
        assert_eq!(becomes(&["ratelimit", "--json", "on"], false)[1], "serve");
        assert_eq!(becomes(&["ratelimit", "check", "x"], false)[1], "check");
        assert_eq!(becomes(&["ratelimit", "--version"], false)[1], "--version");
    }

    #[test]
    fn without_a_subcommand_but_with_a_runtime_root_it_serves() {
        assert_eq!(becomes(&["tidegate"], true), ["tidegate", "serve"]);
        assert_eq!(becomes(&["tidegate"], false), ["tidegate"]);
        assert_eq!(becomes(&["tidegate", "check", "x"], true)[1], "check");
    }
}
