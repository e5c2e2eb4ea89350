//! Metric families for each Redis node: what we count and measure, and what the node reports in INFO.
//!
//! Each series carries the node's address. Not here: the counting (`store::redis::client`).

use std::fmt;
use std::sync::Arc;

use super::store_setup::ServiceDecider;
use crate::domain::HistogramSnapshot;
use crate::store::SharedStore as _;
use crate::store::redis::client::info::NodeInfo;
use crate::store::redis::client::node_stats::{BreakerState, Counter, NodeReport, NodeStats};
use crate::telemetry::{
    MetricFamily, MetricSink, MetricSource, MetricUnit, MetricValue, counter, gauge, histogram,
};

/// The label of every series here.
const NODE: &str = "node";

const fn node_counter(name: &'static str, help: &'static str) -> MetricFamily {
    counter(name, help).with_labels(&[NODE])
}

const fn node_gauge(name: &'static str, help: &'static str) -> MetricFamily {
    gauge(name, help).with_labels(&[NODE])
}

const fn node_histogram(name: &'static str, help: &'static str) -> MetricFamily {
    histogram(name, help).with_labels(&[NODE])
}

/// A counter or gauge of a node, and where to read it.
type NodeCounter = (MetricFamily, fn(&NodeStats) -> &Counter);

const COUNTERS: [NodeCounter; 20] = [
    (node_gauge("redis_connections", "Open connections to Redis"), |node| &node.connected),
    (node_counter("redis_connects", "Connections made to Redis"), |node| &node.connects),
    (node_counter("redis_dial_failures", "Failed attempts to connect to Redis"), |node| {
        &node.connect_failures
    }),
    (node_counter("redis_losses", "Connections to Redis that were lost or closed"), |node| {
        &node.losses
    }),
    (node_counter("redis_writes", "Writes to Redis, each one pipeline"), |node| &node.writes),
    (node_counter("redis_items", "Script calls written to Redis"), |node| &node.script_calls),
    (
        node_counter("redis_stale", "Script calls not written because their callers had given up"),
        |node| &node.abandoned,
    ),
    (node_counter("redis_not_connected", "Script calls without a connection"), |node| {
        &node.not_connected
    }),
    (
        node_counter("redis_queue_full", "Script calls rejected because the queue was full"),
        |node| &node.queue_full,
    ),
    (node_counter("redis_noscript", "Scripts loaded again"), |node| &node.noscript),
    (node_counter("redis_moved", "Script calls answered with MOVED"), |node| &node.moved),
    (node_counter("redis_ask", "Script calls answered with ASK"), |node| &node.ask),
    (node_counter("redis_tryagain", "Script calls answered with TRYAGAIN"), |node| &node.tryagain),
    (node_counter("redis_errors", "Script calls answered with another error"), |node| &node.errors),
    (node_counter("redis_timeouts", "Connections closed because a reply was overdue"), |node| {
        &node.timeouts
    }),
    (
        node_counter(
            "redis_unknown",
            "Script calls with unknown outcome; they are never sent again",
        ),
        |node| &node.unknown,
    ),
    (
        node_gauge("redis_breakers_open", "1 while the circuit breaker is open or half-open"),
        |node| &node.breaker_open,
    ),
    (node_counter("redis_breaker_opened", "Times that the circuit breaker opened"), |node| {
        &node.breaker_opened
    }),
    (
        node_counter(
            "redis_breaker_rejected",
            "Script calls not sent because the circuit breaker was open",
        ),
        |node| &node.breaker_rejected,
    ),
    (
        node_counter(
            "redis_meta_differs",
            "Connections that found another key secret or format in Redis",
        ),
        |node| &node.meta_differs,
    ),
];

/// A histogram of a node, and where to read it.
type NodeHistogram = (MetricFamily, fn(&NodeStats) -> HistogramSnapshot);

const HISTOGRAMS: [NodeHistogram; 3] = [
    (
        node_histogram(
            "redis_wait",
            "Time that a caller waited for a script call, including our queue",
        )
        .in_unit(MetricUnit::Seconds),
        |node| node.wait_times.snapshot(),
    ),
    (
        node_histogram(
            "redis_round_trip",
            "Time from a write to the last of its replies: network and scripts",
        )
        .in_unit(MetricUnit::Seconds),
        |node| node.round_trips.snapshot(),
    ),
    (node_histogram("redis_write_items", "Script calls per write"), |node| {
        node.write_sizes.snapshot()
    }),
];

const BREAKER: MetricFamily =
    gauge("redis_breaker_state", "1 for the state of the circuit breaker: closed, open, half-open")
        .with_labels(&[NODE, "state"]);

/// A number that a node reports in INFO, and where to read it.
type InfoNumber = (MetricFamily, fn(&NodeInfo) -> u64);

const INFO_NUMBERS: [InfoNumber; 9] = [
    (node_gauge("redis_ops_per_second", "Commands per second of all clients"), |node| {
        node.ops_per_second
    }),
    (node_counter("redis_commands", "Commands of all clients"), |node| node.commands),
    (node_gauge("redis_memory_used", "Memory used by Redis").in_unit(MetricUnit::Bytes), |node| {
        node.memory_bytes
    }),
    (
        node_gauge("redis_memory_max", "Memory that Redis may use; 0: no bound")
            .in_unit(MetricUnit::Bytes),
        |node| node.memory_bytes_max,
    ),
    (node_counter("redis_evicted_keys", "Keys evicted because memory was full"), |node| {
        node.evicted_keys
    }),
    (node_counter("redis_script_calls", "Script calls of all clients"), |node| node.script_calls),
    (
        node_counter("redis_script", "Time that Redis spent in scripts")
            .in_unit(MetricUnit::Seconds),
        |node| node.script_us,
    ),
    (node_gauge("redis_keys", "Keys in our database"), |node| node.keys),
    (node_gauge("redis_keys_without_expiry", "Keys without expiry in our database"), |node| {
        node.keys.saturating_sub(node.keys_expiring)
    }),
];

const EVICTION: MetricFamily = gauge("redis_eviction_info", "1, with the eviction policy of Redis")
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
        sink.family(&family, &mut |emit| {
            nodes.iter().try_for_each(|node| {
                emit(&[(NODE, &node.address)], MetricValue::Number(read(&node.stats).get()))
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
        sink.family(&family, &mut |emit| {
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
