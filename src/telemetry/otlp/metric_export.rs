//! Metrics over OTLP: the same list that a scrape shows, encoded straight from its cells every so
//! often.
//!
//! The library's own instruments are not used: it has no histogram that is read from elsewhere, and
//! an instrument on the way of a decision costs fifteen times a cell. Not here: the metrics.

use std::fmt;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_client::MetricsServiceClient;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint,
    ResourceMetrics, ScopeMetrics, Sum, metric, number_data_point,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use tokio::sync::watch;
use tonic::metadata::MetadataMap;
use tonic::transport::Channel;
use tonic::{Extensions, Request};

use super::{Identity, OtlpError, Sent, Target};
use crate::domain::Micros;
use crate::telemetry::metric::{Family, Kind, Labels, Put, Sink, Unit, Value};
use crate::telemetry::prometheus::{PREFIX, Shown};

/// Series in one message: about a megabyte, a quarter of what receivers take by default.
const POINTS_MAX: usize = 5_000;
const CUMULATIVE: i32 = AggregationTemporality::Cumulative as i32;
const MICROS: f64 = 1e6;

/// Sends metrics.
pub struct Metrics {
    client: MetricsServiceClient<Channel>,
    metadata: MetadataMap,
    resource: Resource,
    shown: Arc<Shown>,
    now: fn() -> Micros,
    began: Micros,
    sent: Arc<Sent>,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Metrics {
    /// Sends `shown` to `target`; `now` reads the wall clock. To be called on a runtime.
    ///
    /// # Errors
    ///
    /// If nothing can be sent to it at all.
    pub fn open(
        target: &Target,
        identity: &Identity,
        shown: Arc<Shown>,
        now: fn() -> Micros,
        sent: &Arc<Sent>,
    ) -> Result<Metrics, OtlpError> {
        let attributes = identity.attributes();
        let attributes = attributes.iter().map(|(name, value)| attribute(name, value)).collect();
        Ok(Metrics {
            client: MetricsServiceClient::new(target.channel()?),
            metadata: target.metadata()?,
            resource: Resource { attributes, ..Resource::default() },
            shown,
            now,
            began: now(),
            sent: Arc::clone(sent),
        })
    }

    /// Sends every so often until told to stop, and then once more.
    pub async fn run(mut self, every: Duration, mut stop: watch::Receiver<bool>) {
        loop {
            // Whoever could stop us is gone: then it is over, too.
            let stops = stop.wait_for(|stops| *stops);
            let is_last = tokio::time::timeout(every, stops).await.is_ok();
            self.send().await;
            if is_last {
                return;
            }
        }
    }

    async fn send(&mut self) {
        let mut written = Written::new(self.began, (self.now)());
        if self.shown.show(&mut written).is_err() {
            return;
        }
        for metrics in written.messages() {
            let scope_metrics =
                vec![ScopeMetrics { scope: Some(scope()), metrics, ..ScopeMetrics::default() }];
            let resource = Some(self.resource.clone());
            let of_us = ResourceMetrics { resource, scope_metrics, ..ResourceMetrics::default() };
            let message = ExportMetricsServiceRequest { resource_metrics: vec![of_us] };
            let metadata = self.metadata.clone();
            let request = Request::from_parts(metadata, Extensions::default(), message);
            let result = self.client.export(request).await;
            self.sent.note(result.map(|_| ()));
        }
    }
}

fn scope() -> InstrumentationScope {
    let (name, version) = (PREFIX.to_owned(), env!("CARGO_PKG_VERSION").to_owned());
    InstrumentationScope { name, version, ..InstrumentationScope::default() }
}

fn attribute(name: &str, value: &str) -> KeyValue {
    let value = AnyValue { value: Some(any_value::Value::StringValue(value.to_owned())) };
    KeyValue { key: name.to_owned(), value: Some(value), ..KeyValue::default() }
}

/// Metrics as messages of a bounded size.
struct Written {
    began: u64,
    now: u64,
    full: Vec<Vec<Metric>>,
    open: Vec<Metric>,
    points: usize,
}

impl Written {
    fn new(began: Micros, now: Micros) -> Self {
        let nanos = |at: Micros| at.0.saturating_mul(1_000);
        let (began, now) = (nanos(began), nanos(now));
        Written { began, now, full: Vec::new(), open: Vec::new(), points: 0 }
    }

    fn messages(mut self) -> Vec<Vec<Metric>> {
        self.full.push(self.open);
        self.full.retain(|metrics| !metrics.is_empty());
        self.full
    }

