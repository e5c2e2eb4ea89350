//! What is known of each of Redis' nodes, as a scrape shows it: what we count, how long it takes, and
//! what the node says of itself.
//!
//! Each series is labelled with the node's address; there are as many as the servers have nodes. Not
//! here: the counting (`store::redis`).

use std::fmt;
use std::sync::Arc;

use super::store_setup::{Deciding, connections};
use crate::domain::Distribution;
use crate::store::redis::client::info::NodeInfo;
use crate::store::redis::client::node_stats::{Counter, NodeReport, NodeStats, State};
use crate::telemetry::{Family, Figures, Kind, Sink, Unit, Value};

/// The label of every series here.
const NODE: &str = "node";

const fn counter(name: &'static str, help: &'static str) -> Family {
    of_node(name, help, Kind::Counter)
}

const fn gauge(name: &'static str, help: &'static str) -> Family {
    of_node(name, help, Kind::Gauge)
}

const fn of_node(name: &'static str, help: &'static str, kind: Kind) -> Family {
    Family::new(name, help, kind).with_labels(&[NODE])
}

/// What we count at a node.
type Counted = (Family, fn(&NodeStats) -> &Counter);

const COUNTED: [Counted; 20] = [
    (gauge("redis_connections", "Open connections to Redis"), |node| &node.connected),
    (counter("redis_connects", "Connections made to Redis"), |node| &node.connects),
    (counter("redis_dial_failures", "Failed attempts to connect to Redis"), |node| {
        &node.dial_failures
    }),
    (counter("redis_losses", "Connections to Redis that were lost or closed"), |node| &node.losses),
    (counter("redis_writes", "Writes to Redis, each one pipeline"), |node| &node.pipelines),
    (counter("redis_items", "Script calls written to Redis"), |node| &node.items),
    (
        counter("redis_stale", "Script calls not written because their callers had given up"),
        |node| &node.stale,
    ),
    (counter("redis_not_connected", "Script calls without a connection"), |node| {
        &node.not_connected
    }),
    (counter("redis_queue_full", "Script calls rejected because the queue was full"), |node| {
        &node.queue_full
    }),
    (counter("redis_noscript", "Scripts loaded again"), |node| &node.noscript),
    (counter("redis_moved", "Script calls answered with MOVED"), |node| &node.moved),
    (counter("redis_ask", "Script calls answered with ASK"), |node| &node.ask),
    (counter("redis_tryagain", "Script calls answered with TRYAGAIN"), |node| &node.tryagain),
    (counter("redis_errors", "Script calls answered with another error"), |node| &node.refused),
    (counter("redis_timeouts", "Connections closed because a reply was overdue"), |node| {
        &node.timeouts
    }),
    (
        counter("redis_unknown", "Script calls with unknown outcome; they are never sent again"),
        |node| &node.unknown,
    ),
    (gauge("redis_breakers_open", "1 while the circuit breaker is open or half-open"), |node| {
        &node.open_now
    }),
    (counter("redis_breaker_opened", "Times that the circuit breaker opened"), |node| &node.opened),
    (
        counter(
            "redis_breaker_rejected",
            "Script calls not sent because the circuit breaker was open",
        ),
        |node| &node.rejected,
    ),
    (
        counter(
            "redis_meta_differs",
            "Connections that found another key secret or format in Redis",
        ),
        |node| &node.meta_differs,
    ),
];

/// What we measure at a node.
type Measured = (Family, fn(&NodeStats) -> Distribution);

const MEASURED: [Measured; 3] = [
    (
        of_node(
            "redis_wait",
            "Time that a caller waited for a script call, including our queue",
            Kind::Histogram,
        )
        .in_unit(Unit::Seconds),
        |node| node.waits.read(),
    ),
    (
        of_node(
            "redis_round_trip",
            "Time from a write to the last of its replies: network and scripts",
            Kind::Histogram,
        )
        .in_unit(Unit::Seconds),
        |node| node.round_trips.read(),
    ),
    (of_node("redis_write_items", "Script calls per write", Kind::Histogram), |node| {
        node.sizes.read()
    }),
];

