//! Where the counters are kept: a cell per rule (`rules`), and a few counters of the whole process.
//!
//! The counters of the whole process are touched by every call whatever its rule, so each worker
//! has lines of its own. Not here: the arithmetic (`tally`), what is shown of it (`shown`).

use std::cell::Cell as LocalCell;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;

use super::compat_stats::tally;
use super::otlp::Traces;
use super::refusal_log::Refusals;
use super::rule_counters::{ByCode, RuleCounters, RuleName, SOURCES, Table, Tables, place};
use super::top::{Top, Values};
use crate::domain::{
    CheckEvent, Code, Decision, Distribution, Micros, Observer, Parent, RefusalEvent, RpcOutcome,
    RuleId, Trace, Waits, add_to,
};

/// Workers whose counters of the whole process are their own; all others share the last.
const SHARDS: usize = 256;

/// Counters of the whole process, as one worker counts them.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard {
    /// By code and source.
    decided: [[AtomicU64; SOURCES]; 2],
    shadowed: AtomicU64,
    domain_not_found: AtomicU64,
    release_without_holder: AtomicU64,
    ended: [AtomicU64; RpcOutcome::ALL.len()],
    took: Waits,
}

/// Snapshot of the whole process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) decided: ByCode,
    pub(super) shadowed: u64,
    pub(super) domain_not_found: u64,
    pub(super) release_without_holder: u64,
    pub(super) ended: [u64; RpcOutcome::ALL.len()],
    pub(super) took: Distribution,
    pub(super) loads: u64,
    pub(super) load_errors: u64,
    pub(super) last_load_taken: bool,
    pub(super) last_taken_us: u64,
}

/// The counters of the process.
#[derive(Debug)]
pub struct Telemetry {
    /// Decisions are counted. Off only to measure what that costs.
    on: bool,
    near_ratio: f64,
    tables: ArcSwap<Tables>,
    /// Limits that callers brought along: one cell for all, since callers choose their number.
    pub(super) overrides: RuleCounters,
    shards: Box<[Shard]>,
    loads: AtomicU64,
    load_errors: AtomicU64,
    /// What the files hold, as far as they were looked at, is in force.
    last_load_taken: AtomicBool,
    /// When that was loaded, in microseconds since the Unix epoch.
    last_taken_us: AtomicU64,
    traces: OnceLock<Traces>,
    refusals: Refusals,
    top: Top,
}

/// The next worker's shard. Workers are few and live as long as the process.
static WORKERS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static WORKER: LocalCell<Option<usize>> = const { LocalCell::new(None) };
}

impl Telemetry {
    /// Counters at zero. `near_ratio`: the share of a limit, 0 to 1, from which hits are near it.
    pub fn new(near_ratio: f64) -> Self {
        Telemetry {
            on: true,
            top: Top::new(Values::default()),
            near_ratio,
            tables: ArcSwap::default(),
            overrides: RuleCounters::default(),
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
            loads: AtomicU64::new(0),
            load_errors: AtomicU64::new(0),
            last_load_taken: AtomicBool::new(false),
            last_taken_us: AtomicU64::new(0),
            traces: OnceLock::new(),
            refusals: Refusals::default(),
        }
    }

    /// From now on calls are traced. Only the first call has an effect.
    pub fn trace(&self, traces: Traces) {
        // A second start in one process keeps the first one's traces.
        let _ = self.traces.set(traces);
    }

    /// What traces are made by, if any are.
    pub fn traced_by(&self) -> Option<&Traces> {
        self.traces.get()
    }

    /// Logs that calls were refused, if any were since the last time. To be called every so often.
    pub fn tell_refusals(&self) {
        let refused = |shard: &Shard| {
            shard.decided[1].iter().map(|count| count.load(Ordering::Relaxed)).sum::<u64>()
        };
        self.refusals.tell(self.shards.iter().map(refused).sum());
    }

    /// Counts decisions, or (to measure what that costs) does not.
    #[must_use]
    pub fn counting(self, on: bool) -> Self {
        Telemetry { on, ..self }
    }

