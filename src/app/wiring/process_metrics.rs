//! Metrics of the process, under the names that Prometheus client libraries use. Dashboards for
//! envoyproxy/ratelimit show them.

use std::fs;

use crate::telemetry::{MetricFamily, MetricSource, MetricUnit, emit_single, gauge};

const RESIDENT_MEMORY: MetricFamily =
    gauge("process_resident_memory", "Resident memory of the process").in_unit(MetricUnit::Bytes);
const VIRTUAL_MEMORY: MetricFamily =
    gauge("process_virtual_memory", "Virtual memory of the process").in_unit(MetricUnit::Bytes);
/// Fraction of CPU time that a Go process spends on garbage collection, here always 0. Reported
/// because Envoy Gateway's dashboard has a panel for this metric.
const GC_CPU: MetricFamily =
    gauge("go_memstats_gc_cpu_fraction", "Always 0, because there is no garbage collector");

/// Returns a source that emits the metrics of the process.
pub(crate) fn source() -> MetricSource {
    Box::new(|sink| {
        // Absent on systems other than Linux.
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        for (family, field) in [(&RESIDENT_MEMORY, "VmRSS:"), (&VIRTUAL_MEMORY, "VmSize:")] {
            if let Some(bytes) = field_bytes(&status, field) {
                emit_single(sink, family, bytes)?;
            }
        }
        emit_single(sink, &GC_CPU, 0)
    })
}

/// Returns the value of a field of `/proc/self/status`, converted from KiB to bytes, or `None` if
/// the field is missing or is not a number.
fn field_bytes(status: &str, field: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1_024)
}

#[cfg(test)]
mod tests {
    use super::field_bytes;

    #[test]
    fn fields_are_in_kib() {
        let status = "Name:\tx\nVmSize:\t  2000 kB\nVmRSS:\t      12 kB\n";
        assert_eq!(field_bytes(status, "VmRSS:"), Some(12_288));
        assert_eq!(field_bytes(status, "VmSwap:"), None);
    }
}
