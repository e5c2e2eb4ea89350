//! Metric families of the control plane client. They exist only if policies come from a control
//! plane.

use std::fmt;
use std::sync::atomic::Ordering;

use crate::control_plane::{ControlPlaneStatus, Rejection};
use crate::telemetry::{
    MetricFamily, MetricSink, counter, emit_series, emit_table, gauge, metrics,
};

/// Maximum number of errors in a control plane's last response that each get their own time series.
const REJECTED_SERIES_MAX: usize = 100;

metrics! { COUNTERS []: ControlPlaneStatus,
    gauge "xds_connected" "1 while a stream to the control plane is open", |status| u64::from(status.connected.load(Ordering::Relaxed));
    counter "xds_connects" "Streams opened to the control plane", |status| status.connects.load(Ordering::Relaxed);
    counter "xds_failures" "Attempts to reach the control plane that failed, and streams that were lost", |status| status.failures.load(Ordering::Relaxed);
    counter "xds_responses" "Responses from the control plane", |status| status.responses.load(Ordering::Relaxed);
    counter "xds_acks" "Responses from the control plane that were accepted", |status| status.acks.load(Ordering::Relaxed);
    counter "xds_nacks" "Responses from the control plane that were rejected, in part or as a whole", |status| status.nacks.load(Ordering::Relaxed);
    counter "xds_compiled_domains" "Domains from the control plane that were compiled because they had changed", |status| status.compiled.load(Ordering::Relaxed);
    gauge "xds_domains" "Domains from the control plane in force", |status| status.state().domains as u64;
    gauge "xds_rejections" "Errors in the last response from the control plane", |status| status.state().rejections.len() as u64;
}

const REJECTED_RESOURCES: MetricFamily = gauge(
    "xds_rejected_info",
    "1 for each error in the last response from the control plane, at most 100",
)
.with_labels(&["resource", "path", "reason"]);

/// Writes the metrics of the client.
pub(crate) fn emit(status: &ControlPlaneStatus, sink: &mut dyn MetricSink) -> fmt::Result {
    emit_table(sink, COUNTERS, status)?;
    let mut rejections = status.state().rejections;
    // A series may occur only once.
    rejections.sort_unstable();
    rejections.dedup();
    let rejected = rejections.iter().take(REJECTED_SERIES_MAX).map(|rejection| {
        let Rejection { resource, path, reason } = rejection;
        ([("resource", &**resource), ("path", path), ("reason", reason)], 1)
    });
    emit_series(sink, &REJECTED_RESOURCES, rejected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_metric_of_the_client_reads_its_own_counter() {
        let status = ControlPlaneStatus::default();
        status.connected.store(true, Ordering::Relaxed);
        let counters = [
            ("xds_connects", &status.connects),
            ("xds_failures", &status.failures),
            ("xds_responses", &status.responses),
            ("xds_acks", &status.acks),
            ("xds_nacks", &status.nacks),
            ("xds_compiled_domains", &status.compiled),
        ];
        for (number, (_, counter)) in (2..).zip(counters) {
            counter.store(number, Ordering::Relaxed);
        }
        let text = || "x".to_owned();
        let rejection = Rejection { resource: text(), path: text(), reason: text() };
        status.update(|state| {
            state.domains = 8;
            state.rejections = vec![rejection; 9];
        });
        let values = COUNTERS.iter().map(|(family, value)| (family.name, value(&status)));
        let expected = [
            ("xds_connected", 1),
            ("xds_connects", 2),
            ("xds_failures", 3),
            ("xds_responses", 4),
            ("xds_acks", 5),
            ("xds_nacks", 6),
            ("xds_compiled_domains", 7),
            ("xds_domains", 8),
            ("xds_rejections", 9),
        ];
        assert_eq!(values.collect::<Vec<_>>(), expected);
    }
}
