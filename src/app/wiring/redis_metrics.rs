//! Metric families for each Redis node: what we count and measure, and what the node reports in INFO.
//!
//! Each series carries the node's address. Not here: the counting (`store::redis::client`).

use std::fmt;
use std::sync::Arc;

use super::store_metrics::{Metric, metrics};
use super::store_setup::ServiceDecider;
use crate::domain::HistogramSnapshot;
use crate::store::SharedStore as _;
use crate::store::redis::client::info::NodeInfo;
use crate::store::redis::client::node_stats::{BreakerState, NodeReport, NodeStats};
use crate::telemetry::{
    MetricFamily, MetricKind, MetricSink, MetricSource, MetricUnit, MetricValue,
};

/// The label of every series here.
const NODE: &str = "node";

const fn counter(name: &'static str, help: &'static str) -> MetricFamily {
    of_node(name, help, MetricKind::Counter)
}

const fn gauge(name: &'static str, help: &'static str) -> MetricFamily {
    of_node(name, help, MetricKind::Gauge)
}

const fn gauge_bytes(name: &'static str, help: &'static str) -> MetricFamily {
    gauge(name, help).in_unit(MetricUnit::Bytes)
}

const fn counter_seconds(name: &'static str, help: &'static str) -> MetricFamily {
    counter(name, help).in_unit(MetricUnit::Seconds)
}

const fn of_node(name: &'static str, help: &'static str, kind: MetricKind) -> MetricFamily {
    MetricFamily::new(name, help, kind).with_labels(&[NODE])
}

metrics! { COUNTERS: NodeStats,
    gauge "redis_connections" "Open connections to Redis", |node| node.connected.get();
    counter "redis_connects" "Connections made to Redis", |node| node.connects.get();
    counter "redis_dial_failures" "Failed attempts to connect to Redis", |node| node.connect_failures.get();
    counter "redis_losses" "Connections to Redis that were lost or closed", |node| node.losses.get();
    counter "redis_writes" "Writes to Redis, each one pipeline", |node| node.writes.get();
    counter "redis_items" "Script calls written to Redis", |node| node.script_calls.get();
    counter "redis_stale" "Script calls not written because their callers had given up", |node| node.abandoned.get();
    counter "redis_not_connected" "Script calls without a connection", |node| node.not_connected.get();
    counter "redis_queue_full" "Script calls rejected because the queue was full", |node| node.queue_full.get();
    counter "redis_noscript" "Scripts loaded again", |node| node.noscript.get();
    counter "redis_moved" "Script calls answered with MOVED", |node| node.moved.get();
    counter "redis_ask" "Script calls answered with ASK", |node| node.ask.get();
    counter "redis_tryagain" "Script calls answered with TRYAGAIN", |node| node.tryagain.get();
    counter "redis_errors" "Script calls answered with another error", |node| node.errors.get();
    counter "redis_timeouts" "Connections closed because a reply was overdue", |node| node.timeouts.get();
    counter "redis_unknown" "Script calls with unknown outcome; they are never sent again", |node| node.unknown.get();
    gauge "redis_breakers_open" "1 while the circuit breaker is open or half-open", |node| node.breaker_open.get();
    counter "redis_breaker_opened" "Times that the circuit breaker opened", |node| node.breaker_opened.get();
    counter "redis_breaker_rejected" "Script calls not sent because the circuit breaker was open", |node| node.breaker_rejected.get();
    counter "redis_meta_differs" "Connections that found another key secret or format in Redis", |node| node.meta_differs.get();
}

/// A histogram of a node, and where to read it.
type NodeHistogram = (MetricFamily, fn(&NodeStats) -> HistogramSnapshot);

const HISTOGRAMS: [NodeHistogram; 3] = [
    (
        of_node(
            "redis_wait",
            "Time that a caller waited for a script call, including our queue",
            MetricKind::Histogram,
        )
        .in_unit(MetricUnit::Seconds),
        |node| node.wait_times.snapshot(),
    ),
    (
        of_node(
            "redis_round_trip",
            "Time from a write to the last of its replies: network and scripts",
            MetricKind::Histogram,
        )
        .in_unit(MetricUnit::Seconds),
        |node| node.round_trips.snapshot(),
    ),
    (of_node("redis_write_items", "Script calls per write", MetricKind::Histogram), |node| {
        node.write_sizes.snapshot()
    }),
];

