//! Logs: a line of text or of JSON on standard error, with a constant message and fields.
//!
//! A line stays a line and reads as it was written: control characters, separators of lines and marks
//! of writing direction are escaped on the way out, whatever a field holds.
//! Not here: what is logged, and how often (each room, where it happens).

use std::io::{self, Write};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tracing::level_filters::LevelFilter;
use tracing::subscriber::set_global_default;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::{Registry, fmt, reload};

use crate::domain::needs_escape;

/// From which level on logs are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Nothing is written.
    Off,
    /// What failed.
    Error,
    /// What will need somebody.
    Warn,
    /// What happened.
    Info,
    /// What led to it.
    Debug,
}

/// How a line is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// For people.
    Text,
    /// For machines.
    Json,
}

impl Level {
    /// Every level, the quietest first.
    pub const ALL: [Level; 5] = [Level::Off, Level::Error, Level::Warn, Level::Info, Level::Debug];

    /// The word for it.
    pub const fn word(self) -> &'static str {
        match self {
            Level::Off => "off",
            Level::Error => "error",
            Level::Warn => "warn",
            Level::Info => "info",
            Level::Debug => "debug",
        }
    }

    /// Reads that word.
    pub fn read(word: &str) -> Option<Level> {
        Level::ALL.into_iter().find(|level| level.word() == word)
    }

    const fn filter(self) -> LevelFilter {
        match self {
            Level::Off => LevelFilter::OFF,
            Level::Error => LevelFilter::ERROR,
            Level::Warn => LevelFilter::WARN,
            Level::Info => LevelFilter::INFO,
            Level::Debug => LevelFilter::DEBUG,
        }
    }
}

/// The level of logs that are being written; to be changed while they are.
#[derive(Clone, Debug)]
pub struct Logs(reload::Handle<LevelFilter, Registry>);

impl Logs {
    /// Writes logs from that level on. A line below it costs what it cost before: one comparison,
    /// since each place that logs remembers whether anybody listens.
    pub fn set(&self, level: Level) {
        // It fails only where these logs were never begun, being a process's second.
        let _ = self.0.reload(level.filter());
    }
}

/// Begins to write logs. Only the first call in a process has an effect.
pub fn start_logs(level: Level, format: Format) -> Logs {
    let (filter, handle) = reload::Layer::new(level.filter());
    let lines = tracing_subscriber::registry().with(filter);
    // Without colour: the escaping below would spell it out.
    let written = fmt::layer().with_ansi(false).with_writer(|| Escaped).with_target(false);
    // A second start in one process keeps the first one's logs.
    let _ = match format {
        Format::Text => set_global_default(lines.with(written)),
        Format::Json => set_global_default(lines.with(written.json().flatten_event(true))),
    };
    Logs(handle)
}

/// Writes lines to standard error with unruly characters escaped.
#[derive(Clone, Copy, Debug)]
struct Escaped;

impl Write for Escaped {
    /// The subscriber hands over one whole line, its end included. A standard error that nobody
    /// reads or that is closed loses the line; it never stops a decision.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut stderr = io::stderr().lock();
        for piece in escaped(line).chunks(PIECE) {
            if !has_room(&stderr) || stderr.write_all(piece).is_err() {
                break;
            }
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What is written at once. A pipe that takes anything takes so much without blocking (PIPE_BUF on
/// Linux); a socket that does takes more.
const PIECE: usize = 4_096;

/// Whether standard error takes a piece now: a log shipper that hangs leaves its pipe full.
fn has_room(stderr: &io::StderrLock<'_>) -> bool {
    let mut asked = [PollFd::new(stderr, PollFlags::OUT)];
    let at_once = Timespec::default();
    poll(&mut asked, Some(&at_once)).is_ok() && asked[0].revents().contains(PollFlags::OUT)
}

/// A line in which every unruly character but the last line feed is spelt out, so that JSON stays
/// JSON: there such characters stand in strings only, and C0 ones not even there, so that all that is
/// left to escape takes the form that both formats understand.
fn escaped(line: &[u8]) -> Vec<u8> {
    let (body, end) = match line.split_last() {
        Some((b'\n', body)) => (body, &b"\n"[..]),
        Some(_) | None => (line, &b""[..]),
    };
    let mut out = Vec::with_capacity(line.len());
    // The subscriber writes text, so nothing is lost here.
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
    fn a_plain_line_is_written_as_it_is() {
        assert_eq!(escaped("gr\u{fc}n\n".as_bytes()), "gr\u{fc}n\n".as_bytes());
    }
}
