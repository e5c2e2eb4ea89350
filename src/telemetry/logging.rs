//! Log output: one line of text or JSON per event on standard error, with a constant message and
//! fields.
//!
//! Control characters, line separators and bidirectional marks are escaped, so that no field can
//! forge a log line or reorder its text. Libraries such as h2 log at `warn` and above only.

use std::io::{self, Write};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tracing::level_filters::LevelFilter;
use tracing::subscriber::set_global_default;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::{Registry, fmt, reload};

use crate::domain::{LineFormat, Verbosity, needs_escape};

impl Verbosity {
    /// Returns the level with this name; `None` if there is none.
    pub fn parse(word: &str) -> Option<Verbosity> {
        Verbosity::ALL.into_iter().find(|level| level.as_str() == word)
    }

    /// Returns the filter for this level. Libraries log at `warn` and above only, because at
    /// `debug` they would log a line for every HTTP/2 frame.
    fn to_filter(self) -> Targets {
        let level = match self {
            Verbosity::Off => LevelFilter::OFF,
            Verbosity::Error => LevelFilter::ERROR,
            Verbosity::Warn => LevelFilter::WARN,
            Verbosity::Info => LevelFilter::INFO,
            Verbosity::Debug => LevelFilter::DEBUG,
        };
        let libraries = level.min(LevelFilter::WARN);
        Targets::new().with_default(libraries).with_target(env!("CARGO_CRATE_NAME"), level)
    }
}

/// Handle for changing the log level at run time.
#[derive(Clone, Debug)]
pub struct LogHandle(reload::Handle<Targets, Registry>);

impl LogHandle {
    /// Sets the log level. An event that the level suppresses costs one comparison.
    pub fn set(&self, level: Verbosity) {
        // Fails only if another subscriber was installed first, so that this one is unused.
        let _ = self.0.reload(level.to_filter());
    }
}

/// Installs the process-wide log output, and returns a handle for changing the level. Only the
/// first call in a process has an effect.
pub fn init_logging(level: Verbosity, format: LineFormat) -> LogHandle {
    let (filter, handle) = reload::Layer::new(level.to_filter());
    let subscriber = tracing_subscriber::registry().with(filter);
    // No colors: `EscapingWriter` would escape their control characters.
    let lines = fmt::layer().with_ansi(false).with_writer(|| EscapingWriter).with_target(false);
    // A second server in the same process keeps the first server's log output.
    let _ = match format {
        LineFormat::Text => set_global_default(subscriber.with(lines)),
        LineFormat::Json => set_global_default(subscriber.with(lines.json().flatten_event(true))),
    };
    LogHandle(handle)
}

/// Writer to standard error that escapes control characters.
#[derive(Clone, Copy, Debug)]
struct EscapingWriter;

impl Write for EscapingWriter {
    /// Writes one log line, including its line feed. If standard error is closed or its pipe is
    /// full, drops the rest of the line, because logging must not delay decisions.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut stderr = io::stderr().lock();
        for chunk in escape(line).chunks(CHUNK_BYTES) {
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

/// Maximum number of bytes per write to standard error. A writable pipe accepts 4,096 bytes
/// (PIPE_BUF on Linux) without blocking, and a socket accepts more.
const CHUNK_BYTES: usize = 4_096;

/// Returns whether standard error accepts [`CHUNK_BYTES`] without blocking. Returns false if
/// standard error is a full pipe, for example because the log shipper that reads it hangs.
fn has_room(stderr: &io::StderrLock<'_>) -> bool {
    let mut fds = [PollFd::new(stderr, PollFlags::OUT)];
    let no_wait = Timespec::default();
    poll(&mut fds, Some(&no_wait)).is_ok() && fds[0].revents().contains(PollFlags::OUT)
}

/// Escapes control characters, line separators and bidirectional marks in a line, except a
/// trailing line feed. JSON lines stay valid: the JSON formatter has already escaped the
/// characters below U+0020, and the others occur only within strings, where `\u` escapes are
/// allowed.
fn escape(line: &[u8]) -> Vec<u8> {
    let (body, end) = match line.split_last() {
        Some((b'\n', body)) => (body, &b"\n"[..]),
        Some(_) | None => (line, &b""[..]),
    };
    let mut out = Vec::with_capacity(line.len());
    // Not lossy in practice, because the subscriber writes valid UTF-8.
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
        assert_eq!(escape(line), b"WARN refused value=a\\nWARN forged\\x1b[31m\n");
    }

    #[test]
    fn a_field_cannot_reorder_a_line_or_break_json() {
        let line = "{\"value\":\"\u{7f}\u{85}\u{9b}\u{2028}\u{202e}\u{61c}\"}\n";
        let written = escape(line.as_bytes());
        assert_eq!(written, b"{\"value\":\"\\u007f\\u0085\\u009b\\u2028\\u202e\\u061c\"}\n");
    }

    #[test]
    fn a_line_without_control_characters_is_unchanged() {
        assert_eq!(escape("gr\u{fc}n\n".as_bytes()), "gr\u{fc}n\n".as_bytes());
    }
}
