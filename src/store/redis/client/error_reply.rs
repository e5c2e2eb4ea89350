//! Classification of Redis error replies: whether the script ran, and whether to resend the call.
//!
//! Not here: loading scripts again (`connection`), following redirects (`cluster`).

use redis::{ServerError, ServerErrorKind};

use super::config::Address;
use super::send_error::{SendError, SendErrorKind};

/// Error reply of a Redis node, classified by what the client does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ErrorReply {
    /// NOSCRIPT: the script must be loaded and the call sent again.
    NoScript,
    /// MOVED, ASK or TRYAGAIN: the call must be sent to another node, or to the same node again a
    /// moment later.
    Redirect(Redirect),
    /// Any other error: the call failed and is not sent again.
    Failed(SendError),
}

/// Redirect reply to a script call, which means that the script has not run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Redirect {
    /// MOVED: the hash slot now belongs to the node at this address.
    Moved(Address),
    /// ASK: the hash slot is being migrated, and the key is already on the node at this address.
    Ask(Address),
    /// TRYAGAIN: some of the keys are being migrated. The call must be sent to the same node again.
    TryAgain,
}

impl ErrorReply {
    /// Classifies an error reply from `node`. If the target of a redirect has no host, uses the
    /// host of `node`.
    pub fn classify(error: &ServerError, node: &Address) -> ErrorReply {
        let redirect = |make: fn(Address) -> Redirect| match target_address(error.details(), node) {
            Some(address) => ErrorReply::Redirect(make(address)),
            None => not_executed(SendErrorKind::Reconfiguring),
        };
        match error.kind() {
            Some(ServerErrorKind::NoScript) => ErrorReply::NoScript,
            Some(ServerErrorKind::Moved) => redirect(Redirect::Moved),
            Some(ServerErrorKind::Ask) => redirect(Redirect::Ask),
            Some(ServerErrorKind::TryAgain) => ErrorReply::Redirect(Redirect::TryAgain),
            Some(ServerErrorKind::ClusterDown | ServerErrorKind::MasterDown) => {
                not_executed(SendErrorKind::Reconfiguring)
            }
            Some(ServerErrorKind::BusyLoading | ServerErrorKind::ReadOnly) => {
                not_executed(SendErrorKind::LoadingOrReplica)
            }
            Some(ServerErrorKind::NoPerm) => not_executed(SendErrorKind::Denied),
            // `ServerErrorKind` is `non_exhaustive`, so other errors are classified by their code.
            Some(_) | None => ErrorReply::from_code(error.code()),
        }
    }

    /// Returns whether the reply means that the node currently cannot serve calls. Returns false
    /// for a redirect.
    pub(crate) fn means_unavailable_node(&self) -> bool {
        let ErrorReply::Failed(error) = self else { return false };
        matches!(
            error.kind,
            SendErrorKind::Reconfiguring | SendErrorKind::LoadingOrReplica | SendErrorKind::Busy
        )
    }

    /// Classifies an error by its code, for errors without a kind in the `redis` crate. OOM,
    /// MISCONF, and NOREPLICAS mean that the script wrote nothing: Redis checks memory and disk
    /// before the first write of a script and not afterwards.
    fn from_code(code: &str) -> ErrorReply {
        match code {
            "OOM" | "MISCONF" | "NOREPLICAS" => not_executed(SendErrorKind::NotWritable),
            "BUSY" => not_executed(SendErrorKind::Busy),
            "NOAUTH" | "WRONGPASS" => not_executed(SendErrorKind::Denied),
            _unknown => ErrorReply::Failed(SendError::SCRIPT_FAILED),
        }
    }
}

/// Problems with a node that an error reply to a shared script call, or to a write in it, reports.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReplyFailures {
    pub(super) is_demoted: bool,
    /// Number of calls for which the node was unavailable.
    pub(super) unavailable_calls: u64,
}

impl ReplyFailures {
    /// Returns the problems that an error reply to a script call shows, which this many calls share.
    pub(super) fn of_calls(reply: &ErrorReply, calls: usize, is_demoted: bool) -> ReplyFailures {
        let unavailable_calls = if reply.means_unavailable_node() { calls as u64 } else { 0 };
        ReplyFailures { is_demoted, unavailable_calls }
    }
}

fn not_executed(kind: SendErrorKind) -> ErrorReply {
    ErrorReply::Failed(SendError::not_executed(kind))
}

