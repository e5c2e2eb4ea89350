//! What is written down of a call that is traced, and where its caller stands in the trace.
//!
//! Only sampled calls have a [`Trace`]; all others pay a look at one header. Not here: which calls
//! are sampled, and sending spans (`telemetry`), reading headers (`wire`).

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Code, Decision, Micros, Source};

/// The caller's place in a trace, as W3C's `traceparent` tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parent {
    /// The trace's id; not zero.
    pub trace: [u8; 16],
    /// The id of the caller's span; not zero.
    pub span: [u8; 8],
    /// The caller records its own part.
    pub sampled: bool,
}

/// Node calls that are written down of one call. A call touches a node or a few; what comes beyond
/// is counted in the trace's own metrics only.
const NODE_CALLS_MAX: usize = 64;

/// One script call at one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeCall {
    /// The node's address.
    pub node: String,
    /// How long the caller waited.
    pub took: Micros,
    /// When it ended, by the wall clock.
    pub ended: Micros,
    /// Why it brought nothing; `None` if it was answered.
    pub fault: Option<&'static str>,
}

/// What was decided, without anything that the caller sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracedDecision {
    /// The domain, if the policy knows it.
    pub domain: Option<String>,
    /// How many descriptors were asked for.
    pub descriptors: usize,
    /// The code.
    pub code: Code,
    /// Who decided.
    pub source: Source,
    /// The limit that refused.
    pub limited_by: Option<String>,
    /// How long to wait, after a refusal where waiting helps.
    pub retry_after: Option<Micros>,
}

/// A sampled call: written to on its way, read when it is over. A lock, because what writes and
/// what reads may be two threads; sampled calls are few.
pub struct Trace {
    parent: Option<Parent>,
    began: Micros,
    now: Box<dyn Fn() -> Micros + Send + Sync>,
    seen: Mutex<TraceRecord>,
}

/// What was written down so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceRecord {
    /// What was decided; `None` if nothing was.
    pub told: Option<TracedDecision>,
    /// In the order in which they ended.
    pub node_calls: Vec<NodeCall>,
}

impl Trace {
    /// A call that begins now, by the wall clock that `now` reads.
    pub fn begin(
        parent: Option<Parent>,
        now: impl Fn() -> Micros + Send + Sync + 'static,
    ) -> Trace {
        Trace { parent, began: now(), now: Box::new(now), seen: Mutex::default() }
    }

    /// The caller's place, if it has one.
    pub fn parent(&self) -> Option<Parent> {
        self.parent
    }

    /// When the call began.
    pub fn began(&self) -> Micros {
        self.began
    }

    /// The wall clock now.
    pub fn now(&self) -> Micros {
        (self.now)()
    }

    /// What was decided.
    pub fn decided(&self, domain: &str, descriptors: usize, decision: &Decision<'_>) {
        let limited = decision.limited_by.as_ref();
        self.lock().told = Some(TracedDecision {
            domain: decision.domain_known.then(|| domain.to_owned()),
            descriptors,
            code: decision.code,
            source: decision.source,
            limited_by: limited.map(|limited| limited.name.to_owned()),
            retry_after: limited.and_then(|limited| limited.retry_after),
        });
    }

    /// A node was asked; its answer, or the end of waiting for it, is now.
    pub fn asked(&self, node: &str, took: Micros, fault: Option<&'static str>) {
        let ended = self.now();
        let mut seen = self.lock();
        if seen.node_calls.len() < NODE_CALLS_MAX {
            seen.node_calls.push(NodeCall { node: node.to_owned(), took, ended, fault });
        }
    }

    /// What was written down.
    pub fn seen(&self) -> TraceRecord {
        self.lock().clone()
    }

    /// Nothing under the lock can panic half way through a change.
    fn lock(&self) -> MutexGuard<'_, TraceRecord> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trace").field("parent", &self.parent).finish_non_exhaustive()
    }
}
