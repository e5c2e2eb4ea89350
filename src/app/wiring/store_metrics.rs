//! Metric families of the stores, the gRPC listener and TLS, with one table for each.
//!
//! The metrics of decisions are in `telemetry::decision_metrics`, and the metrics of Redis nodes in
//! `redis_metrics`.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use super::redis_metrics;
use crate::clock::Clock;
use crate::domain::{FailureKind, UnreadableCallers, UnreadableKind};
use crate::limiter::any_store::AnyStore;
use crate::limiter::redis_stack::RedisStack;
use crate::server::{BatchDecisions, ConnectionStats, TlsCounters};
use crate::store::{SharedStore as _, Store as _, memory};
use crate::telemetry::{
    MetricFamily, MetricSink, counter, emit_series, emit_table, gauge, metrics,
};

fn load(atomic: &AtomicU64) -> u64 {
    atomic.load(Ordering::Relaxed)
}

metrics! { MEMORY []: memory::MemoryStats,
    gauge "keys" "Counters in memory", |stats| load(&stats.live);
    counter "keys_evicted" "Counters dropped because they were back to their initial state", |stats| load(&stats.evicted);
    gauge "sketch_keys" "Room that shared counters take up, in counters", |stats| load(&stats.sketch_weight);
    counter "keys_folded" "Counters folded into shared counters because the memory store was full", |stats| load(&stats.folded);
    counter "keys_overflowed" "Charges to shared counters because the memory store was full", |stats| load(&stats.overflowed);
    counter "keys_no_room" "Checks rejected because the memory store was full", |stats| load(&stats.no_room);
    counter "clock_regressions" "Checks of counters whose time is ahead of the clock", |stats| load(&stats.clock_regressions);
    counter "cost_exceeds_capacity" "Checks with a cost above the capacity of their limit", |stats| load(&stats.cost_exceeds_capacity);
}

metrics! { CONNECTIONS []: ConnectionStats,
    gauge "connections" "Open gRPC connections", |stats| stats.open.load(Ordering::Relaxed) as u64;
    counter "connections_accepted" "Accepted gRPC connections", |stats| load(&stats.accepted);
    counter "connections_rejected" "gRPC connections closed immediately because the backlog of a worker was full", |stats| load(&stats.refused);
    counter "connections_evicted" "Idle gRPC connections closed to make room for new ones", |stats| load(&stats.evicted);
    counter "accepts_failed" "Failed accepts of gRPC connections, for example without file descriptors", |stats| load(&stats.accepts_failed);
    counter "prefaces_failed" "gRPC connections that did not start HTTP/2 in time", |stats| load(&stats.prefaces_failed);
    counter "connections_broken" "gRPC connections closed after a protocol error", |stats| load(&stats.connections_broken);
    counter "receive_timeouts" "gRPC calls rejected because their request did not arrive in time", |stats| load(&stats.receive_timeouts);
    counter "calls_over_budget" "gRPC calls reset because the memory held for callers exceeded its budget", |stats| load(&stats.calls_over_budget);
    counter "connections_blocked" "gRPC connections closed because the client did not read its answers", |stats| load(&stats.connections_blocked);
    counter "overload_rejections" "gRPC calls rejected because they had waited for half of their deadline before they were started, or because callers gave up under overload", |stats| load(&stats.overload_rejections);
    counter "handshakes_failed" "TLS handshakes that failed or timed out", |stats| load(&stats.handshakes_failed);
}

metrics! { BATCHES []: BatchDecisions,
    gauge "batch_decisions" "Decisions of batches in flight", |batches| batches.in_flight() as u64;
    counter "batches_rejected" "Batches rejected because too many decisions of batches were in flight", |batches| batches.rejected();
}

// These families exist only if the gRPC port uses TLS.
metrics! { TLS []: TlsCounters,
    gauge "certificate_expiry_timestamp_seconds" "Expiry of the server certificate, since the Unix epoch", |stats| load(&stats.expires_secs);
    counter "certificate_reloads" "Successful reloads of certificates", |stats| load(&stats.reloads);
    counter "certificate_reload_failures" "Failed reloads of certificates; the old ones stay in force", |stats| load(&stats.reload_failures);
    counter "calls_denied" "Calls for a domain that the caller is not authorized for", |stats| load(&stats.denied);
}

