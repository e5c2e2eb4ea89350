//! Logs rejected calls: at most one line a second, with the number of rejections since the last one.
//!
//! The call that is logged only leaves its data here. A background task writes the line, so that
//! standard error never delays a decision. Not here: other log lines.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::domain::{Decision, Source};

/// A rejected call, without anything that its caller sent.
#[derive(Debug)]
struct LoggedRefusal {
    limit: String,
    source: Source,
    /// `None` if waiting does not help.
    retry_after_ms: Option<u64>,
}

/// The next rejected call to be logged.
#[derive(Debug, Default)]
pub(super) struct RefusalLog {
    /// The next rejection is to be recorded.
    wanted: AtomicBool,
    recorded: Mutex<Option<LoggedRefusal>>,
    /// The number of rejections when the last line was written.
    refused_before: AtomicU64,
}

impl RefusalLog {
    /// Records a rejected call if one is wanted. Costs one load; once a second also an allocation
    /// and a lock that only the background task shares.
    pub(super) fn record(&self, decision: &Decision<'_>) {
        if !self.wanted.load(Ordering::Relaxed) || !self.wanted.swap(false, Ordering::Relaxed) {
            return;
        }
        let limited = decision.limited_by.as_ref();
        let refusal = LoggedRefusal {
            limit: limited.map_or(String::new(), |limited| limited.name.to_owned()),
            source: decision.source,
            retry_after_ms: limited.and_then(|l| l.retry_after).map(|wait| wait.ceil_millis()),
        };
        *self.recorded.lock().unwrap_or_else(PoisonError::into_inner) = Some(refusal);
    }

    /// Writes the line, if a call was rejected since the last one. `refused`: all rejections so far.
    pub(super) fn write(&self, refused: u64) {
        let recorded = self.recorded.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(LoggedRefusal { limit, source, retry_after_ms }) = recorded {
            let refusals =
                refused.saturating_sub(self.refused_before.swap(refused, Ordering::Relaxed));
            let source = source.as_str();
            tracing::info!(limit, source, retry_after_ms, refusals, "a call was refused");
        }
        self.wanted.store(true, Ordering::Relaxed);
    }
}
