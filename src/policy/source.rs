//! Policy files as bytes, and the checks of their size, encoding, and control characters before
//! parsing.
//!
//! Not here: reading files from disk (`app`), parsing YAML (`syntax::document`), the resources of a
//! control plane (`syntax::resource`).

use super::compiled_policy::SoftLimit;
use super::diagnostic::{Diagnostic, DiagnosticKind, Span, quoted};
use super::excerpt::LineIndex;
use crate::domain::{Bounds, Charge};

/// Name and content of one policy file.
#[derive(Clone, Debug)]
pub struct Source {
    /// File name, shown in diagnostics. Files are read in the byte order of their names.
    pub name: String,
    /// Content of the file. It must be UTF-8, which is checked during compilation.
    pub text: Vec<u8>,
}

/// Options for reading policy files.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Whether to merge files of the same domain, in the order of their names. If false, a second
    /// file of a domain is an error.
    pub merge_domains: bool,
    /// Charge mode of domains and limits that do not set `charge`.
    pub charge: Charge,
    /// Used part of a limit from which it counts as near if its `mark` has no `near_at`, in
    /// millionths.
    pub near_at: u32,
    /// Bounds on requests. Compilation fails if a request could need more checks than these bounds
    /// allow, and warns about paths with too many entries.
    pub bounds: Bounds,
    /// Maximum size of one file, in bytes.
    pub file_bytes_max: usize,
    /// Maximum size of all files together, in bytes.
    pub total_bytes_max: usize,
}

/// Default maximum size of one file, in bytes: about 40,000 rules. A larger file is probably a log
/// or a dump rather than a policy, and reading it would delay a reload.
pub const FILE_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Upper bound on the setting for the maximum size of one file, in bytes. Parsing a file takes up
/// to 41 times its size in memory, even for malicious text (measured at 1 MiB).
pub const FILE_BYTES_CEILING: usize = 16 * 1024 * 1024;

/// Maximum size of all files together, in bytes. This is both the default and the upper bound of
/// the setting. Compiling a policy takes about 20 times the size of its text in memory, or 15 times
/// for JSON (measured at 1 MiB).
pub const TOTAL_BYTES_MAX: usize = 64 * 1024 * 1024;

impl Default for Options {
    fn default() -> Self {
        Options {
            merge_domains: false,
            charge: Charge::Admitted,
            near_at: SoftLimit::NEAR_AT_DEFAULT,
            bounds: Bounds::DEFAULT,
            file_bytes_max: FILE_BYTES_MAX,
            total_bytes_max: TOTAL_BYTES_MAX,
        }
    }
}

impl Source {
    /// Returns the text without its byte order mark.
    ///
    /// # Errors
    ///
    /// Returns an error if the file is too large, is not UTF-8, or contains a control character
    /// that YAML forbids.
    pub(super) fn decode(&self, options: &Options) -> Result<&str, Box<Diagnostic>> {
        let error =
            |span, kind, message| Box::new(Diagnostic::new(&self.name, span, kind, message));
        let (bytes, bytes_max) = (self.text.len(), options.file_bytes_max.min(FILE_BYTES_CEILING));
        if bytes > bytes_max {
            let message = format!(
                "the file has {bytes} bytes, but a policy file may have at most {bytes_max}; split \
                 it into several files"
            );
            return Err(error(Span::at(1, 1), DiagnosticKind::TooLarge, message));
        }
        let text = std::str::from_utf8(&self.text).map_err(|invalid| {
            let good = String::from_utf8_lossy(&self.text[..invalid.valid_up_to()]);
            let message = "the text is not UTF-8 from here on; save the file as UTF-8".to_owned();
            error(end_position(&good), DiagnosticKind::Encoding, message)
        })?;
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let Some((at, c)) = text.char_indices().find(|(_, c)| is_forbidden(*c)) else {
            return Ok(text);
        };
        let message = format!(
            "the control character {} is not allowed in YAML; remove it, or write it as an escape \
             in double quotes",
            quoted(&c.to_string())
        );
        let span = end_position(&text[..at]);
        let mut error = error(span, DiagnosticKind::Encoding, message);
        error.excerpt = LineIndex::new(text).excerpt(span);
        Err(error)
    }
}

/// Returns whether YAML 1.1 forbids a character.
fn is_forbidden(c: char) -> bool {
    match c {
        '\t' | '\n' | '\r' | '\u{85}' => false,
        '\u{fffe}' | '\u{ffff}' => true,
        c => c.is_control(),
    }
}

/// Returns the span of the first character after `text`.
fn end_position(text: &str) -> Span {
    let line = text.matches('\n').count() + 1;
    let last = text.rsplit('\n').next().unwrap_or(text);
    Span::at(line, last.chars().count() + 1)
}
