//! Decision counters of the process: one set per rule (`rule_counters`), and process-wide counters
//! that every call increments.
//!
//! Each worker thread has its own copy of the process-wide counters, on its own cache lines.
//! `hit_counts` classifies hits as near or over the limit; `decision_metrics` names the metrics.

use std::array;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;

use super::calls_without_limit::{Advise, CallsWithoutLimit, NoLimitCount};
use super::detailed_counters::DetailedCounters;
use super::history::History;
use super::hit_counts::count_hits;
use super::lost_bills::LostBills;
use super::near_log::NearLog;
use super::otlp::TraceExporter;
use super::recent_latency::RecentLatency;
use super::refusal_log::RefusalLog;
use super::rule_counters::{CountsByCode, RuleCounters, RuleName, RuleTable, RuleTables};
use super::top_keys::TopKeys;
use crate::domain::{
    CheckEvent, Code, Decision, DetailedCheck, DurationHistogram, HistogramSnapshot, InvalidReason,
    KeyEvent, LimitedBy, Lock, Micros, NearEvent, NoLimitReason, Observer, Request, RpcOutcome,
    RuleId, Source, Trace, TraceParent, ValueDisplay, add_relaxed,
};

/// Number of [`WorkerCounters`]. Each of the first 255 worker threads has its own; all other
/// threads share the last one.
const WORKERS_MAX: usize = 256;

/// One worker thread's copy of the process-wide counters. A total is the sum over all workers.
#[derive(Debug, Default)]
#[repr(align(128))]
struct WorkerCounters {
    /// Number of decisions, by code (OK, OVER_LIMIT), then by source.
    decided: [[AtomicU64; Source::ALL.len()]; 2],
    shadowed: AtomicU64,
    would_be_rejected: AtomicU64,
    releases_without_holder: AtomicU64,
    outcomes: [AtomicU64; RpcOutcome::ALL.len()],
    invalid: [AtomicU64; InvalidReason::ALL.len()],
    durations: DurationHistogram,
}

/// Sums of all workers' counters, and the state of policy loads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProcessTotals {
    pub(super) decided: CountsByCode,
    pub(super) shadowed: u64,
    pub(super) would_be_rejected: u64,
    pub(super) releases_without_holder: u64,
    pub(super) outcomes: [u64; RpcOutcome::ALL.len()],
    pub(super) invalid: [u64; InvalidReason::ALL.len()],
    pub(super) durations: HistogramSnapshot,
}

/// Counters, traces and logs of the process's decisions.
#[derive(Debug)]
pub struct Telemetry {
    near_ratio: f64,
    rule_tables: ArcSwap<RuleTables>,
    /// Counters of request overrides in domains without rules. Each domain with rules has its own
    /// counters of request overrides (`RuleTable::overrides`). A single override has no counters of
    /// its own: callers choose the overrides, so the number of counters would be unbounded.
    pub(super) overrides: RuleCounters,
    pub(super) detailed_counters: DetailedCounters,
    calls_without_limit: CallsWithoutLimit,
    workers: Box<[WorkerCounters]>,
    pub(super) lost_bills: LostBills,
    pub(super) loads: AtomicU64,
    pub(super) load_errors: AtomicU64,
    /// Whether the last policy load succeeded; false before the first load. After a failed load,
    /// also set to true when the files match the active policy again.
    pub(super) last_load_succeeded: AtomicBool,
    /// Time of the last successful policy load, in microseconds since the Unix epoch.
    pub(super) last_policy_load_at_us: AtomicU64,
    trace_exporter: OnceLock<TraceExporter>,
    /// Whether global shadow mode lets every call pass.
    pub(super) global_shadow: bool,
    /// Number of checks that were refused because of a block, or began one.
    pub(super) blocked_checks: AtomicU64,
    pub(super) recent_latency: RecentLatency,
    pub(super) history: Lock<History>,
    refusal_log: RefusalLog,
    /// Log of the calls that would be rejected without shadow mode.
    shadow_log: RefusalLog,
    near_log: NearLog,
    top_keys: TopKeys,
}

/// Number of threads that have used worker counters. Never decreases, because worker threads run
/// until the process exits.
static WORKER_COUNT: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Index of this thread's worker counters; `None` until first use.
    static COUNTERS_INDEX: Cell<Option<usize>> = const { Cell::new(None) };
}