    /// Adds series of a metric; begins another message where one is full.
    fn add(&mut self, family: &Family, points: Points) {
        if points.is_empty() {
            return;
        }
        self.points += points.len();
        self.open.push(metric(family, points));
        if self.points >= POINTS_MAX {
            self.points = 0;
            self.full.push(mem::take(&mut self.open));
        }
    }

    fn point(&self, scale: f64, labels: &Labels<'_>, value: Value, points: &mut Points) {
        let attributes = labels.iter().map(|(name, value)| attribute(name, value)).collect();
        let (start_time_unix_nano, time_unix_nano) = (self.began, self.now);
        match value {
            Value::Whole(number) => {
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
            Value::Buckets(held) => points.histograms.push(HistogramDataPoint {
                attributes,
                start_time_unix_nano,
                time_unix_nano,
                count: held.count(),
                sum: Some(held.sum as f64 / scale),
                explicit_bounds: held.bounds.iter().map(|bound| *bound as f64 / scale).collect(),
                bucket_counts: held.counts,
                ..HistogramDataPoint::default()
            }),
        }
    }
}

/// Series of one metric.
#[derive(Default)]
struct Points {
    numbers: Vec<NumberDataPoint>,
    histograms: Vec<HistogramDataPoint>,
}

impl Points {
    fn len(&self) -> usize {
        self.numbers.len() + self.histograms.len()
    }

    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Sink for Written {
    fn family(
        &mut self,
        family: &Family,
        fill: &mut dyn FnMut(Put<'_>) -> fmt::Result,
    ) -> fmt::Result {
        let scale = if family.unit == Some(Unit::Seconds) { MICROS } else { 1.0 };
        let mut points = Points::default();
        fill(&mut |labels, value| {
            self.point(scale, labels, value, &mut points);
            if self.points + points.len() >= POINTS_MAX {
                self.add(family, mem::take(&mut points));
            }
            Ok(())
        })?;
        self.add(family, points);
        Ok(())
    }
}

fn metric(family: &Family, points: Points) -> Metric {
    let Points { numbers, histograms } = points;
    let data = match family.kind {
        Kind::Gauge => metric::Data::Gauge(Gauge { data_points: numbers }),
        Kind::Counter | Kind::Bare => metric::Data::Sum(Sum {
            data_points: numbers,
            aggregation_temporality: CUMULATIVE,
            is_monotonic: true,
        }),
        Kind::Histogram => metric::Data::Histogram(Histogram {
            data_points: histograms,
            aggregation_temporality: CUMULATIVE,
        }),
    };
    let unit = match family.unit {
        None => "1",
        Some(Unit::Seconds) => "s",
        Some(Unit::Bytes) => "By",
    };
    Metric {
        name: format!("{PREFIX}_{}", family.full_name()),
        description: family.help.to_owned(),
        unit: unit.to_owned(),
        data: Some(data),
        ..Metric::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_of_many_series_is_sent_in_several_messages_and_whole() {
        let mut written = Written::new(Micros(1), Micros(2));
        let family = Family::new("hits", "Hits", Kind::Counter);
        let names: Vec<String> = (0..2 * POINTS_MAX + 1).map(|n| n.to_string()).collect();
        let fill = &mut |put: Put<'_>| {
            names.iter().try_for_each(|name| put(&[("rule", name)], Value::Whole(1)))
        };
        written.family(&family, fill).unwrap();
        let messages = written.messages();
        assert_eq!(messages.len(), 3);
        let points = messages.iter().flatten().map(|metric| match metric.data.as_ref().unwrap() {
            metric::Data::Sum(sum) => sum.data_points.len(),
            other => panic!("{other:?}"),
        });
        assert_eq!(points.sum::<usize>(), names.len());
    }

    #[test]
    fn seconds_are_seconds_and_the_unit_is_in_the_name_and_beside_it() {
        let mut written = Written::new(Micros(1), Micros(2));
        let family = Family::new("busy", "Busy", Kind::Gauge).in_unit(Unit::Seconds);
        written.family(&family, &mut |put| put(&[], Value::Whole(1_500_000))).unwrap();
        let metric = written.messages().remove(0).remove(0);
        assert_eq!((metric.name.as_str(), metric.unit.as_str()), ("tidegate_busy_seconds", "s"));
        let Some(metric::Data::Gauge(gauge)) = metric.data else { panic!("a gauge") };
        let point = &gauge.data_points[0];
        assert_eq!(point.value, Some(number_data_point::Value::AsDouble(1.5)));
        assert_eq!((point.start_time_unix_nano, point.time_unix_nano), (1_000, 2_000));
    }
}