    /// The same; `values` says how refused keys are shown.
    #[must_use]
    pub fn showing(self, values: Values) -> Self {
        Telemetry { top: Top::new(values), ..self }
    }

    /// A policy was loaded whose rules are numbered from `first` on: rules of a name that is known
    /// keep their sums. `fingerprint`: what its files hash to; `now`: by the wall clock. To be
    /// called before the policy decides its first call.
    pub fn loaded(
        &self,
        first: RuleId,
        rules: impl IntoIterator<Item = RuleName>,
        fingerprint: impl ToString,
        now: Micros,
    ) {
        let before = Arc::clone(&self.tables.load().present);
        let present = Arc::new(Table::new(first, rules, fingerprint.to_string(), &before));
        self.tables.store(Arc::new(Tables { present, before }));
        self.loads.fetch_add(1, Ordering::Relaxed);
        self.last_taken_us.store(now.0, Ordering::Relaxed);
        self.last_load_taken.store(true, Ordering::Relaxed);
    }

    /// The files were looked at again and hold the policy that is in force: no load, but whatever
    /// was [refused](Self::not_loaded) last is gone.
    pub fn still_loaded(&self) {
        self.last_load_taken.store(true, Ordering::Relaxed);
    }

    /// A policy was not loaded, because it has faults or cannot be read.
    pub fn not_loaded(&self) {
        self.load_errors.fetch_add(1, Ordering::Relaxed);
        self.last_load_taken.store(false, Ordering::Relaxed);
    }

    /// Who is being refused.
    pub fn top(&self) -> &Top {
        &self.top
    }

    pub(super) fn tables(&self) -> Arc<Tables> {
        self.tables.load_full()
    }

    pub(super) fn totals(&self) -> Totals {
        let mut totals = Totals {
            decided: ByCode::default(),
            shadowed: 0,
            domain_not_found: 0,
            release_without_holder: 0,
            ended: Default::default(),
            took: Waits::default().read(),
            loads: self.loads.load(Ordering::Relaxed),
            load_errors: self.load_errors.load(Ordering::Relaxed),
            last_load_taken: self.last_load_taken.load(Ordering::Relaxed),
            last_taken_us: self.last_taken_us.load(Ordering::Relaxed),
        };
        let add = |sum: &mut u64, cell: &AtomicU64| *sum += cell.load(Ordering::Relaxed);
        for shard in &self.shards {
            let sums = totals.decided.as_flattened_mut().iter_mut();
            sums.zip(shard.decided.as_flattened()).for_each(|(sum, cell)| add(sum, cell));
            totals.ended.iter_mut().zip(&shard.ended).for_each(|(sum, cell)| add(sum, cell));
            add(&mut totals.shadowed, &shard.shadowed);
            add(&mut totals.domain_not_found, &shard.domain_not_found);
            add(&mut totals.release_without_holder, &shard.release_without_holder);
            totals.took.add(&shard.took.read());
        }
        totals
    }

    /// This worker's counters, and whether they are its alone.
    fn shard(&self) -> (&Shard, bool) {
        let worker = WORKER.get().unwrap_or_else(|| {
            let next = WORKERS.fetch_add(1, Ordering::Relaxed);
            WORKER.set(Some(next));
            next
        });
        let last = SHARDS - 1;
        (&self.shards[worker.min(last)], worker < last)
    }
}

impl Observer for Telemetry {
    fn checked(&self, facts: &CheckEvent) {
        if !self.on {
            return;
        }
        let tally = tally(facts, self.near_ratio);
        let Some(id) = facts.rule else {
            self.overrides.add(&tally, facts);
            return;
        };
        if let Some(cell) = self.tables.load().cell(id) {
            cell.add(&tally, facts);
        }
    }

    fn release_without_holder(&self) {
        let (shard, alone) = self.shard();
        add_to(&shard.release_without_holder, 1, alone);
    }

    fn refused(&self, refused: &RefusalEvent<'_>) {
        if self.on {
            self.top.note(refused);
        }
    }

