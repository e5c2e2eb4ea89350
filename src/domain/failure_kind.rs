//! Reasons why a store did not decide a call.

/// Defines the kinds, one per row: its name in metrics and traces, and what happened, for logs.
macro_rules! failure_kinds {
    ($($(#[$doc:meta])* $kind:ident ($name:literal, $text:literal),)*) => {
        /// Reason why a store did not decide a call.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum FailureKind {
            $($(#[$doc])* $kind,)*
        }

        impl FailureKind {
            /// All kinds, in the order of their discriminants.
            pub const ALL: &[FailureKind] = &[$(FailureKind::$kind,)*];

            /// Returns the name of the kind in metrics and traces.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(FailureKind::$kind => $name,)*
                }
            }

            /// Returns what happened, for logs and operators.
            pub const fn describe(self) -> &'static str {
                match self {
                    $(FailureKind::$kind => $text,)*
                }
            }
        }
    };
}

// Those that found no node come first, and the error replies of Redis last.
failure_kinds! {
    /// No connection to the node is open, so the call was not sent.
    NotConnected ("not_connected", "Redis is not connected"),
    /// The node's circuit breaker is open.
    BreakerOpen ("open", "the circuit breaker is open"),
    /// No node of the cluster owns the hash slot.
    NoNode ("no_node", "a hash slot has no node"),
    /// The hash slot moves to another node: too many redirects, or TRYAGAIN.
    Moving ("moving", "a hash slot is moving to another node"),
    /// The connection was lost after the call was written, so the script may have run.
    Lost ("lost", "a connection was lost before the answer"),
    /// The queues of the node's connections are full.
    QueueFull ("queue_full", "overload: the queue to Redis is full"),
    /// The node was not expected to reply before the caller's deadline.
    Overload ("overload", "overload: Redis could not answer in time"),
    /// No reply arrived before the call's deadline.
    TimedOut ("timeout", "timeout: Redis did not answer in time"),
    /// An operator has disabled the store, for example to rehearse an outage.
    Rehearsed ("rehearsed", "rehearsed: Redis is disabled by hand"),
    /// NOAUTH, WRONGPASS, or NOPERM: Redis denied the login, a command, or a key.
    Denied ("denied", "Redis denied our login, a command, or a key"),
    /// READONLY: the node is a replica.
    ReadOnly ("read_only", "READONLY: the server is a replica"),
    /// OOM: the node has reached `maxmemory`.
    OutOfMemory ("out_of_memory", "OOM: Redis is full"),
    /// MISCONF: the node cannot save its data, and therefore rejects writes.
    Unsaved ("unsaved", "MISCONF: Redis cannot save its data"),
    /// NOREPLICAS: the node has too few replicas, and therefore rejects writes.
    NoReplicas ("no_replicas", "NOREPLICAS: Redis has too few replicas"),
    /// BUSY: a slow script blocks the node.
    Busy ("busy", "BUSY: a script blocks Redis"),
    /// LOADING: the node is loading its data set.
    Loading ("loading", "LOADING: Redis is loading its data"),
    /// CLUSTERDOWN or MASTERDOWN: the cluster does not serve the hash slot.
    ClusterDown ("cluster_down", "CLUSTERDOWN: a hash slot is not served"),
    /// The script failed, or the node sent any other error reply.
    Script ("script", "a script failed in Redis"),
}

impl FailureKind {
    /// Returns whether the call was rejected only because too many other calls are waiting.
    pub const fn is_overload(self) -> bool {
        matches!(self, FailureKind::QueueFull | FailureKind::Overload)
    }

    /// Returns whether no answer came although the call was neither late nor too much.
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
        for kind in FailureKind::ALL {
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
