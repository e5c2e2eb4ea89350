//! The table of results: what each row measured, medians over its runs, judged only in the proof;
//! and the machine it ran on.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::process::Command;
use std::sync::{Condvar, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use crate::support::proof;
use crate::trial::{Outcome, at_length, limit, p99};

/// Pairs of calm and fault whose median is judged.
const PAIRS: u64 = 5;
/// What counts as flat, on a machine that is shared with whoever measures it.
const GOODPUT_MIN: f64 = 0.8;
/// Rows at a time where nobody judges times: most of a row is waiting.
const AT_A_TIME: usize = 3;

/// A row, as far as it is known beforehand.
pub struct Row {
    /// Its number in the list of faults that the bench goes by.
    pub number: &'static str,
    pub fault: &'static str,
    pub expected: &'static str,
    pub times: Times,
}

/// The longest medians that meet the expectation, in milliseconds.
#[derive(Clone, Copy, Default)]
pub struct Times {
    /// Of the 99th percentile during the fault, once it is known; where the calm before it was not
    /// much better, half as much again as that.
    pub p99: Option<u64>,
    pub detect: Option<u64>,
    pub recover: Option<u64>,
}

/// What one run of a row saw.
pub struct Observation {
    pub said: String,
    /// What was admitted beyond the limit, in limits; `None` where the rule asks for it.
    pub beyond: Option<f64>,
    pub calm: Duration,
    pub p99: Duration,
    pub detect: Option<Duration>,
    pub recover: Option<Duration>,
    /// Calls answered a second, as a share of what can be; where a row is about that.
    pub goodput: Option<f64>,
}

impl Observation {
    /// What most rows look at.
    pub fn of(outcome: &Outcome, said: String) -> Observation {
        Observation {
            said,
            beyond: Some(crate::admission_oracle::beyond(&outcome.book, limit())),
            calm: p99(outcome.before()),
            p99: p99(outcome.once_known()),
            detect: outcome.detected(),
            recover: outcome.recovered(),
            goodput: None,
        }
    }
}

impl Observation {
    /// Of no counter more was admitted than so many limits beyond its own.
    pub fn assert_beyond_at_most(&self, limits: f64) {
        let beyond = self.beyond.unwrap_or(0.0);
        assert!(beyond <= limits, "{beyond} limits too many, at most {limits}");
    }
}

/// Rows that are done: the line of each, by its place in the table.
static DONE: Mutex<BTreeMap<usize, String>> = Mutex::new(BTreeMap::new());
static RUNNING: Mutex<usize> = Mutex::new(0);
static ENDED: Condvar = Condvar::new();

/// Leave to run, and what is told if the row fails.
struct Turn<'r> {
    at: usize,
    row: &'r Row,
    of: usize,
    line: Option<String>,
}

