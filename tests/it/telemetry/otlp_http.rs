//! OTLP over HTTP: the same exports as over gRPC, at the paths of the specification, and the tracing
//! variables of envoyproxy/ratelimit.

use std::fs;

use super::otlp_receiver::{Receiver, texts};
use super::traced_call::ask;
use crate::support::certificate_authority::Authority;
use crate::support::http::get;
use crate::support::tidegate_process::{FIVE_A_DAY, Tidegate, directory, linked};
use crate::support::wait::until;

fn serving(more: &[(&str, &str)]) -> Tidegate {
    let environment = [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
        ("OTEL_BSP_SCHEDULE_DELAY", "50"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "100"),
        ("OTEL_TRACES_SAMPLER_ARG", "1"),
    ];
    Tidegate::with_files(&[("policy.yaml", FIVE_A_DAY)], &[], &[&environment, more].concat())
}

fn has_metrics_and_a_span(receiver: &Receiver) {
    until("metrics and a span", || {
        let calls = receiver.metric("tidegate_calls")?;
        let span = receiver.spans().pop()?;
        (calls.name == "tidegate_calls" && span.name.ends_with("/ShouldRateLimit")).then_some(())
    });
}

#[test]
fn metrics_and_traces_arrive_at_their_paths_with_the_configured_headers() {
    let receiver = Receiver::start_http(None);
    let endpoint = receiver.endpoint();
    let serving = serving(&[
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint),
        ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=k%2C1"),
    ]);
    assert_eq!(ask(serving.port("grpc"), "ann", &[]), "0");
    has_metrics_and_a_span(&receiver);
    assert!(receiver.look(|kept| kept.keys.iter().all(|key| key.as_deref() == Some("k,1"))));
}

#[test]
fn over_tls_the_collectors_certificate_is_verified_by_the_configured_ca() {
    let authority = Authority::new();
    let receiver = Receiver::start_http(Some(&authority.signs("localhost")));
    let files = directory(&[("ca.pem", &authority.certificate)]);
    fs::write(files.path().join("other.pem"), Authority::new().certificate).unwrap();
    let path = |name: &str| files.path().join(name).display().to_string();
    let endpoint = format!("https://localhost:{}", receiver.address.port());
    let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str());
    let stranger = serving(&[endpoint, ("OTEL_EXPORTER_OTLP_CERTIFICATE", &path("other.pem"))]);
    stranger.logged_in_time("OTLP export failed");
    assert!(receiver.look(|kept| kept.metrics.is_empty()));
    let trusted = serving(&[endpoint, ("OTEL_EXPORTER_OTLP_CERTIFICATE", &path("ca.pem"))]);
    assert_eq!(ask(trusted.port("grpc"), "ann", &[]), "0");
    has_metrics_and_a_span(&receiver);
}

#[test]
fn an_export_that_the_collector_rejects_is_counted_and_logged_once() {
    let receiver = Receiver::start_http(None);
    // The path of one signal is used as it is.
    let endpoint = format!("{}/elsewhere", receiver.endpoint());
    let serving = serving(&[("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", &endpoint)]);
    let failed = "tidegate_otlp_exports_total{signal=\"metrics\",result=\"failed\"} ";
    until("three failed exports", || {
        let page = get(serving.port("http"), "/metrics").body;
        let count = page.lines().find_map(|line| line.strip_prefix(failed))?;
        (count.parse::<u64>().unwrap() >= 3).then_some(())
    });
    let lines = serving.log().matches("OTLP export failed").count();
    let logged = serving.logged("OTLP export failed").expect("a line");
    assert_eq!(lines, 1);
    assert_eq!(logged["error"], "the collector answered 404 Not Found");
}

#[test]
fn the_tracing_variables_of_ratelimit_export_traces_over_http_and_no_metrics() {
    let receiver = Receiver::start_http(None);
    let files = directory(&[("data/ratelimit/config/policy.yaml", FIVE_A_DAY)]);
    let mut command = linked(&files.path().join("ratelimit"));
    command.env("RUNTIME_ROOT", files.path().join("data"));
    command.envs([
        ("RUNTIME_SUBDIRECTORY", "ratelimit"),
        ("TRACING_ENABLED", "true"),
        ("TRACING_SERVICE_NAME", "envoy-ratelimit"),
        ("TRACING_SERVICE_NAMESPACE", "envoy-gateway-system"),
        ("TRACING_SERVICE_INSTANCE_ID", "pod-1"),
        ("TRACING_SAMPLING_RATE", "1"),
        ("OTEL_BSP_SCHEDULE_DELAY", "50"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "100"),
    ]);
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint());
    let serving = Tidegate::start(&mut command, files);
    assert_eq!(ask(serving.port("grpc"), "ann", &[]), "0");
    until("a span", || receiver.spans().pop());
    let resource = receiver.look(|kept| {
        assert!(kept.metrics.is_empty(), "envoyproxy/ratelimit exports none");
        texts(&kept.traces[0].resource_spans[0].resource.clone().unwrap().attributes)
    });
    assert_eq!(resource["service.name"], "envoy-ratelimit");
    assert_eq!(resource["service.namespace"], "envoy-gateway-system");
    assert_eq!(resource["service.instance.id"], "pod-1");
    assert!(!serving.log().contains("TRACING_"), "{}", serving.log());
}