const BREAKER: Family = Family::new(
    "redis_breaker_state",
    "1 for the state of the circuit breaker: closed, open, half-open",
    Kind::Gauge,
)
.with_labels(&[NODE, "state"]);

/// What a node reports about itself.
type Reported = (Family, fn(&NodeInfo) -> u64);

const REPORTED: [Reported; 9] = [
    (gauge("redis_ops_per_second", "Commands per second of all clients"), |node| {
        node.ops_per_second
    }),
    (counter("redis_commands", "Commands of all clients"), |node| node.commands),
    (gauge("redis_memory_used", "Memory used by Redis").in_unit(Unit::Bytes), |node| {
        node.memory_bytes
    }),
    (
        gauge("redis_memory_max", "Memory that Redis may use; 0: no bound").in_unit(Unit::Bytes),
        |node| node.memory_bytes_max,
    ),
    (counter("redis_evicted_keys", "Keys evicted because memory was full"), |node| {
        node.evicted_keys
    }),
    (counter("redis_script_calls", "Script calls of all clients"), |node| node.script_calls),
    (counter("redis_script", "Time that Redis spent in scripts").in_unit(Unit::Seconds), |node| {
        node.script_us
    }),
    (gauge("redis_keys", "Keys in our database"), |node| node.keys),
    (gauge("redis_keys_without_expiry", "Keys without expiry in our database"), |node| {
        node.keys.saturating_sub(node.keys_expiring)
    }),
];

const EVICTION: Family =
    Family::new("redis_eviction_info", "1, with the eviction policy of Redis", Kind::Gauge)
        .with_labels(&[NODE, "policy"]);

/// Metrics of every known node; none if counters are in memory.
pub(crate) fn of(decider: &Arc<Deciding>) -> Figures {
    let decider = Arc::clone(decider);
    Box::new(move |sink| match decider.store().redis() {
        Some(shared) => show(&connections(shared).report(), sink),
        None => Ok(()),
    })
}

fn show(nodes: &[NodeReport], sink: &mut dyn Sink) -> fmt::Result {
    for (family, read) in COUNTED {
        sink.family(&family, &mut |put| {
            nodes.iter().try_for_each(|node| {
                put(&[(NODE, &node.address)], Value::Whole(read(&node.counters).get()))
            })
        })?;
    }
    for (family, read) in MEASURED {
        sink.family(&family, &mut |put| {
            nodes.iter().try_for_each(|node| {
                put(&[(NODE, &node.address)], Value::Buckets(read(&node.counters)))
            })
        })?;
    }
    sink.family(&BREAKER, &mut |put| {
        for node in nodes {
            let Some(breaker) = node.breaker else { continue };
            for state in State::ALL {
                let labels = [(NODE, node.address.as_str()), ("state", state.word())];
                put(&labels, Value::Whole(u64::from(state == breaker)))?;
            }
        }
        Ok(())
    })?;
    let said = || nodes.iter().filter_map(|node| Some((&node.address, node.vitals.as_ref()?)));
    for (family, read) in REPORTED {
        sink.family(&family, &mut |put| {
            said().try_for_each(|(node, vitals)| put(&[(NODE, node)], Value::Whole(read(vitals))))
        })?;
    }
    sink.family(&EVICTION, &mut |put| {
        said().try_for_each(|(node, vitals)| {
            let labels = [(NODE, node.as_str()), ("policy", vitals.eviction_policy.as_str())];
            put(&labels, Value::Whole(1))
        })
    })
}

/// Every family of this module, in the order of a scrape.
#[cfg(test)]
pub(super) fn families() -> Vec<Family> {
    let counted = COUNTED.iter().map(|(family, _)| *family);
    let measured = MEASURED.iter().map(|(family, _)| *family);
    let reported = REPORTED.iter().map(|(family, _)| *family);
    counted.chain(measured).chain([BREAKER]).chain(reported).chain([EVICTION]).collect()
}
