//! Metrics of the process, under the names that Prometheus client libraries use.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};

use crate::clock::Clock;
use crate::domain::Micros;
use crate::telemetry::{
    MetricSource, counter_seconds, emit_single, gauge, gauge_bytes, gauge_seconds, metrics,
};

// Values are read from `/proc/self/status` and the start of the process. Some are absent on systems
// other than Linux.
metrics! { PROCESS []: (String, Micros) => Option<u64>,
    counter_seconds "process_cpu" "CPU time of all threads of the process", |_| u64::try_from(Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).ok()?.as_micros()).ok();
    gauge_seconds "process_start_time" "Start of the process, since the Unix epoch", |(_, start)| Some(start.0);
    gauge_bytes "process_resident_memory" "Resident memory of the process", |(status, _)| field_bytes(status, "VmRSS:");
    gauge_bytes "process_virtual_memory" "Virtual memory of the process", |(status, _)| field_bytes(status, "VmSize:");
    gauge "process_open_fds" "Open file descriptors of the process", |_| Some(fs::read_dir("/proc/self/fd").ok()?.count() as u64);
    gauge "process_max_fds" "Maximum number of open file descriptors of the process", |_| getrlimit(Resource::Nofile).current;
}

pub(crate) fn source() -> MetricSource {
    let start = Clock::System.now();
    Arc::new(move |sink| {
        let report = (fs::read_to_string("/proc/self/status").unwrap_or_default(), start);
        PROCESS.iter().try_for_each(|(family, read)| match read(&report) {
            Some(value) => emit_single(sink, family, value),
            None => Ok(()),
        })
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
