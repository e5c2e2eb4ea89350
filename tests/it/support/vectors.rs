//! Loads `tests/vectors/*.json`: sequences of operations on one counter with the outcome of each,
//! shared by the pure functions, the memory store and the Lua scripts.
//!
//! A file is a list of cases; a case is a list of steps on one counter that starts absent:
//!
//! ```json
//! {"case": "name", "why": "the fault it would show", "steps": [
//!   {"at": 1763668800000000, "limit": {"fixed_window": {"hits": 3, "window_us": 60000000}},
//!    "take": 1, "expect": {"pass": true, "charged": 1, "available": 2, "retry_after": null,
//!                          "reset_after": 60000000}, "keeps_for": 60000000},
//!   {"at": 1763668800000001, "return": 0}]}
//! ```
//!
//! - `at`: now, in microseconds since the epoch. It may go back.
//! - `limit`: one of the following, and optionally `"charge"` (`billed` or `always`) and `"reserve"` (seconds)
//!   beside it. A step without one keeps the previous step's.
//!   - `{"fixed_window": {hits, window_us}}`
//!   - `{"calendar": {hits, unit, zone}}`: a fixed window of a calendar unit (`day`, `week`, `month`,
//!     `year`) in an IANA zone
//!   - `{"sliding_window": {hits, window_us}}`
//!   - `{"sliding_log": {hits, window_us}}`
//!   - `{"bucket": {burst, emission_us, floor?}}` (arrival form) or
//!     `{"bucket": {burst, hits, window_us, floor?}}` (credit form); `floor` in hits, default 0
//!   - `{"hybrid": {burst, hits, window_us, shares, class, floor_percent}}`: one class's view
//!   - `{"concurrency": {slots, lease_us}}`
//! - one operation: `take: n`, `bill: n` (of a `billed` limit: hits that were used already),
//!   `peek: true`, `question: n` (would n hits pass?), `refund: n` (the caller's own), `hold: n`, `settle: n`,
//!   `reset: true`, or `return: k` (refund by the receipt of step k, counted from 0; it has no outcome).
//! - `holder: n`, beside `take` and `refund` of a concurrency limit: who; absent: nobody. Beside `hold` and `settle`:
//!   the id.
//! - `expect`: the outcome; all times in microseconds; `retry_after` null where it passes and where
//!   waiting does not help.
//! - `keeps_for`: how long after this step the counter must be kept at least (a window not longer
//!   either), in microseconds; absent where there is no counter.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use tidegate::domain::{
    Algorithm, Anchor, Bucket, Charge, Concurrency, FixedWindow, Hits, Holder, Hybrid, Limit,
    Micros, Op, Outcome, Rate, Refill, Reserve, SlidingLog, SlidingWindow, Unit, Verdict, Window,
};

use super::policy_specs;

/// A named sequence of steps on one counter.
#[derive(Clone, Debug)]
pub struct Case {
    /// The file's name, without `.json`.
    pub file: String,
    pub case: String,
    pub why: String,
    pub steps: Vec<Step>,
}

/// One operation and what it must answer.
#[derive(Clone, Debug)]
pub struct Step {
    pub at: Micros,
    pub limit: Arc<Limit>,
    pub op: StepOp,
    pub holder: Option<Holder>,
    pub expect: Option<Expect>,
    pub keeps_for: Option<Micros>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepOp {
    Take(Hits),
    /// Hits that were used already, charged in any case.
    Bill(Hits),
    Peek,
    /// Would so many hits pass?
    Question(Hits),
    Refund(Hits),
    /// Hold for as long as the limit permits.
    Hold(Hits),
    Settle(Hits),
    Reset,
    /// Give back by the receipt of that step.
    Return(usize),
}

/// The comparable part of an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expect {
    pub pass: bool,
    pub charged: u64,
    pub available: u64,
    pub retry_after: Option<u64>,
    pub reset_after: u64,
}

impl Step {
    /// The operation; none for a return.
    pub fn op(&self) -> Option<Op> {
        let ttl_secs = self.limit.reserve.map_or(0, Reserve::ttl_secs);
        Some(match self.op {
            StepOp::Take(cost) | StepOp::Bill(cost) => Op::Take { cost },
            StepOp::Peek => Op::PEEK,
            StepOp::Question(hits) => Op::Peek { hits },
            StepOp::Refund(cost) => Op::Refund { cost },
            StepOp::Hold(cost) => Op::Hold { cost, ttl_secs },
            StepOp::Settle(cost) => Op::Settle { cost },
            StepOp::Reset => Op::RESET,
            StepOp::Return(_) => return None,
        })
    }
}

