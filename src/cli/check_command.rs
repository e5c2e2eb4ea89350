//! `tidegate check`: reports all errors, warnings and notes about a policy before it is deployed.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Args;

use super::check_formats::{Format, Report, Severity};
use super::flags::{PolicyFlags, SettingFlags};
use super::terminal;
use super::terminal::Color;
use crate::app::{self, CheckedPolicy, Failure, LoadedPolicy};
use crate::policy::{Diagnostic, DiagnosticKind};
use crate::settings::TextMap;

#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(super) struct Check {
    /// Policy files, or directories with .yaml and .yml files; `-` reads standard input
    #[arg(required = true, value_name = "FILE|DIR")]
    paths: Vec<PathBuf>,
    /// Format of the report
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Treat warnings, but not notes, as errors
    #[arg(long)]
    strict: bool,
    #[command(flatten)]
    settings: SettingFlags<PolicyFlags>,
}

const AFTER_HELP: &str = "\
Examples:
  tidegate check limits.yaml
  tidegate check --strict limits/        for CI: warnings fail too (exit code 65), notes do not
  kubectl get configmap limits -o jsonpath='{.data.edge\\.yaml}' | tidegate check -
  tidegate check --format github limits/ annotate a pull request";

impl Check {
    pub(super) fn run(self, environment: &TextMap) -> Result<(), Failure> {
        let sources = self.settings.read_used_sources(environment)?;
        let CheckedPolicy { loaded, errors_if_billed } = match app::check(&self.paths, sources) {
            Err(Failure::Policy(errors)) if self.format != Format::Text => {
                let diagnostics = errors.0.iter().map(|error| (Severity::Error, error)).collect();
                let report = Report { diagnostics, policy_size: None, passed: false };
                terminal::print(&report.format(self.format))?;
                // The errors are not printed to standard error as well.
                return Err(Failure::Reported);
            }
            checked => checked?,
        };
        let failed = self.strict && !loaded.warnings.is_empty();
        if self.format == Format::Text {
            loaded.warnings.iter().for_each(terminal::print_warning);
            print_notes(&loaded.notes);
        } else {
            let warnings = loaded.warnings.iter().map(|warning| (Severity::Warning, warning));
            let notes = loaded.notes.iter().map(|note| (Severity::Note, note));
            let diagnostics = warnings.chain(notes).collect();
            let policy_size = Some((loaded.files, loaded.policy.rules().len()));
            let report = Report { diagnostics, policy_size, passed: !failed };
            terminal::print(&report.format(self.format))?;
        }
        if failed {
            return Err(Failure::InvalidPolicy(match loaded.warnings.len() {
                1 => "1 warning; --strict treats it as an error".to_owned(),
                count => format!("{count} warnings; --strict treats them as errors"),
            }));
        }
        match self.format {
            Format::Text => terminal::print(&summary(&loaded, errors_if_billed)),
            Format::Json | Format::Github => Ok(()),
        }
    }
}

/// Returns the last lines for a policy without errors.
fn summary(loaded: &LoadedPolicy, errors_if_billed: usize) -> String {
    let count = |count: usize, noun: &str| match count {
        1 => format!("1 {noun}"),
        _ => format!("{count} {noun}s"),
    };
    let billed = match errors_if_billed {
        0 => String::new(),
        errors => format!(
            "with --charge billed, the default in place of envoyproxy/ratelimit: {errors} errors\n"
        ),
    };
    let notes = match loaded.notes.len() {
        0 => String::new(),
        notes => format!(", {}", count(notes, "note")),
    };
    format!(
        "{billed}{}: {}, {}, {}{notes}\n",
        Color::Green.paint("ok", terminal::stdout_is_terminal()),
        count(loaded.files, "file"),
        count(loaded.policy.rules().len(), "rule"),
        count(loaded.warnings.len(), "warning"),
    )
}

/// Prints notes grouped by kind. Shows the source line of the first note of each kind, and only the
/// positions of the others.
fn print_notes(notes: &[Diagnostic]) {
    let mut groups: BTreeMap<DiagnosticKind, Vec<&Diagnostic>> = BTreeMap::new();
    for note in notes {
        groups.entry(note.kind).or_default().push(note);
    }
    for group in groups.values() {
        if let Some((first, others)) = group.split_first() {
            terminal::print_note(first, others);
        }
    }
}
