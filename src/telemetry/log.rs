//! Logs: a line of text or of JSON on standard error, with a constant message and fields.
//!
//! A line stays a line: control characters are escaped on the way out, whatever a field holds.
//! Not here: what is logged, and how often (each room, where it happens).

use std::io::{self, Write};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tracing::level_filters::LevelFilter;
use tracing::subscriber::set_global_default;

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

/// Begins to write logs. Only the first call in a process has an effect.
pub fn start_logs(level: Level, format: Format) {
    let level = match level {
        Level::Off => LevelFilter::OFF,
        Level::Error => LevelFilter::ERROR,
        Level::Warn => LevelFilter::WARN,
        Level::Info => LevelFilter::INFO,
        Level::Debug => LevelFilter::DEBUG,
    };
    // Without colour: the escaping below would spell it out.
    let lines =
        tracing_subscriber::fmt().with_max_level(level).with_ansi(false).with_writer(|| Escaped);
    // A second start in one process keeps the first one's logs.
    let _ = match format {
        Format::Text => set_global_default(lines.with_target(false).finish()),
        Format::Json => {
            set_global_default(lines.json().flatten_event(true).with_target(false).finish())
        }
    };
}

/// Writes lines to standard error with control characters escaped.
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

/// A line in which every control character but the last line feed is spelt out.
fn escaped(line: &[u8]) -> Vec<u8> {
    let (body, end) = match line.split_last() {
        Some((b'\n', body)) => (body, &b"\n"[..]),
        Some(_) | None => (line, &b""[..]),
    };
    let mut out = Vec::with_capacity(line.len());
    for &byte in body {
        if byte.is_ascii_control() {
            out.extend(byte.escape_ascii());
        } else {
            out.push(byte);
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
    fn a_plain_line_is_written_as_it_is() {
        assert_eq!(escaped("gr\u{fc}n\n".as_bytes()), "gr\u{fc}n\n".as_bytes());
    }
}
