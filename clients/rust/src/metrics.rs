//! Exports the counters of clients to OpenTelemetry or Prometheus, each by a feature of its own.

use crate::client::{Client, Counters};

const DESCRIPTION: &str =
    "Calls by outcome: allowed, rejected, or failed, which means without a decision";

fn by_outcome(counters: Counters) -> [(&'static str, u64); 3] {
    let Counters { allowed, rejected, failed } = counters;
    [("allowed", allowed), ("rejected", rejected), ("failed", failed)]
}

/// Adds the observable counter `tidegate.client.calls` to a meter, with the attributes address, domain, and
/// outcome.
#[cfg(feature = "opentelemetry")]
pub fn observe(meter: &opentelemetry::metrics::Meter, clients: impl IntoIterator<Item = Client>) {
    use opentelemetry::KeyValue;

    let clients: Vec<Client> = clients.into_iter().collect();
    let observe = move |observer: &dyn opentelemetry::metrics::AsyncInstrument<u64>| {
        for client in &clients {
            for (outcome, count) in by_outcome(client.counters()) {
                let attributes = [
                    KeyValue::new("address", client.address()),
                    KeyValue::new("domain", client.domain().to_owned()),
                    KeyValue::new("outcome", outcome),
                ];
                observer.observe(count, &attributes);
            }
        }
    };
    meter
        .u64_observable_counter("tidegate.client.calls")
        .with_unit("{call}")
        .with_description(DESCRIPTION)
        .with_callback(observe)
        .build();
}

/// Collector of `tidegate_client_calls_total`, with the labels address, domain, and outcome. Give it to
/// `prometheus_client::registry::Registry::register_collector`.
#[cfg(feature = "prometheus")]
#[derive(Debug)]
pub struct PrometheusCollector {
    clients: Vec<Client>,
}

#[cfg(feature = "prometheus")]
impl PrometheusCollector {
    /// A collector of the counters of these clients.
    pub fn new(clients: impl IntoIterator<Item = Client>) -> PrometheusCollector {
        PrometheusCollector { clients: clients.into_iter().collect() }
    }
}

#[cfg(feature = "prometheus")]
impl prometheus_client::collector::Collector for PrometheusCollector {
    fn encode(
        &self,
        mut encoder: prometheus_client::encoding::DescriptorEncoder<'_>,
    ) -> std::fmt::Result {
        use prometheus_client::encoding::EncodeMetric as _;
        use prometheus_client::metrics::{MetricType, counter::ConstCounter};

        let mut family = encoder.encode_descriptor(
            "tidegate_client_calls",
            DESCRIPTION,
            None,
            MetricType::Counter,
        )?;
        for client in &self.clients {
            for (outcome, count) in by_outcome(client.counters()) {
                let address = client.address();
                let labels = [
                    ("address", address.as_str()),
                    ("domain", client.domain()),
                    ("outcome", outcome),
                ];
                ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}