impl Telemetry {
    /// Creates telemetry whose counters are all zero. `near_ratio` is the fraction of a limit (0
    /// to 1) above which hits count as near the limit.
    pub fn new(near_ratio: f64) -> Self {
        Telemetry {
            top_keys: TopKeys::new(ValueDisplay::default(), near_ratio),
            near_ratio,
            rule_tables: ArcSwap::default(),
            overrides: RuleCounters::default(),
            detailed_counters: DetailedCounters::default(),
            calls_without_limit: CallsWithoutLimit::default(),
            workers: (0..WORKERS_MAX).map(|_| WorkerCounters::default()).collect(),
            lost_bills: LostBills::default(),
            loads: AtomicU64::new(0),
            load_errors: AtomicU64::new(0),
            last_load_succeeded: AtomicBool::new(false),
            last_policy_load_at_us: AtomicU64::new(0),
            trace_exporter: OnceLock::new(),
            global_shadow: false,
            blocked_checks: AtomicU64::new(0),
            recent_latency: RecentLatency::default(),
            history: Lock::default(),
            refusal_log: RefusalLog::default(),
            shadow_log: RefusalLog::default(),
            near_log: NearLog::default(),
        }
    }

    /// Enables tracing with this exporter. Only the first call has an effect.
    pub fn set_trace_exporter(&self, exporter: TraceExporter) {
        // A second server in the same process keeps the first server's exporter.
        let _ = self.trace_exporter.set(exporter);
    }

    /// Returns the trace exporter; `None` if tracing is disabled.
    pub fn trace_exporter(&self) -> Option<&TraceExporter> {
        self.trace_exporter.get()
    }

    /// Logs a line if calls were rejected since the previous such line, one if calls would have been
    /// rejected without shadow mode, and up to ten on limits that are nearly used up. Call this about
    /// once a second.
    pub fn log_refusals(&self) {
        let refused = self.sum_each(|worker| &worker.decided[1]).iter().sum();
        let rules = self.rule_tables.load();
        self.refusal_log.write(refused, &rules);
        let [shadowed] = self.sum_each(|worker| array::from_ref(&worker.would_be_rejected));
        self.shadow_log.write_shadow(shadowed, &rules);
        self.near_log.write(&rules);
    }

    /// Logs a warning, at most once per process, if a limit has rejected a bill (a report of hits
    /// already used). Call this about once a second.
    pub fn warn_of_lost_bills(&self) {
        self.lost_bills.warn_once(&self.rule_tables.load().current);
    }

    /// Returns the numbers of calls without a limit since the process started, by reason and domain.
    pub fn calls_without_limit(&self) -> Vec<NoLimitCount> {
        self.calls_without_limit.counts()
    }

    /// Logs a summary of the calls without a limit if one is due, and a sampled call at `debug`.
    /// Call this about once a second.
    pub fn log_calls_without_limit(&self, now: Instant, advise: Advise<'_>) {
        self.calls_without_limit.write(now, advise);
    }

    /// Sets how `/top` displays the descriptor values of keys.
    #[must_use]
    pub fn with_value_display(self, values: ValueDisplay) -> Self {
        Telemetry { top_keys: TopKeys::new(values, self.near_ratio), ..self }
    }

    /// Sets whether global shadow mode lets every call pass.
    #[must_use]
    pub fn with_global_shadow(self, global_shadow: bool) -> Self {
        Telemetry { global_shadow, ..self }
    }

    /// Records a successful load of a policy. The rules of the policy have consecutive ids,
    /// starting with `first`. A rule that keeps its name keeps its counts. Call this before the
    /// policy decides its first call.
    pub fn record_policy_load(
        &self,
        first: RuleId,
        rules: impl IntoIterator<Item = RuleName>,
        fingerprint: impl ToString,
        now: Micros,
    ) {
        // Three tables of a large policy would take 130 MB.
        self.forget_former_rules();
        let previous = Arc::clone(&self.rule_tables.load().current);
        let current = Arc::new(RuleTable::new(first, rules, fingerprint.to_string(), &previous));
        self.detailed_counters.retain_rules_of(&current);
        self.rule_tables.store(Arc::new(RuleTables { current, previous }));
        self.loads.fetch_add(1, Ordering::Relaxed);
        self.last_policy_load_at_us.store(now.0, Ordering::Relaxed);
        self.last_load_succeeded.store(true, Ordering::Relaxed);
    }

