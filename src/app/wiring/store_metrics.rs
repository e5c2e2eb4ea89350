//! Metric families of the stores, the gRPC listener and TLS, with one table for each.
//!
//! The metrics of decisions are in `telemetry::families`, and the metrics of Redis nodes in
//! `redis_metrics`.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::redis_metrics;
use super::store_setup::ServiceDecider;
use crate::clock::Clock;
use crate::limiter::redis_stack::RedisStack;
use crate::resilience::outage::FallbackReason;
use crate::server::{BatchDecisions, ConnectionStats, RlsService, TlsCounters};
use crate::store::{SharedStoreStats, Store as _, memory};
use crate::telemetry::{MetricFamily, MetricSink, MetricSource, counter, emit_single, gauge};

/// Metric with a single time series, and the function that reads its value.
pub(super) type Metric<T> = (MetricFamily, fn(&T) -> u64);

/// Defines a table of metrics. Each row has a kind, a name, a help text and a value.
macro_rules! metrics {
    ($table:ident: $stats:ty, $($kind:ident $name:literal $help:literal, $value:expr;)+) => {
        const $table: &[Metric<$stats>] = &[ $( ($kind($name, $help), $value) ),+ ];
    };
}
pub(super) use metrics;

fn load(atomic: &AtomicU64) -> u64 {
    atomic.load(Ordering::Relaxed)
}

metrics! { MEMORY: memory::MemoryStats,
    gauge "keys" "Counters in memory", |stats| load(&stats.live);
    counter "keys_evicted" "Counters dropped because they were back to their initial state", |stats| load(&stats.evicted);
    gauge "sketch_keys" "Room that shared counters take up, in counters", |stats| load(&stats.sketch_weight);
    counter "keys_folded" "Counters folded into shared counters because the memory store was full", |stats| load(&stats.folded);
    counter "keys_overflowed" "Charges to shared counters because the memory store was full", |stats| load(&stats.overflowed);
    counter "keys_no_room" "Checks rejected because the memory store was full", |stats| load(&stats.no_room);
    counter "clock_regressions" "Checks whose counter has a later time than the clock", |stats| load(&stats.clock_regressions);
    counter "cost_exceeds_capacity" "Checks with a cost above the capacity of their limit", |stats| load(&stats.cost_exceeds_capacity);
}

metrics! { CONNECTIONS: ConnectionStats,
    gauge "connections" "Open gRPC connections", |stats| stats.open.load(Ordering::Relaxed) as u64;
    counter "connections_accepted" "Accepted gRPC connections", |stats| load(&stats.accepted);
    counter "connections_refused" "gRPC connections closed at once because the backlog of a worker was full", |stats| load(&stats.refused);
    counter "connections_evicted" "Idle gRPC connections closed to make room for new ones", |stats| load(&stats.evicted);
    counter "accepts_failed" "Failed accepts of gRPC connections, for example without file descriptors", |stats| load(&stats.accepts_failed);
    counter "prefaces_failed" "gRPC connections that did not start HTTP/2 in time", |stats| load(&stats.prefaces_failed);
    counter "connections_broken" "gRPC connections closed after a protocol error", |stats| load(&stats.connections_broken);
    counter "receive_timeouts" "gRPC calls rejected because their request did not arrive in time", |stats| load(&stats.receive_timeouts);
    counter "calls_over_budget" "gRPC calls reset because the memory held for callers exceeded its budget", |stats| load(&stats.calls_over_budget);
    counter "connections_blocked" "gRPC connections closed because the client did not read its answers", |stats| load(&stats.connections_blocked);
    counter "overload_rejections" "gRPC calls rejected because they had waited for half of their deadline before they were started, or refused because callers gave up under overload", |stats| load(&stats.overload_rejections);
    counter "handshakes_failed" "TLS handshakes that failed or timed out", |stats| load(&stats.handshakes_failed);
}

metrics! { BATCHES: BatchDecisions,
    gauge "batch_decisions" "Decisions of batches in flight", |batches| batches.in_flight() as u64;
    counter "batches_rejected" "Batches rejected because too many decisions of batches were in flight", |batches| batches.rejected();
}