    fn decided(&self, decision: &Decision<'_>) {
        if !self.on {
            return;
        }
        let (shard, alone) = self.shard();
        let refused = usize::from(decision.code == Code::OverLimit);
        add_to(&shard.decided[refused][place(decision.source)], 1, alone);
        if decision.code == Code::OverLimit {
            self.refusals.note(decision);
        }
        if decision.shadowed {
            add_to(&shard.shadowed, 1, alone);
        }
        if !decision.domain_known {
            add_to(&shard.domain_not_found, 1, alone);
        }
    }

    fn times(&self) -> bool {
        self.on
    }

    fn answered(&self, ending: RpcOutcome, took: Duration) {
        if !self.on {
            return;
        }
        let (shard, alone) = self.shard();
        add_to(&shard.ended[ending as usize], 1, alone);
        shard.took.took_as(took, alone);
    }

    fn traces(&self) -> bool {
        self.traces.get().is_some_and(Traces::is_any)
    }

    fn samples(&self, parent: Option<&Parent>) -> bool {
        self.traces.get().is_some_and(|traces| traces.takes(parent))
    }

    fn traced(&self, trace: &Trace, ending: RpcOutcome) {
        if let Some(traces) = self.traces.get() {
            traces.record(trace, ending);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Hits, Outcome, Source, Verdict};

    fn name(path: &str) -> RuleName {
        RuleName { domain: "d".into(), path: path.into() }
    }

    fn pass(id: u32) -> CheckEvent {
        CheckEvent {
            rule: Some(RuleId(id)),
            hits: Hits(1),
            capacity: Hits(10),
            outcome: Outcome {
                verdict: Verdict::Pass,
                charged: Hits(1),
                available: Hits(9),
                retry_after: None,
                reset_after: Micros::ZERO,
                taken: None,
            },
            shadow: false,
            admitted: true,
            is_refund: false,
            source: Source::Memory,
        }
    }

    fn total(telemetry: &Telemetry, path: &str) -> Option<u64> {
        telemetry.tables().present.by_name.get(&name(path)).map(|cell| cell.read().total)
    }

    #[test]
    fn a_rules_sums_survive_a_reload_by_its_name() {
        let telemetry = Telemetry::new(0.8);
        telemetry.loaded(RuleId(0), [name("d.a"), name("d.b")], "1", Micros(1));
        telemetry.checked(&pass(1));
        telemetry.loaded(RuleId(2), [name("d.b"), name("d.c")], "", Micros(2));
        telemetry.checked(&pass(2));
        assert_eq!(total(&telemetry, "d.b"), Some(2));
        assert_eq!(total(&telemetry, "d.a"), None, "a rule that is gone has no series");
    }

    #[test]
    fn nothing_is_lost_however_many_threads_count() {
        const EACH: u64 = 1_000;
        let telemetry = Telemetry::new(0.8);
        let threads = SHARDS as u64 + 8;
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    for _ in 0..EACH {
                        telemetry.answered(RpcOutcome::Decided, Duration::from_micros(3));
                    }
                });
            }
        });
        let totals = telemetry.totals();
        assert_eq!(totals.ended[RpcOutcome::Decided as usize], threads * EACH);
        assert_eq!((totals.took.count(), totals.took.sum), (threads * EACH, 3 * threads * EACH));
    }

    #[test]
    fn a_call_that_was_under_way_at_a_reload_is_counted_on_its_own_rule() {
        let telemetry = Telemetry::new(0.8);
        telemetry.loaded(RuleId(0), [name("d.a"), name("d.b")], "1", Micros(1));
        telemetry.loaded(RuleId(2), [name("d.c"), name("d.b")], "", Micros(2));
        telemetry.checked(&pass(1));
        assert_eq!(total(&telemetry, "d.b"), Some(1));
        assert_eq!(total(&telemetry, "d.c"), Some(0));
    }

    #[test]
    fn rules_that_print_alike_share_one_series() {
        let telemetry = Telemetry::new(0.8);
        telemetry.loaded(RuleId(0), [name("d.a_b"), name("d.a_b")], "", Micros(2));
        telemetry.checked(&pass(0));
        telemetry.checked(&pass(1));
        assert_eq!(total(&telemetry, "d.a_b"), Some(2));
    }
}
