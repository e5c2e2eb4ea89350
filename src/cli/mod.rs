//! Command line, with one file per subcommand.
//!
//! Exit codes: 0 success · 1 failed test · 64 invalid flags or settings · 65 invalid policy or test
//! file · 69 address or Redis unavailable · 70 bug in Tidegate. Subcommands call `app` to do their work.

mod admin_commands;
mod ask_batch;
mod ask_client;
mod ask_command;
mod check_command;
mod check_formats;
mod drop_in_arguments;
mod explain_command;
mod flags;
mod man_command;
mod override_commands;
mod serve_command;
pub mod simulate_command;
mod terminal;
mod test_command;
mod top_command;
mod usage_errors;

use std::ffi::OsString;
use std::panic;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use tidegate_simulate::Simulate;

use self::drop_in_arguments::CommandLine;
use crate::app::{self, Failure};

/// A rate limit service for Envoy and for microservices
#[derive(Debug, Parser)]
#[command(name = "tidegate", version, max_term_width = 100, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  tidegate check config/first.yaml                 report errors and warnings of a policy
  tidegate serve --policy config/first.yaml        serve on ports 8081 (gRPC), 8080, 6070
  tidegate ask localhost:8081 edge user=ann        send a request as Envoy would
  tidegate explain --policy config/first.yaml edge api_token=demo
                                                   explain the answer

Exit codes: 64 flags or settings, 65 policy, 69 address or Redis unavailable, 70 a bug.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the service
    Serve(Box<serve_command::Serve>),
    /// Report all errors and warnings in a policy
    Check(check_command::Check),
    /// Explain which rules a request matches, and predict the decision
    Explain(explain_command::Explain),
    /// Send a request to a running service, as Envoy would
    Ask(ask_command::Ask),
    /// Reset the counters of one descriptor, to unblock a caller
    Reset(admin_commands::Reset),
    /// Change the limits of a customer, a rule, or a domain at run time
    Override(override_commands::Override),
    /// Short form of `override` for a rule or a domain
    Switch(override_commands::Switch),
    /// Simulate an outage of Redis on one replica
    RehearseOutage(admin_commands::RehearseOutage),
    /// Show the keys that use most, are rejected most, or are near a limit
    Top(top_command::Top),
    /// Make the calls of test files, and compare the answers with the expected ones
    Test(test_command::Test),
    /// Run a policy on generated traffic, in simulated time
    Simulate(Simulate),
    /// Print the JSON Schema of policy files, for editors
    Schema,
    /// Print shell completions
    Completions {
        /// bash, elvish, fish, powershell or zsh
        shell: clap_complete::Shell,
    },
    /// Write the manual pages into a directory
    Man(man_command::Man),
}

/// Runs the program with command-line arguments, the first of which is the program's name, and
/// returns the exit code.
///
/// A panic is a bug in Tidegate. The program then prints the panic's location and exits with code
/// 70.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments = arguments.into_iter().collect();
    panic::catch_unwind(|| parse_and_run(arguments))
        .unwrap_or_else(|_| ExitCode::from(Failure::BUG))
}

fn parse_and_run(arguments: Vec<OsString>) -> ExitCode {
    let environment = app::environment();
    let has_root = environment.get("RUNTIME_ROOT").is_some_and(|root| !root.is_empty());
    let CommandLine { arguments, drop_in } = CommandLine::new(arguments, has_root);
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => {
            let error = usage_errors::reword(error);
            // clap prints help and version to standard output, errors to standard error. Ignore a
            // failure to print, because the exit code also reports the error.
            let _ = error.print();
            return if error.use_stderr() {
                ExitCode::from(Failure::USAGE)
            } else {
                ExitCode::SUCCESS
            };
        }
    };
    let is_service = matches!(cli.command, Command::Serve(_));
    let result = match cli.command {
        Command::Serve(serve) => serve.run(&environment, drop_in),
        Command::Check(check) => check.run(&environment),
        Command::Explain(explain) => explain.run(&environment),
        Command::Ask(ask) => ask.run(),
        Command::Reset(reset) => reset.run(),
        Command::Override(overrides) => overrides.run(),
        Command::Switch(switch) => switch.run(),
        Command::RehearseOutage(rehearse) => rehearse.run(),
        Command::Top(top) => top.run(),
        Command::Test(test) => test.run(&environment),
        Command::Simulate(simulate) => simulate_command::run(&simulate),
        Command::Schema => terminal::print(&(app::schema() + "\n")),
        Command::Completions { shell } => completions(shell),
        Command::Man(man) => man.run(Cli::command()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // The standard error of a service is its log, so print one line per diagnostic.
            if is_service {
                terminal::print_failure_lines(&failure);
            } else {
                terminal::print_failure(&failure);
            }
            ExitCode::from(failure.exit_code())
        }
    }
}

fn completions(shell: clap_complete::Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "tidegate", &mut script);
    terminal::print(&String::from_utf8_lossy(&script))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_definition_is_valid() {
        Cli::command().debug_assert();
    }
}
