//! What stores and listener count themselves, as a scrape shows it: one table each.
//!
//! Not here: what telemetry counts (decisions), Redis' nodes (`node_figures`), the counting itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::redis_metrics;
use super::store_setup::{Deciding, Shared};
use crate::clock::Clock;
use crate::resilience::degraded::Reason;
use crate::server::{ConnectionStats, TlsCounters};
use crate::store::memory;
use crate::store::redis::store;
use crate::telemetry::{Family, Figures, Kind, single};

/// A family with one series, and its value.
type Metric<T> = (Family, fn(&T) -> u64);

const fn counter(name: &'static str, help: &'static str) -> Family {
    Family::new(name, help, Kind::Counter)
}

const fn gauge(name: &'static str, help: &'static str) -> Family {
    Family::new(name, help, Kind::Gauge)
}

fn seen(atomic: &AtomicU64) -> u64 {
    atomic.load(Ordering::Relaxed)
}

const MEMORY: [Metric<memory::Counters>; 6] = [
    (gauge("keys", "Counters in memory"), |kept| seen(&kept.live)),
    (
        counter("keys_evicted", "Counters dropped because they were back to their initial state"),
        |kept| seen(&kept.evicted),
    ),
    (
        counter("keys_overflowed", "Charges to shared counters because the memory store was full"),
        |kept| seen(&kept.overflowed),
    ),
    (counter("keys_no_room", "Checks rejected because the memory store was full"), |kept| {
        seen(&kept.no_room)
    }),
    (
        counter("clock_regressions", "Checks whose counter has a later time than the clock"),
        |kept| seen(&kept.clock_regressions),
    ),
    (
        counter("cost_exceeds_capacity", "Checks with a cost above the capacity of their limit"),
        |kept| seen(&kept.cost_exceeds_capacity),
    ),
];

const TRAFFIC: [Metric<ConnectionStats>; 7] = [
    (gauge("connections", "Open gRPC connections"), |kept| {
        kept.open.load(Ordering::Relaxed) as u64
    }),
    (counter("connections_accepted", "Accepted gRPC connections"), |kept| seen(&kept.accepted)),
    (
        counter(
            "connections_refused",
            "gRPC connections closed at once because too many were open",
        ),
        |kept| seen(&kept.refused),
    ),
    (
        counter(
            "accepts_failed",
            "Failed accepts of gRPC connections, for example without file descriptors",
        ),
        |kept| seen(&kept.accepts_failed),
    ),
    (counter("prefaces_failed", "gRPC connections that did not start HTTP/2 in time"), |kept| {
        seen(&kept.prefaces_failed)
    }),
    (counter("connections_broken", "gRPC connections closed after a protocol error"), |kept| {
        seen(&kept.connections_broken)
    }),
    (counter("handshakes_failed", "TLS handshakes that failed or timed out"), |kept| {
        seen(&kept.handshakes_failed)
    }),
];

/// Only with TLS on the gRPC port.
const TLS: [Metric<TlsCounters>; 4] = [
    (
        gauge(
            "certificate_expires_seconds",
            "Expiry of the server certificate, since the Unix epoch",
        ),
        |kept| seen(&kept.expires_secs),
    ),
    (counter("certificate_reloads", "Successful reloads of certificates"), |kept| {
        seen(&kept.replaced)
    }),
    (
        counter(
            "certificate_reload_failures",
            "Failed reloads of certificates; the old ones stay in force",
        ),
        |kept| seen(&kept.not_replaced),
    ),
    (counter("calls_denied", "Calls for a domain that the caller is not authorized for"), |kept| {
        seen(&kept.denied)
    }),
];

const REDIS: [Metric<Shared>; 8] = [
    (
        counter("redis_overruns", "Calls that Redis did not answer within the store budget"),
        |kept| kept.remote().overruns(),
    ),
    (counter("redis_cached_refusals", "Checks rejected from the refusal cache"), |kept| {
        seen(&kept.remote().store().counters().refused)
    }),
    (counter("redis_spared", "Calls answered from the refusal cache alone"), |kept| {
        seen(&kept.remote().store().counters().spared)
    }),
    (counter("redis_clamped", "Counters from the far future, read as full"), |kept| {
        seen(&counters(kept).clamped)
    }),
    (counter("redis_unreadable", "Replies that no script can send"), |kept| {
        seen(&counters(kept).unreadable)
    }),
    (counter("redis_split_calls", "Calls over several slots of a cluster"), |kept| {
        seen(&counters(kept).split)
    }),
    (counter("redis_two_rounds", "Calls that used one slot before the others"), |kept| {
        seen(&counters(kept).two_rounds)
    }),
    (
        counter("redis_refunded", "Charges refunded because another slot rejected the call"),
        |kept| seen(&counters(kept).refunded),
    ),
];