// These families exist only if the gRPC port uses TLS.
metrics! { TLS: TlsCounters,
    gauge "certificate_expires_seconds" "Expiry of the server certificate, since the Unix epoch", |stats| load(&stats.expires_secs);
    counter "certificate_reloads" "Successful reloads of certificates", |stats| load(&stats.reloads);
    counter "certificate_reload_failures" "Failed reloads of certificates; the old ones stay in force", |stats| load(&stats.reload_failures);
    counter "calls_denied" "Calls for a domain that the caller is not authorized for", |stats| load(&stats.denied);
}

/// Totals of the Redis store.
struct RedisTotals {
    stats: SharedStoreStats,
    counter_losses: u64,
}

metrics! { REDIS: RedisTotals,
    counter "redis_overruns" "Calls that Redis did not answer within the store budget", |totals| totals.stats.overruns;
    counter "redis_unheard_hits" "Hits charged for calls whose callers had left when the answer came; the charges stand", |totals| totals.stats.unheard_hits;
    counter "redis_cached_refusals" "Checks rejected from the refusal cache", |totals| totals.stats.cached_refusals;
    counter "redis_spared" "Calls answered from the refusal cache alone", |totals| totals.stats.cached_calls;
    counter "redis_clamped" "Counters from the far future, read as full", |totals| totals.stats.clamped;
    counter "redis_unreadable" "Replies that no script can send", |totals| totals.stats.unreadable;
    counter "redis_disagreements" "Calls that a script and Tidegate decided differently; their answers follow the script", |totals| totals.stats.disagreements;
    counter "redis_split_calls" "Calls whose counters are on several cluster nodes, or that were sent slot by slot", |totals| totals.stats.multi_slot_calls;
    counter "redis_node_calls" "Calls, or parts of calls, with counters in several slots of a cluster node", |totals| totals.stats.node_calls;
    counter "redis_node_calls_not_here" "Calls, or parts of calls, that were sent again slot by slot, because a slot had moved or was moving", |totals| totals.stats.not_here;
    counter "redis_node_scripts_off" "Times that scripts for cluster nodes were turned off for ten minutes, because the service routes them to other nodes", |totals| totals.stats.node_scripts_off;
    counter "redis_data_losses" "Times that Redis may have lost counters: restarts and failovers", |totals| totals.counter_losses;
    counter "redis_refunded" "Charges refunded because another node or slot rejected the call", |totals| totals.stats.refunds;
    counter "redis_script_decisions" "Calls decided by scripts", |totals| totals.stats.script_calls;
    counter "redis_prepaid_decisions" "Calls decided by prepaid hits alone, without Redis", |totals| totals.stats.prepaid_calls;
    counter "redis_prepaid_hits" "Hits taken in advance", |totals| totals.stats.prepaid_hits;
    counter "redis_prepaid_returned" "Prepaid hits returned unspent", |totals| totals.stats.prepaid_refunded;
}

// Decisions made without Redis, by the fallback store.
metrics! { DEGRADED: RedisStack,
    gauge "degraded" "1 while a circuit breaker is open or Redis did not decide more than 1 % of the last second's calls", |stack| u64::from(stack.outage(Clock::System.now()).is_some());
    counter "degraded_unreachable_calls" "Calls decided without Redis because it was unreachable", |stack| stack.outages().calls(FallbackReason::Unreachable);
    counter "degraded_late_calls" "Calls decided without Redis because it did not answer in time", |stack| stack.outages().calls(FallbackReason::TimedOut);
    counter "degraded_shed_calls" "Calls decided without Redis because it could not have answered in time", |stack| stack.outages().calls(FallbackReason::Shed);
    counter "degraded_rehearsed_calls" "Calls decided without Redis because an operator disabled it", |stack| stack.outages().calls(FallbackReason::Rehearsed);
    counter "degraded_admitted_calls" "Calls admitted without Redis", |stack| load(&stack.stats().admitted);
    counter "degraded_admitted_hits" "Hits admitted without Redis, which may be beyond their limits", |stack| load(&stack.stats().admitted_hits);
    counter "degraded_hits_charged_later" "Hits of shed calls that were charged to Redis afterwards", |stack| stack.hits_charged_later();
    gauge "degraded_over_admission_bound" "Upper bound of hits beyond limits on this replica that may still count", |stack| stack.over_admitted_max(Clock::System.now());
    gauge "degraded_replicas" "Replicas that share the limits without Redis", |stack| u64::from(stack.replicas());
    counter "degraded_refused_calls" "Calls rejected without Redis", |stack| load(&stack.stats().refused);
    counter "degraded_refused_by_own_charges" "Checks rejected by this replica's own charges, because Redis may lack some of them", |stack| load(&stack.stats().refused_by_own_charges);
    counter "degraded_unavailable_calls" "Calls answered with UNAVAILABLE, because a rule says so", |stack| load(&stack.stats().unavailable);
    counter "degraded_refunded" "Charges refunded because the call was rejected without Redis", |stack| load(&stack.stats().refunded);
    counter "degraded_refunds_lost" "Charges that could not be refunded", |stack| load(&stack.stats().refunds_lost);
}

