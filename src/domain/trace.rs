//! Trace of a sampled request, and the trace context of its caller.
//!
//! Only sampled requests have a [`Trace`]. For all other requests, only the `traceparent` header
//! is read.
//!
//! Not here: sampling and export (`telemetry`), parsing headers (`wire`).

use std::fmt;

use super::{Code, Decision, Lock, Micros, Source};

/// Trace context of the caller, from the W3C header `traceparent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    /// Trace id; not all zero.
    pub trace: [u8; 16],
    /// Span id of the caller; not all zero.
    pub span: [u8; 8],
    /// Whether the caller sampled the trace (the `sampled` flag of the header).
    pub sampled: bool,
}

/// Maximum number of node calls recorded per trace; further calls are not recorded. Most requests
/// call a single node.
const NODE_CALLS_MAX: usize = 64;

/// Call to one Redis node, by a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeCall {
    /// Address of the Redis node.
    pub node: String,
    /// Duration of the call, in microseconds.
    pub took: Micros,
    /// Wall-clock time at which the call ended.
    pub ended: Micros,
    /// Reason why the call failed; `None` if the node replied with a result or a
    /// redirect.
    pub fault: Option<&'static str>,
}

/// Summary of a decision for a trace, without any text that the caller sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracedDecision {
    /// Policy domain of the request; `None` if the policy does not contain it.
    pub domain: Option<String>,
    /// Number of descriptors that the request contained.
    pub descriptors: usize,
    /// Overall code of the response.
    pub code: Code,
    /// Component that decided the request.
    pub source: Source,
    /// Name of the limit that rejected the request; `None` if the request was admitted.
    pub limited_by: Option<String>,
    /// Time until a retry may pass; `None` if the request passed or if waiting does not help.
    pub retry_after: Option<Micros>,
}

/// Trace of one sampled request. Uses a lock, because writers and readers may be on different
/// threads. Few requests are sampled, so the cost of the lock does not matter.
pub struct Trace {
    /// Trace context of the caller, if the request has one.
    pub parent: Option<TraceParent>,
    /// Wall-clock time at which the request started.
    pub started: Micros,
    now: Box<dyn Fn() -> Micros + Send + Sync>,
    record: Lock<TraceRecord>,
}

/// Content of a trace: the decision and the calls to Redis nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceRecord {
    /// Decision on the request; `None` if the request ended without one.
    pub decision: Option<TracedDecision>,
    /// Calls to Redis nodes, in the order in which they ended.
    pub node_calls: Vec<NodeCall>,
}

impl Trace {
    /// Starts the trace of a request. `now` is a function that reads the wall clock.
    pub fn begin(
        parent: Option<TraceParent>,
        now: impl Fn() -> Micros + Send + Sync + 'static,
    ) -> Trace {
        Trace { parent, started: now(), now: Box::new(now), record: Lock::default() }
    }

    /// Returns the current wall-clock time.
    pub fn now(&self) -> Micros {
        (self.now)()
    }

    /// Records the decision on the request. Does not record any text that the caller sent.
    pub fn record_decision(&self, domain: &str, descriptors: usize, decision: &Decision<'_>) {
        let limited = decision.limited_by.as_ref();
        self.record.lock().decision = Some(TracedDecision {
            domain: decision.domain_known.then(|| domain.to_owned()),
            descriptors,
            code: decision.code,
            source: decision.source,
            limited_by: limited.map(|limited| limited.name.to_owned()),
            retry_after: limited.and_then(|limited| limited.retry_after),
        });
    }

    /// Records a call to a Redis node. Must be called when the node call ends. `took` is its
    /// duration.
    pub fn record_node_call(&self, node: &str, took: Micros, fault: Option<&'static str>) {
        let ended = self.now();
        let mut record = self.record.lock();
        if record.node_calls.len() < NODE_CALLS_MAX {
            record.node_calls.push(NodeCall { node: node.to_owned(), took, ended, fault });
        }
    }

    /// Returns a copy of everything recorded so far.
    pub fn snapshot(&self) -> TraceRecord {
        self.record.lock().clone()
    }
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trace").field("parent", &self.parent).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{LimitedBy, WaitPrecision};
    use super::*;

    #[test]
    fn the_domain_of_a_caller_is_recorded_only_if_the_policy_has_it() {
        for (domain_known, domain) in [(true, Some("edge".to_owned())), (false, None)] {
            let limited_by = LimitedBy {
                name: "per-ip",
                rule: None,
                retry_after: Some(Micros(5)),
                precision: WaitPrecision::Exact,
            };
            let decision = Decision {
                code: Code::OverLimit,
                statuses: Vec::new(),
                limited_by: Some(limited_by),
                source: Source::Redis,
                shadowed: false,
                domain_known,
                slot: None,
                marks: Vec::new(),
                hold: None,
            };
            let trace = Trace::begin(None, || Micros::SECOND);
            trace.record_decision("edge", 2, &decision);
            let recorded = TracedDecision {
                domain,
                descriptors: 2,
                code: Code::OverLimit,
                source: Source::Redis,
                limited_by: Some("per-ip".to_owned()),
                retry_after: Some(Micros(5)),
            };
            assert_eq!(trace.snapshot().decision, Some(recorded));
        }
    }

    #[test]
    fn a_trace_keeps_its_first_64_node_calls() {
        let trace = Trace::begin(None, || Micros::SECOND);
        for took in 0..70 {
            trace.record_node_call("redis:6379", Micros(took), None);
        }
        let calls = trace.snapshot().node_calls;
        assert_eq!((calls.len(), calls.last().map(|call| call.took)), (64, Some(Micros(63))));
    }
}
