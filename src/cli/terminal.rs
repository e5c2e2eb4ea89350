//! Terminal output: prints results to standard output and everything else to standard error. Uses
//! colors, and shows progress, only on a terminal.

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

/// Progress of a long command in percent: a line on standard error that is overwritten, and erased at
/// the end. Without a terminal, nothing is shown.
#[derive(Debug)]
pub(super) struct Progress {
    is_terminal: bool,
    percent: u64,
}

impl Progress {
    /// With `is_wanted` false, nothing is shown on a terminal either.
    pub(super) fn new(is_wanted: bool) -> Progress {
        Progress { is_terminal: is_wanted && io::stderr().is_terminal(), percent: 0 }
    }

    /// Shows how much is done if that has grown by a percent.
    pub(super) fn show(&mut self, done: u64, all: u64) {
        if self.advance(done, all) {
            print_error(&format!("\r\x1b[K{} %", self.percent));
        }
    }

    fn advance(&mut self, done: u64, all: u64) -> bool {
        let percent = done.min(all) * 100 / all.max(1);
        let has_grown = self.is_terminal && percent > self.percent;
        self.percent = self.percent.max(percent);
        has_grown
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.is_terminal && self.percent > 0 {
            print_error("\r\x1b[K");
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_shown_for_each_percent_and_only_on_a_terminal() {
        let shown = |is_terminal| {
            let mut progress = Progress { is_terminal, percent: 0 };
            [0, 9, 10, 19, 20, 999, 1_000, 2_000].map(|done| progress.advance(done, 1_000))
        };
        assert_eq!(shown(true), [false, false, true, false, true, true, true, false]);
        assert_eq!(shown(false), [false; 8]);
        assert!(!Progress { is_terminal: true, percent: 0 }.advance(0, 0));
    }
}
