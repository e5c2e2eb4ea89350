//! Errors of requests to a node: whether the script may have run, and why the request failed.
//!
//! Not here: the errors that a node replies with (`error_reply`).

use crate::domain::ExecutionStatus;

/// Error of a request to a node, including whether it may have run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendError {
    /// Whether the command may have run. If so, a call that charges must not be sent again.
    pub executed: ExecutionStatus,
    /// Kind of error, for metrics and logs.
    pub kind: SendErrorKind,
}

impl SendError {
    /// Creates an error for a call whose script has not run.
    pub(crate) const fn not_executed(kind: SendErrorKind) -> SendError {
        SendError { executed: ExecutionStatus::NotExecuted, kind }
    }

    /// Error for a call whose script failed, perhaps after it had written some counters.
    pub(crate) const SCRIPT_FAILED: SendError =
        SendError { executed: ExecutionStatus::Unknown, kind: SendErrorKind::Script };

    /// Error for a call that was written to a connection but never got a reply.
    pub const LOST: SendError =
        SendError { executed: ExecutionStatus::Unknown, kind: SendErrorKind::Lost };
}

/// Reason why a request to a node failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SendErrorKind {
    /// No connection to the node is open, so the call was not sent.
    NotConnected,
    /// The queues of the node's connections are full.
    QueueFull,
    /// The node was not expected to reply before the caller's deadline.
    Overload,
    /// The node's circuit breaker is open.
    BreakerOpen,
    /// The connection was lost or the call timed out after the call was written, so the script may
    /// have run.
    Lost,
    /// The cluster is being reconfigured: too many redirects, TRYAGAIN, CLUSTERDOWN, MASTERDOWN.
    Reconfiguring,
    /// The node is loading its data set, or is a replica (READONLY).
    LoadingOrReplica,
    /// The server is out of memory or cannot persist writes (OOM, MISCONF, NOREPLICAS).
    NotWritable,
    /// A slow script blocks the server (BUSY).
    Busy,
    /// Authentication failed, or the ACL denied the command (NOAUTH, WRONGPASS, NOPERM).
    Denied,
    /// The script failed, or the server sent any other error reply.
    Script,
}

impl SendErrorKind {
    /// Returns whether the call was rejected only because too many other calls are waiting.
    pub const fn is_overload(self) -> bool {
        matches!(self, SendErrorKind::QueueFull | SendErrorKind::Overload)
    }

    /// Returns whether the error suggests that the topology has changed, such as a master that has
    /// become a replica.
    pub(crate) const fn suggests_topology_change(self) -> bool {
        matches!(self, SendErrorKind::Reconfiguring | SendErrorKind::LoadingOrReplica)
    }

    /// Returns the name of the error in traces (`error.type`).
    pub const fn as_str(self) -> &'static str {
        match self {
            SendErrorKind::NotConnected => "not_connected",
            SendErrorKind::QueueFull => "queue_full",
            SendErrorKind::Overload => "overload",
            SendErrorKind::BreakerOpen => "open",
            SendErrorKind::Lost => "lost",
            SendErrorKind::Reconfiguring => "moving",
            SendErrorKind::LoadingOrReplica => "not_master",
            SendErrorKind::NotWritable => "not_writable",
            SendErrorKind::Busy => "busy",
            SendErrorKind::Denied => "denied",
            SendErrorKind::Script => "script",
        }
    }
}
