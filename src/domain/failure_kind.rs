//! Reasons why a store did not decide a call.

use super::named_enum::named_enum;

named_enum! {
    /// Reason why a store did not decide a call. Those that found no node come first, and the error
    /// replies of Redis last.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum FailureKind {
        /// No connection to the node is open, so the call was not sent.
        NotConnected => "not_connected",
        /// The node's circuit breaker is open.
        BreakerOpen => "open",
        /// No node of the cluster owns the hash slot.
        NoNode => "no_node",
        /// The hash slot moves to another node: too many redirects, or TRYAGAIN.
        Moving => "moving",
        /// The connection was lost after the call was written, so the script may have run.
        Lost => "lost",
        /// The queues of the node's connections are full.
        QueueFull => "queue_full",
        /// The node was not expected to reply before the caller's deadline.
        Overload => "overload",
        /// No reply arrived before the call's deadline.
        TimedOut => "timeout",
        /// An operator has disabled the store, for example to rehearse an outage.
        Rehearsed => "rehearsed",
        /// NOAUTH, WRONGPASS, or NOPERM: Redis denied the login, a command, or a key.
        Denied => "denied",
        /// READONLY: the node is a replica.
        ReadOnly => "read_only",
        /// OOM: the node has reached `maxmemory`.
        OutOfMemory => "out_of_memory",
        /// MISCONF: the node cannot save its data, and therefore rejects writes.
        Unsaved => "unsaved",
        /// NOREPLICAS: the node has too few replicas, and therefore rejects writes.
        NoReplicas => "no_replicas",
        /// BUSY: a slow script blocks the node.
        Busy => "busy",
        /// LOADING: the node is loading its data set.
        Loading => "loading",
        /// CLUSTERDOWN or MASTERDOWN: the cluster does not serve the hash slot.
        ClusterDown => "cluster_down",
        /// The script failed, or the node sent any other error reply.
        Script => "script",
    }
}

impl FailureKind {
    /// Returns what happened, for logs and operators.
    pub const fn describe(self) -> &'static str {
        match self {
            FailureKind::NotConnected => "Redis is not connected",
            FailureKind::BreakerOpen => "the circuit breaker is open",
            FailureKind::NoNode => "a hash slot has no node",
            FailureKind::Moving => "a hash slot is moving to another node",
            FailureKind::Lost => "a connection was lost before the answer",
            FailureKind::QueueFull => "overload: the queue to Redis is full",
            FailureKind::Overload => "overload: Redis could not answer in time",
            FailureKind::TimedOut => "timeout: Redis did not answer in time",
            FailureKind::Rehearsed => "an operator has disabled Redis to rehearse an outage",
            FailureKind::Denied => "Redis denied the login, a command, or a key",
            FailureKind::ReadOnly => "READONLY: the server is a replica",
            FailureKind::OutOfMemory => "OOM: Redis is full",
            FailureKind::Unsaved => "MISCONF: Redis cannot save its data",
            FailureKind::NoReplicas => "NOREPLICAS: Redis has too few replicas",
            FailureKind::Busy => "BUSY: a script blocks Redis",
            FailureKind::Loading => "LOADING: Redis is loading its data",
            FailureKind::ClusterDown => "CLUSTERDOWN: a hash slot is not served",
            FailureKind::Script => "a script failed in Redis",
        }
    }

    /// Returns whether the call was rejected only because too many other calls are waiting.
    pub const fn is_overload(self) -> bool {
        matches!(self, FailureKind::QueueFull | FailureKind::Overload)
    }

    /// Returns whether the call could not be sent, or lost its connection before the answer.
    pub const fn is_unreachable(self) -> bool {
        self as usize <= FailureKind::Lost as usize
    }

    /// Returns whether the store answered with an error.
    pub const fn is_error_reply(self) -> bool {
        self as usize >= FailureKind::Denied as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_in_one_group_and_has_its_own_name() {
        for kind in &FailureKind::ALL {
            let groups = [kind.is_overload(), kind.is_unreachable(), kind.is_error_reply()];
            let others = [FailureKind::TimedOut, FailureKind::Rehearsed].contains(kind);
            let count = groups.into_iter().chain([others]).filter(|is_in| *is_in).count();
            assert_eq!(count, 1, "{kind:?} is in one group");
        }
        let names: std::collections::HashSet<_> =
            FailureKind::ALL.iter().map(|kind| kind.as_str()).collect();
        assert_eq!(names.len(), FailureKind::ALL.len());
    }
}
