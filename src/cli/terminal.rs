//! What goes to the terminal: results to standard output, everything else to standard error;
//! colour only where somebody looks at it.
//!
//! Not here: what is printed.

use std::env;
use std::io::{self, IsTerminal, Write};

use crate::app::Failure;
use crate::domain::escaped;
use crate::policy::Diagnostic;

/// Prints a result.
///
/// # Errors
///
/// None in effect: a reader that went away (`| head`) has what it wanted.
pub(super) fn out(text: &str) -> Result<(), Failure> {
    let _ = io::stdout().lock().write_all(text.as_bytes());
    Ok(())
}

/// Prints a failure; a policy's diagnostics with their source lines.
pub(super) fn failure(failure: &Failure) {
    match failure {
        Failure::Policy(faults) => {
            faults.0.iter().for_each(|fault| diagnostic(Paint::Fault, "error", fault));
        }
        _ => failure_in_lines(failure),
    }
}

/// Prints a failure with one line for each diagnostic, for logs. Each line begins with `error`; text
/// from files and flags is escaped, so that it can neither add lines nor steer the terminal.
pub(super) fn failure_in_lines(failure: &Failure) {
    let word = Paint::Fault.on("error", io::stderr().is_terminal());
    for line in failure.to_string().lines() {
        err(&format!("{word}: {}\n", escaped(line)));
    }
}

/// Prints a warning about a policy with its source line.
pub(super) fn warning(warning: &Diagnostic) {
    diagnostic(Paint::Warning, "warning", warning);
}

fn diagnostic(paint: Paint, severity: &str, fault: &Diagnostic) {
    err(&format!("{}\n", fault.report(&paint.on(severity, io::stderr().is_terminal()))));
}

fn err(text: &str) {
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// Whether results go to somebody who sees colours.
pub(super) fn colour() -> bool {
    io::stdout().is_terminal()
}

/// What a colour stands for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Paint {
    Good,
    Warning,
    Fault,
}

impl Paint {
    /// The text in this colour, if there is a terminal and NO_COLOR does not object.
    pub(super) fn on(self, text: &str, terminal: bool) -> String {
        let wanted = env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        if !(terminal && wanted) {
            return text.to_owned();
        }
        let code = match self {
            Paint::Good => 32,
            Paint::Warning => 33,
            Paint::Fault => 31,
        };
        format!("\x1b[1;{code}m{text}\x1b[0m")
    }
}
