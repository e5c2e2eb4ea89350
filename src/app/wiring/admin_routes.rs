//! What the HTTP ports show, as functions over the parts: `admin` serves them and knows none of
//! the parts.
//!
//! Not here: routes and bounds (`admin`), opening ports (`serve`).

use std::sync::Arc;

use super::otlp_exporters::{Sending, Signals};
use super::store_setup::Deciding;
use super::{otlp_exporters, server_config, store_metrics};
use crate::admin::{Asks, Debug, Explains, JsonAnswer, Operate, Public};
use crate::app::exit_codes::Failure;
use crate::app::runtime_overrides::Switching;
use crate::app::{Asked, Configured, descriptor, explain_offline, page_data};
use crate::clock::Clock;
use crate::server::{ConnectionStats, Health, RateLimit, TlsCounters};
use crate::store::redis::keys::Prefix;
use crate::telemetry::otlp::sent_figures;
use crate::telemetry::{Scrape, Shown, Telemetry};
use crate::wire::MESSAGE_BYTES_MAX;

/// The parts that pages are made from.
pub(crate) struct Parts<'a> {
    pub(crate) configured: &'a Configured,
    pub(crate) decider: Arc<Deciding>,
    pub(crate) rate_limit: Arc<RateLimit<Deciding>>,
    pub(crate) health: Health,
    pub(crate) telemetry: Arc<Telemetry>,
    pub(crate) traffic: Arc<ConnectionStats>,
    pub(crate) tls: Option<Arc<TlsCounters>>,
}

impl Parts<'_> {
    /// The metrics, on a page and on their way to a receiver: what telemetry counts, and what store
    /// and listener count themselves.
    ///
    /// # Errors
    ///
    /// A receiver that nothing can be sent to at all.
    pub(crate) fn metrics(&self) -> Result<(Arc<Scrape>, Sending), Failure> {
        let signals = Signals::default();
        let mut figures = store_metrics::of(&self.decider, &self.traffic, self.tls.as_ref());
        let sent = vec![Arc::clone(&signals.metrics), Arc::clone(&signals.traces)];
        figures.push(sent_figures(sent));
        let shown = Arc::new(Shown::new(Arc::clone(&self.telemetry), figures));
        let settings = &self.configured.settings;
        let mut scrape = Scrape::new(Arc::clone(&shown));
        if settings.ratelimit_metric_names {
            scrape = scrape.with_their_names(Arc::clone(&self.telemetry));
        }
        Ok((Arc::new(scrape), otlp_exporters::begin(settings, &self.telemetry, shown, &signals)?))
    }

    /// What the HTTP port shows.
    pub(crate) fn public(&self, scrape: &Arc<Scrape>) -> Public {
        let health = self.health.clone();
        let decider = Arc::clone(&self.decider);
        Public {
            ready: Arc::new(move || health.is_serving()),
            degraded: Arc::new(move || {
                let shared = decider.store().redis()?;
                Some(shared.degraded().outage(Clock::System.now())?.to_string())
            }),
            scrape: Arc::clone(scrape),
            json: server_config::json_is_on(&self.configured.settings).then(|| self.json()),
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
    pub(crate) fn debug(&self, operate: Operate, switching: &Arc<Switching>) -> Debug {
        let report = self.configured.report();
        let decider = Arc::clone(&self.decider);
        let rlconfig = move || {
            let policy = decider.policy();
            policy.listing().fold(String::new(), |text, line| text + &line + "\n")
        };
        let decider = Arc::clone(&self.decider);
        // It was checked when the settings were read.
        let prefix = Prefix::new(&self.configured.settings.cache_key_prefix).unwrap_or_default();
        let live = page_data::live(&self.decider, &self.telemetry, switching, prefix.clone());
        let explain = move |question: &Explains| {
            let descriptors = question.descriptors.iter().map(|text| descriptor(text));
            let asked = Asked {
                domain: question.domain.clone(),
                descriptors: descriptors.collect::<Result<_, _>>().map_err(|f| f.to_string())?,
                hits: 1,
            };
            Ok(explain_offline::explained(&decider.policy(), &prefix, &asked))
        };
        Debug {
            rlconfig: Arc::new(rlconfig),
            config: Arc::new(move || report.clone()),
            explain: Arc::new(explain),
            live,
            operate,
        }
    }
}
