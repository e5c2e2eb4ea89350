//! `tidegate check`: reports all errors, warnings and notes about a policy before it is deployed.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Args;

use super::check_formats::{Format, Report, Severity};
use super::flags::{PolicyFlags, SettingFlags};
use super::terminal;
use super::terminal::Color;
use crate::app::{self, CheckedPolicy, Failure, LoadedPolicy};
use crate::policy::{Colocation, Diagnostic, DiagnosticKind, Diagnostics};
use crate::settings::TextMap;

#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(super) struct Check {
    /// Policy files, or directories with .yaml and .yml files; `-` reads standard input
    #[arg(required = true, value_name = "FILE|DIR")]
    paths: Vec<PathBuf>,
    /// Format of the report
    #[arg(long, value_enum, default_value_t = Format::Text, conflicts_with = "cluster")]
    format: Format,
    /// Treat warnings, but not notes, as errors
    #[arg(long)]
    strict: bool,
    /// List the pairs of limits that one call can check, and whether Redis Cluster stores both
    /// counters of a pair in the same hash slot
    #[arg(long)]
    cluster: bool,
    #[command(flatten)]
    settings: SettingFlags<PolicyFlags>,
}

const AFTER_HELP: &str = "\
Examples:
  tidegate check limits.yaml
  tidegate check --strict limits/        for CI: warnings fail too (exit code 65), notes do not
  tidegate check --cluster limits/       list which limits share a node of a Redis Cluster
  kubectl get configmap limits -o jsonpath='{.data.edge\\.yaml}' | tidegate check -
  tidegate check --format github limits/ annotate a pull request

A Redis Cluster decides a call in one step if its counters are on one node. Two limits are
  joined         always on one node
  joinable       on one node if hash_tag names one of these entries
  not joinable   on any node: exact all the same, but a rejected call may hold hits for a round trip";

impl Check {
    pub(super) fn run(self, environment: &TextMap) -> Result<(), Failure> {
        let sources = self.settings.read_used_sources(environment)?;
        let output = ReportPrinter { format: self.format, strict: self.strict };
        let checked = match (self.format, app::check(&self.paths, sources)) {
            (Format::Text, checked) => checked?,
            (_, Ok(checked)) => return output.print_report(&checked.loaded),
            (_, Err(Failure::Policy(errors))) => return output.print_errors(errors),
            (_, Err(failure)) => return Err(failure),
        };
        let CheckedPolicy { loaded, errors_if_billed } = checked;
        for warning in &loaded.warnings {
            terminal::print_warning(warning);
        }
        print_notes(&loaded.notes);
        if self.strict && !loaded.warnings.is_empty() {
            return Err(Failure::Strict { warnings: loaded.warnings.len() });
        }
        if self.cluster {
            for pair in &loaded.colocation {
                terminal::print(&format!("on a Redis Cluster: {pair}\n"))?;
            }
        } else if !loaded.colocation.is_empty() {
            terminal::print(&cluster_summary(&loaded))?;
        }
        if errors_if_billed > 0 {
            terminal::print(&format!(
                "with --charge billed, the default in place of envoyproxy/ratelimit: \
                 {errors_if_billed} errors\n"
            ))?;
        }
        let count = |count: usize, noun: &str| match count {
            1 => format!("1 {noun}"),
            _ => format!("{count} {noun}s"),
        };
        let files = count(loaded.files, "file");
        let rules = count(loaded.policy.rules().len(), "rule");
        let warnings = count(loaded.warnings.len(), "warning");
        let ok = Color::Green.paint("ok", terminal::stdout_is_terminal());
        let notes = match loaded.notes.len() {
            0 => String::new(),
            notes => format!(", {}", count(notes, "note")),
        };
        terminal::print(&format!("{ok}: {files}, {rules}, {warnings}{notes}\n"))
    }
}

/// Printer of machine-readable reports. Prints nothing if `--format` is `text`.
#[derive(Clone, Copy)]
struct ReportPrinter {
    format: Format,
    strict: bool,
}

impl ReportPrinter {
    /// Prints a report in the chosen machine-readable format, if any.
    fn print(self, report: &Report<'_>) -> Result<(), Failure> {
        match self.format {
            // Text is printed piece by piece.
            Format::Text => Ok(()),
            Format::Json => terminal::print(&report.to_json()),
            Format::Sarif => terminal::print(&report.to_sarif()),
            Format::Github => terminal::print(&report.to_github()),
        }
    }

    fn print_report(self, loaded: &LoadedPolicy) -> Result<(), Failure> {
        let warnings = loaded.warnings.iter().map(|warning| (Severity::Warning, warning));
        let notes = loaded.notes.iter().map(|note| (Severity::Note, note));
        let failed = self.strict && !loaded.warnings.is_empty();
        self.print(&Report {
            diagnostics: warnings.chain(notes).collect(),
            policy_size: Some((loaded.files, loaded.policy.rules().len())),
            passed: !failed,
        })?;
        match failed {
            true => Err(Failure::Strict { warnings: loaded.warnings.len() }),
            false => Ok(()),
        }
    }

    /// Prints the report of a policy that does not compile. Returns [`Failure::Reported`], so that
    /// its errors are not printed to standard error as well.
    fn print_errors(self, errors: Diagnostics) -> Result<(), Failure> {
        let diagnostics = errors.0.iter().map(|error| (Severity::Error, error)).collect();
        self.print(&Report { diagnostics, policy_size: None, passed: false })?;
        Err(Failure::Reported)
    }
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

fn cluster_summary(loaded: &LoadedPolicy) -> String {
    let (mut joined, mut joinable, mut not_joinable) = (0, 0, 0);
    for pair in &loaded.colocation {
        match pair.colocation {
            Colocation::SameSlot => joined += 1,
            Colocation::ColocatableBy(_) => joinable += 1,
            Colocation::NotColocatable => not_joinable += 1,
        }
    }
    let pairs = loaded.colocation.len();
    format!(
        "on a Redis Cluster: {pairs} pairs of limits, {joined} joined, {joinable} joinable, \
         {not_joinable} not joinable (--cluster lists them)\n"
    )
}