/// Parses the target address of a redirect, `<slot> <host>:<port>`. Uses the host of `node` if
/// the host is empty or unknown. Returns `None` if the text is malformed or no host is known.
fn target_address(details: Option<&str>, node: &Address) -> Option<Address> {
    let (_, address) = details?.trim().split_once(' ')?;
    let (host, port) = address.rsplit_once(':')?;
    let port = port.parse().ok()?;
    match (host, node) {
        ("" | "?", Address::Tcp(node, _)) => Some(Address::Tcp(node.clone(), port)),
        ("" | "?", Address::Unix(_)) => None,
        (host, _) => Some(Address::Tcp(host.to_owned(), port)),
    }
}

/// Returns whether the server replied READONLY, because it has become a replica.
pub(super) fn is_read_only(error: &ServerError) -> bool {
    error.code() == "READONLY"
}

#[cfg(test)]
mod tests {
    use redis::Value;

    use super::*;
    use crate::domain::ExecutionStatus;

    fn classify(line: &str) -> ErrorReply {
        let node = Address::Tcp("10.0.0.1".into(), 6379);
        match redis::parse_redis_value(format!("-{line}\r\n").as_bytes()) {
            Ok(Value::ServerError(error)) => ErrorReply::classify(&error, &node),
            other => panic!("{line} is parsed as {other:?}"),
        }
    }

    fn tcp(host: &str, port: u16) -> Address {
        Address::Tcp(host.into(), port)
    }

    #[test]
    fn a_redirect_names_its_node() {
        let moved = |address| ErrorReply::Redirect(Redirect::Moved(address));
        assert_eq!(classify("MOVED 3999 127.0.0.1:6381"), moved(tcp("127.0.0.1", 6381)));
        assert_eq!(classify("MOVED 3999 ::1:6381"), moved(tcp("::1", 6381)));
        assert_eq!(classify("MOVED 3999 :6381"), moved(tcp("10.0.0.1", 6381)));
        assert_eq!(classify("MOVED 3999 ?:6381"), moved(tcp("10.0.0.1", 6381)));
        assert_eq!(
            classify("ASK 1 node.example:7000"),
            ErrorReply::Redirect(Redirect::Ask(tcp("node.example", 7000)))
        );
        assert_eq!(
            classify("TRYAGAIN Multiple keys request during rehashing of slot"),
            ErrorReply::Redirect(Redirect::TryAgain)
        );
        assert_eq!(classify("MOVED nonsense"), not_executed(SendErrorKind::Reconfiguring));
    }

    #[test]
    fn an_error_raised_before_the_script_starts_means_not_executed() {
        for (line, expected) in [
            ("CLUSTERDOWN Hash slot not served", SendErrorKind::Reconfiguring),
            ("MASTERDOWN Link with MASTER is down", SendErrorKind::Reconfiguring),
            ("LOADING Redis is loading the dataset in memory", SendErrorKind::LoadingOrReplica),
            (
                "READONLY You can't write against a read only replica.",
                SendErrorKind::LoadingOrReplica,
            ),
            ("OOM command not allowed when used memory > 'maxmemory'.", SendErrorKind::NotWritable),
            ("MISCONF Redis is configured to save RDB snapshots", SendErrorKind::NotWritable),
            ("NOREPLICAS Not enough good replicas to write.", SendErrorKind::NotWritable),
            ("BUSY Redis is busy running a script.", SendErrorKind::Busy),
            ("NOAUTH Authentication required.", SendErrorKind::Denied),
            ("WRONGPASS invalid username-password pair", SendErrorKind::Denied),
            ("NOPERM this user has no permissions", SendErrorKind::Denied),
        ] {
            assert_eq!(classify(line), not_executed(expected), "{line}");
        }
        assert_eq!(classify("NOSCRIPT No matching script."), ErrorReply::NoScript);
    }

    #[test]
    fn a_script_that_failed_may_have_run() {
        for line in ["WRONGTYPE Operation against a key", "ERR user_script:1: boom", "NEW thing"] {
            let expected =
                SendError { executed: ExecutionStatus::Unknown, kind: SendErrorKind::Script };
            assert_eq!(classify(line), ErrorReply::Failed(expected), "{line}");
        }
    }

    #[test]
    fn only_errors_of_the_node_itself_mean_that_it_cannot_serve() {
        for (line, expected) in [
            ("CLUSTERDOWN Hash slot not served", true),
            ("MASTERDOWN Link with MASTER is down", true),
            ("LOADING Redis is loading the dataset in memory", true),
            ("READONLY You can't write against a read only replica.", true),
            ("BUSY Redis is busy running a script.", true),
            ("OOM command not allowed when used memory > 'maxmemory'.", false),
            ("NOPERM this user has no permissions", false),
            ("NOSCRIPT No matching script.", false),
            ("TRYAGAIN Multiple keys request during rehashing of slot", false),
            ("ERR user_script:1: boom", false),
        ] {
            assert_eq!(classify(line).means_unavailable_node(), expected, "{line}");
        }
    }
}
