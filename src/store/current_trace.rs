//! The trace of the current call, as a task-local variable.
//!
//! It travels beside the call, not in it: seven layers between the wire and a node's connection have
//! nothing to do with traces, and only one call in a hundred has one. Without a trace, `record` is
//! one look at a thread-local variable.
//!
//! Not here: what a trace contains (`domain`), which calls are traced (`telemetry`).

use std::future::Future;
use std::sync::Arc;

use crate::domain::Trace;

tokio::task_local! {
    static TRACE: Arc<Trace>;
}

/// Runs a future with `trace` as the current trace.
pub async fn scope<W: Future>(trace: Arc<Trace>, work: W) -> W::Output {
    TRACE.scope(trace, work).await
}

/// Calls `write` with the current trace, if there is one.
pub fn record(write: impl FnOnce(&Trace)) {
    // An error means that there is none.
    let _ = TRACE.try_with(|trace| write(trace));
}
