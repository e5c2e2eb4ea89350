//! Metrics for those who come from envoyproxy/ratelimit: its names and types on the Prometheus port,
//! rows of detailed metrics and of request overrides, and the statistics of the debug port.
//!
//! Not here: that a real Prometheus takes them (`tests/chart`).

use std::fmt::Write as _;

use crate::support::http::{get, post, send};
use crate::support::tidegate_process::Tidegate;

const POLICY: &str = "
domain: edge
descriptors:
  - key: source
    descriptors:
      - key: target
        detailed_metric: true
        rate_limit: {unit: year, requests_per_unit: 2}
  - key: tenant
    value_to_metric: true
    rate_limit: {name: per-tenant, unit: year, requests_per_unit: 9}
  - key: client
    shadow_mode: true
    rate_limit: {unit: year, requests_per_unit: 1}
  - key: free
    rate_limit: {unlimited: true}
  - key: allowed
";

/// Asks once through /json; each descriptor is JSON.
fn ask(serving: &Tidegate, descriptors: &str) {
    let body = format!(r#"{{"domain":"edge","descriptors":[{descriptors}]}}"#);
    let reply = post(serving.port("http"), "/json", &body);
    assert!([200, 429].contains(&reply.status), "{}: {}", reply.status, reply.body);
}

fn entry(key: &str, value: &str) -> String {
    format!(r#"{{"key":"{key}","value":"{value}"}}"#)
}

/// One call for each kind of row: 3 of a limit of 2, one tenant, two in shadow mode, one override.
fn serving_with_calls() -> Tidegate {
    let prometheus = ["--use-prometheus", "true", "--prometheus-addr", "127.0.0.1:0"];
    let serving = Tidegate::policy(POLICY, &prometheus);
    let pair = format!("{},{}", entry("source", "proxy"), entry("target", "mock"));
    for _ in 0..3 {
        ask(&serving, &format!(r#"{{"entries":[{pair}]}}"#));
    }
    ask(&serving, &format!(r#"{{"entries":[{}]}}"#, entry("tenant", "10.0.0.7")));
    for _ in 0..2 {
        ask(&serving, &format!(r#"{{"entries":[{}]}}"#, entry("client", "ann")));
    }
    let limit = r#""limit":{"requestsPerUnit":7,"unit":"HOUR"}"#;
    ask(&serving, &format!(r#"{{"entries":[{}],{limit}}}"#, entry("client", "bob")));
    serving
}

#[test]
fn the_prometheus_port_has_the_names_labels_and_types_of_ratelimit() {
    let serving = serving_with_calls();
    let page = get(serving.port("prometheus"), "/metrics").body;
    for line in [
        "# TYPE ratelimit_service_rate_limit_over_limit counter",
        "# TYPE ratelimit_service_rate_limit_total_hits counter",
        "# TYPE ratelimit_service_config_load_success counter",
        "# TYPE ratelimit_service_response_time_seconds histogram",
        "# TYPE process_resident_memory_bytes gauge",
        r#"ratelimit_service_rate_limit_total_hits{domain="edge",key1="source_proxy",key2="target_mock"} 3"#,
        r#"ratelimit_service_rate_limit_over_limit{domain="edge",key1="source_proxy",key2="target_mock"} 1"#,
        r#"ratelimit_service_rate_limit_within_limit{domain="edge",key1="source_proxy",key2="target_mock"} 2"#,
        r#"ratelimit_service_rate_limit_total_hits{domain="edge",key1="source",key2="target"} 0"#,
        r#"ratelimit_service_rate_limit_total_hits{domain="edge",key1="tenant_10_0_0_7"} 1"#,
        r#"ratelimit_service_rate_limit_shadow_mode{domain="edge",key1="client"} 1"#,
        r#"ratelimit_service_rate_limit_total_hits{domain="edge",key1="(override)"} 1"#,
        "ratelimit_service_global_shadow_mode 0",
    ] {
        assert!(page.lines().any(|each| each == line), "{line} in\n{page}");
    }
    assert!(page.contains("\ntidegate_calls_total{"), "beside our own");
    let ours = get(serving.port("http"), "/metrics").body;
    assert!(!ours.contains("ratelimit_service_"));
    assert!(ours.contains("\n# TYPE process_cpu_seconds_total counter\n"), "{ours}");
}

#[test]
fn a_client_that_prefers_openmetrics_gets_counters_from_the_prometheus_port_all_the_same() {
    let serving = serving_with_calls();
    let request = "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\
                   Accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5\r\n\r\n";
    let ours = send(serving.port("http"), request);
    assert!(ours.head.contains("application/openmetrics-text"), "{}", ours.head);
    let theirs = send(serving.port("prometheus"), request);
    assert!(theirs.head.contains("text/plain; version=0.0.4"), "{}", theirs.head);
}

#[test]
fn our_own_metrics_have_the_rows_of_detailed_metrics_and_overrides_too() {
    let serving = serving_with_calls();
    let page = get(serving.port("http"), "/metrics").body;
    for line in [
        r#"tidegate_rule_hits_total{domain="edge",rule="edge.source_proxy.target_mock"} 3"#,
        r#"tidegate_rule_hits_total{domain="edge",rule="edge.source.target"} 0"#,
        r#"tidegate_rule_hits_total{domain="edge",rule="edge.tenant_10.0.0.7"} 1"#,
        r#"tidegate_rule_hits_total{domain="edge",rule="edge.client"} 2"#,
        r#"tidegate_rule_hits_total{domain="edge",rule="(override)"} 1"#,
    ] {
        assert!(page.lines().any(|each| each == line), "{line} in\n{page}");
    }
}

#[test]
fn rows_with_values_are_bounded_and_what_has_no_room_counts_on_the_rule() {
    // The bound that docs/METRICS.md names.
    const ROWS_MAX: usize = 10_000;
    const MORE: usize = 100;
    let serving = Tidegate::policy(POLICY, &[]);
    let values: Vec<String> = (0..ROWS_MAX + MORE).map(|n| format!("t{n}")).collect();
    for values in values.chunks(50) {
        let mut descriptors = String::new();
        for value in values {
            write!(descriptors, r#"{{"entries":[{}]}},"#, entry("tenant", value)).unwrap();
        }
        ask(&serving, descriptors.trim_end_matches(','));
    }
    let long = "x".repeat(600);
    ask(&serving, &format!(r#"{{"entries":[{}]}}"#, entry("tenant", &long)));
    let page = get(serving.port("http"), "/metrics").body;
    let rows = page.lines().filter(|line| line.starts_with("tidegate_rule_hits_total{"));
    assert_eq!(rows.clone().filter(|line| line.contains("edge.tenant_t")).count(), ROWS_MAX);
    let rule = format!("rule=\"edge.tenant\"}} {}", MORE + 1);
    assert!(rows.clone().any(|line| line.ends_with(&rule)), "{rule}");
    let overflows = format!("tidegate_detailed_metric_overflows_total {}", MORE + 1);
    assert!(page.lines().any(|line| line == overflows), "{overflows}");
    assert!(!page.contains(&long));
}

#[test]
fn the_debug_port_lists_limits_and_statistics_as_ratelimit_does() {
    let serving = serving_with_calls();
    let debug = serving.port("debug");
    assert_eq!(
        get(debug, "/rlconfig").body,
        "edge.source.target: unit=YEAR requests_per_unit=2, shadow_mode: false, quota_mode: false\n\
         edge.tenant: unit=YEAR requests_per_unit=9, shadow_mode: false, quota_mode: false\n\
         edge.client: unit=YEAR requests_per_unit=1, shadow_mode: true, quota_mode: false\n\
         edge.free: unit=UNKNOWN requests_per_unit=0, shadow_mode: false, quota_mode: false\n",
        "without names, and without a rule that has no limit"
    );
    let stats = get(debug, "/stats").body;
    for line in [
        "ratelimit.service.rate_limit.edge.source_proxy.target_mock.over_limit: 1",
        "ratelimit.service.rate_limit.edge.tenant_10_0_0_7.total_hits: 1",
        "ratelimit.service.rate_limit.edge.client.shadow_mode: 1",
        "ratelimit.service.config_load_success: 1",
    ] {
        assert!(stats.lines().any(|each| each == line), "{line} in\n{stats}");
    }
    let metrics = get(debug, "/stats/prometheus").body;
    assert!(metrics.contains("\nratelimit_service_rate_limit_total_hits{"), "{metrics}");
}
