//! Types for metric families and values, and the sink trait through which scrapes and OTLP exports
//! read them.
//!
//! `families` and `app::wiring` define the families; `prometheus` and `otlp` implement the
//! formats.

use std::borrow::Cow;
use std::fmt;

use crate::domain::HistogramSnapshot;

/// Kind of a metric family, as in OpenMetrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// Number that only increases.
    Counter,
    /// Number that can increase and decrease.
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
    /// Unit appended to the name.
    pub unit: Option<MetricUnit>,
    /// Label names, the same for all series.
    pub labels: &'static [&'static str],
}

impl MetricFamily {
    const fn new(name: &'static str, help: &'static str, kind: MetricKind) -> Self {
        MetricFamily { name, help, kind, unit: None, labels: &[] }
    }

    /// Returns a copy of the family with a unit.
    #[must_use]
    pub const fn in_unit(self, unit: MetricUnit) -> Self {
        MetricFamily { unit: Some(unit), ..self }
    }

    /// Returns a copy of the family with label names.
    #[must_use]
    pub const fn with_labels(self, labels: &'static [&'static str]) -> Self {
        MetricFamily { labels, ..self }
    }

    /// Returns the name followed by the unit.
    pub fn full_name(&self) -> Cow<'static, str> {
        match self.unit {
            None => self.name.into(),
            Some(MetricUnit::Seconds) => format!("{}_seconds", self.name).into(),
            Some(MetricUnit::Bytes) => format!("{}_bytes", self.name).into(),
        }
    }
}

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

/// Creates a counter family whose name does not get the suffix `_total`.
pub(super) const fn unsuffixed_counter(name: &'static str, help: &'static str) -> MetricFamily {
    MetricFamily::new(name, help, MetricKind::UnsuffixedCounter)
}

/// Value of a series, in microseconds if the family's unit is seconds.
#[derive(Clone, Debug)]
pub enum MetricValue {
    /// Value of a counter or gauge.
    Number(u64),
    /// Buckets of a histogram.
    Histogram(HistogramSnapshot),
}

/// Labels of a series. Label values come from the policy or the settings. Only the rows of
/// `detailed_counters`, whose number is bounded, contain values from callers.
pub type Labels<'a> = [(&'static str, &'a str)];

/// Callback that takes the labels and value of each series of a family.
pub type SeriesEmitter<'p> = &'p mut dyn FnMut(&Labels<'_>, MetricValue) -> fmt::Result;

/// Writer of metrics in some output format.
pub trait MetricSink {
    /// Writes a family. `fill` emits its series, each with different labels.
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

/// Function that writes the metrics of one component to a sink. Called for each scrape and OTLP
/// export, never while deciding a call.
pub type MetricSource = Box<dyn Fn(&mut dyn MetricSink) -> fmt::Result + Send + Sync>;

/// Writes a family that has a single series without labels.
///
/// # Errors
///
/// Returns the error of the sink.
pub fn emit_single(sink: &mut dyn MetricSink, family: &MetricFamily, value: u64) -> fmt::Result {
    sink.write_family(family, &mut |emit| emit(&[], MetricValue::Number(value)))
}
