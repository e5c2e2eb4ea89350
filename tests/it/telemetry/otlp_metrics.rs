//! OTLP metrics equal the scraped ones, with labels as attributes.

use std::collections::BTreeMap;

use opentelemetry_proto::tonic::metrics::v1::{AggregationTemporality, metric, number_data_point};

use super::otlp_receiver::{Receiver, texts};
use crate::support::http;
use crate::support::redis_server::Server;
use crate::support::tidegate_process::{FIVE_A_DAY, Tidegate};
use crate::support::wait::until;

fn serving(endpoint: &str, more: &[(&str, &str)]) -> Tidegate {
    let environment = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint),
        ("OTEL_TRACES_EXPORTER", "none"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "100"),
    ];
    Tidegate::with_files(&[("policy.yaml", FIVE_A_DAY)], &[], &[&environment, more].concat())
}

/// The whole numbers of a counter or gauge by their attributes.
fn numbers(receiver: &Receiver, name: &str) -> Vec<(BTreeMap<String, String>, i64)> {
    let Some(data) = receiver.metric(name).and_then(|metric| metric.data) else { return vec![] };
    let points = match data {
        metric::Data::Sum(sum) => {
            assert!(sum.is_monotonic);
            assert_eq!(sum.aggregation_temporality, AggregationTemporality::Cumulative as i32);
            sum.data_points
        }
        metric::Data::Gauge(gauge) => gauge.data_points,
        other => panic!("{name}: {other:?}"),
    };
    let number = |value| match value {
        Some(number_data_point::Value::AsInt(number)) => number,
        other => panic!("{name}: {other:?}"),
    };
    points.iter().map(|point| (texts(&point.attributes), number(point.value))).collect()
}

fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn a_receiver_gets_the_metrics_of_a_scrape() {
    let (receiver, redis) = (Receiver::start(), Server::start(&[]));
    let url = format!("127.0.0.1:{}", redis.port);
    let more = [("REDIS_URL", url.as_str()), ("TIDEGATE_REDIS_BUDGET", "5s")];
    let serving = serving(&receiver.endpoint(), &more);
    for _ in 0..6 {
        serving.ask("ann");
    }
    let rule = [("domain", "edge"), ("rule", "edge.client")];
    let of_rule = |more: &[(&str, &str)]| labels(&[&rule[..], more].concat());
    let passed = (of_rule(&[("code", "ok"), ("source", "redis")]), 5);
    until("six answers at the receiver", || {
        // The last number of a call.
        let Some(metric::Data::Histogram(took)) =
            receiver.metric("tidegate_decision_seconds")?.data
        else {
            return None;
        };
        (took.data_points[0].count == 6).then_some(())
    });
    let seen = |name: &str| numbers(&receiver, name);
    assert!(seen("tidegate_rule_decisions").contains(&passed));
    assert_eq!(seen("tidegate_config_last_reload_successful"), [(labels(&[]), 1)]);
    assert!(seen("tidegate_rule_hits").contains(&(of_rule(&[]), 6)));
    let refused = labels(&[("code", "over_limit"), ("source", "redis")]);
    assert!(seen("tidegate_decisions").contains(&(refused, 1)));
    let node = [("node", url.as_str())];
    assert!(seen("tidegate_redis_items").contains(&(labels(&node), 6)));
    let denied = labels(&[("kind", "denied"), node[0]]);
    assert!(seen("tidegate_redis_errors").contains(&(denied, 0)));
    for (name, attributes) in
        [("tidegate_decision_seconds", labels(&[])), ("tidegate_redis_wait_seconds", labels(&node))]
    {
        let found = receiver.metric(name).unwrap();
        assert_eq!(found.unit, "s", "{name}");
        let Some(metric::Data::Histogram(found)) = found.data else { panic!("{name}") };
        let point = &found.data_points[0];
        assert_eq!((texts(&point.attributes), point.count), (attributes, 6), "{name}");
        assert_eq!(point.bucket_counts.len(), point.explicit_bounds.len() + 1);
        assert!(point.explicit_bounds.contains(&0.006) && point.explicit_bounds.contains(&0.02));
        assert!(point.start_time_unix_nano < point.time_unix_nano);
    }
    let resource = receiver.look(|kept| {
        texts(&kept.metrics[0].resource_metrics[0].resource.clone().unwrap().attributes)
    });
    assert_eq!(resource["service.name"], "tidegate");
    let exports = r#"tidegate_otlp_exports_total{signal="metrics",result="sent"} "#;
    // An export is counted once its answer is there, which is after the receiver has it.
    until("the export to be counted", || {
        let text = http::get(serving.port("http"), "/metrics").body;
        let sent = text.lines().find_map(|line| line.strip_prefix(exports))?;
        (sent.parse::<u64>().unwrap() > 0).then_some(())
    });
}

#[test]
fn a_receiver_that_is_down_costs_one_log_line_and_no_answer() {
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let serving = serving(&format!("http://{gone}"), &[]);
    let told = serving.logged_in_time("OTLP export failed");
    assert_eq!(told["signal"], "metrics");
    let failed = r#"tidegate_otlp_exports_total{signal="metrics",result="failed"} "#;
    until("three failures", || {
        let text = http::get(serving.port("http"), "/metrics").body;
        let count = text.lines().find_map(|line| line.strip_prefix(failed))?.parse::<u64>().ok()?;
        (count >= 3).then_some(())
    });
    assert!(serving.ask("ann").starts_with("OK"));
    assert_eq!(serving.log().matches("OTLP export failed").count(), 1, "{}", serving.log());
}
