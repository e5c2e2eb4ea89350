//! Traces: which calls have spans, their parents, and their attributes.

use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use rustix::process::Signal;

use super::otlp_receiver::{Receiver, texts};
use super::traced_call::ask;
use crate::support::redis_server::Server;
use crate::support::tidegate_process::{FIVE_A_DAY, Tidegate, directory, tidegate};
use crate::support::wait::until;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const SPAN: &str = "00f067aa0ba902b7";
const DECISION: &str = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

fn serving(receiver: &Receiver, redis: &Server, more: &[(&str, &str)]) -> Tidegate {
    let files = directory(&[("policy.yaml", FIVE_A_DAY)]);
    let mut command = tidegate();
    command.args(["serve", "--policy"]).arg(files.path().join("policy.yaml"));
    command.env("REDIS_URL", format!("127.0.0.1:{}", redis.port));
    command.env("TIDEGATE_REDIS_BUDGET", "5s").env("OTEL_BSP_SCHEDULE_DELAY", "50");
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint());
    command.env("OTEL_SERVICE_NAME", "limits").env("OTEL_METRICS_EXPORTER", "none");
    command.env("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test");
    command.envs(more.iter().copied());
    Tidegate::start(&mut command, files)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn spans(receiver: &Receiver, count: usize) -> Vec<Span> {
    until(&format!("{count} spans"), || {
        let spans = receiver.spans();
        (spans.len() >= count).then_some(spans)
    })
}

fn of_kind(spans: &[Span], kind: SpanKind) -> Vec<&Span> {
    spans.iter().filter(|span| span.kind == kind as i32).collect()
}

#[test]
fn a_traced_caller_gets_child_spans_for_the_decision_and_for_each_node() {
    let (receiver, redis) = (Receiver::start(), Server::start(&[]));
    let headers = ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=k%2C1");
    let serving = serving(&receiver, &redis, &[("OTEL_TRACES_SAMPLER_ARG", "0"), headers]);
    let grpc = serving.port("grpc");
    let traced = [("traceparent", &*format!("00-{TRACE}-{SPAN}-01"))];
    assert_eq!(ask(grpc, "ann", &traced), "0");
    let spans = spans(&receiver, 2);
    assert_eq!(spans.len(), 2, "{spans:?}");
    let (decisions, nodes) = (of_kind(&spans, SpanKind::Server), of_kind(&spans, SpanKind::Client));
    let (decision, node) = (decisions[0], nodes[0]);
    assert_eq!((decision.name.as_str(), node.name.as_str()), (DECISION, "EVALSHA"));
    assert!(spans.iter().all(|span| hex(&span.trace_id) == TRACE));
    assert_eq!(hex(&decision.parent_span_id), SPAN);
    assert_eq!(node.parent_span_id, decision.span_id);
    assert!(decision.start_time_unix_nano <= node.start_time_unix_nano);
    assert!(node.start_time_unix_nano <= node.end_time_unix_nano);
    assert!(node.end_time_unix_nano <= decision.end_time_unix_nano);
    let says = texts(&decision.attributes);
    for (name, value) in [
        ("rpc.system", "grpc"),
        ("rpc.method", "ShouldRateLimit"),
        ("rpc.grpc.status_code", "0"),
        ("tidegate.code", "OK"),
        ("tidegate.source", "redis"),
        ("tidegate.domain", "edge"),
        ("tidegate.descriptors", "1"),
    ] {
        assert_eq!(says.get(name).map(String::as_str), Some(value), "{name}: {says:?}");
    }
    let says = texts(&node.attributes);
    assert_eq!(says["db.system.name"], "redis");
    assert_eq!(says["server.port"], redis.port.to_string());
    let resource = receiver.look(|kept| {
        let resource = kept.traces[0].resource_spans[0].resource.clone().unwrap();
        assert_eq!(kept.keys[0].as_deref(), Some("k,1"));
        texts(&resource.attributes)
    });
    assert_eq!(resource["service.name"], "limits");
    assert_eq!(resource["deployment.environment.name"], "test");
    assert!(resource.contains_key("service.instance.id"), "{resource:?}");
}

