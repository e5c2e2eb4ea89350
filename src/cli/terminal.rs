//! Terminal output: prints results to standard output and everything else to standard error. Uses
//! colors only on a terminal.

use std::env;
use std::io::{self, IsTerminal, Write};

use crate::app::Failure;
use crate::domain::escaped;
use crate::policy::Diagnostic;

/// Prints a result to standard output.
///
/// # Errors
///
/// Never returns an error: write errors are ignored, because a closed pipe (`| head`) is not a
/// failure. Returns a `Result` because most subcommands end with this call.
pub(super) fn print(text: &str) -> Result<(), Failure> {
    let _ = io::stdout().lock().write_all(text.as_bytes());
    Ok(())
}

/// Prints a failure to standard error. Policy diagnostics are printed with their source lines.
pub(super) fn print_failure(failure: &Failure) {
    match failure {
        Failure::Policy(errors) => {
            errors.0.iter().for_each(|error| print_diagnostic(Color::Red, "error", error));
        }
        Failure::Reported => {}
        _ => print_failure_lines(failure),
    }
}

/// Prints a failure to standard error in a format for logs: one line per diagnostic, each beginning
/// with `error`. Escapes text from files and flags, so that it cannot add lines or control the
/// terminal.
pub(super) fn print_failure_lines(failure: &Failure) {
    let severity = Color::Red.paint("error", io::stderr().is_terminal());
    for line in failure.to_string().lines() {
        print_error(&format!("{severity}: {}\n", escaped(line)));
    }
}

/// Prints a policy warning and its source line to standard error.
pub(super) fn print_warning(warning: &Diagnostic) {
    print_diagnostic(Color::Yellow, "warning", warning);
}

/// Maximum number of other source positions that are listed below a policy note.
const NOTE_POSITIONS_MAX: usize = 5;

/// Prints a note and its source line to standard error, followed by the positions of up to
/// [`NOTE_POSITIONS_MAX`] other notes of the same kind.
pub(super) fn print_note(first: &Diagnostic, others: &[&Diagnostic]) {
    let severity = Color::Green.paint("note", io::stderr().is_terminal());
    let mut text = first.report(&severity);
    if !others.is_empty() {
        let position = |note: &&Diagnostic| format!("{}:{}:{}", note.file, note.line, note.column);
        let shown: Vec<String> = others.iter().take(NOTE_POSITIONS_MAX).map(position).collect();
        let rest = match others.len().saturating_sub(NOTE_POSITIONS_MAX) {
            0 => String::new(),
            rest => format!(" and {rest} more"),
        };
        text.push_str(&format!("  = also at {}{rest}\n", escaped(&shown.join(", "))));
    }
    print_error(&format!("{text}\n"));
}

/// Prints a hint to standard error. Escapes text from flags.
pub(super) fn print_hint(text: &str) {
    let severity = Color::Yellow.paint("hint", io::stderr().is_terminal());
    print_error(&format!("{severity}: {}\n", escaped(text)));
}

fn print_diagnostic(color: Color, severity: &str, diagnostic: &Diagnostic) {
    let severity = color.paint(severity, io::stderr().is_terminal());
    print_error(&format!("{}\n", diagnostic.report(&severity)));
}

fn print_error(text: &str) {
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// Returns whether standard output is a terminal.
pub(super) fn stdout_is_terminal() -> bool {
    io::stdout().is_terminal()
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Color {
    Green,
    Yellow,
    Red,
}

impl Color {
    /// Returns the text in this color if `is_terminal` is true and `NO_COLOR` is not set.
    /// Otherwise, returns the text unchanged.
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
