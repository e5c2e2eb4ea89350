//! Writes metrics as Prometheus reads them.
//!
//! Not here: which there are (`scrape`, `theirs`).

use std::fmt;

use prometheus_client::encoding::{
    DescriptorEncoder, EncodeLabelSet, LabelSetEncoder, MetricEncoder, NoLabelSet,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry;

use super::metric::{Family, Kind, Labels, Put, Sink, Unit, Value};

/// Microseconds are shown as seconds, the unit that Prometheus asks for.
const MICROS: f64 = 1e6;

/// Writes metrics as text.
pub(super) struct Text<'a, 'e>(pub(super) &'a mut DescriptorEncoder<'e>);

struct Written<'a>(&'a Labels<'a>);

impl EncodeLabelSet for Written<'_> {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> Result<(), fmt::Error> {
        self.0.encode(encoder)
    }
}

impl Sink for Text<'_, '_> {
    fn family(
        &mut self,
        family: &Family,
        fill: &mut dyn FnMut(Put<'_>) -> fmt::Result,
    ) -> fmt::Result {
        let kind = match family.kind {
            Kind::Counter => MetricType::Counter,
            Kind::Gauge => MetricType::Gauge,
            Kind::Histogram => MetricType::Histogram,
            Kind::Bare => MetricType::Unknown,
        };
        let unit = family.unit.map(|unit| match unit {
            Unit::Seconds => registry::Unit::Seconds,
            Unit::Bytes => registry::Unit::Bytes,
        });
        let scale = if family.unit == Some(Unit::Seconds) { MICROS } else { 1.0 };
        let mut metric = self.0.encode_descriptor(family.name, family.help, unit.as_ref(), kind)?;
        fill(&mut |labels, value| {
            if labels.is_empty() {
                return write(&mut metric, family.kind, scale, value);
            }
            write(&mut metric.encode_family(&Written(labels))?, family.kind, scale, value)
        })
    }
}

fn write(
    series: &mut MetricEncoder<'_>,
    kind: Kind,
    scale: f64,
    value: Value,
) -> Result<(), fmt::Error> {
    match (value, kind) {
        (Value::Whole(number), Kind::Counter) if scale == 1.0 => {
            series.encode_counter::<NoLabelSet, _, u64>(&number, None)
        }
        (Value::Whole(number), Kind::Counter) => {
            series.encode_counter::<NoLabelSet, _, u64>(&(number as f64 / scale), None)
        }
        (Value::Whole(number), _) if scale == 1.0 => series.encode_gauge(&number),
        (Value::Whole(number), _) => series.encode_gauge(&(number as f64 / scale)),
        (Value::Buckets(held), _) => {
            let bounds = held.bounds.iter().map(|bound| *bound as f64 / scale);
            let buckets: Vec<(f64, u64)> =
                bounds.chain([f64::INFINITY]).zip(held.counts.iter().copied()).collect();
            let sum = held.sum as f64 / scale;
            series.encode_histogram::<NoLabelSet>(sum, held.count(), &buckets, None)
        }
    }
}