/// Emits a table of metrics with their values in `stats`.
fn emit_table<T>(sink: &mut dyn MetricSink, table: &[Metric<T>], stats: &T) -> fmt::Result {
    table.iter().try_for_each(|(family, value)| emit_single(sink, family, value(stats)))
}

/// Returns a source that emits a table of metrics. `get_stats` returns the statistics that contain
/// the metrics' values. If it returns `None`, the source emits nothing: for example, the table for
/// decisions without Redis is not emitted if counters are in memory.
fn source<P: ?Sized + Send + Sync + 'static, T: 'static>(
    component: &Arc<P>,
    table: &'static [Metric<T>],
    get_stats: fn(&P) -> Option<&T>,
) -> MetricSource {
    let component = Arc::clone(component);
    Box::new(move |sink| {
        get_stats(&component).map_or(Ok(()), |stats| emit_table(sink, table, stats))
    })
}

/// Returns a source that emits the totals of the Redis store, or nothing if counters are in memory.
/// Reads all of them at one time, so that the figures of a scrape fit together.
fn redis_totals_source(decider: &Arc<ServiceDecider>) -> MetricSource {
    let decider = Arc::clone(decider);
    Box::new(move |sink| match decider.store().redis() {
        Some(redis) => {
            let (stats, counter_losses) = (redis.shared_stats(), redis.remote().counter_losses());
            emit_table(sink, REDIS, &RedisTotals { stats, counter_losses })
        }
        None => Ok(()),
    })
}

/// Returns the metric sources for the stores, the gRPC listener and, if enabled, TLS.
pub(crate) fn sources(
    decider: &Arc<ServiceDecider>,
    connections: &Arc<ConnectionStats>,
    rate_limit: &Arc<RlsService<ServiceDecider>>,
    tls: Option<&Arc<TlsCounters>>,
) -> Vec<MetricSource> {
    let of_tls = tls.map(|tls| source(tls, TLS, |tls| Some(tls)));
    let others = vec![
        source(connections, CONNECTIONS, |stats| Some(stats)),
        source(rate_limit, BATCHES, |service| Some(service.batch_decisions())),
        source(decider, MEMORY, |decider| Some(decider.store().memory().stats())),
        redis_totals_source(decider),
        source(decider, DEGRADED, |decider| decider.store().redis()),
        redis_metrics::source(decider),
    ];
    of_tls.into_iter().chain(others).collect()
}

