//! Begins to send metrics and traces where the settings say so, and ends it when the process leaves.
//!
//! Not here: what is sent (`telemetry`).

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::app::exit_codes::Failure;
use crate::app::settings::{OtlpSettings, Settings};
use crate::clock::Clock;
use crate::telemetry::otlp::{Identity, Metrics, OtlpError, Sampling, Sent, Target, Traces};
use crate::telemetry::{Shown, Telemetry};

/// What is sent, while the process lives.
#[derive(Debug)]
pub(crate) struct Sending {
    telemetry: Arc<Telemetry>,
    metrics: Option<(watch::Sender<bool>, JoinHandle<()>)>,
}

/// How sending goes; one for each signal, whether it is sent or not.
pub(crate) struct Signals {
    pub(crate) metrics: Arc<Sent>,
    pub(crate) traces: Arc<Sent>,
}

impl Default for Signals {
    fn default() -> Self {
        Signals { metrics: Arc::new(Sent::new("metrics")), traces: Arc::new(Sent::new("traces")) }
    }
}

/// Begins, on the present runtime.
///
/// # Errors
///
/// A receiver's address, header or authority that cannot be used.
pub(crate) fn begin(
    settings: &Settings,
    telemetry: &Arc<Telemetry>,
    shown: Arc<Shown>,
    signals: &Signals,
) -> Result<Sending, Failure> {
    let mut sending = Sending { telemetry: Arc::clone(telemetry), metrics: None };
    let Some(told) = settings.otlp().map_err(|fault| Failure::Settings(vec![fault]))? else {
        return Ok(sending);
    };
    let unusable = |error: OtlpError| Failure::Usage(format!("OTLP: {error}"));
    let identity = Identity {
        service: told.service.clone(),
        // The standard library's only source of randomness; it tells two processes apart.
        instance: format!("{:016x}", RandomState::new().hash_one(std::process::id())),
        attributes: told.attributes.clone(),
    };
    if let Some(endpoint) = &told.traces {
        let sampling = Sampling::new(told.heeds_parent, told.ratio);
        let target = target(&told, endpoint)?;
        let traces = Traces::open(&target, &identity, sampling, &signals.traces);
        telemetry.trace(traces.map_err(unusable)?);
    }
    if let Some(endpoint) = &told.metrics {
        let (now, target) = (|| Clock::System.now(), target(&told, endpoint)?);
        let metrics = Metrics::open(&target, &identity, shown, now, &signals.metrics);
        let (stop, stops) = watch::channel(false);
        let task = tokio::spawn(metrics.map_err(unusable)?.run(told.every, stops));
        sending.metrics = Some((stop, task));
    }
    Ok(sending)
}

fn target(told: &OtlpSettings, endpoint: &str) -> Result<Target, Failure> {
    Ok(Target {
        endpoint: endpoint.to_owned(),
        headers: told.headers(),
        timeout: told.timeout,
        ca: told.certificate.as_deref().map(crate::app::pem_file).transpose()?,
    })
}

impl Sending {
    /// Sends what is left. To be called under a limit: a receiver that is away takes its time.
    pub(crate) async fn end(self) {
        let telemetry = self.telemetry;
        let traces = tokio::task::spawn_blocking(move || {
            if let Some(traces) = telemetry.traced_by() {
                traces.leave();
            }
        });
        if let Some((stop, task)) = self.metrics {
            stop.send_replace(true);
            let _ = task.await;
        }
        let _ = traces.await;
    }
}
