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

/// What we count at a node.
type Counted = (&'static str, &'static str, Kind, fn(&NodeStats) -> &Counter);

const COUNTED: [Counted; 20] = [
    ("redis_connections", "Open connections to Redis", Kind::Gauge, |node| &node.connected),
    ("redis_connects", "Connections made to Redis", Kind::Counter, |node| &node.connects),
    ("redis_dial_failures", "Dials of Redis that failed", Kind::Counter, |node| {
        &node.dial_failures
    }),
    ("redis_losses", "Connections to Redis that were lost or dropped", Kind::Counter, |node| {
        &node.losses
    }),
    ("redis_writes", "Writes to Redis, each one pipeline", Kind::Counter, |node| &node.pipelines),
    ("redis_items", "Script calls written to Redis", Kind::Counter, |node| &node.items),
    ("redis_stale", "Script calls not written: their callers had gone", Kind::Counter, |node| {
        &node.stale
    }),
    ("redis_not_connected", "Script calls without a connection", Kind::Counter, |node| {
        &node.not_connected
    }),
    ("redis_queue_full", "Script calls that found the queue full", Kind::Counter, |node| {
        &node.queue_full
    }),
    ("redis_noscript", "Scripts loaded again", Kind::Counter, |node| &node.noscript),
    ("redis_moved", "Script calls answered with MOVED", Kind::Counter, |node| &node.moved),
    ("redis_ask", "Script calls answered with ASK", Kind::Counter, |node| &node.ask),
    ("redis_tryagain", "Script calls answered with TRYAGAIN", Kind::Counter, |node| &node.tryagain),
    ("redis_errors", "Script calls answered with another error", Kind::Counter, |node| {
        &node.refused
    }),
    ("redis_timeouts", "Connections dropped: a reply was overdue", Kind::Counter, |node| {
        &node.timeouts
    }),
    (
        "redis_unknown",
        "Script calls whose outcome nobody knows; never sent again",
        Kind::Counter,
        |node| &node.unknown,
    ),
    ("redis_breakers_open", "1 while the breaker is open or half-open", Kind::Gauge, |node| {
        &node.open_now
    }),
    ("redis_breaker_opened", "How often the circuit breaker opened", Kind::Counter, |node| {
        &node.opened
    }),
    (
        "redis_breaker_rejected",
        "Script calls not sent, because the breaker was open",
        Kind::Counter,
        |node| &node.rejected,
    ),
    (
        "redis_meta_differs",
        "Connections that found another replica's key secret or format",
        Kind::Counter,
        |node| &node.meta_differs,
    ),
];

const BREAKER: Family = Family::new(
    "redis_breaker_state",
    "1 for what the breaker does: closed, open, half-open",
    Kind::Gauge,
);
/// What is measured at a node.
type Measured = (Family, fn(&NodeStats) -> Distribution);

const MEASURED: [Measured; 3] = [
    (
        Family::new(
            "redis_wait",
            "Time that a caller waited for a script call, our queue included",
            Kind::Histogram,
        )
        .in_unit(Unit::Seconds),
        |node| node.waits.read(),
    ),
    (
        Family::new(
            "redis_round_trip",
            "Time from a write to the last of its replies: network and scripts",
            Kind::Histogram,
        )
        .in_unit(Unit::Seconds),
        |node| node.round_trips.read(),
    ),
    (
        Family::new("redis_write_items", "Script calls that one write carried", Kind::Histogram),
        |node| node.sizes.read(),
    ),
];

/// What a node says of itself.
type Said = (Family, fn(&NodeInfo) -> u64);

const SAID: [Said; 9] = [
    (Family::new("redis_ops_per_second", "Commands a second, everybody's", Kind::Gauge), |node| {
        node.ops_per_second
    }),
    (
        Family::new("redis_commands", "Commands that Redis ran, everybody's", Kind::Counter),
        |node| node.commands,
    ),
    (
        Family::new("redis_memory_used", "Memory that Redis uses", Kind::Gauge)
            .in_unit(Unit::Bytes),
        |node| node.memory_bytes,
    ),
    (
        Family::new("redis_memory_max", "Memory that Redis may use; 0: no bound", Kind::Gauge)
            .in_unit(Unit::Bytes),
        |node| node.memory_bytes_max,
    ),
    (
        Family::new(
            "redis_evicted_keys",
            "Keys that Redis dropped for want of memory",
            Kind::Counter,
        ),
        |node| node.evicted_keys,
    ),
    (
        Family::new(
            "redis_script_calls",
            "Script calls that Redis ran, everybody's",
            Kind::Counter,
        ),
        |node| node.script_calls,
    ),
    (
        Family::new("redis_script", "Time that Redis spent in scripts", Kind::Counter)
            .in_unit(Unit::Seconds),
        |node| node.script_us,
    ),
    (Family::new("redis_keys", "Keys of our database", Kind::Gauge), |node| node.keys),
    (
        Family::new(
            "redis_keys_without_expiry",
            "Keys of our database without an end",
            Kind::Gauge,
        ),
        |node| node.keys.saturating_sub(node.keys_expiring),
    ),
];

const EVICTION: Family =
    Family::new("redis_eviction_info", "What Redis does when its memory is full", Kind::Gauge);

/// The figures of every node that is known now; none where counters are in memory.
pub(crate) fn of(decider: &Arc<Deciding>) -> Figures {
    let decider = Arc::clone(decider);
    Box::new(move |sink| match decider.store().redis() {
        Some(shared) => show(&connections(shared).report(), sink),
        None => Ok(()),
    })
}

fn show(nodes: &[NodeReport], sink: &mut dyn Sink) -> fmt::Result {
    for (name, help, kind, read) in COUNTED {
        sink.family(&Family::new(name, help, kind), &mut |put| {
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
    for (family, read) in SAID {
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
