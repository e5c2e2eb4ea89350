//! Metric families of the overrides that operators set at run time.

use std::fmt;

use super::OperatorOverrides;
use crate::telemetry::{
    MetricFamily, MetricSink, counter, emit_series, emit_table, gauge, metrics,
};

metrics! { OVERRIDES []: OperatorOverrides,
    gauge "overrides" "Overrides in force that operators have set", |overrides| overrides.counts().0 as u64;
    gauge "overrides_permanent" "Overrides in force without an end", |overrides| overrides.counts().1 as u64;
    gauge "overrides_age_seconds" "Time since Redis last said which overrides it has; 0 without Redis", |overrides| overrides.age_seconds();
    gauge "overrides_file_invalid" "1 if the content of the file --overrides is invalid, so that its former one is in force, else 0", |overrides| u64::from(overrides.is_base_broken());
}

const OVERRIDE_CHANGES: MetricFamily =
    counter("override_changes", "Changes of overrides on this replica, by kind")
        .with_labels(&["kind"]);

/// Writes the metrics of the overrides.
pub(crate) fn emit(overrides: &OperatorOverrides, sink: &mut dyn MetricSink) -> fmt::Result {
    emit_table(sink, OVERRIDES, overrides)?;
    let counts = overrides.change_counts().map(|(kind, count)| ([("kind", kind)], count));
    emit_series(sink, &OVERRIDE_CHANGES, counts)
}
