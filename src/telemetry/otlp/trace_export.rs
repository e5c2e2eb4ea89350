//! Exports the spans of sampled calls: one span for the decision, and one for each call to a Redis
//! node.
//!
//! Spans are built from the recorded trace after the call has ended, so calls that are not sampled
//! cost nothing. `sampling` decides which calls are sampled.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use opentelemetry::trace::{
    SpanBuilder, SpanContext, SpanId, SpanKind, Status, TraceContextExt as _, TraceFlags, TraceId,
    TraceState, Tracer as _, TracerProvider as _,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::transform::common::tonic::ResourceAttributesWithSchema;
use opentelemetry_proto::transform::trace::tonic::group_spans_by_resource_and_scope;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::trace::{
    BatchSpanProcessor, Sampler, SdkTracer, SdkTracerProvider, SpanData, SpanExporter,
};

use super::otlp_client::OtlpClient;
use super::{ExportStats, OtlpTarget, SamplingRule, ServiceIdentity};
use crate::domain::{
    Micros, NodeCall, RpcOutcome, Trace, TraceParent, TraceRecord, TracedDecision,
};

/// gRPC method that receives spans.
const EXPORT_METHOD: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";

/// Name of the gRPC service in span attributes, following OpenTelemetry's conventions for RPC
/// spans.
const RPC_SERVICE: &str = "envoy.service.ratelimit.v3.RateLimitService";
const RPC_METHOD: &str = "ShouldRateLimit";
/// Name of the span of a decision, composed of the gRPC service and method.
const DECISION_SPAN: &str = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
/// Span name and `db.operation.name` of every call to a Redis node: the command that runs a script.
const NODE_COMMAND: &str = "EVALSHA";

/// Timeout for exporting the remaining spans at shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

/// Exporter of the spans of sampled calls.
pub struct TraceExporter {
    pub(crate) sampling: SamplingRule,
    tracer: SdkTracer,
    provider: SdkTracerProvider,
}

impl TraceExporter {
    /// Creates an exporter that sends batches of spans to `target` from its own thread. Must be
    /// called within a Tokio runtime, which runs the connection.
    ///
    /// # Errors
    ///
    /// Returns the reason if the target's endpoint, headers or CA are invalid.
    pub fn open(
        target: &OtlpTarget,
        identity: &ServiceIdentity,
        sampling: SamplingRule,
        stats: &Arc<ExportStats>,
    ) -> Result<TraceExporter, String> {
        let sender = SpanSender {
            client: OtlpClient::new(target)?,
            resource: ResourceAttributesWithSchema::default(),
            stats: Arc::clone(stats),
        };
        let attributes = identity.resource_attributes().into_iter();
        let resource = Resource::builder_empty()
            .with_attributes(attributes.map(|(name, value)| KeyValue::new(name, value)))
            .build();
        let provider = SdkTracerProvider::builder()
            .with_span_processor(BatchSpanProcessor::builder(sender).build())
            // `record` is called only for sampled calls.
            .with_sampler(Sampler::AlwaysOn)
            .with_resource(resource)
            .build();
        Ok(TraceExporter { sampling, tracer: provider.tracer("tidegate"), provider })
    }

    /// Builds the spans of a finished call and queues them for export. Drops them if the queue is
    /// full.
    pub(crate) fn record(&self, trace: &Trace, outcome: RpcOutcome) {
        let parent = trace.parent.map_or_else(Context::new, |parent| {
            Context::new().with_remote_span_context(build_remote_context(&parent))
        });
        let TraceRecord { decision: recorded, node_calls } = trace.snapshot();
        let decision = SpanBuilder::from_name(DECISION_SPAN)
            .with_kind(SpanKind::Server)
            .with_start_time(to_system_time(trace.started))
            .with_attributes(decision_attributes(recorded.as_ref(), outcome));
        let decision = self.tracer.build_with_context(decision, &parent);
        let context = parent.with_span(decision);
        for call in &node_calls {
            self.record_node_call(call, &context);
        }
        let span = context.span();
        if outcome != RpcOutcome::Decided {
            span.set_status(Status::error(outcome.as_str()));
        }
        span.end_with_timestamp(to_system_time(trace.now()));
    }

    fn record_node_call(&self, call: &NodeCall, parent: &Context) {
        use opentelemetry::trace::Span as _;
        let span = SpanBuilder::from_name(NODE_COMMAND)
            .with_kind(SpanKind::Client)
            .with_start_time(to_system_time(call.ended.saturating_sub(call.took)))
            .with_attributes(node_attributes(call));
        let mut span = self.tracer.build_with_context(span, parent);
        if let Some(fault) = call.fault {
            span.set_status(Status::error(fault));
        }
        span.end_with_timestamp(to_system_time(call.ended));
    }