impl Expect {
    pub fn of(outcome: &Outcome) -> Expect {
        Expect {
            pass: outcome.verdict == Verdict::Pass,
            charged: outcome.charged.0,
            available: outcome.available.0,
            retry_after: outcome.retry_after.map(|wait| wait.0),
            reset_after: outcome.reset_after.0,
        }
    }
}

/// Every case of every file, in the order of the files' names.
pub fn all() -> Vec<Case> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors");
    let mut files: Vec<_> = fs::read_dir(&dir)
        .unwrap_or_else(|e| panic!("tests/vectors: {e}"))
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ext| ext == "json"))
        .collect();
    files.sort();
    assert!(!files.is_empty(), "tests/vectors holds no files");
    files.iter().flat_map(|file| load(file)).collect()
}

fn load(file: &Path) -> Vec<Case> {
    let name = file.file_stem().unwrap().to_string_lossy().into_owned();
    let text = fs::read_to_string(file).unwrap();
    let raw: Vec<RawCase> =
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("tests/vectors/{name}.json: {e}"));
    raw.into_iter()
        .map(|raw| {
            let place = format!("{name}: {}", raw.case);
            let mut limit = None;
            let steps = raw
                .steps
                .into_iter()
                .map(|step| {
                    if let Some(raw) = &step.limit {
                        limit = Some(Arc::new(raw.compile(&place)));
                    }
                    let limit = limit.clone();
                    let limit = limit.unwrap_or_else(|| panic!("{place}: no limit in step 0"));
                    step.compile(limit, &place)
                })
                .collect();
            Case { file: name.clone(), case: raw.case, why: raw.why, steps }
        })
        .collect()
}

