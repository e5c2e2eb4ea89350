//! Metric sink that writes with the encoder of the `prometheus_client` library.

use std::fmt;

use prometheus_client::encoding::{
    DescriptorEncoder, EncodeLabelSet, LabelSetEncoder, MetricEncoder, NoLabelSet,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry;

use super::metric::{
    Labels, MetricFamily, MetricKind, MetricSink, MetricUnit, MetricValue, SeriesEmitter,
};

/// Microseconds per second. Metrics whose unit is seconds reach the sink in microseconds.
const MICROS_PER_SECOND: f64 = 1e6;

pub(super) struct PrometheusWriter<'a, 'e>(pub(super) &'a mut DescriptorEncoder<'e>);

struct LabelSet<'a>(&'a Labels<'a>);

impl EncodeLabelSet for LabelSet<'_> {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> Result<(), fmt::Error> {
        self.0.encode(encoder)
    }
}

impl MetricSink for PrometheusWriter<'_, '_> {
    fn write_family(
        &mut self,
        family: &MetricFamily,
        fill: &mut dyn FnMut(SeriesEmitter<'_>) -> fmt::Result,
    ) -> fmt::Result {
        let kind = match family.kind {
            MetricKind::Counter => MetricType::Counter,
            MetricKind::Gauge => MetricType::Gauge,
            MetricKind::Histogram => MetricType::Histogram,
            MetricKind::UnsuffixedCounter => MetricType::Unknown,
        };
        let unit = family.unit.map(|unit| match unit {
            MetricUnit::Seconds => registry::Unit::Seconds,
            MetricUnit::Bytes => registry::Unit::Bytes,
        });
        let scale = if family.unit == Some(MetricUnit::Seconds) { MICROS_PER_SECOND } else { 1.0 };
        let mut metric = self.0.encode_descriptor(family.name, family.help, unit.as_ref(), kind)?;
        fill(&mut |labels, value| {
            if labels.is_empty() {
                return encode_value(&mut metric, family.kind, scale, value);
            }
            encode_value(&mut metric.encode_family(&LabelSet(labels))?, family.kind, scale, value)
        })
    }
}

fn encode_value(
    series: &mut MetricEncoder<'_>,
    kind: MetricKind,
    scale: f64,
    value: MetricValue,
) -> Result<(), fmt::Error> {
    let is_counter = kind == MetricKind::Counter;
    match value {
        MetricValue::Number(number) if scale == 1.0 => match is_counter {
            true => series.encode_counter::<NoLabelSet, _, u64>(&number, None),
            false => series.encode_gauge(&number),
        },
        MetricValue::Number(number) => match is_counter {
            true => series.encode_counter::<NoLabelSet, _, u64>(&(number as f64 / scale), None),
            false => series.encode_gauge(&(number as f64 / scale)),
        },
        MetricValue::Histogram(histogram) => {
            let bounds = histogram.bounds.iter().map(|bound| *bound as f64 / scale);
            let buckets: Vec<(f64, u64)> =
                bounds.chain([f64::INFINITY]).zip(histogram.counts.iter().copied()).collect();
            let sum = histogram.sum as f64 / scale;
            series.encode_histogram::<NoLabelSet>(sum, histogram.count(), &buckets, None)
        }
    }
}
