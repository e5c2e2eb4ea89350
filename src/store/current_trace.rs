//! Task-local trace of the current call.
//!
//! The trace is not a parameter, because the seven layers between the gRPC server and a connection
//! to a Redis node do not use it, and by default only one call in a hundred is traced. For an
//! untraced call, `record` reads one thread-local variable.
//!
//! Not here: what a trace contains (`domain`), which calls are traced (`telemetry`).

use std::future::Future;
use std::sync::Arc;

use futures_util::future::Either;

use crate::domain::Trace;

tokio::task_local! {
    static TRACE: Arc<Trace>;
}

/// Runs `work` with `trace` as the task's current trace, and returns the output of `work`.
pub async fn scope<W: Future>(trace: Arc<Trace>, work: W) -> W::Output {
    TRACE.scope(trace, work).await
}

/// Runs `work` with the current trace, if there is one, on whichever task runs the returned future.
pub(crate) fn carry<W: Future>(work: W) -> impl Future<Output = W::Output> {
    match TRACE.try_with(Arc::clone) {
        Ok(trace) => Either::Left(TRACE.scope(trace, work)),
        Err(_) => Either::Right(work),
    }
}

/// Calls `write` with the current trace. Does nothing if the current call is not traced.
pub fn record(write: impl FnOnce(&Trace)) {
    // An error means that the call is not traced.
    let _ = TRACE.try_with(|trace| write(trace));
}