#[test]
fn a_refusal_names_the_limit_and_nothing_that_the_caller_sent() {
    let (receiver, redis) = (Receiver::start(), Server::start(&[]));
    let serving = serving(&receiver, &redis, &[("OTEL_TRACES_SAMPLER_ARG", "0")]);
    let grpc = serving.port("grpc");
    for _ in 0..5 {
        assert_eq!(ask(grpc, "somebody-private", &[]), "0");
    }
    let traced = [("traceparent", &*format!("00-{TRACE}-{SPAN}-01"))];
    assert_eq!(ask(grpc, "somebody-private", &traced), "0");
    let spans = spans(&receiver, 2);
    let decision = of_kind(&spans, SpanKind::Server)[0];
    let says = texts(&decision.attributes);
    assert_eq!(
        (says["tidegate.code"].as_str(), says["tidegate.limited_by"].as_str()),
        ("OVER_LIMIT", "daily")
    );
    assert!(says["tidegate.retry_after_ms"].parse::<u64>().unwrap() > 0);
    assert!(!format!("{spans:?}").contains("somebody-private"));
}

#[test]
fn a_caller_without_a_sampled_trace_gets_no_span() {
    let (receiver, redis) = (Receiver::start(), Server::start(&[]));
    let serving = serving(&receiver, &redis, &[("OTEL_TRACES_SAMPLER_ARG", "0")]);
    let grpc = serving.port("grpc");
    let parent = |flags: &str| format!("00-{TRACE}-{SPAN}-{flags}");
    ask(grpc, "ann", &[]);
    ask(grpc, "ann", &[("traceparent", &parent("00"))]);
    ask(grpc, "ann", &[("traceparent", "00-nonsense")]);
    // One that is recorded, so that there is something to wait for.
    ask(grpc, "ann", &[("traceparent", &parent("01"))]);
    assert_eq!(spans(&receiver, 2).len(), 2);
}

#[test]
fn a_ratio_of_one_traces_every_caller_without_a_trace() {
    let (receiver, redis) = (Receiver::start(), Server::start(&[]));
    let serving = serving(&receiver, &redis, &[("OTEL_TRACES_SAMPLER_ARG", "1")]);
    let grpc = serving.port("grpc");
    for client in ["a", "b", "c"] {
        ask(grpc, client, &[]);
    }
    let spans = spans(&receiver, 6);
    let decisions = of_kind(&spans, SpanKind::Server);
    assert!(decisions.iter().all(|span| span.parent_span_id.is_empty()), "each is a root");
    assert_eq!(decisions.len(), 3);
}

#[test]
fn a_node_without_an_answer_has_a_span_with_its_error() {
    let (receiver, redis) = (Receiver::start(), Server::start(&[]));
    let more = [("OTEL_TRACES_SAMPLER_ARG", "0"), ("TIDEGATE_REDIS_BUDGET", "30ms")];
    let serving = serving(&receiver, &redis, &more);
    let grpc = serving.port("grpc");
    assert_eq!(ask(grpc, "ann", &[]), "0");
    redis.freeze();
    let traced = [("traceparent", &*format!("00-{TRACE}-{SPAN}-01"))];
    assert_eq!(ask(grpc, "ann", &traced), "0", "answered locally");
    redis.thaw();
    let spans = spans(&receiver, 2);
    let node = of_kind(&spans, SpanKind::Client)[0];
    assert_eq!(texts(&node.attributes)["error.type"], "timeout");
    assert!(node.end_time_unix_nano - node.start_time_unix_nano >= 15_000_000, "{node:?}");
    let decision = of_kind(&spans, SpanKind::Server)[0];
    assert_eq!(texts(&decision.attributes)["tidegate.source"], "local");
}

#[test]
fn the_last_spans_are_exported_at_shutdown() {
    let (receiver, redis) = (Receiver::start(), Server::start(&[]));
    let long = ("OTEL_BSP_SCHEDULE_DELAY", "3600000");
    let more = [("OTEL_TRACES_SAMPLER_ARG", "1"), ("TIDEGATE_DRAIN_DELAY", "0s"), long];
    let mut serving = serving(&receiver, &redis, &more);
    ask(serving.port("grpc"), "ann", &[]);
    serving.signal(Signal::TERM);
    assert_eq!(serving.exit_code(), Some(0));
    assert_eq!(spans(&receiver, 2).len(), 2);
}