/// Lists the metric families of the stores, the listener, TLS and the Redis nodes in scrape order,
/// for docs/METRICS.md.
#[cfg(test)]
pub(crate) fn families() -> Vec<MetricFamily> {
    fn families_of<T>(table: &[Metric<T>]) -> impl Iterator<Item = MetricFamily> {
        table.iter().map(|(family, _)| *family)
    }
    let own = families_of(TLS)
        .chain(families_of(CONNECTIONS))
        .chain(families_of(BATCHES))
        .chain(families_of(MEMORY))
        .chain(families_of(REDIS))
        .chain(families_of(DEGRADED));
    own.chain(redis_metrics::families()).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    fn values<T>(table: &[Metric<T>], stats: &T) -> Vec<(&'static str, u64)> {
        table.iter().map(|(family, value)| (family.name, value(stats))).collect()
    }

    #[test]
    fn each_total_of_redis_reads_its_own_counter() {
        let stats = SharedStoreStats {
            overruns: 1,
            cached_refusals: 2,
            cached_calls: 3,
            clamped: 4,
            unreadable: 5,
            disagreements: 21,
            multi_slot_calls: 6,
            node_calls: 8,
            not_here: 9,
            node_scripts_off: 10,
            refunds: 12,
            script_calls: 13,
            prepaid_calls: 17,
            prepaid_hits: 18,
            prepaid_refunded: 19,
            unheard_hits: 20,
        };
        let expected = [
            ("redis_overruns", 1),
            ("redis_unheard_hits", 20),
            ("redis_cached_refusals", 2),
            ("redis_spared", 3),
            ("redis_clamped", 4),
            ("redis_unreadable", 5),
            ("redis_disagreements", 21),
            ("redis_split_calls", 6),
            ("redis_node_calls", 8),
            ("redis_node_calls_not_here", 9),
            ("redis_node_scripts_off", 10),
            ("redis_data_losses", 11),
            ("redis_refunded", 12),
            ("redis_script_decisions", 13),
            ("redis_prepaid_decisions", 17),
            ("redis_prepaid_hits", 18),
            ("redis_prepaid_returned", 19),
        ];
        assert_eq!(values(REDIS, &RedisTotals { stats, counter_losses: 11 }), expected);
    }

    #[test]
    fn each_metric_of_the_memory_store_reads_its_own_counter() {
        let stats = memory::MemoryStats {
            live: AtomicU64::new(1),
            evicted: AtomicU64::new(2),
            sketch_weight: AtomicU64::new(3),
            folded: AtomicU64::new(4),
            overflowed: AtomicU64::new(5),
            no_room: AtomicU64::new(6),
            clock_regressions: AtomicU64::new(7),
            cost_exceeds_capacity: AtomicU64::new(8),
        };
        let expected = [
            ("keys", 1),
            ("keys_evicted", 2),
            ("sketch_keys", 3),
            ("keys_folded", 4),
            ("keys_overflowed", 5),
            ("keys_no_room", 6),
            ("clock_regressions", 7),
            ("cost_exceeds_capacity", 8),
        ];
        assert_eq!(values(MEMORY, &stats), expected);
    }

    #[test]
    fn each_metric_of_the_listener_reads_its_own_counter() {
        let stats = ConnectionStats {
            open: AtomicUsize::new(1),
            accepted: AtomicU64::new(2),
            refused: AtomicU64::new(3),
            evicted: AtomicU64::new(4),
            accepts_failed: AtomicU64::new(5),
            prefaces_failed: AtomicU64::new(6),
            connections_broken: AtomicU64::new(7),
            receive_timeouts: AtomicU64::new(8),
            calls_over_budget: AtomicU64::new(9),
            connections_blocked: AtomicU64::new(10),
            overload_rejections: AtomicU64::new(11),
            handshakes_failed: AtomicU64::new(12),
        };
        let expected = [
            ("connections", 1),
            ("connections_accepted", 2),
            ("connections_refused", 3),
            ("connections_evicted", 4),
            ("accepts_failed", 5),
            ("prefaces_failed", 6),
            ("connections_broken", 7),
            ("receive_timeouts", 8),
            ("calls_over_budget", 9),
            ("connections_blocked", 10),
            ("overload_rejections", 11),
            ("handshakes_failed", 12),
        ];
        assert_eq!(values(CONNECTIONS, &stats), expected);
    }

    #[test]
    fn each_metric_of_tls_reads_its_own_counter() {
        let counters = TlsCounters {
            expires_secs: AtomicU64::new(1),
            reloads: AtomicU64::new(2),
            reload_failures: AtomicU64::new(3),
            denied: AtomicU64::new(4),
        };
        let expected = [
            ("certificate_expires_seconds", 1),
            ("certificate_reloads", 2),
            ("certificate_reload_failures", 3),
            ("calls_denied", 4),
        ];
        assert_eq!(values(TLS, &counters), expected);
    }
}
