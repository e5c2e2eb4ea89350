//! Exports metrics over OTLP: the same families as a scrape, read from the same counters.
//!
//! This module does not use opentelemetry_sdk: that library has no observable histogram, and its
//! counters cost fifteen times as much per decision as those of `telemetry::counters`.

use std::fmt;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint,
    ResourceMetrics, ScopeMetrics, Sum, metric, number_data_point,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use tokio::sync::watch;

use super::metric::{
    Labels, MetricFamily, MetricKind, MetricSink, MetricSource, MetricUnit, MetricValue,
    SeriesEmitter, counter, emit_series,
};
use super::otlp::otlp_client::OtlpClient;
use super::otlp::{ExportStats, OtlpTarget, ServiceIdentity};
use super::prometheus::METRIC_PREFIX;
use crate::domain::Micros;

/// Maximum number of data points per message. A message with 5,000 points takes about 1 MB, a
/// quarter of what collectors accept by default.
const MESSAGE_POINTS_MAX: usize = 5_000;
const CUMULATIVE: i32 = AggregationTemporality::Cumulative as i32;
const MICROS_PER_SECOND: f64 = 1e6;

/// gRPC method that receives metrics.
const EXPORT_METHOD: &str = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export";

/// Exporter that sends all metrics to a collector at a fixed interval.
pub struct MetricsExporter {
    client: OtlpClient,
    resource: Resource,
    metrics: MetricSource,
    now: fn() -> Micros,
    start: Micros,
    stats: Arc<ExportStats>,
}

impl MetricsExporter {
    /// Creates an exporter that sends `metrics` to `target`. `now` reads the wall clock. Must be
    /// called within a Tokio runtime.
    ///
    /// # Errors
    ///
    /// Returns the reason if the target's endpoint, headers or CA are invalid.
    pub fn open(
        target: &OtlpTarget,
        identity: &ServiceIdentity,
        metrics: MetricSource,
        now: fn() -> Micros,
        stats: &Arc<ExportStats>,
    ) -> Result<MetricsExporter, String> {
        let attributes = identity.resource_attributes().into_iter();
        let attributes = attributes.map(|(name, value)| build_attribute(&name, &value)).collect();
        Ok(MetricsExporter {
            client: OtlpClient::new(target)?,
            resource: Resource { attributes, ..Resource::default() },
            metrics,
            now,
            start: now(),
            stats: Arc::clone(stats),
        })
    }

    /// Exports all metrics once per `interval` until `stop` becomes true, then exports one last
    /// time.
    pub async fn run(self, interval: Duration, mut stop: watch::Receiver<bool>) {
        loop {
            // A closed channel also means stop.
            let stopped = stop.wait_for(|stop| *stop);
            let is_last = tokio::time::timeout(interval, stopped).await.is_ok();
            self.export().await;
            if is_last {
                return;
            }
        }
    }

    async fn export(&self) {
        let mut writer = OtlpWriter::new(self.start, (self.now)());
        if (self.metrics)(&mut writer).is_err() {
            return;
        }
        for metrics in writer.into_messages() {
            let scope_metrics = vec![ScopeMetrics {
                scope: Some(build_scope()),
                metrics,
                ..ScopeMetrics::default()
            }];
            let resource = Some(self.resource.clone());
            let resource_metrics =
                ResourceMetrics { resource, scope_metrics, ..ResourceMetrics::default() };
            let message = ExportMetricsServiceRequest { resource_metrics: vec![resource_metrics] };
            let result = self.client.send(EXPORT_METHOD, message).await;
            self.stats.record(result);
        }
    }
}

fn build_scope() -> InstrumentationScope {
    let (name, version) = (METRIC_PREFIX.to_owned(), env!("CARGO_PKG_VERSION").to_owned());
    InstrumentationScope { name, version, ..InstrumentationScope::default() }
}

fn build_attribute(name: &str, value: &str) -> KeyValue {
    let value = AnyValue { value: Some(any_value::Value::StringValue(value.to_owned())) };
    KeyValue { key: name.to_owned(), value: Some(value), ..KeyValue::default() }
}

/// Metric sink that groups data points into OTLP messages of bounded size.
struct OtlpWriter {
    start_nanos: u64,
    now_nanos: u64,
    full_messages: Vec<Vec<Metric>>,
    current_message: Vec<Metric>,
    /// Number of data points in `current_message`.
    point_count: usize,
}

impl OtlpWriter {
    fn new(start: Micros, now: Micros) -> Self {
        let nanos = |at: Micros| at.0.saturating_mul(1_000);
        let (start_nanos, now_nanos) = (nanos(start), nanos(now));
        OtlpWriter {
            start_nanos,
            now_nanos,
            full_messages: Vec::new(),
            current_message: Vec::new(),
            point_count: 0,
        }
    }

    fn into_messages(mut self) -> Vec<Vec<Metric>> {
        self.full_messages.push(self.current_message);
        self.full_messages.retain(|metrics| !metrics.is_empty());
        self.full_messages
    }

    /// Adds data points of a metric to the current message, and starts a new message if the current
    /// one is then full.
    fn add(&mut self, family: &MetricFamily, points: MetricPoints) {
        if points.is_empty() {
            return;
        }
        self.point_count += points.len();
        self.current_message.push(build_metric(family, points));
        if self.point_count >= MESSAGE_POINTS_MAX {
            self.point_count = 0;
            self.full_messages.push(mem::take(&mut self.current_message));
        }
    }