impl<'r> Turn<'r> {
    fn take(at: usize, row: &'r Row, of: usize) -> Turn<'r> {
        let most = if at_length() { 1 } else { AT_A_TIME };
        let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        while *running >= most {
            running = ENDED.wait(running).unwrap_or_else(PoisonError::into_inner);
        }
        *running += 1;
        Turn { at, row, of, line: None }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *RUNNING.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        ENDED.notify_one();
        let Row { number, fault, expected, .. } = self.row;
        let failed = || format!("| {number} | {fault} | {expected} | FAILED | | | | |");
        let mut line = self.line.take().unwrap_or_else(failed);
        if std::thread::panicking() {
            line += " **missed**";
        }
        let mut done = DONE.lock().unwrap_or_else(PoisonError::into_inner);
        if at_length() {
            // Past the test harness, which keeps what is printed to itself.
            let _ = writeln!(std::io::stdout(), "{line}");
        } else {
            println!("{line}");
        }
        done.insert(self.at, line);
        if done.len() == self.of && at_length() {
            publish(&done);
        }
    }
}

/// Runs a row as often as it takes, judges it, and puts it into the table.
pub fn judge(at: usize, of: usize, row: &Row, mut run: impl FnMut() -> Observation) {
    let mut turn = Turn::take(at, row, of);
    LazyLock::force(&MACHINE);
    let runs = proof::times(1, PAIRS);
    let seen: Vec<Observation> = (0..runs).map(|_| run()).collect();
    let millis = |of: fn(&Observation) -> Option<Duration>| {
        median(seen.iter().filter_map(of).map(|time| time.as_secs_f64() * 1e3).collect())
    };
    let calm = millis(|seen| Some(seen.calm)).unwrap_or(0.0);
    let during = millis(|seen| Some(seen.p99)).unwrap_or(0.0);
    let (detect, recover) = (millis(|seen| seen.detect), millis(|seen| seen.recover));
    let beyond = seen.iter().filter_map(|seen| seen.beyond).max_by(f64::total_cmp);
    let beyond = beyond.map_or("as ruled".to_owned(), |limits| format!("{:.0} %", limits * 100.0));
    let Row { number, fault, expected, times } = row;
    let said = &seen.last().expect("a run").said;
    let shown = |time: Option<f64>| time.map_or("–".to_owned(), |ms| format!("{ms:.0} ms"));
    let line = format!(
        "| {number} | {fault} | {expected} | {said} | {beyond} | {calm:.1} → {during:.1} ms | {} | {} |",
        shown(detect),
        shown(recover)
    );
    turn.line = Some(line.clone());
    if at_length() {
        let within = |what: &str, seen: Option<f64>, most: Option<u64>| {
            let Some(most) = most else { return };
            let seen = seen.unwrap_or_else(|| panic!("{number}: no time to {what}"));
            assert!(
                seen <= most as f64,
                "{number}: {what} in {seen:.1} ms, at most {most}: {line}"
            );
        };
        let p99 = times.p99.map(|most| most.max((1.5 * calm) as u64));
        within("answer (p99)", Some(during), p99);
        if let Some(goodput) = median(seen.iter().filter_map(|seen| seen.goodput).collect()) {
            assert!(goodput >= GOODPUT_MIN, "{number}: goodput {goodput:.2}: {line}");
        }
        within("detect", detect, times.detect);
        within("recover", recover, times.recover);
    }
}

/// The middle one.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// Prints the whole table, and writes it where `TIDEGATE_FAULTS_TO` says.
fn publish(done: &BTreeMap<usize, String>) {
    let mut text = format!("{}\n\n", *MACHINE);
    text += "| # | fault | expected | seen | over-admission | p99 before → during | to detect | to recover |\n";
    text += "|---|---|---|---|---|---|---|---|\n";
    for line in done.values() {
        let _ = writeln!(text, "{line}");
    }
    let _ = write!(std::io::stdout(), "\n{text}\n");
    #[allow(clippy::disallowed_methods, reason = "where a result goes is said from outside")]
    if let Ok(path) = std::env::var("TIDEGATE_FAULTS_TO") {
        std::fs::write(&path, text).unwrap_or_else(|error| panic!("{path}: {error}"));
    }
}

/// Processor, cores, Redis, commit, and how often each row ran; as it was when the first one began.
static MACHINE: LazyLock<String> = LazyLock::new(machine);

fn machine() -> String {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo.lines().find(|line| line.starts_with("model name"));
    let model = model.and_then(|line| line.split(':').nth(1)).map_or("unknown", str::trim);
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let told = |program: &str, words: &[&str]| {
        let output = Command::new(program).args(words).output().ok()?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let commit = told("git", &["describe", "--always", "--dirty"]).unwrap_or_default();
    let redis = told("redis-server", &["--version"]).unwrap_or_default();
    let redis = redis.split_whitespace().nth(2).unwrap_or("?").trim_start_matches("v=").to_owned();
    let runs = proof::times(1, PAIRS);
    let form = if cfg!(debug_assertions) { "debug" } else { "release" };
    format!(
        "{model}, {cores} cores; Redis {redis}; commit {commit}; {form} build; medians of {runs} \
         runs, over-admission of the worst counter in any"
    )
}

#[test]
fn the_recorded_table_has_no_row_that_failed() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let recorded = std::fs::read_to_string(root.join("load/results/faults.md")).unwrap();
    assert!(recorded.contains("| 30 |"), "{recorded}");
    // The marks of a row that did not meet its expectation.
    assert!(!recorded.contains("FAILED") && !recorded.contains("**missed**"), "{recorded}");
}
