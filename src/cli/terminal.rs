//! Terminal output: results on standard output, everything else on standard error, with colors only
//! on a terminal.

use std::env;
use std::io::{self, IsTerminal, Write};

use crate::app::Failure;
use crate::domain::escaped;
use crate::policy::Diagnostic;

/// Prints a result.
///
/// # Errors
///
/// Never fails: a reader that closed the pipe (`| head`) wants no more. It returns a `Result` because
/// most subcommands end with it.
pub(super) fn out(text: &str) -> Result<(), Failure> {
    let _ = io::stdout().lock().write_all(text.as_bytes());
    Ok(())
}

/// Prints a failure; a policy's diagnostics with their source lines.
pub(super) fn failure(failure: &Failure) {
    match failure {
        Failure::Policy(errors) => {
            errors.0.iter().for_each(|error| diagnostic(Color::Red, "error", error));
        }
        _ => failure_in_lines(failure),
    }
}

/// Prints a failure with one line for each diagnostic, for logs. Each line begins with `error`; text
/// from files and flags is escaped, so that it can neither add lines nor steer the terminal.
pub(super) fn failure_in_lines(failure: &Failure) {
    let severity = Color::Red.paint("error", io::stderr().is_terminal());
    for line in failure.to_string().lines() {
        err(&format!("{severity}: {}\n", escaped(line)));
    }
}

/// Prints a warning about a policy with its source line.
pub(super) fn warning(warning: &Diagnostic) {
    diagnostic(Color::Yellow, "warning", warning);
}

fn diagnostic(color: Color, severity: &str, diagnostic: &Diagnostic) {
    let severity = color.paint(severity, io::stderr().is_terminal());
    err(&format!("{}\n", diagnostic.report(&severity)));
}

fn err(text: &str) {
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// Whether standard output is a terminal.
pub(super) fn stdout_is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// A terminal color.
#[derive(Clone, Copy, Debug)]
pub(super) enum Color {
    Green,
    Yellow,
    Red,
}

impl Color {
    /// Colors the text if the output is a terminal and NO_COLOR is not set.
    pub(super) fn paint(self, text: &str, is_terminal: bool) -> String {
        let allowed = env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        if !(is_terminal && allowed) {
            return text.to_owned();
        }
        let code = match self {
            Color::Green => 32,
            Color::Yellow => 33,
            Color::Red => 31,
        };
        format!("\x1b[1;{code}m{text}\x1b[0m")
    }
}
