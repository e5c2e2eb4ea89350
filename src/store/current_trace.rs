//! The trace of the call that is under way, for whoever in a store has something to write down.
//!
//! It travels beside the call, not in it: between the wire and a node's connection lie seven layers
//! that have nothing to do with traces, and only one call in a hundred has one. Where there is none,
//! asking is a look at a thread's own variable.
//!
//! Not here: what is written down (`domain`), which calls are traced (`telemetry`).

use std::future::Future;
use std::sync::Arc;

use crate::domain::Trace;

tokio::task_local! {
    static TRACE: Arc<Trace>;
}

/// Does `work` as part of a traced call.
pub async fn scope<W: Future>(trace: Arc<Trace>, work: W) -> W::Output {
    TRACE.scope(trace, work).await
}

/// Writes something down, if this is part of a traced call.
pub fn note(write: impl FnOnce(&Trace)) {
    // An error says that there is none.
    let _ = TRACE.try_with(|trace| write(trace));
}
