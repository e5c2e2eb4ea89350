//! Machine-readable output of `tidegate check`: JSON, and workflow commands of GitHub Actions.
//!
//! Not here: human-readable output (`check_command`, `terminal`).

use std::fmt::Write as _;

use clap::ValueEnum;
use serde_json::{Value, json};

use crate::domain::named_enum;
use crate::policy::Diagnostic;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// Text for people, with source lines
    Text,
    /// One JSON object
    Json,
    /// Workflow commands that GitHub shows as annotations
    Github,
}

/// Result of `tidegate check`: the diagnostics and, if the policy compiles, its size.
pub(super) struct Report<'d> {
    /// Errors, warnings, and notes, in this order.
    pub(super) diagnostics: Vec<(Severity, &'d Diagnostic)>,
    /// Number of policy files and number of rules; `None` if the policy has errors.
    pub(super) policy_size: Option<(usize, usize)>,
    /// Whether the exit code is 0.
    pub(super) passed: bool,
}

named_enum! {
    /// Severity of a diagnostic, with its name in JSON.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) enum Severity {
        Error => "error",
        Warning => "warning",
        Note => "note",
    }
}

impl Severity {
    /// Returns the GitHub workflow command that reports a diagnostic of this severity.
    const fn workflow_command(self) -> &'static str {
        match self {
            Severity::Error | Severity::Warning => self.as_str(),
            Severity::Note => "notice",
        }
    }
}

impl Report<'_> {
    /// Formats the report for programs. Text is printed by `check_command`.
    pub(super) fn format(&self, format: Format) -> String {
        match format {
            Format::Text => String::new(),
            Format::Json => self.to_json(),
            Format::Github => self.to_github(),
        }
    }

    /// Formats the report as one line of JSON.
    fn to_json(&self) -> String {
        let diagnostic = |(severity, diagnostic): &(Severity, &Diagnostic)| {
            json!({
                "severity": severity.as_str(),
                "kind": diagnostic.kind.as_str(),
                "file": diagnostic.file,
                "line": diagnostic.line,
                "column": diagnostic.column,
                "path": diagnostic.path,
                "message": diagnostic.message,
            })
        };
        let diagnostics: Vec<Value> = self.diagnostics.iter().map(diagnostic).collect();
        let report = json!({
            "passed": self.passed,
            "files": self.policy_size.map(|(files, _)| files),
            "rules": self.policy_size.map(|(_, rules)| rules),
            "diagnostics": diagnostics,
        });
        format!("{report}\n")
    }

    /// Formats the report as one workflow command per diagnostic.
    fn to_github(&self) -> String {
        let mut text = String::new();
        for (severity, diagnostic) in &self.diagnostics {
            // Writing into a String cannot fail.
            let _ = writeln!(
                text,
                "::{} file={},line={},col={},title={}::{}",
                severity.workflow_command(),
                escape_property(&diagnostic.file),
                diagnostic.line,
                diagnostic.column,
                escape_property(diagnostic.kind.as_str()),
                escape_data(&message_with_path(diagnostic)),
            );
        }
        text
    }
}

/// Returns the message, preceded by the path of the key or value if the diagnostic has one.
fn message_with_path(diagnostic: &Diagnostic) -> String {
    match diagnostic.path.as_str() {
        "" => diagnostic.message.clone(),
        path => format!("{path}: {}", diagnostic.message),
    }
}

/// Escapes the message of a workflow command, so that it cannot end the line and start another
/// command.
fn escape_data(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

/// Escapes the value of a workflow command's property, such as `file`.
fn escape_property(text: &str) -> String {
    escape_data(text).replace(':', "%3A").replace(',', "%2C")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_cannot_begin_another_workflow_command() {
        assert_eq!(escape_data("50%\r\n::error::x"), "50%25%0D%0A::error::x");
        assert_eq!(escape_property("a,b:c%"), "a%2Cb%3Ac%25");
    }
}
