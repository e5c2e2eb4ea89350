//! Spans of the calls that are traced: one for the decision, one for each node that was asked.
//!
//! A span is made when its call is over, from what was written down, so that a call that is not
//! sampled meets nothing of this. Not here: which calls are sampled (`sampling`).

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use opentelemetry::trace::{
    SpanBuilder, SpanContext, SpanId, SpanKind, Status, TraceContextExt as _, TraceFlags, TraceId,
    TraceState, Tracer as _, TracerProvider as _,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_otlp::{SpanExporter, WithExportConfig as _, WithTonicConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{
    BatchSpanProcessor, Sampler, SdkTracer, SdkTracerProvider, SpanData,
    SpanExporter as ExportsSpans,
};

use super::{Identity, OtlpError, Sampling, Sent, Target};
use crate::domain::{
    Code, Micros, NodeCall, Parent, RpcOutcome, Trace, TraceRecord, TracedDecision,
};

/// The decision's span: the method, as the conventions for RPC have it.
const SERVICE: &str = "envoy.service.ratelimit.v3.RateLimitService";
const METHOD: &str = "ShouldRateLimit";
const DECISION: &str = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
/// A node call's span: the command.
const NODE_CALL: &str = "EVALSHA";

/// How long the last spans may take when the process leaves.
const LEAVE_WITHIN: Duration = Duration::from_secs(1);

/// Makes spans and sends them.
pub struct Traces {
    sampling: Sampling,
    tracer: SdkTracer,
    provider: SdkTracerProvider,
}

impl Traces {
    /// Sends spans to `target`, in batches, from a thread of its own. To be called on a runtime,
    /// which carries the connection.
    ///
    /// # Errors
    ///
    /// If nothing can be sent to it at all.
    pub fn open(
        target: &Target,
        identity: &Identity,
        sampling: Sampling,
        sent: &Arc<Sent>,
    ) -> Result<Traces, OtlpError> {
        let exporter = SpanExporter::builder()
            .with_tonic()
            .with_channel(target.channel()?)
            .with_metadata(target.metadata()?)
            .with_timeout(target.timeout)
            .build()
            .map_err(|why| OtlpError::Exporter(why.to_string()))?;
        let attributes = identity.attributes().into_iter();
        let resource = Resource::builder_empty()
            .with_attributes(attributes.map(|(name, value)| KeyValue::new(name, value)))
            .build();
        let counted = Counted { exporter, sent: Arc::clone(sent) };
        let provider = SdkTracerProvider::builder()
            .with_span_processor(BatchSpanProcessor::builder(counted).build())
            // Whoever comes here has been sampled already.
            .with_sampler(Sampler::AlwaysOn)
            .with_resource(resource)
            .build();
        Ok(Traces { sampling, tracer: provider.tracer("tidegate"), provider })
    }

    /// Whether any call may be traced.
    pub(in crate::telemetry) fn is_any(&self) -> bool {
        self.sampling.is_any()
    }

    /// Whether this one is.
    pub(in crate::telemetry) fn takes(&self, parent: Option<&Parent>) -> bool {
        self.sampling.takes(parent)
    }

    /// Makes the spans of a call that is over. What the queue has no room for is dropped.
    pub(in crate::telemetry) fn record(&self, trace: &Trace, ending: RpcOutcome) {
        let above = trace.parent().map_or_else(Context::new, |parent| {
            Context::new().with_remote_span_context(remote(&parent))
        });
        let TraceRecord { told, node_calls } = trace.seen();
        let decision = SpanBuilder::from_name(DECISION)
            .with_kind(SpanKind::Server)
            .with_start_time(moment(trace.began()))
            .with_attributes(decision_attributes(told.as_ref(), ending));
        let decision = self.tracer.build_with_context(decision, &above);
        let within = above.with_span(decision);
        for call in &node_calls {
            self.record_node_call(call, &within);
        }
        let span = within.span();
        if ending != RpcOutcome::Decided {
            span.set_status(Status::error(ending.word()));
        }
        span.end_with_timestamp(moment(trace.now()));
    }

    fn record_node_call(&self, call: &NodeCall, within: &Context) {
        use opentelemetry::trace::Span as _;
        let span = SpanBuilder::from_name(NODE_CALL)
            .with_kind(SpanKind::Client)
            .with_start_time(moment(call.ended.saturating_sub(call.took)))
            .with_attributes(node_attributes(call));
        let mut span = self.tracer.build_with_context(span, within);
        if let Some(fault) = call.fault {
            span.set_status(Status::error(fault));
        }
        span.end_with_timestamp(moment(call.ended));
    }

    /// Sends what is left, for a second at most. Blocks.
    pub fn leave(&self) {
        // What could not be sent by then is lost, and was counted.
        let _ = self.provider.shutdown_with_timeout(LEAVE_WITHIN);
    }
}

impl fmt::Debug for Traces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Traces").field("sampling", &self.sampling).finish_non_exhaustive()
    }
}

fn remote(parent: &Parent) -> SpanContext {
    let (trace, span) = (TraceId::from_bytes(parent.trace), SpanId::from_bytes(parent.span));
    let flags = TraceFlags::default().with_sampled(parent.sampled);
    // We call nobody on, so that nobody would be handed the caller's tracestate.
    SpanContext::new(trace, span, flags, true, TraceState::default())
}

fn moment(at: Micros) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(at.0)
}

/// Names of the policy, and numbers; nothing that the caller sent.
fn decision_attributes(told: Option<&TracedDecision>, ending: RpcOutcome) -> Vec<KeyValue> {
    let status = match ending {
        RpcOutcome::Decided => 0,
        RpcOutcome::Invalid => 3,
        RpcOutcome::Late => 4,
        RpcOutcome::Unavailable => 14,
    };
    let mut attributes = vec![
        KeyValue::new("rpc.system", "grpc"),
        KeyValue::new("rpc.service", SERVICE),
        KeyValue::new("rpc.method", METHOD),
        KeyValue::new("rpc.grpc.status_code", status),
    ];
    let Some(told) = told else { return attributes };
    let code = match told.code {
        Code::Ok => "OK",
        Code::OverLimit => "OVER_LIMIT",
    };
    let descriptors = i64::try_from(told.descriptors).unwrap_or(i64::MAX);
    attributes.extend([
        KeyValue::new("tidegate.code", code),
        KeyValue::new("tidegate.source", told.source.word()),
        KeyValue::new("tidegate.descriptors", descriptors),
    ]);
    let texts = [("tidegate.domain", &told.domain), ("tidegate.limited_by", &told.limited_by)];
    for (name, text) in texts {
        attributes.extend(text.clone().map(|text| KeyValue::new(name, text)));
    }
    let wait_ms =
        told.retry_after.map(|wait| i64::try_from(wait.ceil_millis()).unwrap_or(i64::MAX));
    attributes.extend(wait_ms.map(|ms| KeyValue::new("tidegate.retry_after_ms", ms)));
    attributes
}

fn node_attributes(call: &NodeCall) -> Vec<KeyValue> {
    let mut attributes = vec![
        KeyValue::new("db.system.name", "redis"),
        KeyValue::new("db.operation.name", NODE_CALL),
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

/// An exporter whose results are counted: the library tells nobody.
#[derive(Debug)]
struct Counted<E> {
    exporter: E,
    sent: Arc<Sent>,
}

impl<E: ExportsSpans> ExportsSpans for Counted<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let result = self.exporter.export(batch).await;
        self.sent.note(result.as_ref().map(|_| ()));
        result
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}