    fn push_point(
        &self,
        scale: f64,
        labels: &Labels<'_>,
        value: MetricValue,
        points: &mut MetricPoints,
    ) {
        let attributes = labels.iter().map(|(name, value)| build_attribute(name, value)).collect();
        let (start_time_unix_nano, time_unix_nano) = (self.start_nanos, self.now_nanos);
        match value {
            MetricValue::Number(number) => {
                let value = Some(if scale == 1.0 {
                    number_data_point::Value::AsInt(i64::try_from(number).unwrap_or(i64::MAX))
                } else {
                    number_data_point::Value::AsDouble(number as f64 / scale)
                });
                let rest = NumberDataPoint::default();
                points.numbers.push(NumberDataPoint {
                    attributes,
                    start_time_unix_nano,
                    time_unix_nano,
                    value,
                    ..rest
                });
            }
            MetricValue::Histogram(histogram) => points.histograms.push(HistogramDataPoint {
                attributes,
                start_time_unix_nano,
                time_unix_nano,
                count: histogram.count(),
                sum: Some(histogram.sum as f64 / scale),
                explicit_bounds: histogram
                    .bounds
                    .iter()
                    .map(|bound| *bound as f64 / scale)
                    .collect(),
                bucket_counts: histogram.counts,
                ..HistogramDataPoint::default()
            }),
        }
    }
}

/// OTLP data points of one metric.
#[derive(Default)]
struct MetricPoints {
    numbers: Vec<NumberDataPoint>,
    histograms: Vec<HistogramDataPoint>,
}

impl MetricPoints {
    fn len(&self) -> usize {
        self.numbers.len() + self.histograms.len()
    }

    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl MetricSink for OtlpWriter {
    fn write_family(
        &mut self,
        family: &MetricFamily,
        fill: &mut dyn FnMut(SeriesEmitter<'_>) -> fmt::Result,
    ) -> fmt::Result {
        let scale = if family.unit == Some(MetricUnit::Seconds) { MICROS_PER_SECOND } else { 1.0 };
        let mut points = MetricPoints::default();
        fill(&mut |labels, value| {
            self.push_point(scale, labels, value, &mut points);
            if self.point_count + points.len() >= MESSAGE_POINTS_MAX {
                self.add(family, mem::take(&mut points));
            }
            Ok(())
        })?;
        self.add(family, points);
        Ok(())
    }
}

fn build_metric(family: &MetricFamily, points: MetricPoints) -> Metric {
    let MetricPoints { numbers, histograms } = points;
    let data = match family.kind {
        MetricKind::Gauge => metric::Data::Gauge(Gauge { data_points: numbers }),
        MetricKind::Counter | MetricKind::UnsuffixedCounter => metric::Data::Sum(Sum {
            data_points: numbers,
            aggregation_temporality: CUMULATIVE,
            is_monotonic: true,
        }),
        MetricKind::Histogram => metric::Data::Histogram(Histogram {
            data_points: histograms,
            aggregation_temporality: CUMULATIVE,
        }),
    };
    let unit = match family.unit {
        None => "1",
        Some(MetricUnit::Seconds) => "s",
        Some(MetricUnit::Bytes) => "By",
    };
    Metric {
        name: format!("{METRIC_PREFIX}_{}", family.full_name()),
        description: family.help.to_owned(),
        unit: unit.to_owned(),
        data: Some(data),
        ..Metric::default()
    }
}

const EXPORTS: MetricFamily = counter("otlp_exports", "OTLP exports per signal and result")
    .with_labels(&["signal", "result"]);

/// Writes the numbers of OTLP exports of these signals.
///
/// # Errors
///
/// Returns the error of the sink.
pub(crate) fn emit_exports(signals: &[Arc<ExportStats>], sink: &mut dyn MetricSink) -> fmt::Result {
    let counts = signals.iter().flat_map(|stats| {
        let labels = |result| [("signal", stats.signal), ("result", result)];
        let counts = [("sent", &stats.succeeded), ("failed", &stats.failed)];
        counts.map(|(result, count)| (labels(result), count.load(Ordering::Relaxed)))
    });
    emit_series(sink, &EXPORTS, counts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::metric::gauge;

    #[test]
    fn a_metric_with_many_series_is_split_into_several_messages_without_loss() {
        let mut writer = OtlpWriter::new(Micros(1), Micros(2));
        let family = counter("hits", "Hits");
        let names: Vec<String> = (0..2 * MESSAGE_POINTS_MAX + 1).map(|n| n.to_string()).collect();
        let fill = &mut |emit: SeriesEmitter<'_>| {
            names.iter().try_for_each(|name| emit(&[("rule", name)], MetricValue::Number(1)))
        };
        writer.write_family(&family, fill).unwrap();
        let messages = writer.into_messages();
        assert_eq!(messages.len(), 3);
        let points = messages.iter().flatten().map(|metric| match metric.data.as_ref().unwrap() {
            metric::Data::Sum(sum) => sum.data_points.len(),
            other => panic!("{other:?}"),
        });
        assert_eq!(points.sum::<usize>(), names.len());
    }

    #[test]
    fn values_are_exported_in_seconds_and_the_unit_is_in_the_name_and_the_unit_field() {
        let mut writer = OtlpWriter::new(Micros(1), Micros(2));
        let family = gauge("busy", "Busy").in_unit(MetricUnit::Seconds);
        writer
            .write_family(&family, &mut |emit| emit(&[], MetricValue::Number(1_500_000)))
            .unwrap();
        let metric = writer.into_messages().remove(0).remove(0);
        assert_eq!((metric.name.as_str(), metric.unit.as_str()), ("tidegate_busy_seconds", "s"));
        let Some(metric::Data::Gauge(gauge)) = metric.data else { panic!("a gauge") };
        let point = &gauge.data_points[0];
        assert_eq!(point.value, Some(number_data_point::Value::AsDouble(1.5)));
        assert_eq!((point.start_time_unix_nano, point.time_unix_nano), (1_000, 2_000));
    }
}
