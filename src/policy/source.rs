//! Policy files as bytes, and the bounds that apply before they are parsed.
//!
//! Not here: where the bytes come from (`app`), YAML (`document`).

use super::syntax::diagnostic::{Diagnostic, DiagnosticKind, quoted};
use super::syntax::excerpt::Lines;
use super::syntax::yaml::{BYTES_MAX, Span};

/// One policy file.
#[derive(Clone, Debug)]
pub struct Source {
    /// Name in diagnostics. Files are read in the byte order of their names.
    pub name: String,
    /// Content.
    pub text: Vec<u8>,
}

/// How to read policies.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Merge files of the same domain, in the order of their names. Otherwise the second one is an
    /// error.
    pub merge_domains: bool,
    /// Most bytes of one file.
    pub file_bytes_max: usize,
    /// Most bytes of all files together.
    pub all_bytes_max: usize,
}

/// Default maximum of one file: some 150,000 rules. A larger file is more likely a mistake (a log, a
/// dump) than a policy, and reading it would delay a reload.
pub const FILE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Default maximum of all files together: four of the largest files. Compiling a policy takes about
/// 14 times its text in memory, and 37 times as JSON (measured at 1 MiB).
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

impl Source {
    /// Returns the file's text: UTF-8, without a byte order mark and without characters that YAML
    /// forbids.
    pub(super) fn decode(&self, options: &Options) -> Result<&str, Box<Diagnostic>> {
        let error =
            |span, kind, message| Box::new(Diagnostic::new(&self.name, span, kind, message));
        let (bytes, bytes_max) = (self.text.len(), options.file_bytes_max.min(BYTES_MAX));
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
            error(place_after(&good), DiagnosticKind::Encoding, message)
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
        let span = place_after(&text[..at]);
        let mut error = error(span, DiagnosticKind::Encoding, message);
        error.excerpt = Lines::new(text).excerpt(span);
        Err(error)
    }
}

/// Returns whether YAML 1.1 forbids a character in a file.
fn is_forbidden(c: char) -> bool {
    match c {
        '\t' | '\n' | '\r' | '\u{85}' => false,
        '\u{fffe}' | '\u{ffff}' => true,
        c => c.is_control(),
    }
}

/// Returns the position of what follows `text`.
fn place_after(text: &str) -> Span {
    let line = text.matches('\n').count() + 1;
    let last = text.rsplit('\n').next().unwrap_or(text);
    Span::at(line, last.chars().count() + 1)
}