    /// Frees the counters and names of the policy before the current one. Calls of that policy that
    /// are still in flight are no longer counted.
    pub fn forget_former_rules(&self) {
        let current = Arc::clone(&self.rule_tables.load().current);
        self.rule_tables.store(Arc::new(RuleTables { current, previous: Arc::default() }));
    }

    /// Returns whether a policy has been loaded.
    pub fn has_policy(&self) -> bool {
        self.loads.load(Ordering::Relaxed) > 0
    }

    /// Returns the fingerprint of the active policy; empty before the first policy is loaded.
    pub fn policy_fingerprint(&self) -> String {
        self.rule_tables.load().current.fingerprint.clone()
    }

    /// Records that the policy files match the active policy again after a failed load. Clears the
    /// failure without counting a load.
    pub fn record_policy_unchanged(&self) {
        self.last_load_succeeded.store(true, Ordering::Relaxed);
    }

    /// Records a failed load: the policy files were invalid or could not be read.
    pub fn record_policy_load_failure(&self) {
        self.load_errors.fetch_add(1, Ordering::Relaxed);
        self.last_load_succeeded.store(false, Ordering::Relaxed);
    }

    /// Returns the statistics of the keys of each limit.
    pub fn top_keys(&self) -> &TopKeys {
        &self.top_keys
    }

    pub(super) fn rule_tables(&self) -> Arc<RuleTables> {
        self.rule_tables.load_full()
    }

    pub(super) fn sum_workers(&self) -> ProcessTotals {
        let sum = |counter: fn(&WorkerCounters) -> &AtomicU64| -> u64 {
            self.workers.iter().map(|worker| counter(worker).load(Ordering::Relaxed)).sum()
        };
        let mut durations = DurationHistogram::default().snapshot();
        self.workers.iter().for_each(|worker| durations.merge(&worker.durations.snapshot()));
        ProcessTotals {
            decided: [0, 1].map(|code| self.sum_each(|worker| &worker.decided[code])),
            shadowed: sum(|worker| &worker.shadowed),
            would_be_rejected: sum(|worker| &worker.would_be_rejected),
            releases_without_holder: sum(|worker| &worker.releases_without_holder),
            outcomes: self.sum_each(|worker| &worker.outcomes),
            invalid: self.sum_each(|worker| &worker.invalid),
            durations,
        }
    }

    /// Returns the sums of several counters over all workers.
    fn sum_each<const N: usize>(
        &self,
        counters: impl Fn(&WorkerCounters) -> &[AtomicU64; N],
    ) -> [u64; N] {
        std::array::from_fn(|at| {
            let workers = self.workers.iter();
            workers.map(|worker| counters(worker)[at].load(Ordering::Relaxed)).sum()
        })
    }

    /// Counts a check. Adds its hits to `row`: the counters of the check's detailed path if there
    /// are any, otherwise the counters of its rule. `rule` always records peeks (checks with 0
    /// hits) and rejected bills (reports of hits already used).
    fn count(&self, check: &CheckEvent, row: &RuleCounters, rule: &RuleCounters) {
        row.add(&count_hits(check, self.near_ratio), check);
        if check.is_blocked {
            self.blocked_checks.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(lost) = rule.record_bill(check) {
            self.lost_bills.add(lost);
        }
    }

    /// Returns this thread's counters, and whether this thread is their only writer.
    fn worker_counters(&self) -> (&WorkerCounters, bool) {
        let worker = COUNTERS_INDEX.get().unwrap_or_else(|| {
            let next = WORKER_COUNT.fetch_add(1, Ordering::Relaxed);
            COUNTERS_INDEX.set(Some(next));
            next
        });
        let last = WORKERS_MAX - 1;
        (&self.workers[worker.min(last)], worker < last)
    }
}

impl Observer for Telemetry {
    fn on_check(&self, check: &CheckEvent) {
        match check.rule {
            None => self.count(check, &self.overrides, &self.overrides),
            Some(id) => {
                if let Some(counters) = self.rule_tables.load().get(id) {
                    self.count(check, counters, counters);
                }
            }
        }
    }

    fn on_override_check(&self, check: &CheckEvent, domain: &str) {
        let tables = self.rule_tables.load();
        let counters = tables.override_counters(domain).unwrap_or(&self.overrides);
        self.count(check, counters, counters);
    }

