//! Export of the counters.

#[cfg(feature = "prometheus")]
use tidegate_client::Client;

use crate::support::{Tidegate, call};

#[cfg(feature = "opentelemetry")]
#[tokio::test]
async fn counters_are_exported_to_opentelemetry() {
    use opentelemetry::metrics::MeterProvider as _;
    use opentelemetry_sdk::metrics::data::{AggregatedMetrics, MetricData};
    use opentelemetry_sdk::metrics::{InMemoryMetricExporter, PeriodicReader, SdkMeterProvider};

    let tidegate = Tidegate::serve(&[]);
    let client = tidegate.client();
    let exporter = InMemoryMetricExporter::default();
    let reader = PeriodicReader::builder(exporter.clone()).build();
    let provider = SdkMeterProvider::builder().with_reader(reader).build();
    tidegate_client::observe(&provider.meter("test"), [client.clone()]);
    for _ in 0..7 {
        client.check(&call("user", "ann")).await;
    }
    provider.force_flush().unwrap();
    let finished = exporter.get_finished_metrics().unwrap();
    let metric = finished[0].scope_metrics().next().unwrap().metrics().next().unwrap();
    assert_eq!(metric.name(), "tidegate.client.calls");
    let AggregatedMetrics::U64(MetricData::Sum(sum)) = metric.data() else { panic!("{metric:?}") };
    let mut found: Vec<String> = sum
        .data_points()
        .map(|point| {
            let attributes = point.attributes();
            let mut all: Vec<String> =
                attributes.map(|it| format!("{}={}", it.key, it.value)).collect();
            all.sort();
            format!("{} {}", all.join(" "), point.value())
        })
        .collect();
    found.sort();
    let row = |outcome, count| {
        format!("address={} domain=shop outcome={outcome} {count}", client.address())
    };
    assert_eq!(found, [row("allowed", 5), row("failed", 0), row("rejected", 2)]);
}

#[cfg(feature = "prometheus")]
#[tokio::test]
async fn counters_are_exported_to_prometheus() {
    let tidegate = Tidegate::serve(&[]);
    let (client, other) =
        (tidegate.client(), Client::builder("http://localhost:1", "shop").build().unwrap());
    let mut registry = prometheus_client::registry::Registry::default();
    let clients = [client.clone(), other.clone()];
    registry.register_collector(Box::new(tidegate_client::PrometheusCollector::new(clients)));
    for _ in 0..7 {
        client.check(&call("user", "ann")).await;
    }
    other.check(&call("user", "ann")).await;
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    for (client, outcome, count) in [
        (&client, "allowed", 5),
        (&client, "rejected", 2),
        (&client, "failed", 0),
        (&other, "failed", 1),
    ] {
        let row = format!(
            "tidegate_client_calls_total{{address=\"{}\",domain=\"shop\",outcome=\"{outcome}\"}} {count}\n",
            client.address()
        );
        assert!(text.contains(&row), "{row} in {text}");
    }
}
