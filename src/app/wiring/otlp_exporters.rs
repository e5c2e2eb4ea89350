//! Starts and stops the exporters of metrics and traces over OTLP, which `telemetry::otlp`
//! implements.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::app::process::exit_codes::Failure;
use crate::app::process::files_and_env::read_certificates;
use crate::clock::Clock;
use crate::settings::{OtlpSettings, Settings};
use crate::telemetry::otlp::{
    ExportStats, OtlpTarget, SamplingRule, ServiceIdentity, TraceExporter,
};
use crate::telemetry::{MetricSource, MetricsExporter, Telemetry};

/// Running OTLP exporters, and the handle for stopping them.
#[derive(Debug)]
pub(crate) struct OtlpExporters {
    telemetry: Arc<Telemetry>,
    metrics: Option<(watch::Sender<bool>, JoinHandle<()>)>,
}

/// Counts of the exports of metrics, then of traces.
pub(crate) type OtlpStats = [Arc<ExportStats>; 2];

pub(crate) fn new_stats() -> OtlpStats {
    ["metrics", "traces"].map(|signal| Arc::new(ExportStats::new(signal)))
}

impl OtlpExporters {
    /// Starts the exporters that the settings enable, on the current Tokio runtime.
    ///
    /// # Errors
    ///
    /// Returns an error if an endpoint, header or CA certificate is invalid.
    pub(crate) fn start(
        settings: &Settings,
        telemetry: &Arc<Telemetry>,
        metrics: MetricSource,
        [metrics_stats, traces_stats]: &OtlpStats,
    ) -> Result<OtlpExporters, Failure> {
        let mut exporters = OtlpExporters { telemetry: Arc::clone(telemetry), metrics: None };
        let otlp = settings.otlp().map_err(|error| vec![error])?;
        let Some(otlp) = otlp else { return Ok(exporters) };
        let unusable = |error: String| Failure::Usage(format!("OTLP: {error}"));
        let identity = ServiceIdentity {
            service: settings.service_name.clone(),
            instance: match settings.service_instance_id.as_str() {
                // Distinguishes processes. `RandomState` is the standard library's only random
                // source.
                "" => format!("{:016x}", RandomState::new().hash_one(std::process::id())),
                instance => instance.to_owned(),
            },
            attributes: otlp.attributes.clone(),
        };
        if let Some(endpoint) = &otlp.traces_endpoint {
            let sampling = SamplingRule::new(otlp.parent_based, otlp.sample_ratio);
            let target = target(settings, &otlp, endpoint)?;
            let traces = TraceExporter::open(&target, &identity, sampling, traces_stats);
            telemetry.set_trace_exporter(traces.map_err(unusable)?);
        }
        if let Some(endpoint) = &otlp.metrics_endpoint {
            let (now, target) = (|| Clock::System.now(), target(settings, &otlp, endpoint)?);
            let metrics = MetricsExporter::open(&target, &identity, metrics, now, metrics_stats);
            let (stop, stops) = watch::channel(false);
            let task =
                tokio::spawn(metrics.map_err(unusable)?.run(settings.otlp_metrics_interval, stops));
            exporters.metrics = Some((stop, task));
        }
        Ok(exporters)
    }

    /// Exports the remaining data and stops the exporters. Callers should set a timeout, because
    /// the collector may not respond.
    pub(crate) async fn stop(self) {
        let telemetry = self.telemetry;
        let traces = tokio::task::spawn_blocking(move || {
            if let Some(traces) = telemetry.trace_exporter() {
                traces.shutdown();
            }
        });
        if let Some((stop, task)) = self.metrics {
            stop.send_replace(true);
            let _ = task.await;
        }
        let _ = traces.await;
    }
}

fn target(settings: &Settings, otlp: &OtlpSettings, endpoint: &str) -> Result<OtlpTarget, Failure> {
    Ok(OtlpTarget {
        protocol: otlp.protocol,
        endpoint: endpoint.to_owned(),
        headers: settings.otlp_header_pairs().unwrap_or_default(),
        timeout: settings.otlp_timeout,
        certificates: read_certificates(settings.otlp_certificate.as_deref(), None)?,
    })
}
