//! Metric families for each Redis node: counters of the Redis client, and values from INFO.
//!
//! Every series is labeled with the node's address. `store::redis::client` updates the counters.

use std::fmt;

use crate::domain::{FailureKind, HistogramSnapshot};
use crate::store::redis::client::info::NodeInfo;
use crate::store::redis::client::node_stats::{NodeReport, NodeStats};
use crate::telemetry::{
    MetricFamily, MetricSink, counter, counter_seconds, emit_rows, emit_series, gauge, gauge_bytes,
    histogram, histogram_seconds, metrics,
};

/// Name of the label that every Redis series has. Its value is the node's address.
const NODE_LABEL: &str = "node";

metrics! { COUNTERS [NODE_LABEL]: NodeStats,
    gauge "redis_connections" "Open connections to Redis", |node| node.connected.get();
    counter "redis_connects" "Connections made to Redis", |node| node.connects.get();
    counter "redis_dial_failures" "Failed attempts to connect to Redis", |node| node.connect_failures.get();
    counter "redis_losses" "Connections to Redis that were lost or closed", |node| node.losses.get();
    counter "redis_writes" "Writes to Redis; each is one pipeline", |node| node.writes.get();
    counter "redis_items" "Calls, or parts of calls, written to Redis", |node| node.calls.get();
    counter "redis_stale" "Script calls not sent because their callers had given up", |node| node.abandoned.get();
    counter "redis_not_connected" "Script calls that failed because there was no connection", |node| node.not_connected.get();
    counter "redis_queue_full" "Script calls rejected because the queue was full", |node| node.queue_full.get();
    counter "redis_shed" "Script calls rejected because they could not be answered in time", |node| node.shed.get();
    counter "redis_noscript" "Scripts loaded again", |node| node.noscript.get();
    counter "redis_moved" "Script calls answered with MOVED", |node| node.moved.get();
    counter "redis_ask" "Script calls answered with ASK", |node| node.ask.get();
    counter "redis_tryagain" "Script calls answered with TRYAGAIN", |node| node.tryagain.get();
    counter "redis_timeouts" "Connections closed because a reply was overdue", |node| node.timeouts.get();
    counter "redis_unknown" "Script calls with unknown outcome; they are never sent again", |node| node.unknown.get();
    gauge "redis_breakers_open" "1 while the circuit breaker is open", |node| node.breaker_open.get();
    counter "redis_breaker_opened" "Times that the circuit breaker opened", |node| node.breaker_opened.get();
    counter "redis_breaker_rejected" "Script calls not sent because the circuit breaker was open", |node| node.breaker_rejected.get();
    counter "redis_meta_differs" "Connections on which Redis had counters with another key secret or format", |node| node.meta_mismatches.get();
}

metrics! { HISTOGRAMS [NODE_LABEL]: NodeStats => HistogramSnapshot,
    histogram_seconds "redis_wait" "Time that a caller waited for a script call, including the queue to Redis", |node| node.wait_times.snapshot();
    histogram_seconds "redis_round_trip" "Time from a write to the last of its replies: network and scripts", |node| node.round_trips.snapshot();
    histogram "redis_write_items" "Calls per write", |node| node.write_sizes.snapshot();
}

const ERRORS: MetricFamily = counter("redis_errors", "Script calls answered with another error")
    .with_labels(&[NODE_LABEL, "kind"]);

// Numbers that a Redis node reports in INFO.
metrics! { INFO_NUMBERS [NODE_LABEL]: NodeInfo,
    gauge "redis_ops_per_second" "Commands per second of all clients", |node| node.ops_per_second;
    counter "redis_commands" "Commands of all clients", |node| node.commands;
    gauge_bytes "redis_memory_used" "Memory used by Redis", |node| node.memory_bytes;
    gauge_bytes "redis_memory_max" "Maximum memory of Redis (maxmemory); 0: no maximum", |node| node.memory_bytes_max;
    counter "redis_evicted_keys" "Keys evicted because memory was full", |node| node.evicted_keys;
    counter "redis_script_calls" "Script calls of all clients", |node| node.script_calls;
    counter_seconds "redis_script" "Time that Redis spent in scripts", |node| node.script_us;
    gauge "redis_keys" "Keys in Tidegate's database", |node| node.keys;
    gauge "redis_keys_without_expiry" "Keys without expiry in Tidegate's database", |node| node.keys.saturating_sub(node.keys_expiring);
}

