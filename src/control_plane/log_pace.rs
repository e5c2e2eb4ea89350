//! Pace of the control plane client's log lines. A control plane decides how often it responds, and
//! a broken one responds thousands of times a second.

use std::time::{Duration, Instant};

/// Maximum number of log lines about the control plane in [`PACE_INTERVAL`]. The rejections of two
/// responses fit.
pub(crate) const LOG_LINES_MAX: u64 = 20;
const PACE_INTERVAL: Duration = Duration::from_secs(60);

/// Counter of the log lines in the current minute.
#[derive(Debug, Default)]
pub(crate) struct LogPace {
    minute_start: Option<Instant>,
    /// Number of lines in the current minute, including omitted ones.
    lines: u64,
}

impl LogPace {
    /// Returns whether a line may be logged at `now`. In a new minute, logs how many lines were
    /// omitted in the one before, which takes the place of a line.
    pub(crate) fn admit(&mut self, now: Instant) -> bool {
        if self.minute_start.is_none_or(|start| now.duration_since(start) >= PACE_INTERVAL) {
            let omitted = self.lines.saturating_sub(LOG_LINES_MAX);
            if omitted > 0 {
                tracing::warn!(omitted, "log lines about the control plane omitted");
            }
            self.minute_start = Some(now);
            self.lines = u64::from(omitted > 0);
        }
        self.lines += 1;
        self.lines <= LOG_LINES_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;

    #[test]
    fn twenty_lines_a_minute_are_logged() {
        let start = Clock::System.monotonic_now();
        let mut pace = LogPace::default();
        let mut admitted = |after: u64, count: usize| {
            let now = start + Duration::from_secs(after);
            (0..count).filter(|_| pace.admit(now)).count()
        };
        assert_eq!(admitted(0, 40_000), 20);
        assert_eq!(admitted(59, 1), 0);
        assert_eq!(admitted(60, 40_000), 19, "one line tells what was omitted");
        assert_eq!(admitted(120, 7), 7);
        assert_eq!(admitted(180, 20), 20, "nothing was omitted");
    }
}
