//! Types for metric families and values, and [`MetricSink`], the trait that each output format
//! implements.
//!
//! `decision_metrics` and `app::wiring` define the families; `prometheus` and `otlp_metrics` implement the
//! output formats.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use crate::domain::HistogramSnapshot;

/// Kind of a metric family, such as counter or gauge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// Value that only increases.
    Counter,
    /// Value that can increase and decrease.
    Gauge,
    /// Distribution of observations over buckets.
    Histogram,
    /// Counter whose name does not end in `_total`, as in envoyproxy/ratelimit.
    UnsuffixedCounter,
}

/// Unit that is appended to a metric's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricUnit {
    /// Seconds. Sources pass values in microseconds; sinks export them in seconds.
    Seconds,
    /// Bytes. Sources pass values in bytes, and sinks export them unchanged.
    Bytes,
}

/// Metric family: a name shared by all series that differ only in their label values.
#[derive(Clone, Copy, Debug)]
pub struct MetricFamily {
    /// Name without the prefix `tidegate_`, the unit, and the suffix `_total`.
    pub name: &'static str,
    /// Help text of the metric, also shown in docs/METRICS.md.
    pub help: &'static str,
    /// Kind of the metric, such as counter or gauge.
    pub kind: MetricKind,
    /// Unit, which is appended to the name; `None` if the metric has no unit.
    pub unit: Option<MetricUnit>,
    /// Label names, the same for all series.
    pub labels: &'static [&'static str],
}

impl MetricFamily {
    const fn new(name: &'static str, help: &'static str, kind: MetricKind) -> Self {
        MetricFamily { name, help, kind, unit: None, labels: &[] }
    }

    /// Returns a copy of the family that has this unit.
    #[must_use]
    pub const fn in_unit(self, unit: MetricUnit) -> Self {
        MetricFamily { unit: Some(unit), ..self }
    }

    /// Returns a copy of the family that has these label names.
    #[must_use]
    pub const fn with_labels(self, labels: &'static [&'static str]) -> Self {
        MetricFamily { labels, ..self }
    }

    /// Returns the name with the suffix for the unit, but without `tidegate_` and `_total`.
    pub fn full_name(&self) -> Cow<'static, str> {
        match self.unit {
            None => self.name.into(),
            Some(MetricUnit::Seconds) => format!("{}_seconds", self.name).into(),
            Some(MetricUnit::Bytes) => format!("{}_bytes", self.name).into(),
        }
    }
}

/// Metric of a table: a family, and the function that reads a series' value.
pub(crate) type Metric<T, V = u64> = (MetricFamily, fn(&T) -> V);

/// Defines a table of metrics, whose series have the labels in brackets. Each row has a function that
/// creates the family, a name, a help text, and a value.
macro_rules! metrics {
    ($table:ident $labels:tt: $stats:ty $(=> $value_type:ty)?, $($kind:ident $name:literal $help:literal, $value:expr;)+) => {
        const $table: &[$crate::telemetry::Metric<$stats $(, $value_type)?>] =
            &[ $( ($kind($name, $help).with_labels(&$labels), $value) ),+ ];
    };
}
pub(crate) use metrics;

/// Creates a counter family without a unit or labels.
pub const fn counter(name: &'static str, help: &'static str) -> MetricFamily {
    MetricFamily::new(name, help, MetricKind::Counter)
}

/// Creates a gauge family without a unit or labels.
pub const fn gauge(name: &'static str, help: &'static str) -> MetricFamily {
    MetricFamily::new(name, help, MetricKind::Gauge)
}

/// Creates a histogram family without a unit or labels.
pub const fn histogram(name: &'static str, help: &'static str) -> MetricFamily {
    MetricFamily::new(name, help, MetricKind::Histogram)
}

/// Creates a counter family of durations.
pub(crate) const fn counter_seconds(name: &'static str, help: &'static str) -> MetricFamily {
    counter(name, help).in_unit(MetricUnit::Seconds)
}

/// Creates a gauge family of durations or times.
pub(crate) const fn gauge_seconds(name: &'static str, help: &'static str) -> MetricFamily {
    gauge(name, help).in_unit(MetricUnit::Seconds)
}

