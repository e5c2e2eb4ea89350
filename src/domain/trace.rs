//! Trace of a sampled request, and the trace context of its caller.
//!
//! Only sampled requests have a [`Trace`]; for all others only one header is read. Not here: sampling
//! and export (`telemetry`), parsing headers (`wire`).

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Code, Decision, Micros, Source};

/// Trace context of the caller, from the W3C header `traceparent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    /// Id of the trace; not zero.
    pub trace: [u8; 16],
    /// Id of the caller's span; not zero.
    pub span: [u8; 8],
    /// Whether the caller records its span.
    pub sampled: bool,
}

/// Node calls recorded per trace. A request calls one node or a few; further ones are dropped.
const NODE_CALLS_MAX: usize = 64;

/// One script call to one Redis node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeCall {
    /// The node's address.
    pub node: String,
    /// How long Tidegate waited.
    pub took: Micros,
    /// End of the call, by the wall clock.
    pub ended: Micros,
    /// Why there was no answer; `None` if there was one.
    pub fault: Option<&'static str>,
}

/// Summary of a decision, without any text that the caller sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracedDecision {
    /// The domain, if the policy has it.
    pub domain: Option<String>,
    /// Number of descriptors.
    pub descriptors: usize,
    /// The code.
    pub code: Code,
    /// Which component decided.
    pub source: Source,
    /// The limit that rejected the request.
    pub limited_by: Option<String>,
    /// Wait until a retry may pass, if waiting helps.
    pub retry_after: Option<Micros>,
}

/// Trace of one sampled request. Uses a lock, because writer and reader may be on different threads;
/// sampled requests are few.
pub struct Trace {
    parent: Option<TraceParent>,
    started: Micros,
    now: Box<dyn Fn() -> Micros + Send + Sync>,
    record: Mutex<TraceRecord>,
}

/// Recorded content of a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceRecord {
    /// The decision; `None` if there was none.
    pub decision: Option<TracedDecision>,
    /// Calls to Redis nodes, in the order in which they ended.
    pub node_calls: Vec<NodeCall>,
}

impl Trace {
    /// Starts a trace. `now` reads the wall clock.
    pub fn begin(
        parent: Option<TraceParent>,
        now: impl Fn() -> Micros + Send + Sync + 'static,
    ) -> Trace {
        Trace { parent, started: now(), now: Box::new(now), record: Mutex::default() }
    }

    /// Returns the caller's trace context, if it sent one.
    pub fn parent(&self) -> Option<TraceParent> {
        self.parent
    }

    /// Returns when the request started.
    pub fn started(&self) -> Micros {
        self.started
    }

    /// Returns the wall clock.
    pub fn now(&self) -> Micros {
        (self.now)()
    }

    /// Records the decision.
    pub fn record_decision(&self, domain: &str, descriptors: usize, decision: &Decision<'_>) {
        let limited = decision.limited_by.as_ref();
        self.lock().decision = Some(TracedDecision {
            domain: decision.domain_known.then(|| domain.to_owned()),
            descriptors,
            code: decision.code,
            source: decision.source,
            limited_by: limited.map(|limited| limited.name.to_owned()),
            retry_after: limited.and_then(|limited| limited.retry_after),
        });
    }

    /// Records a call to a node that ends now.
    pub fn record_node_call(&self, node: &str, took: Micros, fault: Option<&'static str>) {
        let ended = self.now();
        let mut record = self.lock();
        if record.node_calls.len() < NODE_CALLS_MAX {
            record.node_calls.push(NodeCall { node: node.to_owned(), took, ended, fault });
        }
    }

    /// Returns the recorded content.
    pub fn snapshot(&self) -> TraceRecord {
        self.lock().clone()
    }

    /// Ignores poisoning: no code under the lock can panic halfway through a change.
    fn lock(&self) -> MutexGuard<'_, TraceRecord> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trace").field("parent", &self.parent).finish_non_exhaustive()
    }
}