metrics! { REDIS []: RedisStack,
    counter "redis_overruns" "Calls that Redis did not answer within --redis-budget", |stack| load(&stack.remote().stats().overruns) + load(&stack.stats().overruns);
    counter "redis_unheard_hits" "Hits charged for calls whose callers no longer waited for the answer; they stay charged", |stack| stack.remote().stats().unheard.get() + stack.stats().unheard.get();
    counter "redis_cached_rejections" "Checks rejected from the rejection cache", |stack| load(&stack.stats().cached_refusals);
    counter "redis_spared" "Calls answered from the rejection cache alone", |stack| load(&stack.stats().cached_calls);
    counter "redis_clamped" "Counters from the far future, read as full", |stack| load(&stack.remote().stats().clamped);
    counter "redis_unreadable" "Replies to script calls that no script of Tidegate can send", |stack| load(&stack.remote().stats().unreadable);
    counter "redis_disagreements" "Calls that a script and Tidegate decided differently; their answers follow the script", |stack| load(&stack.remote().stats().disagreements);
    counter "redis_split_calls" "Calls whose counters are on several cluster nodes, or that were sent slot by slot", |stack| load(&stack.remote().stats().multi_slot_calls);
    counter "redis_node_calls" "Calls, or parts of calls, with counters in several slots of a cluster node", |stack| load(&stack.remote().stats().node_calls);
    counter "redis_node_calls_not_here" "Calls, or parts of calls, that were sent again slot by slot, because a slot had moved or was moving", |stack| load(&stack.remote().stats().not_here);
    counter "redis_node_scripts_off" "Times that scripts for cluster nodes were turned off for ten minutes, because Redis or a proxy routed them to other nodes", |stack| stack.remote().node_scripts_off_count();
    counter "redis_data_losses" "Times that Redis may have lost counters: restarts and failovers", |stack| stack.remote().counter_losses();
    counter "redis_refunded" "Charges refunded because another node or slot rejected the call", |stack| load(&stack.remote().stats().refunded);
    counter "redis_script_decisions" "Calls decided by scripts", |stack| load(&stack.remote().stats().script_calls);
    counter "redis_prepaid_decisions" "Calls decided by prepaid hits alone, without Redis", |stack| load(&stack.stats().prepaid_calls);
    counter "redis_prepaid_hits" "Hits taken in advance", |stack| load(&stack.stats().prepaid_hits);
    counter "redis_prepaid_returned" "Prepaid hits returned unspent", |stack| load(&stack.stats().prepaid_refunded);
}

// Decisions made without Redis, by the fallback store.
metrics! { DEGRADED []: RedisStack,
    gauge "degraded" "1 while a circuit breaker is open, or while more than 1 % of the last second's calls were not decided by Redis; otherwise 0", |stack| u64::from(stack.outage(Clock::System.now()).is_some());
    counter "degraded_admitted_calls" "Calls admitted without Redis", |stack| load(&stack.stats().admitted);
    counter "degraded_admitted_hits" "Hits admitted without Redis, which may be beyond their limits", |stack| load(&stack.stats().admitted_hits);
    counter "degraded_hits_charged_later" "Hits of shed calls that were charged to Redis afterwards", |stack| stack.hits_charged_later();
    gauge "degraded_over_admission_bound" "Upper bound of hits that this replica admitted beyond limits and that still count", |stack| stack.over_admitted_max(Clock::System.now());
    gauge "degraded_replicas" "Replicas among which limits are divided while Redis is unavailable", |stack| u64::from(stack.replicas());
    counter "degraded_rejected_calls" "Calls rejected without Redis", |stack| load(&stack.stats().refused);
    counter "degraded_rejected_by_own_charges" "Checks rejected by this replica's own charges, because Redis may lack some of them", |stack| load(&stack.stats().refused_by_own_charges);
    counter "degraded_unavailable_calls" "Calls answered with UNAVAILABLE while Redis was unavailable, because of on_store_failure", |stack| load(&stack.stats().unavailable);
    counter "degraded_refunded" "Charges refunded because the call was rejected without Redis", |stack| load(&stack.stats().refunded);
    counter "degraded_refunds_lost" "Charges that could not be refunded", |stack| load(&stack.stats().refunds_lost);
}

const DEGRADED_CALLS: MetricFamily = counter(
    "degraded_calls",
    "Calls decided without Redis, by reason: unreachable, error (an error reply), late (no answer in time), shed (could not have answered in time), or rehearsed (an operator disabled Redis)",
)
.with_labels(&["reason"]);

const UNREADABLE_CALLERS: MetricFamily = counter(
    "unreadable_callers",
    "Connections and calls that Tidegate does not understand, by kind",
)
.with_labels(&["kind"]);

