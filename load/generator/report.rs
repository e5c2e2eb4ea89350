//! What was seen, and how it is told.

use std::error::Error;
use std::fmt::Write;
use std::fs;
use std::time::Duration;

use serde_json::json;

use crate::histogram::Histogram;

/// Ticks of /proc/PID/stat in a second: fixed by Linux for programs.
const TICKS_PER_SECOND: u64 = 100;

#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) in_flight: usize,
    /// Calls that were due and not sent, because too many had no answer.
    pub(crate) lost: u64,
    failed: u64,
    refused: u64,
    latencies: Histogram,
    /// Admitted calls by value, warm-up included: the limit counted those, too.
    admitted: Vec<u32>,
}

/// What was asked for.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) rate: u32,
    /// From the first call to the last.
    pub(crate) time: Duration,
    /// Of that, what counts.
    pub(crate) measured: Duration,
    /// Hits a second and at once that a value is granted.
    pub(crate) grant: Option<(f64, f64)>,
    /// CPU that the server took while it was measured.
    pub(crate) cpu: Option<Duration>,
}

impl Seen {
    pub(crate) fn new(keys: u32) -> Self {
        Seen {
            in_flight: 0,
            lost: 0,
            failed: 0,
            refused: 0,
            latencies: Histogram::new(),
            admitted: vec![0; keys as usize],
        }
    }

    /// Notes an answer: refused or not, or none.
    pub(crate) fn note(
        &mut self,
        key: u32,
        refused: Option<bool>,
        latency: Duration,
        measured: bool,
    ) {
        if refused == Some(false) {
            self.admitted[key as usize] += 1;
        }
        match refused {
            None => self.failed += 1,
            Some(refused) if measured => {
                self.refused += u64::from(refused);
                self.latencies.note(latency);
            }
            Some(_) => {}
        }
    }

    /// Hits that were admitted beyond what the values are granted, of all values together.
    fn beyond(&self, asked: &Asked) -> Option<f64> {
        let (limit, burst) = asked.grant?;
        let granted = limit * asked.time.as_secs_f64() + burst;
        Some(self.admitted.iter().map(|&passed| (f64::from(passed) - granted).max(0.0)).sum())
    }

    fn cpu_micros(&self, asked: &Asked) -> Option<f64> {
        let decisions = self.latencies.total();
        (decisions > 0).then_some(asked.cpu?.as_secs_f64() * 1e6 / decisions as f64)
    }

    pub(crate) fn text(&self, asked: &Asked) -> String {
        let ms = |share| self.latencies.percentile(share).as_secs_f64() * 1e3;
        let decided = self.latencies.total();
        let mut text = format!(
            "rate      {} asked for, {:.0} decided per second\n\
             decisions {decided}, of them {} refused; {} failed, {} not sent, {} without answer\n\
             latency   p50 {:.2} ms, p99 {:.2} ms, p99.9 {:.2} ms, max {:.2} ms",
            asked.rate,
            decided as f64 / asked.measured.as_secs_f64(),
            self.refused,
            self.failed,
            self.lost,
            self.in_flight,
            ms(0.5),
            ms(0.99),
            ms(0.999),
            self.latencies.max().as_secs_f64() * 1e3,
        );
        // Writing into a String cannot fail.
        if let Some(micros) = self.cpu_micros(asked) {
            let _ = write!(text, "\ncpu       {micros:.1} µs per decision");
        }
        if let Some(beyond) = self.beyond(asked) {
            let _ = write!(text, "\nbeyond    {beyond:.0} hits admitted beyond the limit");
        }
        text
    }

    pub(crate) fn json(&self, asked: &Asked) -> String {
        let micros = |share| self.latencies.percentile(share).as_micros() as u64;
        json!({
            "rate_asked": asked.rate,
            "seconds": asked.measured.as_secs(),
            "decisions": self.latencies.total(),
            "refused": self.refused,
            "failed": self.failed,
            "not_sent": self.lost,
            "without_answer": self.in_flight,
            "p50_us": micros(0.5),
            "p99_us": micros(0.99),
            "p999_us": micros(0.999),
            "max_us": self.latencies.max().as_micros() as u64,
            "cpu_us_per_decision": self.cpu_micros(asked),
            "admitted_beyond_limit": self.beyond(asked),
        })
        .to_string()
    }
}

/// CPU that a process has taken, all threads, user and system.
pub(crate) fn cpu_time(pid: u32) -> Result<Duration, Box<dyn Error>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name in brackets may hold blanks; after it come the state and the numbers.
    let after = stat.rsplit_once(')').ok_or("no such process")?.1;
    let number =
        |at: usize| after.split_whitespace().nth(at).and_then(|text| text.parse::<u64>().ok());
    // Fields 14 and 15 of proc(5), counted from the state, which is the third.
    let (user, system) = number(11).zip(number(12)).ok_or("an unknown form of /proc")?;
    Ok(Duration::from_millis((user + system) * 1_000 / TICKS_PER_SECOND))
}
