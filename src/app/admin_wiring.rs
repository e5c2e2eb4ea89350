//! Connects the HTTP ports of `admin` to the running service.

use std::fmt;
use std::sync::Arc;

use http::HeaderMap;

use super::Configuration;
use super::log_level::LogLevelControl;
use super::operator_overrides::{OperatorOverrides, override_metrics};
use super::peers::Peers;
use super::process::exit_codes::Failure;
use super::process::watcher_thread::WatchedValue;
use super::request_rates::RateSampler;
use super::wiring::otlp_exporters::{self, OtlpExporters, OtlpStats};
use super::wiring::store_setup::ServiceDecider;
use super::wiring::{control_plane_metrics, process_metrics, server_config, store_metrics};
use crate::admin::{Backend, JsonBodies, MetricsEndpoint, OperatorToken};
use crate::clock::Clock;
use crate::control_plane::ControlPlaneStatus;
use crate::domain::{CallerMemory, HttpReply, UnreadableCallers};
use crate::server::{ConnectionStats, Health, RlsService, TlsCounters};
use crate::store::redis::script::keys::Prefix;
use crate::telemetry::{MetricSink, MetricSource, MetricsPage, Telemetry, emit_exports};

/// Components of the service that the HTTP ports show and change.
pub(crate) struct AdminWiring {
    pub(crate) configuration: Configuration,
    pub(crate) decider: Arc<ServiceDecider>,
    pub(crate) rate_limit: Arc<RlsService<ServiceDecider>>,
    pub(crate) health: Health,
    pub(crate) telemetry: Arc<Telemetry>,
    pub(crate) connection_stats: Arc<ConnectionStats>,
    pub(crate) unreadable: Arc<UnreadableCallers>,
    /// Memory held for the callers of `/json`, which count as one caller.
    pub(crate) http_memory: Arc<CallerMemory>,
    pub(crate) tls_counters: Option<Arc<TlsCounters>>,
    /// State of the control plane client; `None` if policies come from files.
    pub(crate) control_plane: Option<Arc<ControlPlaneStatus>>,
    pub(crate) overrides: Arc<OperatorOverrides>,
    pub(crate) log_level: LogLevelControl,
    /// Token of the operators; `None` if no token file is configured.
    pub(crate) token: Option<WatchedValue<String>>,
    pub(crate) peers: Arc<Peers>,
    pub(crate) rates: RateSampler,
}

/// HTTP handlers of the metrics pages.
#[derive(Clone)]
pub(crate) struct MetricsEndpoints {
    /// Metrics page of the HTTP port.
    pub(crate) public: Arc<MetricsEndpoint>,
    /// Metrics page of the Prometheus port and of the debug port. Includes metrics with
    /// envoyproxy/ratelimit names.
    pub(crate) with_ratelimit_names: Arc<MetricsEndpoint>,
}

impl AdminWiring {
    /// Starts the OTLP exporters that the settings enable. Returns them with the endpoints of the
    /// metrics.
    ///
    /// # Errors
    ///
    /// Returns an error if an OTLP endpoint, header or CA certificate is invalid.
    pub(crate) fn start_metrics(
        self: &Arc<Self>,
    ) -> Result<(MetricsEndpoints, OtlpExporters), Failure> {
        let stats = otlp_exporters::new_stats();
        let (wiring, exports) = (Arc::clone(self), stats.clone());
        let metrics: MetricSource = Arc::new(move |sink| wiring.emit_metrics(&exports, sink));
        let settings = &self.configuration.settings;
        let endpoint = |page: MetricsPage| {
            Arc::new(MetricsEndpoint::new(Arc::new(page), || Clock::System.monotonic_now()))
        };
        let page = || MetricsPage::new(Arc::clone(&metrics)).with_source(process_metrics::source());
        let with_ratelimit_names =
            endpoint(page().with_ratelimit_names(Arc::clone(&self.telemetry)));
        let public = match settings.ratelimit_metric_names {
            true => Arc::clone(&with_ratelimit_names),
            false => endpoint(page()),
        };
        let exporters = OtlpExporters::start(settings, &self.telemetry, metrics, &stats)?;
        Ok((MetricsEndpoints { public, with_ratelimit_names }, exporters))
    }

    /// Writes all metrics of the process, for both scrapes and OTLP exports.
    pub(crate) fn emit_metrics(
        &self,
        exports: &OtlpStats,
        sink: &mut dyn MetricSink,
    ) -> fmt::Result {
        self.telemetry.emit(sink)?;
        let (batches, tls) = (&self.rate_limit.batch_decisions, self.tls_counters.as_deref());
        store_metrics::emit_listener(&self.connection_stats, batches, tls, sink)?;
        store_metrics::emit_stores(self.decider.store(), sink)?;
        store_metrics::emit_unreadable(&self.unreadable, sink)?;
        override_metrics::emit(&self.overrides, sink)?;
        if let Some(status) = &self.control_plane {
            control_plane_metrics::emit(status, sink)?;
        }
        emit_exports(exports, sink)
    }

    /// Returns the bounds of `/json`, or `None` if it is disabled.
    pub(crate) fn json_bodies(&self) -> Option<JsonBodies> {
        let bodies = || JsonBodies {
            bytes_max: self.rate_limit.bounds.message_bytes_max,
            memory: Arc::clone(&self.http_memory),
        };
        server_config::is_json_enabled(&self.configuration.settings).then(bodies)
    }

    pub(crate) fn key_prefix(&self) -> Prefix {
        // The settings have already validated the prefix.
        Prefix::new(&self.configuration.settings.cache_key_prefix).unwrap_or_default()
    }
}

impl Backend for AdminWiring {
    fn is_ready(&self) -> bool {
        self.health.is_serving()
    }

    fn outage(&self) -> Option<String> {
        Some(self.decider.store().redis()?.outage(Clock::System.now())?.to_string())
    }

    async fn decide_json(&self, body: Vec<u8>) -> HttpReply {
        self.rate_limit.answer_json(&body).await
    }

    async fn authorize(&self, domain: &str, headers: &HeaderMap, denied_status: u16) -> HttpReply {
        self.rate_limit.answer_forward_auth(domain, headers, denied_status).await
    }

    fn instance(&self) -> u64 {
        self.peers.instance
    }

    fn token(&self) -> OperatorToken {
        match &self.token {
            None => OperatorToken::NotConfigured,
            Some(token) => token.get().map_or(OperatorToken::Unreadable, OperatorToken::Text),
        }
    }
}
