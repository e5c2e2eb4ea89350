//! Machine-readable output of `tidegate check`: JSON, SARIF 2.1.0, and workflow commands of GitHub
//! Actions.
//!
//! Not here: human-readable output (`check_command`, `terminal`).

use std::fmt::Write as _;

use clap::ValueEnum;
use serde_json::{Value, json};

use crate::policy::{Diagnostic, DiagnosticKind};

/// Output format of `tidegate check`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// Text for people, with source lines
    Text,
    /// One JSON object
    Json,
    /// SARIF 2.1.0, for code scanning
    Sarif,
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

/// Severity of a diagnostic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Severity {
    Error,
    Warning,
    Note,
}

impl Severity {
    /// Returns the name of the severity in JSON and SARIF.
    const fn name(self) -> &'static str {
        match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Note => "note",
        }
    }

    /// Returns the GitHub workflow command that reports a diagnostic of this severity.
    const fn workflow_command(self) -> &'static str {
        match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Note => "notice",
        }
    }
}

impl Report<'_> {
    /// Formats the report as one line of JSON.
    pub(super) fn to_json(&self) -> String {
        let diagnostic = |(severity, diagnostic): &(Severity, &Diagnostic)| {
            json!({
                "severity": severity.name(),
                "kind": diagnostic.kind.name(),
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

    /// Formats the report as a SARIF 2.1.0 log with one run.
    pub(super) fn to_sarif(&self) -> String {
        let mut kinds: Vec<DiagnosticKind> =
            self.diagnostics.iter().map(|(_, diagnostic)| diagnostic.kind).collect();
        kinds.sort_unstable();
        kinds.dedup();
        let rule = |kind: &DiagnosticKind| json!({"id": kind.name(), "shortDescription": {"text": kind.summary()}});
        let result = |(severity, diagnostic): &(Severity, &Diagnostic)| {
            json!({
                "ruleId": diagnostic.kind.name(),
                "ruleIndex": kinds.binary_search(&diagnostic.kind).unwrap_or_default(),
                "level": severity.name(),
                "message": {"text": message_with_path(diagnostic)},
                "locations": [{
                    "physicalLocation": {
                        "artifactLocation": {"uri": path_to_uri(&diagnostic.file)},
                        "region": {"startLine": diagnostic.line, "startColumn": diagnostic.column},
                    },
                }],
            })
        };
        let rules: Vec<Value> = kinds.iter().map(rule).collect();
        let results: Vec<Value> = self.diagnostics.iter().map(result).collect();
        let log = json!({
            "$schema": "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json",
            "version": "2.1.0",
            "runs": [{
                "tool": {"driver": {
                    "name": "tidegate",
                    "semanticVersion": env!("CARGO_PKG_VERSION"),
                    "rules": rules,
                }},
                "columnKind": "unicodeCodePoints",
                "results": results,
            }],
        });
        format!("{log:#}\n")
    }

    /// Formats the report as one workflow command per diagnostic.
    pub(super) fn to_github(&self) -> String {
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
                escape_property(diagnostic.kind.name()),
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

/// Converts a path to a URI reference: relative to the working directory, or `file://` with an
/// absolute path.
fn path_to_uri(path: &str) -> String {
    let mut uri = if path.starts_with('/') { "file://".to_owned() } else { String::new() };
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || b"/-._~".contains(&byte) {
            uri.push(char::from(byte));
        } else {
            // Writing into a String cannot fail.
            let _ = write!(uri, "%{byte:02X}");
        }
    }
    uri
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_cannot_begin_another_workflow_command() {
        assert_eq!(escape_data("50%\r\n::error::x"), "50%25%0D%0A::error::x");
        assert_eq!(escape_property("a,b:c%"), "a%2Cb%3Ac%25");
    }

    #[test]
    fn a_path_becomes_a_uri() {
        assert_eq!(path_to_uri("limits/a b.yaml"), "limits/a%20b.yaml");
        assert_eq!(path_to_uri("/data/ü:1.yaml"), "file:///data/%C3%BC%3A1.yaml");
    }
}
