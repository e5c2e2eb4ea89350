//! Policy files as bytes, and the bounds that they must keep before anybody reads them.
//!
//! Not here: where the bytes come from (`app`), YAML (`document`).

use super::syntax::diagnostic::{Diagnostic, DiagnosticKind, shown};
use super::syntax::excerpt::Lines;
use super::syntax::yaml::{BYTES_MAX, Span};

/// One policy file.
#[derive(Clone, Debug)]
pub struct Source {
    /// Its name as faults print it. Files are taken in the order of their names, byte by byte.
    pub name: String,
    /// Its content.
    pub text: Vec<u8>,
}

/// How to read policies.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Files of the same domain are one domain, in file-name order; otherwise the second one is a
    /// fault.
    pub merge_domains: bool,
    /// The most bytes of one file.
    pub file_bytes_max: usize,
    /// The most bytes of all files together.
    pub all_bytes_max: usize,
}

/// The largest file unless a setting says otherwise: some 200,000 rules. Beyond it a file is more
/// likely a mistake (a log, a dump) than a policy, and reading it would hold up a reload.
pub const FILE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// The largest sum of all files unless a setting says otherwise: four files of the largest size.
/// While a policy is read it takes about ten times its text in memory.
pub const ALL_BYTES_MAX: usize = 64 * 1024 * 1024;

impl Default for Options {
    fn default() -> Self {
        Options {
            merge_domains: false,
            file_bytes_max: FILE_BYTES_MAX,
            all_bytes_max: ALL_BYTES_MAX,
        }
    }
}

/// A fault that has a place by itself, without a path.
pub(super) fn fault_at(
    file: &str,
    span: Span,
    kind: DiagnosticKind,
    message: String,
) -> Diagnostic {
    Diagnostic {
        file: file.to_owned(),
        line: span.line,
        column: span.column,
        path: String::new(),
        message,
        kind,
        excerpt: None,
    }
}

impl Source {
    /// The file's text: UTF-8, without a byte order mark and without characters that YAML forbids.
    pub(super) fn decode(&self, options: &Options) -> Result<&str, Diagnostic> {
        let bytes_max = options.file_bytes_max.min(BYTES_MAX);
        if self.text.len() > bytes_max {
            let message = format!(
                "the file has {} bytes, but a policy file may have at most {}; split it into \
                 several files",
                self.text.len(),
                bytes_max
            );
            return Err(fault_at(&self.name, Span::at(1, 1), DiagnosticKind::TooLarge, message));
        }
        let text = match std::str::from_utf8(&self.text) {
            Ok(text) => text,
            Err(error) => {
                let good = &self.text[..error.valid_up_to()];
                let place = place_after(&String::from_utf8_lossy(good));
                let message = "the text is not UTF-8 from here on; save the file as UTF-8";
                return Err(fault_at(
                    &self.name,
                    place,
                    DiagnosticKind::Encoding,
                    message.to_owned(),
                ));
            }
        };
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        match text.char_indices().find(|(_, c)| is_forbidden(*c)) {
            None => Ok(text),
            Some((at, c)) => {
                let message = format!(
                    "the control character {} is not allowed in YAML; remove it, or write it as an \
                     escape in double quotes",
                    shown(&c.to_string())
                );
                let span = place_after(&text[..at]);
                let fault = fault_at(&self.name, span, DiagnosticKind::Encoding, message);
                Err(Diagnostic { excerpt: Lines::new(text).excerpt(span), ..fault })
            }
        }
    }
}

/// The characters that YAML 1.1 does not let stand in a file.
fn is_forbidden(c: char) -> bool {
    match c {
        '\t' | '\n' | '\r' | '\u{85}' => false,
        '\u{fffe}' | '\u{ffff}' => true,
        c => c.is_control(),
    }
}

/// Line and column, from 1, of what follows `text`.
fn place_after(text: &str) -> Span {
    let line = text.matches('\n').count() + 1;
    let last = text.rsplit('\n').next().unwrap_or(text);
    Span::at(line, last.chars().count() + 1)
}
