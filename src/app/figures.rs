//! What store, lanes and listener count themselves, as a scrape shows it: one table each.
//!
//! Not here: what telemetry counts (decisions), the counting itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::serve::Deciding;
use super::store::{Shared, connections};
use crate::clock::Clock;
use crate::resilience::degraded::Reason;
use crate::store::memory;
use crate::store::redis::counters::{Counter, NodeCounters};
use crate::store::redis::store;
use crate::telemetry::Kept;
use crate::wire::{TlsCounters, Traffic};

/// A figure: its metric's name, its help, whether it only grows, and where it is kept.
type Figure<T> = (&'static str, &'static str, bool, fn(&T) -> u64);

fn seen(atomic: &AtomicU64) -> u64 {
    atomic.load(Ordering::Relaxed)
}

const MEMORY: [Figure<memory::Counters>; 6] = [
    ("keys", "Counters held in memory", false, |kept| seen(&kept.live)),
    ("keys_evicted", "Counters dropped, full ones", true, |kept| seen(&kept.evicted)),
    ("keys_overflowed", "Charges to shared counters, because the store was full", true, |kept| {
        seen(&kept.overflowed)
    }),
    ("keys_no_room", "Checks refused for want of room", true, |kept| seen(&kept.no_room)),
    ("clock_regressions", "Checks that met a state of a later time", true, |kept| {
        seen(&kept.clock_regressions)
    }),
    (
        "cost_exceeds_capacity",
        "Checks that asked for more than their limit can ever hold",
        true,
        |kept| seen(&kept.cost_exceeds_capacity),
    ),
];

const TRAFFIC: [Figure<Traffic>; 7] = [
    ("connections", "Open gRPC connections", false, |kept| {
        kept.open.load(Ordering::Relaxed) as u64
    }),
    ("connections_accepted", "gRPC connections that came", true, |kept| seen(&kept.accepted)),
    (
        "connections_refused",
        "gRPC connections closed at once, because too many were open",
        true,
        |kept| seen(&kept.refused),
    ),
    (
        "accepts_failed",
        "Times that the system would not hand out a gRPC connection: no files are left",
        true,
        |kept| seen(&kept.accepts_failed),
    ),
    (
        "prefaces_failed",
        "gRPC connections that did not begin HTTP/2 in time, or spoke something else",
        true,
        |kept| seen(&kept.prefaces_failed),
    ),
    ("connections_broken", "gRPC connections that ended with a protocol error", true, |kept| {
        seen(&kept.connections_broken)
    }),
    ("handshakes_failed", "TLS handshakes that failed or took too long", true, |kept| {
        seen(&kept.handshakes_failed)
    }),
];

/// Where TLS is spoken.
const TLS: [Figure<TlsCounters>; 4] = [
    ("certificate_expires_seconds", "When our certificate ends, since 1970", false, |kept| {
        seen(&kept.expires_secs)
    }),
    ("certificate_reloads", "Times that other certificates were put in force", true, |kept| {
        seen(&kept.replaced)
    }),
    (
        "certificate_reload_failures",
        "Times that other certificates could not be used, and the old ones stayed",
        true,
        |kept| seen(&kept.not_replaced),
    ),
    ("calls_denied", "Calls for a domain that their caller may not ask", true, |kept| {
        seen(&kept.denied)
    }),
];

const REDIS: [Figure<Shared>; 8] = [
    ("redis_overruns", "Calls that the store did not answer within its budget", true, |kept| {
        kept.remote().overruns()
    }),
    ("redis_remembered_refusals", "Checks refused without asking Redis again", true, |kept| {
        seen(&kept.remote().store().counters().refused)
    }),
    ("redis_spared", "Calls answered without asking Redis at all", true, |kept| {
        seen(&kept.remote().store().counters().spared)
    }),
    ("redis_clamped", "Counters from the far future, taken for full", true, |kept| {
        seen(&counters(kept).clamped)
    }),
    ("redis_unreadable", "Replies that no script of ours gives", true, |kept| {
        seen(&counters(kept).unreadable)
    }),
    ("redis_split_calls", "Calls over several slots of a cluster", true, |kept| {
        seen(&counters(kept).split)
    }),
    ("redis_two_rounds", "Calls that asked one slot before the others", true, |kept| {
        seen(&counters(kept).two_rounds)
    }),
    (
        "redis_given_back",
        "Charges given back, because the call was not admitted over all slots",
        true,
        |kept| seen(&counters(kept).given_back),
    ),
];

