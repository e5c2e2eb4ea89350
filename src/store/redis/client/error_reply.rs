//! Classification of Redis error replies: whether the script ran, and whether to resend the call.
//!
//! Not here: loading scripts again (`connection`), following redirects (`cluster`).

use redis::ServerError;

use super::config::Address;
use super::send_error::SendError;
use crate::domain::{ExecutionStatus, FailureKind};

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
            None => ErrorReply::Failed(SendError::not_executed(FailureKind::Moving)),
        };
        match error.code() {
            "NOSCRIPT" => ErrorReply::NoScript,
            "MOVED" => redirect(Redirect::Moved),
            "ASK" => redirect(Redirect::Ask),
            "TRYAGAIN" => ErrorReply::Redirect(Redirect::TryAgain),
            code => {
                let kind = failure_kind(code, error.details().unwrap_or_default());
                let error = SendError::not_executed(kind);
                // A script that failed may have written before.
                let may_have_run = kind == FailureKind::Script || code == "ERR";
                let executed = if may_have_run { ExecutionStatus::Unknown } else { error.executed };
                ErrorReply::Failed(SendError { executed, ..error })
            }
        }
    }

    /// Returns whether the reply means that the node currently cannot serve calls. Returns false
    /// for a redirect.
    pub(crate) fn means_unavailable_node(&self) -> bool {
        matches!(self, ErrorReply::Failed(error) if means_unavailable_node(error.kind))
    }
}

/// Returns whether the error means that the node currently cannot serve calls.
pub(super) fn means_unavailable_node(kind: FailureKind) -> bool {
    suggests_topology_change(kind) || kind == FailureKind::Busy
}

/// Part of the error of Redis before 7.2 if the ACL denies a command inside a script.
pub(super) const DENIED_IN_SCRIPT: &str = "user executing the script can't";

/// Returns the kind of an error reply with this code and text.
///
/// OOM, MISCONF, and NOREPLICAS mean that the script wrote nothing: Redis checks memory and disk
/// before the first write of a script and not afterwards.
pub(super) fn failure_kind(code: &str, text: &str) -> FailureKind {
    match code {
        "NOAUTH" | "WRONGPASS" | "NOPERM" => FailureKind::Denied,
        "READONLY" => FailureKind::ReadOnly,
        "OOM" => FailureKind::OutOfMemory,
        "MISCONF" => FailureKind::Unsaved,
        "NOREPLICAS" => FailureKind::NoReplicas,
        "BUSY" => FailureKind::Busy,
        "LOADING" => FailureKind::Loading,
        "CLUSTERDOWN" | "MASTERDOWN" => FailureKind::ClusterDown,
        _ if text.contains(DENIED_IN_SCRIPT) => FailureKind::Denied,
        _unknown => FailureKind::Script,
    }
}

/// Reason why a call fails although its script was loaded several times.
pub(super) const FORGOTTEN_SCRIPT: &str =
    "NOSCRIPT: the server forgets its scripts as soon as they are loaded";

/// Reason why a connection cannot be used if ROLE says so.
pub(super) const IS_REPLICA: &str = "the server is a replica, not a master";

/// Maximum number of characters of an error reply that are logged. A longer one quotes a script.
const REPLY_CHARS_MAX: usize = 256;

/// Returns the text of an error reply, as Redis sent it. The arguments of an unknown command are left
/// out, because they may be a whole script.
pub(super) fn reply_text(code: &str, details: Option<&str>) -> String {
    let text = format!("{code} {}", details.unwrap_or_default());
    let end = text.find(", with args beginning with").unwrap_or(text.len());
    text[..end].chars().take(REPLY_CHARS_MAX).collect()
}

/// Returns whether the error suggests that the topology has changed, such as a master that has
/// become a replica.
pub(super) fn suggests_topology_change(kind: FailureKind) -> bool {
    matches!(
        kind,
        FailureKind::Moving
            | FailureKind::ClusterDown
            | FailureKind::Loading
            | FailureKind::ReadOnly
    )
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

#[cfg(test)]
mod tests {
    use redis::Value;

    use super::*;

    fn classify(line: &str) -> ErrorReply {
        let node = Address::Tcp("10.0.0.1".into(), 6379);
        match redis::parse_redis_value(format!("-{line}\r\n").as_bytes()) {
            Ok(Value::ServerError(error)) => ErrorReply::classify(&error, &node),
            other => panic!("{line} is parsed as {other:?}"),
        }
    }

    fn not_executed(kind: FailureKind) -> ErrorReply {
        ErrorReply::Failed(SendError::not_executed(kind))
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
        assert_eq!(classify("MOVED nonsense"), not_executed(FailureKind::Moving));
    }

    #[test]
    fn an_error_raised_before_the_script_starts_means_not_executed() {
        for (line, expected) in [
            ("CLUSTERDOWN Hash slot not served", FailureKind::ClusterDown),
            ("MASTERDOWN Link with MASTER is down", FailureKind::ClusterDown),
            ("LOADING Redis is loading the dataset in memory", FailureKind::Loading),
            ("READONLY You can't write against a read only replica.", FailureKind::ReadOnly),
            ("OOM command not allowed when used memory > 'maxmemory'.", FailureKind::OutOfMemory),
            ("MISCONF Redis is configured to save RDB snapshots", FailureKind::Unsaved),
            ("NOREPLICAS Not enough good replicas to write.", FailureKind::NoReplicas),
            ("BUSY Redis is busy running a script.", FailureKind::Busy),
            ("NOAUTH Authentication required.", FailureKind::Denied),
            ("WRONGPASS invalid username-password pair", FailureKind::Denied),
            ("NOPERM this user has no permissions", FailureKind::Denied),
        ] {
            assert_eq!(classify(line), not_executed(expected), "{line}");
        }
        assert_eq!(classify("NOSCRIPT No matching script."), ErrorReply::NoScript);
    }

    #[test]
    fn a_script_that_failed_may_have_run() {
        for line in ["WRONGTYPE Operation against a key", "ERR user_script:1: boom", "NEW thing"] {
            let expected =
                SendError { executed: ExecutionStatus::Unknown, kind: FailureKind::Script };
            assert_eq!(classify(line), ErrorReply::Failed(expected), "{line}");
        }
    }

    #[test]
    fn a_command_that_the_acl_denies_inside_a_script_may_follow_a_write() {
        let line = "ERR The user executing the script can't run this command or subcommand script";
        let denied = SendError { executed: ExecutionStatus::Unknown, kind: FailureKind::Denied };
        assert_eq!(classify(line), ErrorReply::Failed(denied));
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