    fn on_detailed_check(&self, check: &CheckEvent, detailed: &DetailedCheck<'_>) {
        let tables = self.rule_tables.load();
        let Some(rule) = check.rule.and_then(|id| tables.get(id)) else { return };
        match self.detailed_counters.get(detailed) {
            Some(row) => self.count(check, &row, rule),
            None => self.count(check, rule, rule),
        }
    }

    fn on_unmatched(
        &self,
        request: &Request<'_>,
        reason: NoLimitReason,
        explain: &dyn Fn() -> String,
    ) {
        self.calls_without_limit.record(request, reason, explain);
    }

    fn release_without_holder(&self) {
        let (worker, exclusive) = self.worker_counters();
        add_relaxed(&worker.releases_without_holder, 1, exclusive);
    }

    fn on_invalid(&self, reason: InvalidReason) {
        let (worker, exclusive) = self.worker_counters();
        add_relaxed(&worker.invalid[reason as usize], 1, exclusive);
    }

    fn on_refusal(&self, refused: &KeyEvent<'_>) {
        self.top_keys.record_refusal(refused);
    }

    fn sample_pass(&self, check: &CheckEvent) -> Option<u64> {
        self.top_keys.sample(check)
    }

    fn on_pass(&self, key: &KeyEvent<'_>, check: &CheckEvent, weight: u64) {
        self.top_keys.record_pass(key, check, weight);
    }

    fn on_near(&self, event: &NearEvent<'_>) {
        self.near_log.record(event);
    }

    fn on_shadow_pass(&self, limit: Option<&LimitedBy<'_>>, source: Source) {
        let (worker, exclusive) = self.worker_counters();
        add_relaxed(&worker.would_be_rejected, 1, exclusive);
        self.shadow_log.record(limit, source);
    }

    fn on_decision(&self, decision: &Decision<'_>) {
        let (worker, exclusive) = self.worker_counters();
        let refused = usize::from(decision.code == Code::OverLimit);
        add_relaxed(&worker.decided[refused][decision.source as usize], 1, exclusive);
        if decision.code == Code::OverLimit {
            self.refusal_log.record(decision.limited_by.as_ref(), decision.source);
        }
        if decision.shadowed {
            add_relaxed(&worker.shadowed, 1, exclusive);
        }
    }

    fn on_response(&self, outcome: RpcOutcome, took: Duration) {
        let (worker, exclusive) = self.worker_counters();
        add_relaxed(&worker.outcomes[outcome as usize], 1, exclusive);
        worker.durations.record_duration_with(took, exclusive);
    }

    fn tracing_enabled(&self) -> bool {
        self.trace_exporter.get().is_some_and(|exporter| exporter.sampling.is_enabled())
    }

    fn should_sample(&self, parent: Option<&TraceParent>) -> bool {
        self.trace_exporter.get().is_some_and(|exporter| exporter.sampling.should_sample(parent))
    }