/// A limit with these numbers; what a store does not look at is filled in.
pub fn limit(algorithm: Algorithm, charge: Charge) -> Limit {
    let rate = Rate { requests_per_unit: 1, unit: Some(Unit::Second), unit_multiplier: 1 };
    Limit { charge, ..policy_specs::limit_of(rate, algorithm) }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawCase {
    case: String,
    why: String,
    steps: Vec<RawStep>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawStep {
    at: u64,
    limit: Option<RawLimit>,
    take: Option<u64>,
    bill: Option<u64>,
    peek: Option<bool>,
    question: Option<u64>,
    refund: Option<u64>,
    hold: Option<u64>,
    settle: Option<u64>,
    reset: Option<bool>,
    r#return: Option<usize>,
    holder: Option<u128>,
    expect: Option<Expect>,
    keeps_for: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawLimit {
    fixed_window: Option<RawWindow>,
    calendar: Option<RawCalendar>,
    sliding_window: Option<RawWindow>,
    sliding_log: Option<RawWindow>,
    bucket: Option<RawBucket>,
    hybrid: Option<RawHybrid>,
    concurrency: Option<RawSlots>,
    charge: Option<String>,
    reserve: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawWindow {
    hits: u64,
    window_us: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawCalendar {
    hits: u64,
    unit: String,
    zone: String,
    /// As in policy files.
    anchor: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawHybrid {
    burst: u64,
    hits: u64,
    window_us: u64,
    shares: Vec<u32>,
    class: usize,
    floor_percent: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawSlots {
    slots: u64,
    lease_us: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawBucket {
    burst: u64,
    floor: Option<u64>,
    emission_us: Option<u64>,
    hits: Option<u64>,
    window_us: Option<u64>,
}

impl RawStep {
    fn compile(self, limit: Arc<Limit>, place: &str) -> Step {
        let ops = [
            self.take.map(|cost| StepOp::Take(Hits(cost))),
            self.bill.map(|cost| StepOp::Bill(Hits(cost))),
            self.peek.map(|_| StepOp::Peek),
            self.question.map(|hits| StepOp::Question(Hits(hits))),
            self.refund.map(|cost| StepOp::Refund(Hits(cost))),
            self.hold.map(|cost| StepOp::Hold(Hits(cost))),
            self.settle.map(|cost| StepOp::Settle(Hits(cost))),
            self.reset.map(|_| StepOp::Reset),
            self.r#return.map(StepOp::Return),
        ];
        let mut ops = ops.into_iter().flatten();
        let (Some(op), None) = (ops.next(), ops.next()) else {
            panic!("{place}: a step is one operation");
        };
        let limit = match op {
            StepOp::Bill(_) => Arc::new(limit.bill_limit().expect("only such a limit has bills")),
            _ => limit,
        };
        let is_return = matches!(op, StepOp::Return(_));
        assert_eq!(self.expect.is_none(), is_return, "{place}: all but a return have an outcome");
        Step {
            at: Micros(self.at),
            limit,
            op,
            holder: self.holder.map(Holder),
            expect: self.expect,
            keeps_for: self.keeps_for.map(Micros),
        }
    }
}

impl RawLimit {
    fn compile(&self, place: &str) -> Limit {
        let charge = match self.charge.as_deref() {
            None => Charge::Admitted,
            Some("billed") => Charge::Billed,
            Some("always") => Charge::Always,
            Some(other) => panic!("{place}: unknown charge {other}"),
        };
        let mut forms = [
            self.fixed_window.as_ref().map(|w| {
                let window = Window::Epoch { length: Micros(w.window_us) };
                Algorithm::FixedWindow(FixedWindow { hits: Hits(w.hits), window })
            }),
            self.calendar.as_ref().map(|c| {
                let unit = match c.unit.as_str() {
                    "day" => Unit::Day,
                    "week" => Unit::Week,
                    "month" => Unit::Month,
                    "year" => Unit::Year,
                    other => panic!("{place}: no calendar unit: {other}"),
                };
                let anchor = c.anchor.as_ref().map_or(Anchor::FIRST_DAY, |text| {
                    tidegate::policy::parse_anchor(unit, text).unwrap()
                });
                let calendar = tidegate::policy::anchored_calendar(unit, &c.zone, anchor)
                    .unwrap_or_else(|| panic!("{place}: no such zone: {}", c.zone));
                let window = Window::Calendar(calendar);
                Algorithm::FixedWindow(FixedWindow { hits: Hits(c.hits), window })
            }),
            self.sliding_window.as_ref().map(|w| {
                let (hits, length) = (Hits(w.hits), Micros(w.window_us));
                Algorithm::SlidingWindow(SlidingWindow { hits, length })
            }),
            self.sliding_log.as_ref().map(|w| {
                let (hits, length) = (Hits(w.hits), Micros(w.window_us));
                Algorithm::SlidingLog(SlidingLog { hits, length })
            }),
            self.bucket.as_ref().map(|b| Algorithm::Bucket(b.compile(place))),
            self.hybrid.as_ref().map(|h| {
                Algorithm::Hybrid(Hybrid {
                    burst: Hits(h.burst),
                    expiry_burst: Hits(h.burst),
                    hits: Hits(h.hits),
                    window: Micros(h.window_us),
                    shares: h.shares.clone().into(),
                    class: h.class,
                    floor_percent: h.floor_percent,
                })
            }),
            self.concurrency.as_ref().map(|c| {
                let (slots, lease) = (Hits(c.slots), Micros(c.lease_us));
                Algorithm::Concurrency(Concurrency { slots, lease })
            }),
        ]
        .into_iter()
        .flatten();
        let (Some(algorithm), None) = (forms.next(), forms.next()) else {
            panic!("{place}: a limit is exactly one of the forms");
        };
        Limit { reserve: self.reserve.and_then(Reserve::from_secs), ..limit(algorithm, charge) }
    }
}

impl RawBucket {
    fn compile(&self, place: &str) -> Bucket {
        let refill = match (self.emission_us, self.hits, self.window_us) {
            (Some(emission), None, None) => Refill::Arrival { emission: Micros(emission) },
            (None, Some(hits), Some(window)) => {
                Refill::Credits { hits: Hits(hits), window: Micros(window) }
            }
            _ => panic!("{place}: a bucket has emission_us, or hits and window_us"),
        };
        let floor = Hits(self.floor.unwrap_or(0));
        Bucket {
            burst: Hits(self.burst),
            debt_burst: Hits(self.burst),
            refill,
            floor,
            leaky: false,
        }
    }
}
