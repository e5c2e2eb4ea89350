//! Metric families and their values, and the trait that writes them: a scrape and an OTLP export are
//! both made from the same families.
//!
//! Not here: the families themselves (`families`, `app::wiring`), the formats (`prometheus`, `otlp`).

use std::borrow::Cow;
use std::fmt;

use crate::domain::HistogramSnapshot;

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// A number that only grows.
    Counter,
    /// A number that goes up and down.
    Gauge,
    /// Counts per bucket.
    Histogram,
    /// A counter whose name does not end in `_total`, as envoyproxy/ratelimit names them.
    UnsuffixedCounter,
}

/// A unit that is part of a metric's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricUnit {
    /// Seconds; values are given in microseconds.
    Seconds,
    /// Bytes.
    Bytes,
}

/// A metric: one name, any number of series.
#[derive(Clone, Copy, Debug)]
pub struct MetricFamily {
    /// Its name, without our prefix, its unit and the `_total` of counters.
    pub name: &'static str,
    /// Its help text.
    pub help: &'static str,
    /// Its kind.
    pub kind: MetricKind,
    /// Its unit.
    pub unit: Option<MetricUnit>,
    /// The label names of each of its series.
    pub labels: &'static [&'static str],
}

impl MetricFamily {
    const fn new(name: &'static str, help: &'static str, kind: MetricKind) -> Self {
        MetricFamily { name, help, kind, unit: None, labels: &[] }
    }

    /// The same with a unit.
    #[must_use]
    pub const fn in_unit(self, unit: MetricUnit) -> Self {
        MetricFamily { unit: Some(unit), ..self }
    }

    /// The same with labels.
    #[must_use]
    pub const fn with_labels(self, labels: &'static [&'static str]) -> Self {
        MetricFamily { labels, ..self }
    }

    /// Its name with its unit.
    pub fn full_name(&self) -> Cow<'static, str> {
        match self.unit {
            None => self.name.into(),
            Some(MetricUnit::Seconds) => format!("{}_seconds", self.name).into(),
            Some(MetricUnit::Bytes) => format!("{}_bytes", self.name).into(),
        }
    }
}

/// A counter without unit and labels.
pub const fn counter(name: &'static str, help: &'static str) -> MetricFamily {
    MetricFamily::new(name, help, MetricKind::Counter)
}

/// A gauge without unit and labels.
pub const fn gauge(name: &'static str, help: &'static str) -> MetricFamily {
    MetricFamily::new(name, help, MetricKind::Gauge)
}

/// A histogram without unit and labels.
pub const fn histogram(name: &'static str, help: &'static str) -> MetricFamily {
    MetricFamily::new(name, help, MetricKind::Histogram)
}

/// A counter under a name of envoyproxy/ratelimit.
pub(super) const fn unsuffixed_counter(name: &'static str, help: &'static str) -> MetricFamily {
    MetricFamily::new(name, help, MetricKind::UnsuffixedCounter)
}

/// The value of a series. In families in seconds, numbers are microseconds.
#[derive(Clone, Debug)]
pub enum MetricValue {
    /// The value of a counter or gauge.
    Number(u64),
    /// The buckets of a histogram.
    Histogram(HistogramSnapshot),
}

/// The labels of a series. Values come from the policy or the settings, never from callers.
pub type Labels<'a> = [(&'static str, &'a str)];

/// Receives the series of a family, one by one.
pub type EmitSeries<'p> = &'p mut dyn FnMut(&Labels<'_>, MetricValue) -> fmt::Result;

/// Writes metrics in some format.
pub trait MetricSink {
    /// Writes a family; `fill` emits its series, each with different labels.
    ///
    /// # Errors
    ///
    /// Errors of the format.
    fn family(
        &mut self,
        family: &MetricFamily,
        fill: &mut dyn FnMut(EmitSeries<'_>) -> fmt::Result,
    ) -> fmt::Result;
}

/// Writes the metrics of one part of the process to a sink. Called for each scrape and export, never
/// by a request.
pub type MetricSource = Box<dyn Fn(&mut dyn MetricSink) -> fmt::Result + Send + Sync>;

/// Writes a family with one series without labels.
///
/// # Errors
///
/// Errors of the format.
pub fn emit_single(sink: &mut dyn MetricSink, family: &MetricFamily, value: u64) -> fmt::Result {
    sink.family(family, &mut |emit| emit(&[], MetricValue::Number(value)))
}