    fn on_trace(&self, trace: &Trace, outcome: RpcOutcome) {
        if let Some(exporter) = self.trace_exporter.get() {
            exporter.record(trace, outcome);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::fixtures::check_event;
    use crate::domain::{Hits, Outcome};
    use crate::telemetry::prometheus::MetricsPage;

    fn name(path: &str) -> RuleName {
        RuleName { domain: "d".into(), path: path.into() }
    }

    fn passed_check(id: u32) -> CheckEvent {
        check_event(id, 1, Outcome { charged: Hits(1), ..Outcome::pass(Hits(9)) })
    }

    fn total(telemetry: &Telemetry, path: &str) -> Option<u64> {
        telemetry
            .rule_tables()
            .current
            .by_name
            .get(&name(path))
            .map(|counters| counters.to_read().hits().total)
    }

    #[test]
    fn a_rule_keeps_its_counts_over_a_reload_by_its_name() {
        let telemetry = Telemetry::new(0.8);
        telemetry.record_policy_load(RuleId(0), [name("d.a"), name("d.b")], "1", Micros(1));
        telemetry.on_check(&passed_check(1));
        telemetry.record_policy_load(RuleId(2), [name("d.b"), name("d.c")], "", Micros(2));
        telemetry.on_check(&passed_check(2));
        assert_eq!(total(&telemetry, "d.b"), Some(2));
        assert_eq!(total(&telemetry, "d.a"), None, "a rule that is gone has no series");
    }

    #[test]
    fn no_count_is_lost_with_more_threads_than_worker_counters() {
        const CALLS_PER_THREAD: u64 = 1_000;
        let telemetry = Telemetry::new(0.8);
        let threads = WORKERS_MAX as u64 + 8;
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    for _ in 0..CALLS_PER_THREAD {
                        telemetry.on_response(RpcOutcome::Decided, Duration::from_micros(3));
                    }
                });
            }
        });
        let totals = telemetry.sum_workers();
        assert_eq!(totals.outcomes[RpcOutcome::Decided as usize], threads * CALLS_PER_THREAD);
        assert_eq!(
            (totals.durations.count(), totals.durations.sum),
            (threads * CALLS_PER_THREAD, 3 * threads * CALLS_PER_THREAD)
        );
    }

    #[test]
    fn a_call_in_flight_during_a_reload_counts_on_its_own_rule() {
        let telemetry = Telemetry::new(0.8);
        telemetry.record_policy_load(RuleId(0), [name("d.a"), name("d.b")], "1", Micros(1));
        telemetry.record_policy_load(RuleId(2), [name("d.c"), name("d.b")], "", Micros(2));
        telemetry.on_check(&passed_check(1));
        assert_eq!(total(&telemetry, "d.b"), Some(1));
        assert_eq!(total(&telemetry, "d.c"), Some(0));
    }

    #[test]
    fn rules_with_the_same_name_share_one_series() {
        let telemetry = Telemetry::new(0.8);
        telemetry.record_policy_load(RuleId(0), [name("d.a_b"), name("d.a_b")], "", Micros(2));
        telemetry.on_check(&passed_check(0));
        telemetry.on_check(&passed_check(1));
        assert_eq!(total(&telemetry, "d.a_b"), Some(2));
    }

    #[test]
    fn calls_that_only_global_shadow_mode_let_pass_are_counted() {
        let telemetry = Telemetry::new(0.8);
        let decision = |shadowed| Decision {
            code: Code::Ok,
            statuses: Vec::new(),
            limited_by: None,
            source: Source::Memory,
            shadowed,
            domain_known: true,
            slot: None,
            marks: Vec::new(),
            hold: None,
        };
        telemetry.on_decision(&decision(false));
        telemetry.on_decision(&decision(true));
        assert_eq!(telemetry.sum_workers().shadowed, 1);
        let text = MetricsPage::new(Arc::new(move |sink| telemetry.emit(sink))).text().unwrap();
        assert!(text.contains("tidegate_global_shadow_mode_total 1\n"), "{text}");
    }

    fn override_hits(telemetry: &Telemetry, domain: &str) -> Option<u64> {
        let tables = telemetry.rule_tables();
        tables.override_counters(domain).map(|counters| counters.hits().total)
    }

    #[test]
    fn request_overrides_of_a_domain_keep_their_counts_over_a_reload() {
        let telemetry = Telemetry::new(0.8);
        telemetry.record_policy_load(RuleId(0), [name("d.a")], "1", Micros(1));
        let check = CheckEvent { rule: None, ..passed_check(0) };
        telemetry.on_override_check(&check, "d");
        telemetry.record_policy_load(RuleId(1), [name("d.b"), name("d.c")], "2", Micros(2));
        telemetry.on_override_check(&check, "d");
        telemetry.on_override_check(&check, "unknown");
        assert_eq!(override_hits(&telemetry, "d"), Some(2));
        assert_eq!(override_hits(&telemetry, "unknown"), None);
        assert_eq!(telemetry.overrides.hits().total, 1);
    }

    #[test]
    fn a_reload_drops_the_detailed_rows_of_a_rule_that_is_gone() {
        let telemetry = Telemetry::new(0.8);
        telemetry.record_policy_load(RuleId(0), [name("d.a"), name("d.b")], "1", Micros(1));
        for (id, rule_path) in [(0, "d.a"), (1, "d.b")] {
            let detailed_path = || format!("{rule_path}_x");
            let detailed = DetailedCheck { domain: "d", rule_path, detailed_path: &detailed_path };
            telemetry.on_detailed_check(&passed_check(id), &detailed);
        }
        assert_eq!(telemetry.detailed_counters.rows().len(), 2);
        telemetry.record_policy_load(RuleId(2), [name("d.b")], "2", Micros(2));
        let rows = telemetry.detailed_counters.rows();
        let rows: Vec<_> = rows.iter().map(|row| (&*row.path, row.counters.hits().total)).collect();
        assert_eq!(rows, [("d.b_x", 1)]);
    }
}
