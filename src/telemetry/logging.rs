//! Log output: one line of text or JSON per event on standard error, with a constant message and
//! fields.
//!
//! Control characters, line separators and bidirectional marks in a field are escaped, so no value can
//! forge or reorder a line. Not here: what is logged, and how often.

use std::io::{self, Write};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tracing::level_filters::LevelFilter;
use tracing::subscriber::set_global_default;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::{Registry, fmt, reload};

use crate::domain::needs_escape;

/// The least severe level that is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verbosity {
    /// Nothing is logged.
    Off,
    /// Failures.
    Error,
    /// Events that will need attention.
    Warn,
    /// Normal events.
    Info,
    /// Details that help to find a cause.
    Debug,
}

/// The format of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineFormat {
    /// For people.
    Text,
    /// For programs.
    Json,
}

impl Verbosity {
    /// Every level, the quietest first.
    pub const ALL: [Verbosity; 5] =
        [Verbosity::Off, Verbosity::Error, Verbosity::Warn, Verbosity::Info, Verbosity::Debug];

    /// Its name in settings.
    pub const fn as_str(self) -> &'static str {
        match self {
            Verbosity::Off => "off",
            Verbosity::Error => "error",
            Verbosity::Warn => "warn",
            Verbosity::Info => "info",
            Verbosity::Debug => "debug",
        }
    }

    /// The level with a name.
    pub fn parse(word: &str) -> Option<Verbosity> {
        Verbosity::ALL.into_iter().find(|level| level.as_str() == word)
    }

    const fn filter(self) -> LevelFilter {
        match self {
            Verbosity::Off => LevelFilter::OFF,
            Verbosity::Error => LevelFilter::ERROR,
            Verbosity::Warn => LevelFilter::WARN,
            Verbosity::Info => LevelFilter::INFO,
            Verbosity::Debug => LevelFilter::DEBUG,
        }
    }
}

/// Changes the log level at run time.
#[derive(Clone, Debug)]
pub struct LogHandle(reload::Handle<LevelFilter, Registry>);

impl LogHandle {
    /// Sets the level. Events below it cost one comparison, as before.
    pub fn set(&self, level: Verbosity) {
        // It fails only if these logs were never started, because they are the process's second.
        let _ = self.0.reload(level.filter());
    }
}

/// Starts logging. Only the first call in a process has an effect.
pub fn init_logging(level: Verbosity, format: LineFormat) -> LogHandle {
    let (filter, handle) = reload::Layer::new(level.filter());
    let subscriber = tracing_subscriber::registry().with(filter);
    // No colours: their control characters would be escaped below.
    let lines = fmt::layer().with_ansi(false).with_writer(|| EscapingWriter).with_target(false);
    // A second server in the process keeps the first one's logs.
    let _ = match format {
        LineFormat::Text => set_global_default(subscriber.with(lines)),
        LineFormat::Json => set_global_default(subscriber.with(lines.json().flatten_event(true))),
    };
    LogHandle(handle)
}

/// Writes lines to standard error and escapes control characters.
#[derive(Clone, Copy, Debug)]
struct EscapingWriter;

impl Write for EscapingWriter {
    /// Receives one whole line, line feed included. If standard error is closed or nobody reads it, the
    /// line is lost; it never delays a decision.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut stderr = io::stderr().lock();
        for chunk in escaped(line).chunks(CHUNK_BYTES) {
            if !has_room(&stderr) || stderr.write_all(chunk).is_err() {
                break;
            }
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Bytes per write. A pipe that is writable accepts this many without blocking (PIPE_BUF on Linux); a
/// socket accepts more.
const CHUNK_BYTES: usize = 4_096;

/// Whether standard error accepts a chunk now. A hanging log shipper leaves its pipe full.
fn has_room(stderr: &io::StderrLock<'_>) -> bool {
    let mut fds = [PollFd::new(stderr, PollFlags::OUT)];
    let no_wait = Timespec::default();
    poll(&mut fds, Some(&no_wait)).is_ok() && fds[0].revents().contains(PollFlags::OUT)
}

/// Escapes all control characters of a line but its last line feed. JSON stays valid: there such
/// characters occur only within strings, C0 ones already escaped, and `\u` escapes are valid in both
/// formats.
fn escaped(line: &[u8]) -> Vec<u8> {
    let (body, end) = match line.split_last() {
        Some((b'\n', body)) => (body, &b"\n"[..]),
        Some(_) | None => (line, &b""[..]),
    };
    let mut out = Vec::with_capacity(line.len());
    // The subscriber writes valid UTF-8, so nothing is lost here.
    for c in String::from_utf8_lossy(body).chars() {
        match u8::try_from(c) {
            Ok(byte) if byte < b' ' => out.extend(byte.escape_ascii()),
            _ if needs_escape(c) => out.extend(format!("\\u{:04x}", u32::from(c)).bytes()),
            _ => out.extend(c.encode_utf8(&mut [0; 4]).bytes()),
        }
    }
    out.extend_from_slice(end);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_cannot_forge_a_second_line() {
        let line = b"WARN refused value=a\nWARN forged\x1b[31m\n";
        assert_eq!(escaped(line), b"WARN refused value=a\\nWARN forged\\x1b[31m\n");
    }

    #[test]
    fn a_field_cannot_reorder_a_line_nor_break_json() {
        let line = "{\"value\":\"\u{7f}\u{85}\u{9b}\u{2028}\u{202e}\u{61c}\"}\n";
        let written = escaped(line.as_bytes());
        assert_eq!(written, b"{\"value\":\"\\u007f\\u0085\\u009b\\u2028\\u202e\\u061c\"}\n");
    }

    #[test]
    fn a_line_without_control_characters_is_unchanged() {
        assert_eq!(escaped("gr\u{fc}n\n".as_bytes()), "gr\u{fc}n\n".as_bytes());
    }
}
