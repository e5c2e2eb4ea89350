//! Errors of requests to a node: whether the script may have run, and why the request failed.
//!
//! Not here: the errors that a node replies with (`error_reply`).

use crate::domain::{ExecutionStatus, FailureKind};

/// Error of a request to a node, including whether it may have run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendError {
    /// Whether the command may have run. If so, a call that charges must not be sent again.
    pub executed: ExecutionStatus,
    /// Kind of error, for metrics and logs.
    pub kind: FailureKind,
}

impl SendError {
    /// Creates an error for a call whose script has not run.
    pub(crate) const fn not_executed(kind: FailureKind) -> SendError {
        SendError { executed: ExecutionStatus::NotExecuted, kind }
    }

    /// Error for a call whose script failed, perhaps after it had written some counters.
    pub(crate) const SCRIPT_FAILED: SendError =
        SendError { executed: ExecutionStatus::Unknown, kind: FailureKind::Script };

    /// Error for a call that was written to a connection but never got a reply.
    pub const LOST: SendError =
        SendError { executed: ExecutionStatus::Unknown, kind: FailureKind::Lost };
}
