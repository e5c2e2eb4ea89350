//! What the HTTP ports show, as functions over the parts: `admin` serves them and knows none of
//! the parts.
//!
//! Not here: routes and bounds (`admin`), opening ports (`serve`).

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::serve::Deciding;
use super::{Asked, Configured, descriptor, ports, rehearse};
use crate::admin::{Asks, Debug, Explains, JsonAnswer, Public};
use crate::store::memory::Counters;
use crate::telemetry::{Kept, Scrape, Telemetry};
use crate::wire::{Health, MESSAGE_BYTES_MAX, RateLimit, Traffic};

/// The parts that pages are made from.
pub(super) struct Parts<'a> {
    pub(super) configured: &'a Configured,
    pub(super) decider: Arc<Deciding>,
    pub(super) rate_limit: Arc<RateLimit<Deciding>>,
    pub(super) health: Health,
    pub(super) telemetry: Arc<Telemetry>,
    pub(super) traffic: Arc<Traffic>,
}

impl Parts<'_> {
    /// The metrics: what telemetry counts, and what store and listener count themselves.
    pub(super) fn scrape(&self) -> Arc<Scrape> {
        let mut kept = Vec::new();
        let mut of_store = |name, help, read: fn(&Counters) -> &AtomicU64, grows| {
            let decider = Arc::clone(&self.decider);
            let read = move || read(decider.store().counters()).load(Ordering::Relaxed);
            kept.push(Kept { name, help, grows, read: Box::new(read) });
        };
        of_store("keys", "Counters held in memory", |store| &store.live, false);
        of_store("keys_evicted", "Counters dropped, full ones", |store| &store.evicted, true);
        of_store(
            "keys_overflowed",
            "Charges to shared counters, because the store was full",
            |store| &store.overflowed,
            true,
        );
        of_store("keys_no_room", "Checks refused for want of room", |store| &store.no_room, true);
        of_store(
            "clock_regressions",
            "Checks that met a state of a later time",
            |store| &store.clock_regressions,
            true,
        );
        of_store(
            "cost_exceeds_capacity",
            "Checks that asked for more than their limit can ever hold",
            |store| &store.cost_exceeds_capacity,
            true,
        );
        let mut of_traffic = |name, help, read: fn(&Traffic) -> u64, grows| {
            let traffic = Arc::clone(&self.traffic);
            kept.push(Kept { name, help, grows, read: Box::new(move || read(&traffic)) });
        };
        of_traffic(
            "connections",
            "Open gRPC connections",
            |traffic| traffic.open.load(Ordering::Relaxed) as u64,
            false,
        );
        of_traffic(
            "connections_accepted",
            "gRPC connections that came",
            |traffic| traffic.accepted.load(Ordering::Relaxed),
            true,
        );
        of_traffic(
            "connections_refused",
            "gRPC connections closed at once, because too many were open",
            |traffic| traffic.refused.load(Ordering::Relaxed),
            true,
        );
        of_traffic(
            "connections_broken",
            "gRPC connections that ended with a protocol error",
            |traffic| traffic.connections_broken.load(Ordering::Relaxed),
            true,
        );
        of_traffic(
            "handshakes_failed",
            "TLS handshakes that failed or took too long",
            |traffic| traffic.handshakes_failed.load(Ordering::Relaxed),
            true,
        );
        Arc::new(Scrape::new(Arc::clone(&self.telemetry), kept))
    }

    /// What the HTTP port shows.
    pub(super) fn public(&self, scrape: &Arc<Scrape>) -> Public {
        let health = self.health.clone();
        Public {
            ready: Arc::new(move || health.is_serving()),
            scrape: Arc::clone(scrape),
            json: ports::json_is_on(&self.configured.settings).then(|| self.json()),
            body_bytes_max: MESSAGE_BYTES_MAX,
        }
    }

    fn json(&self) -> Asks {
        let rate_limit = Arc::clone(&self.rate_limit);
        Arc::new(move |body| {
            let rate_limit = Arc::clone(&rate_limit);
            Box::pin(async move {
                let reply = rate_limit.answer_json(&body).await;
                JsonAnswer { status: reply.status, body: reply.body }
            })
        })
    }

    /// What the debug port shows.
    pub(super) fn debug(&self) -> Debug {
        let report = self.configured.report();
        let decider = Arc::clone(&self.decider);
        let rlconfig = move || {
            let policy = decider.policy();
            policy.listing().fold(String::new(), |text, line| text + &line + "\n")
        };
        let decider = Arc::clone(&self.decider);
        let policy = move || understood(&decider);
        let decider = Arc::clone(&self.decider);
        let explain = move |question: &Explains| {
            let descriptors = question.descriptors.iter().map(|text| descriptor(text));
            let asked = Asked {
                domain: question.domain.clone(),
                descriptors: descriptors.collect::<Result<_, _>>().map_err(|f| f.to_string())?,
                hits: 1,
            };
            Ok(rehearse::explained(&decider.policy(), &asked))
        };
        Debug {
            rlconfig: Arc::new(rlconfig),
            config: Arc::new(move || report.clone()),
            policy: Arc::new(policy),
            explain: Arc::new(explain),
        }
    }
}

/// The policy as it was understood: every rule with its number, its path and its limits' numbers.
fn understood(decider: &Deciding) -> String {
    let policy = decider.policy();
    let mut text = format!("{} rules\n", policy.rules().len());
    for rule in policy.rules() {
        // Writing into a String cannot fail.
        let _ = writeln!(text, "rule {}: {}", rule.id.0, rule.path);
        for spec in &rule.limits {
            let name = spec.name.as_deref().unwrap_or("(no name)");
            let limit = &spec.limit;
            let _ = writeln!(text, "  {name}: cost {}, {:?}", spec.cost, limit.counting);
        }
    }
    text
}
