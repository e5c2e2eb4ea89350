//! Builds the handlers through which the HTTP routes in `admin` access the running service.

use std::sync::Arc;

use super::otlp_exporters::{OtlpExporters, OtlpStats};
use super::store_setup::ServiceDecider;
use super::{control_plane_metrics, process_metrics, server_config, store_metrics};
use crate::admin::{
    AdminHandlers, AuthzHandler, AuthzQuery, DebugHandlers, DecisionResponse, ExplainQuery,
    JsonHandler, JsonHandlers, MetricsEndpoint, PublicHandlers,
};
use crate::app::exit_codes::Failure;
use crate::app::runtime_overrides::RuntimeOverrides;
use crate::app::{Configuration, SampleRequest, explain_offline, page_data, parse_descriptor};
use crate::clock::Clock;
use crate::control_plane::ControlPlaneStatus;
use crate::domain::CallerMemory;
use crate::server::{ConnectionStats, Health, RlsService, TlsCounters};
use crate::store::redis::keys::Prefix;
use crate::telemetry::otlp::export_metrics;
use crate::telemetry::{AllMetrics, MetricsPage, Telemetry};
use crate::wire::HttpReply;

/// Components of the service that the HTTP ports expose.
pub(crate) struct AdminWiring<'a> {
    pub(crate) configuration: &'a Configuration,
    pub(crate) decider: Arc<ServiceDecider>,
    pub(crate) rate_limit: Arc<RlsService<ServiceDecider>>,
    pub(crate) health: Health,
    pub(crate) telemetry: Arc<Telemetry>,
    pub(crate) connection_stats: Arc<ConnectionStats>,
    /// Memory held for the callers of `/json`, which count as one caller.
    pub(crate) http_memory: Arc<CallerMemory>,
    pub(crate) tls_counters: Option<Arc<TlsCounters>>,
    /// State of the control plane client; `None` if policies come from files.
    pub(crate) control_plane: Option<Arc<ControlPlaneStatus>>,
}

/// HTTP handlers of the metrics pages.
#[derive(Clone, Debug)]
pub(crate) struct MetricsEndpoints {
    /// Metrics page of the HTTP port.
    pub(crate) public: Arc<MetricsEndpoint>,
    /// Metrics page of the Prometheus port and of the debug port. Includes metrics with
    /// envoyproxy/ratelimit names.
    pub(crate) with_ratelimit_names: Arc<MetricsEndpoint>,
}

impl AdminWiring<'_> {
    /// Starts the OTLP exporters that the settings enable. Returns them with the endpoints of the
    /// metrics.
    ///
    /// # Errors
    ///
    /// Returns an error if an OTLP endpoint, header or CA certificate is invalid.
    pub(crate) fn start_metrics(&self) -> Result<(MetricsEndpoints, OtlpExporters), Failure> {
        let stats = OtlpStats::default();
        let mut metrics = store_metrics::sources(
            &self.decider,
            &self.connection_stats,
            &self.rate_limit,
            self.tls_counters.as_ref(),
        );
        metrics.extend(self.control_plane.as_ref().map(control_plane_metrics::source));
        metrics.push(export_metrics(vec![Arc::clone(&stats.metrics), Arc::clone(&stats.traces)]));
        let metrics = Arc::new(AllMetrics::new(Arc::clone(&self.telemetry), metrics));
        let settings = &self.configuration.settings;
        let endpoint = |page: MetricsPage| {
            Arc::new(MetricsEndpoint::new(Arc::new(page), || Clock::System.monotonic_now()))
        };
        let page = || MetricsPage::new(Arc::clone(&metrics));
        let with_ratelimit_names = endpoint(
            page().with_ratelimit_names(Arc::clone(&self.telemetry), process_metrics::source()),
        );
        let public = match settings.ratelimit_metric_names {
            true => Arc::clone(&with_ratelimit_names),
            false => endpoint(page()),
        };
        let exporters = OtlpExporters::start(settings, &self.telemetry, metrics, &stats)?;
        Ok((MetricsEndpoints { public, with_ratelimit_names }, exporters))
    }

    /// Returns the handlers of the HTTP port.
    pub(crate) fn public_handlers(&self, metrics: &Arc<MetricsEndpoint>) -> PublicHandlers {
        let health = self.health.clone();
        let decider = Arc::clone(&self.decider);
        PublicHandlers {
            is_ready: Arc::new(move || health.is_serving()),
            outage: Arc::new(move || {
                let outage = decider.store().redis()?.outage(Clock::System.now())?;
                Some(outage.to_string())
            }),
            metrics: Arc::clone(metrics),
            json: server_config::is_json_enabled(&self.configuration.settings)
                .then(|| self.json_handlers()),
        }
    }

    fn json_handlers(&self) -> JsonHandlers {
        let rate_limit = Arc::clone(&self.rate_limit);
        let body_bytes_max = rate_limit.message_bytes_max();
        let decide: JsonHandler = Arc::new(move |body| {
            let rate_limit = Arc::clone(&rate_limit);
            Box::pin(async move { decision_response(rate_limit.answer_json(&body).await) })
        });
        let rate_limit = Arc::clone(&self.rate_limit);
        let authorize: AuthzHandler = Arc::new(move |query| {
            let rate_limit = Arc::clone(&rate_limit);
            Box::pin(async move {
                let AuthzQuery { domain, denied_status, headers } = query;
                let reply = rate_limit.answer_forward_auth(&domain, &headers, denied_status).await;
                decision_response(reply)
            })
        });
        let memory = Arc::clone(&self.http_memory);
        JsonHandlers { decide, authorize, body_bytes_max, memory }
    }

    /// Returns the handlers of the debug port.
    pub(crate) fn debug_handlers(
        &self,
        actions: AdminHandlers,
        overrides: &Arc<RuntimeOverrides>,
        ratelimit_metrics: Arc<MetricsEndpoint>,
    ) -> DebugHandlers {
        let report = self.configuration.report();
        let decider = Arc::clone(&self.decider);
        let rlconfig = move || {
            let policy = decider.policy();
            policy.listing().fold(String::new(), |text, line| text + &line + "\n")
        };
        // The settings have already validated the prefix.
        let prefix = Prefix::new(&self.configuration.settings.cache_key_prefix).unwrap_or_default();
        let live_page = page_data::build_live_page_handlers(
            &self.decider,
            &self.telemetry,
            overrides,
            prefix.clone(),
            self.control_plane.clone(),
        );
        let telemetry = Arc::clone(&self.telemetry);
        let decider = Arc::clone(&self.decider);
        let explain = move |query: &ExplainQuery| {
            let descriptors = query.descriptors.iter().map(|text| parse_descriptor(text));
            let request = SampleRequest {
                domain: query.domain.clone(),
                descriptors: descriptors
                    .collect::<Result<_, _>>()
                    .map_err(|error| error.to_string())?,
                hits: 1,
            };
            Ok(explain_offline::explain_request(&decider.policy(), &prefix, &request))
        };
        DebugHandlers {
            rlconfig: Arc::new(rlconfig),
            stats: Arc::new(move || telemetry.statsd_lines()),
            ratelimit_metrics,
            config: Arc::new(move || report.clone()),
            explain: Arc::new(explain),
            live_page,
            actions,
        }
    }
}

fn decision_response(reply: HttpReply) -> DecisionResponse {
    let HttpReply { status, headers, body } = reply;
    DecisionResponse { status, headers, body }
}
