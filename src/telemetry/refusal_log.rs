//! Refusals in the log: at most one line a second, with how many there were since the last.
//!
//! The call that is to be shown leaves its facts here; writing is done elsewhere, so that a standard
//! error that nobody reads never holds up a decision. Not here: what is written about anything else.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::domain::{Decision, Source};

/// A refused call, without anything that its caller sent.
#[derive(Debug)]
struct Refusal {
    limit: String,
    source: Source,
    /// `None` where waiting does not help.
    retry_after_ms: Option<u64>,
}

/// The refusals since the last line.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    /// The next refusal is to be shown.
    wanted: AtomicBool,
    shown: Mutex<Option<Refusal>>,
    /// How many had been counted when the last line was written.
    told: AtomicU64,
}

impl Refusals {
    /// A call was refused. One load; once a second an allocation and a lock that only the writer
    /// of the line takes besides.
    pub(super) fn note(&self, decision: &Decision<'_>) {
        if !self.wanted.load(Ordering::Relaxed) || !self.wanted.swap(false, Ordering::Relaxed) {
            return;
        }
        let limited = decision.limited_by.as_ref();
        let refusal = Refusal {
            limit: limited.map_or(String::new(), |limited| limited.name.to_owned()),
            source: decision.source,
            retry_after_ms: limited.and_then(|l| l.retry_after).map(|wait| wait.ceil_millis()),
        };
        *self.shown.lock().unwrap_or_else(PoisonError::into_inner) = Some(refusal);
    }

    /// Writes the line, if anything was refused since the last. `refused`: all refusals so far.
    pub(super) fn tell(&self, refused: u64) {
        let shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Refusal { limit, source, retry_after_ms }) = shown {
            let refusals = refused.saturating_sub(self.told.swap(refused, Ordering::Relaxed));
            let source = source.word();
            tracing::info!(limit, source, retry_after_ms, refusals, "a call was refused");
        }
        self.wanted.store(true, Ordering::Relaxed);
    }
}
