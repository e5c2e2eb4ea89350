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

const TRAFFIC: [Figure<ConnectionStats>; 7] = [
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
    ("redis_cached_refusals", "Checks refused without asking Redis again", true, |kept| {
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
        "redis_refunded",
        "Charges refunded, because the call was not admitted over all slots",
        true,
        |kept| seen(&counters(kept).refunded),
    ),
];

/// Of what stands in for Redis.
const DEGRADED: [Figure<Shared>; 13] = [
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
    (
        "degraded_admitted_hits",
        "Hits admitted without Redis: so many may be beyond their limits",
        true,
        |kept| seen(&kept.counters().admitted_hits),
    ),
    (
        "degraded_over_admission_bound",
        "Hits that this replica admitted beyond limits at most, in the present outage",
        false,
        |kept| kept.over_admitted_max(Clock::System.now()),
    ),
    ("degraded_replicas", "Replicas among which limits are shared without Redis", false, |kept| {
        u64::from(kept.replicas())
    }),
    ("degraded_refused_calls", "Calls refused without Redis", true, |kept| {
        seen(&kept.counters().refused)
    }),
    ("degraded_unavailable_calls", "Calls answered with an error, as a rule wants", true, |kept| {
        seen(&kept.counters().unavailable)
    }),
    ("degraded_refunded", "Charges refunded: refused without Redis", true, |kept| {
        seen(&kept.counters().refunded)
    }),
    ("degraded_refunds_lost", "Charges that could not be refunded", true, |kept| {
        seen(&kept.counters().refunds_lost)
    }),
];

fn counters(shared: &Shared) -> &store::Counters {
    shared.remote().store().inner().counters()
}

/// A table as figures; nothing where there is no such part.
fn figures<P: ?Sized + Send + Sync + 'static, T: 'static>(
    part: &Arc<P>,
    table: &'static [Figure<T>],
    of: fn(&P) -> Option<&T>,
) -> Figures {
    let part = Arc::clone(part);
    Box::new(move |sink| {
        let Some(kept) = of(&part) else { return Ok(()) };
        table.iter().try_for_each(|(name, help, grows, read)| {
            let kind = if *grows { Kind::Counter } else { Kind::Gauge };
            single(sink, &Family::new(name, help, kind), read(kept))
        })
    })
}

/// The figures of the store that decides, of the listener, and of TLS where it is spoken.
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