/// Decisions without Redis.
const DEGRADED: [Metric<Shared>; 13] = [
    (gauge("degraded", "1 while calls are decided without Redis"), |kept| {
        u64::from(kept.degraded().outage(Clock::System.now()).is_some())
    }),
    (
        counter(
            "degraded_unreachable_calls",
            "Calls decided without Redis because it was unreachable",
        ),
        |kept| kept.degraded().calls(Reason::Unreachable),
    ),
    (
        counter(
            "degraded_late_calls",
            "Calls decided without Redis because it did not answer in time",
        ),
        |kept| kept.degraded().calls(Reason::Late),
    ),
    (
        counter(
            "degraded_shed_calls",
            "Calls decided without Redis because too many were waiting for it",
        ),
        |kept| kept.degraded().calls(Reason::Shed),
    ),
    (
        counter(
            "degraded_rehearsed_calls",
            "Calls decided without Redis because an operator disabled it",
        ),
        |kept| kept.degraded().calls(Reason::Rehearsed),
    ),
    (counter("degraded_admitted_calls", "Calls admitted without Redis"), |kept| {
        seen(&kept.counters().admitted)
    }),
    (
        counter(
            "degraded_admitted_hits",
            "Hits admitted without Redis, which may be beyond their limits",
        ),
        |kept| seen(&kept.counters().admitted_hits),
    ),
    (
        gauge(
            "degraded_over_admission_bound",
            "Upper bound of hits beyond limits in this outage, on this replica",
        ),
        |kept| kept.over_admitted_max(Clock::System.now()),
    ),
    (gauge("degraded_replicas", "Replicas that share the limits without Redis"), |kept| {
        u64::from(kept.replicas())
    }),
    (counter("degraded_refused_calls", "Calls rejected without Redis"), |kept| {
        seen(&kept.counters().refused)
    }),
    (
        counter(
            "degraded_unavailable_calls",
            "Calls answered with UNAVAILABLE, because a rule says so",
        ),
        |kept| seen(&kept.counters().unavailable),
    ),
    (
        counter(
            "degraded_refunded",
            "Charges refunded because the call was rejected without Redis",
        ),
        |kept| seen(&kept.counters().refunded),
    ),
    (counter("degraded_refunds_lost", "Charges that could not be refunded"), |kept| {
        seen(&kept.counters().refunds_lost)
    }),
];

fn counters(shared: &Shared) -> &store::Counters {
    shared.remote().store().inner().counters()
}

/// A table as metrics; none if there is no such part.
fn figures<P: ?Sized + Send + Sync + 'static, T: 'static>(
    part: &Arc<P>,
    table: &'static [Metric<T>],
    of: fn(&P) -> Option<&T>,
) -> Figures {
    let part = Arc::clone(part);
    Box::new(move |sink| {
        let Some(kept) = of(&part) else { return Ok(()) };
        table.iter().try_for_each(|(family, value)| single(sink, family, value(kept)))
    })
}

/// Metrics of the stores, of the listener, and of TLS if it is on.
pub(crate) fn of(
    decider: &Arc<Deciding>,
    traffic: &Arc<ConnectionStats>,
    tls: Option<&Arc<TlsCounters>>,
) -> Vec<Figures> {
    let of_tls = tls.map(|tls| figures(tls, &TLS, |tls| Some(tls)));
    let others = vec![
        figures(traffic, &TRAFFIC, |traffic| Some(traffic)),
        figures(decider, &MEMORY, |decider| Some(decider.store().memory().counters())),
        figures(decider, &REDIS, |decider| decider.store().redis()),
        figures(decider, &DEGRADED, |decider| decider.store().redis()),
        redis_metrics::of(decider),
    ];
    of_tls.into_iter().chain(others).collect()
}

/// Every family of this module and of Redis' nodes, in the order of a scrape.
#[cfg(test)]
pub(crate) fn families() -> Vec<Family> {
    fn of<T>(table: &[Metric<T>]) -> impl Iterator<Item = Family> {
        table.iter().map(|(family, _)| *family)
    }
    let own =
        of(&TLS).chain(of(&TRAFFIC)).chain(of(&MEMORY)).chain(of(&REDIS)).chain(of(&DEGRADED));
    own.chain(redis_metrics::families()).collect()
}