const BREAKER: MetricFamily = MetricFamily::new(
    "redis_breaker_state",
    "1 for the state of the circuit breaker: closed, open, half-open",
    MetricKind::Gauge,
)
.with_labels(&[NODE, "state"]);

// Numbers that a node reports in INFO.
metrics! { INFO_NUMBERS: NodeInfo,
    gauge "redis_ops_per_second" "Commands per second of all clients", |node| node.ops_per_second;
    counter "redis_commands" "Commands of all clients", |node| node.commands;
    gauge_bytes "redis_memory_used" "Memory used by Redis", |node| node.memory_bytes;
    gauge_bytes "redis_memory_max" "Memory that Redis may use; 0: no bound", |node| node.memory_bytes_max;
    counter "redis_evicted_keys" "Keys evicted because memory was full", |node| node.evicted_keys;
    counter "redis_script_calls" "Script calls of all clients", |node| node.script_calls;
    counter_seconds "redis_script" "Time that Redis spent in scripts", |node| node.script_us;
    gauge "redis_keys" "Keys in our database", |node| node.keys;
    gauge "redis_keys_without_expiry" "Keys without expiry in our database", |node| node.keys.saturating_sub(node.keys_expiring);
}

const EVICTION: MetricFamily = MetricFamily::new(
    "redis_eviction_info",
    "1, with the eviction policy of Redis",
    MetricKind::Gauge,
)
.with_labels(&[NODE, "policy"]);

/// Metrics of every known node; none if counters are in memory.
pub(crate) fn of(decider: &Arc<ServiceDecider>) -> MetricSource {
    let decider = Arc::clone(decider);
    Box::new(move |sink| match decider.store().redis() {
        Some(redis) => emit_all(&redis.remote().nodes(), sink),
        None => Ok(()),
    })
}

fn emit_all(nodes: &[NodeReport], sink: &mut dyn MetricSink) -> fmt::Result {
    for (family, read) in COUNTERS {
        sink.family(family, &mut |emit| {
            nodes.iter().try_for_each(|node| {
                emit(&[(NODE, &node.address)], MetricValue::Number(read(&node.stats)))
            })
        })?;
    }
    for (family, read) in HISTOGRAMS {
        sink.family(&family, &mut |emit| {
            nodes.iter().try_for_each(|node| {
                emit(&[(NODE, &node.address)], MetricValue::Histogram(read(&node.stats)))
            })
        })?;
    }
    sink.family(&BREAKER, &mut |emit| {
        for node in nodes {
            let Some(breaker) = node.breaker else { continue };
            for state in BreakerState::ALL {
                let labels = [(NODE, node.address.as_str()), ("state", state.as_str())];
                emit(&labels, MetricValue::Number(u64::from(state == breaker)))?;
            }
        }
        Ok(())
    })?;
    let infos = || nodes.iter().filter_map(|node| Some((&node.address, node.info.as_ref()?)));
    for (family, read) in INFO_NUMBERS {
        sink.family(family, &mut |emit| {
            infos()
                .try_for_each(|(node, info)| emit(&[(NODE, node)], MetricValue::Number(read(info))))
        })?;
    }
    sink.family(&EVICTION, &mut |emit| {
        infos().try_for_each(|(node, info)| {
            let labels = [(NODE, node.as_str()), ("policy", info.eviction_policy.as_str())];
            emit(&labels, MetricValue::Number(1))
        })
    })
}

/// Every family of this module, in the order of a scrape.
#[cfg(test)]
pub(super) fn families() -> Vec<MetricFamily> {
    let counted = COUNTERS.iter().map(|(family, _)| *family);
    let measured = HISTOGRAMS.iter().map(|(family, _)| *family);
    let reported = INFO_NUMBERS.iter().map(|(family, _)| *family);
    counted.chain(measured).chain([BREAKER]).chain(reported).chain([EVICTION]).collect()
}