    /// Exports the remaining spans and stops. Blocks for at most one second.
    pub fn shutdown(&self) {
        // Spans that cannot be exported in time are lost. [`SpanSender`] has counted the
        // failure.
        let _ = self.provider.shutdown_with_timeout(SHUTDOWN_TIMEOUT);
    }
}

impl fmt::Debug for TraceExporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TraceExporter").field("sampling", &self.sampling).finish_non_exhaustive()
    }
}

fn build_remote_context(parent: &TraceParent) -> SpanContext {
    let (trace, span) = (TraceId::from_bytes(parent.trace), SpanId::from_bytes(parent.span));
    let flags = TraceFlags::default().with_sampled(parent.sampled);
    // Tidegate does not propagate the trace, so the caller's tracestate is not needed.
    SpanContext::new(trace, span, flags, true, TraceState::default())
}

fn to_system_time(at: Micros) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(at.0)
}

/// Returns the attributes of a decision's span: numbers, and names from the policy. They contain no
/// data that the caller sent.
fn decision_attributes(recorded: Option<&TracedDecision>, outcome: RpcOutcome) -> Vec<KeyValue> {
    let status = match outcome {
        RpcOutcome::Decided => 0,
        RpcOutcome::Invalid => 3,
        RpcOutcome::Late => 4,
        RpcOutcome::Unavailable => 14,
    };
    let mut attributes = vec![
        KeyValue::new("rpc.system", "grpc"),
        KeyValue::new("rpc.service", RPC_SERVICE),
        KeyValue::new("rpc.method", RPC_METHOD),
        KeyValue::new("rpc.grpc.status_code", status),
    ];
    let Some(decision) = recorded else { return attributes };
    let descriptors = i64::try_from(decision.descriptors).unwrap_or(i64::MAX);
    attributes.extend([
        KeyValue::new("tidegate.code", decision.code.as_str()),
        KeyValue::new("tidegate.source", decision.source.as_str()),
        KeyValue::new("tidegate.descriptors", descriptors),
    ]);
    let texts =
        [("tidegate.domain", &decision.domain), ("tidegate.limited_by", &decision.limited_by)];
    for (name, text) in texts {
        attributes.extend(text.clone().map(|text| KeyValue::new(name, text)));
    }
    let wait_ms =
        decision.retry_after.map(|wait| i64::try_from(wait.ceil_millis()).unwrap_or(i64::MAX));
    attributes.extend(wait_ms.map(|ms| KeyValue::new("tidegate.retry_after_ms", ms)));
    attributes
}

fn node_attributes(call: &NodeCall) -> Vec<KeyValue> {
    let mut attributes = vec![
        KeyValue::new("db.system.name", "redis"),
        KeyValue::new("db.operation.name", NODE_COMMAND),
    ];
    let port = |text: &str| text.parse::<i64>().ok();
    match call.node.rsplit_once(':').and_then(|(host, text)| Some((host, port(text)?))) {
        Some((host, port)) => attributes.extend([
            KeyValue::new("server.address", host.to_owned()),
            KeyValue::new("server.port", port),
        ]),
        None => attributes.push(KeyValue::new("server.address", call.node.clone())),
    }
    attributes.extend(call.fault.map(|fault| KeyValue::new("error.type", fault)));
    attributes
}

/// Span exporter that sends spans with an [`OtlpClient`], and counts the results.
#[derive(Debug)]
struct SpanSender {
    client: OtlpClient,
    resource: ResourceAttributesWithSchema,
    stats: Arc<ExportStats>,
}

impl SpanExporter for SpanSender {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let resource_spans = group_spans_by_resource_and_scope(batch, &self.resource);
        let result =
            self.client.send(EXPORT_METHOD, ExportTraceServiceRequest { resource_spans }).await;
        self.stats.record(result.as_ref().copied());
        result.map_err(OTelSdkError::InternalFailure)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.resource = resource.into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_has_the_grpc_status_code_of_its_call() {
        for (outcome, code) in [
            (RpcOutcome::Decided, 0_i64),
            (RpcOutcome::Invalid, 3),
            (RpcOutcome::Late, 4),
            (RpcOutcome::Unavailable, 14),
        ] {
            let expected = KeyValue::new("rpc.grpc.status_code", code);
            assert!(decision_attributes(None, outcome).contains(&expected), "{outcome:?}");
        }
    }
}