/// Of what stands in for Redis.
const DEGRADED: [Figure<Shared>; 10] = [
    ("degraded", "1 while calls are answered without Redis", false, |kept| {
        u64::from(kept.degraded().outage(Clock::System.now()).is_some())
    }),
    ("degraded_unreachable_calls", "Calls for which Redis could not be asked", true, |kept| {
        kept.degraded().calls(Reason::Unreachable)
    }),
    ("degraded_late_calls", "Calls for which Redis was not heard in time", true, |kept| {
        kept.degraded().calls(Reason::Late)
    }),
    ("degraded_shed_calls", "Calls answered locally: too many waited for Redis", true, |kept| {
        kept.degraded().calls(Reason::Shed)
    }),
    ("degraded_rehearsed_calls", "Calls answered locally, to rehearse", true, |kept| {
        kept.degraded().calls(Reason::Rehearsed)
    }),
    ("degraded_admitted_calls", "Calls admitted without Redis", true, |kept| {
        seen(&kept.counters().admitted)
    }),
    ("degraded_refused_calls", "Calls refused without Redis", true, |kept| {
        seen(&kept.counters().refused)
    }),
    ("degraded_unavailable_calls", "Calls answered with an error, as a rule wants", true, |kept| {
        seen(&kept.counters().unavailable)
    }),
    ("degraded_given_back", "Charges given back: refused without Redis", true, |kept| {
        seen(&kept.counters().given_back)
    }),
    ("degraded_give_backs_lost", "Charges that could not be given back", true, |kept| {
        seen(&kept.counters().give_backs_lost)
    }),
];

/// Of a node; shown as the sum over the nodes that are known now.
type OfNode = (&'static str, &'static str, bool, fn(&NodeCounters) -> &Counter);

const NODES: [OfNode; 19] = [
    ("redis_lanes", "Open connections to Redis", false, |node| &node.connected),
    ("redis_connects", "Connections made to Redis", true, |node| &node.connects),
    ("redis_dial_failures", "Dials of Redis that failed", true, |node| &node.dial_failures),
    ("redis_losses", "Connections to Redis that were lost or dropped", true, |node| &node.losses),
    ("redis_writes", "Writes to Redis, each one pipeline", true, |node| &node.pipelines),
    ("redis_items", "Script calls written to Redis", true, |node| &node.items),
    ("redis_stale", "Script calls not written: their callers had gone", true, |node| &node.stale),
    ("redis_not_connected", "Script calls without a connection", true, |node| &node.not_connected),
    ("redis_queue_full", "Script calls that found the queue full", true, |node| &node.queue_full),
    ("redis_noscript", "Scripts loaded again", true, |node| &node.noscript),
    ("redis_moved", "Script calls answered with MOVED", true, |node| &node.moved),
    ("redis_ask", "Script calls answered with ASK", true, |node| &node.ask),
    ("redis_tryagain", "Script calls answered with TRYAGAIN", true, |node| &node.tryagain),
    ("redis_errors", "Script calls answered with another error", true, |node| &node.refused),
    ("redis_timeouts", "Connections dropped: a reply was overdue", true, |node| &node.timeouts),
    ("redis_unknown", "Script calls whose outcome nobody knows; never sent again", true, |node| {
        &node.unknown
    }),
    ("redis_breakers_tripped", "Breakers that are tripped or probing", false, |node| {
        &node.tripped_now
    }),
    ("redis_breaker_trips", "How often a breaker tripped", true, |node| &node.trips),
    ("redis_tripped", "Script calls not sent, because a breaker was tripped", true, |node| {
        &node.tripped
    }),
];

fn counters(shared: &Shared) -> &store::Counters {
    shared.remote().store().inner().counters()
}

/// The figures of the store that decides, and of the listener.
pub(super) fn kept(
    decider: &Arc<Deciding>,
    traffic: &Arc<Traffic>,
    tls: Option<&Arc<TlsCounters>>,
) -> Vec<Kept> {
    let mut kept = Vec::new();
    for ((name, help, grows, read), tls) in TLS.into_iter().zip(tls.into_iter().cycle()) {
        let tls = Arc::clone(tls);
        kept.push(Kept { name, help, grows, read: Box::new(move || read(&tls)) });
    }
    for (name, help, grows, read) in TRAFFIC {
        let traffic = Arc::clone(traffic);
        kept.push(Kept { name, help, grows, read: Box::new(move || read(&traffic)) });
    }
    for (name, help, grows, read) in MEMORY {
        let decider = Arc::clone(decider);
        let of_store = move || read(decider.store().memory().counters());
        kept.push(Kept { name, help, grows, read: Box::new(of_store) });
    }
    if decider.store().redis().is_none() {
        return kept;
    }
    for (name, help, grows, read) in REDIS.into_iter().chain(DEGRADED) {
        let decider = Arc::clone(decider);
        let of_store = move || decider.store().redis().map_or(0, read);
        kept.push(Kept { name, help, grows, read: Box::new(of_store) });
    }
    for (name, help, grows, read) in NODES {
        let decider = Arc::clone(decider);
        let of_nodes = move || {
            let nodes = decider.store().redis().map(|shared| connections(shared).report());
            nodes.iter().flatten().map(|node| read(&node.counters).get()).sum()
        };
        kept.push(Kept { name, help, grows, read: Box::new(of_nodes) });
    }
    kept
}