/// Writes the metrics of the gRPC listener and its callers.
pub(crate) fn emit_listener(
    connections: &ConnectionStats,
    batches: &BatchDecisions,
    tls: Option<&TlsCounters>,
    sink: &mut dyn MetricSink,
) -> fmt::Result {
    if let Some(tls) = tls {
        emit_table(sink, TLS, tls)?;
    }
    emit_table(sink, CONNECTIONS, connections)?;
    emit_table(sink, BATCHES, batches)
}

/// Writes the counts of callers that cannot be understood.
pub(crate) fn emit_unreadable(
    callers: &UnreadableCallers,
    sink: &mut dyn MetricSink,
) -> fmt::Result {
    let count = |kind: &UnreadableKind| ([("kind", kind.describe().0)], callers.count(*kind));
    emit_series(sink, &UNREADABLE_CALLERS, UnreadableKind::ALL.iter().map(count))
}

/// Writes the metrics of the stores. Those of Redis exist only if counters are in Redis.
pub(crate) fn emit_stores(store: &AnyStore, sink: &mut dyn MetricSink) -> fmt::Result {
    emit_table(sink, MEMORY, store.memory().stats())?;
    let Some(stack) = store.redis() else { return Ok(()) };
    emit_table(sink, REDIS, stack)?;
    emit_table(sink, DEGRADED, stack)?;
    let outages = stack.outages();
    let calls = [
        ("unreachable", outages.calls_if(FailureKind::is_unreachable)),
        ("error", outages.calls_if(FailureKind::is_error_reply)),
        ("late", outages.calls(FailureKind::TimedOut)),
        ("shed", outages.calls_if(FailureKind::is_overload)),
        ("rehearsed", outages.calls(FailureKind::Rehearsed)),
    ];
    let rows = calls.into_iter().map(|(reason, calls)| ([("reason", reason)], calls));
    emit_series(sink, &DEGRADED_CALLS, rows)?;
    redis_metrics::emit_nodes(&stack.remote().nodes(), sink)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;
    use crate::policy::Secret;
    use crate::settings::{Settings, Sources};
    use crate::telemetry::Metric;

    fn values<T>(table: &[Metric<T>], stats: &T) -> Vec<(&'static str, u64)> {
        table.iter().map(|(family, value)| (family.name, value(stats))).collect()
    }

    #[tokio::test]
    async fn each_total_of_redis_reads_its_own_counter() {
        // Nothing connects to Redis: the test ends before its runtime runs a task.
        let flags = [("redis-url", "127.0.0.1:1")];
        let (settings, _) = Settings::read(&Sources::from_flags(&flags)).unwrap();
        let store = AnyStore::open(&settings, &Secret::default(), Vec::new()).unwrap();
        let stack = store.redis().unwrap();
        let (own, remote) = (stack.stats(), stack.remote().stats());
        let totals = [
            ("redis_overruns", &own.overruns),
            ("redis_cached_rejections", &own.cached_refusals),
            ("redis_spared", &own.cached_calls),
            ("redis_clamped", &remote.clamped),
            ("redis_unreadable", &remote.unreadable),
            ("redis_disagreements", &remote.disagreements),
            ("redis_split_calls", &remote.multi_slot_calls),
            ("redis_node_calls", &remote.node_calls),
            ("redis_node_calls_not_here", &remote.not_here),
            ("redis_refunded", &remote.refunded),
            ("redis_script_decisions", &remote.script_calls),
            ("redis_prepaid_decisions", &own.prepaid_calls),
            ("redis_prepaid_hits", &own.prepaid_hits),
            ("redis_prepaid_returned", &own.prepaid_refunded),
        ];
        for (number, (_, total)) in (1..).zip(totals) {
            total.store(number, Ordering::Relaxed);
        }
        let expected = (1..).zip(totals).map(|(number, (name, _))| (name, number));
        let values = values(REDIS, stack);
        assert_eq!(
            values.iter().copied().filter(|(_, value)| *value > 0).collect::<Vec<_>>(),
            expected.collect::<Vec<_>>()
        );
        remote.overruns.store(10, Ordering::Relaxed);
        own.unheard.add(20);
        remote.unheard.add(30);
        let sums = [("redis_overruns", 11), ("redis_unheard_hits", 50)];
        assert_eq!(self::values(REDIS, stack)[..2], sums);
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
            ("connections_rejected", 3),
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
            ("certificate_expiry_timestamp_seconds", 1),
            ("certificate_reloads", 2),
            ("certificate_reload_failures", 3),
            ("calls_denied", 4),
        ];
        assert_eq!(values(TLS, &counters), expected);
    }
}