/// Creates a gauge family of sizes.
pub(crate) const fn gauge_bytes(name: &'static str, help: &'static str) -> MetricFamily {
    gauge(name, help).in_unit(MetricUnit::Bytes)
}

/// Creates a histogram family of durations.
pub(crate) const fn histogram_seconds(name: &'static str, help: &'static str) -> MetricFamily {
    histogram(name, help).in_unit(MetricUnit::Seconds)
}

/// Creates a counter family whose exported name has no `_total` suffix.
pub(super) const fn unsuffixed_counter(name: &'static str, help: &'static str) -> MetricFamily {
    MetricFamily::new(name, help, MetricKind::UnsuffixedCounter)
}

/// Value of a series, in microseconds if the family's unit is seconds.
#[derive(Clone, Debug)]
pub enum MetricValue {
    /// Value of a counter or gauge.
    Number(u64),
    /// Bucket bounds, bucket counts and sum of a histogram.
    Histogram(HistogramSnapshot),
}

impl From<u64> for MetricValue {
    fn from(number: u64) -> Self {
        MetricValue::Number(number)
    }
}

impl From<HistogramSnapshot> for MetricValue {
    fn from(histogram: HistogramSnapshot) -> Self {
        MetricValue::Histogram(histogram)
    }
}

/// Labels of a series, as pairs of name and value. Values come from the policy or the settings.
/// Only the rows of `detailed_counters`, whose number is bounded, contain values from callers.
pub type Labels<'a> = [(&'static str, &'a str)];

/// Callback that writes one series of a family, given its labels and its value.
pub type SeriesEmitter<'p> = &'p mut dyn FnMut(&Labels<'_>, MetricValue) -> fmt::Result;

/// Destination for metrics in some output format, such as Prometheus text or OTLP.
pub trait MetricSink {
    /// Writes a metric family. `fill` must emit each series of the family once through the callback
    /// that it receives.
    ///
    /// # Errors
    ///
    /// Returns an error if the output format cannot encode the family.
    fn write_family(
        &mut self,
        family: &MetricFamily,
        fill: &mut dyn FnMut(SeriesEmitter<'_>) -> fmt::Result,
    ) -> fmt::Result;
}

/// Function that writes metrics to a sink. Called for each scrape and OTLP
/// export, never while deciding a call.
pub type MetricSource = Arc<dyn Fn(&mut dyn MetricSink) -> fmt::Result + Send + Sync>;

/// Writes a family that has a single series without labels.
///
/// # Errors
///
/// Returns the error of the sink.
pub fn emit_single(sink: &mut dyn MetricSink, family: &MetricFamily, value: u64) -> fmt::Result {
    sink.write_family(family, &mut |emit| emit(&[], MetricValue::Number(value)))
}

/// Writes a family of numbers, with one series for each item: labels, and the number.
///
/// # Errors
///
/// Returns the error of the sink.
pub(crate) fn emit_series<'a, L: AsRef<Labels<'a>>>(
    sink: &mut dyn MetricSink,
    family: &MetricFamily,
    mut series: impl Iterator<Item = (L, u64)>,
) -> fmt::Result {
    sink.write_family(family, &mut |emit| {
        series.try_for_each(|(labels, number)| emit(labels.as_ref(), number.into()))
    })
}

/// Writes the metrics of a table, with one series for each row: labels, and what the value is read
/// from.
///
/// # Errors
///
/// Returns the first error of the sink.
pub(crate) fn emit_rows<'a, T: 'a, V: Into<MetricValue>, L: AsRef<Labels<'a>>>(
    sink: &mut dyn MetricSink,
    table: &[Metric<T, V>],
    rows: impl Iterator<Item = (L, &'a T)> + Clone,
) -> fmt::Result {
    table.iter().try_for_each(|(family, read)| {
        sink.write_family(family, &mut |emit| {
            rows.clone().try_for_each(|(labels, stats)| emit(labels.as_ref(), read(stats).into()))
        })
    })
}

/// Writes the metrics of a table, each with a single series without labels.
///
/// # Errors
///
/// Returns the first error of the sink.
pub(crate) fn emit_table<T>(
    sink: &mut dyn MetricSink,
    table: &[Metric<T>],
    stats: &T,
) -> fmt::Result {
    table.iter().try_for_each(|(family, read)| emit_single(sink, family, read(stats)))
}