const EVICTION_POLICY: MetricFamily =
    gauge("redis_eviction_info", "1, with the eviction policy of Redis")
        .with_labels(&[NODE_LABEL, "policy"]);

pub(super) fn emit_nodes(nodes: &[NodeReport], sink: &mut dyn MetricSink) -> fmt::Result {
    let stats = nodes.iter().map(|node| ([(NODE_LABEL, node.address.as_str())], &*node.stats));
    emit_rows(sink, COUNTERS, stats.clone())?;
    emit_rows(sink, HISTOGRAMS, stats)?;
    let errors = nodes.iter().flat_map(|node| {
        let labels = |kind: FailureKind| [(NODE_LABEL, &*node.address), ("kind", kind.as_str())];
        node.stats.errors().map(move |(kind, count)| (labels(kind), count))
    });
    emit_series(sink, &ERRORS, errors)?;
    let infos = nodes.iter().filter_map(|node| {
        node.info.as_deref().map(|info| ([(NODE_LABEL, node.address.as_str())], info))
    });
    emit_rows(sink, INFO_NUMBERS, infos.clone())?;
    let policies = infos.map(|([node], info)| ([node, ("policy", &*info.eviction_policy)], 1));
    emit_series(sink, &EVICTION_POLICY, policies)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_metric_of_a_node_reads_its_own_counter() {
        let stats = NodeStats::default();
        let counters = [
            ("redis_connections", &stats.connected),
            ("redis_connects", &stats.connects),
            ("redis_dial_failures", &stats.connect_failures),
            ("redis_losses", &stats.losses),
            ("redis_writes", &stats.writes),
            ("redis_items", &stats.calls),
            ("redis_stale", &stats.abandoned),
            ("redis_not_connected", &stats.not_connected),
            ("redis_queue_full", &stats.queue_full),
            ("redis_shed", &stats.shed),
            ("redis_noscript", &stats.noscript),
            ("redis_moved", &stats.moved),
            ("redis_ask", &stats.ask),
            ("redis_tryagain", &stats.tryagain),
            ("redis_timeouts", &stats.timeouts),
            ("redis_unknown", &stats.unknown),
            ("redis_breakers_open", &stats.breaker_open),
            ("redis_breaker_opened", &stats.breaker_opened),
            ("redis_breaker_rejected", &stats.breaker_rejected),
            ("redis_meta_differs", &stats.meta_mismatches),
        ];
        for (number, (_, counter)) in (1..).zip(counters) {
            counter.add(number);
        }
        let expected = counters.map(|(name, counter)| (name, counter.get()));
        let values = COUNTERS.iter().map(|(family, read)| (family.name, read(&stats)));
        assert_eq!(values.collect::<Vec<_>>(), expected);
        stats.wait_times.record(1);
        (0..2).for_each(|_| stats.round_trips.record(1));
        (0..3).for_each(|_| stats.write_sizes.record(1));
        let counts = HISTOGRAMS.iter().map(|(family, read)| (family.name, read(&stats).count()));
        let expected = [("redis_wait", 1), ("redis_round_trip", 2), ("redis_write_items", 3)];
        assert_eq!(counts.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn each_number_of_info_has_its_own_metric() {
        let info = NodeInfo {
            ops_per_second: 1,
            commands: 2,
            memory_bytes: 3,
            memory_bytes_max: 4,
            evicted_keys: 5,
            script_calls: 6,
            script_us: 7,
            keys: 20,
            keys_expiring: 11,
            eviction_policy: "noeviction".to_owned(),
        };
        let values = INFO_NUMBERS.iter().map(|(family, read)| (family.name, read(&info)));
        let expected = [
            ("redis_ops_per_second", 1),
            ("redis_commands", 2),
            ("redis_memory_used", 3),
            ("redis_memory_max", 4),
            ("redis_evicted_keys", 5),
            ("redis_script_calls", 6),
            ("redis_script", 7),
            ("redis_keys", 20),
            ("redis_keys_without_expiry", 9),
        ];
        assert_eq!(values.collect::<Vec<_>>(), expected);
    }
}
