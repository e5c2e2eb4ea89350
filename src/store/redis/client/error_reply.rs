//! What each error reply of Redis means: whether the script ran, and what happens to the call.
//!
//! Not here: acting on it (`connection` reloads scripts, `cluster` follows redirections).

use redis::{ServerError, ServerErrorKind};

use super::config::Address;
use super::transport::{SendError, SendErrorKind};
use crate::domain::ExecutionStatus;

/// A classified error reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ErrorReply {
    /// The script is not loaded: load it and send the call again.
    NoScript,
    /// The call belongs to another node, or has to wait.
    Redirect(Redirect),
    /// The call failed.
    Failed(SendError),
}

/// Where a call that did not run has to go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Redirect {
    /// The slot is now on that node.
    Moved(Address),
    /// The slot is being migrated, and this key is already on that node.
    Ask(Address),
    /// Some of the keys are being migrated: send it again to the same node, a moment later.
    TryAgain,
}

impl ErrorReply {
    /// Classifies an error reply of `node`. A redirection without a host means that node's host.
    pub fn of(error: &ServerError, node: &Address) -> ErrorReply {
        let redirect = |make: fn(Address) -> Redirect| match target(error.details(), node) {
            Some(address) => ErrorReply::Redirect(make(address)),
            None => not_executed(SendErrorKind::Moving),
        };
        match error.kind() {
            Some(ServerErrorKind::NoScript) => ErrorReply::NoScript,
            Some(ServerErrorKind::Moved) => redirect(Redirect::Moved),
            Some(ServerErrorKind::Ask) => redirect(Redirect::Ask),
            Some(ServerErrorKind::TryAgain) => ErrorReply::Redirect(Redirect::TryAgain),
            Some(ServerErrorKind::ClusterDown | ServerErrorKind::MasterDown) => {
                not_executed(SendErrorKind::Moving)
            }
            Some(ServerErrorKind::BusyLoading | ServerErrorKind::ReadOnly) => {
                not_executed(SendErrorKind::NotMaster)
            }
            Some(ServerErrorKind::NoPerm) => not_executed(SendErrorKind::Denied),
            // The library's list is open (`non_exhaustive`), so the rest goes by its code.
            Some(_) | None => ErrorReply::of_code(error.code()),
        }
    }

    /// Classifies the codes that the library has no name for. Redis checks memory and disk before
    /// a script's first write and not again after it, so a script that fails with these codes
    /// wrote nothing.
    fn of_code(code: &str) -> ErrorReply {
        match code {
            "OOM" | "MISCONF" | "NOREPLICAS" => not_executed(SendErrorKind::NotWritable),
            "BUSY" => not_executed(SendErrorKind::Busy),
            "NOAUTH" | "WRONGPASS" => not_executed(SendErrorKind::Denied),
            _unknown => ErrorReply::Failed(SendError {
                executed: ExecutionStatus::Unknown,
                kind: SendErrorKind::Script,
            }),
        }
    }
}

fn not_executed(kind: SendErrorKind) -> ErrorReply {
    ErrorReply::Failed(SendError::not_executed(kind))
}

/// The address in `<slot> <host>:<port>`. An empty or unknown host means that of `node`.
fn target(details: Option<&str>, node: &Address) -> Option<Address> {
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
            Ok(Value::ServerError(error)) => ErrorReply::of(&error, &node),
            other => panic!("{line} is parsed as {other:?}"),
        }
    }

    fn tcp(host: &str, port: u16) -> Address {
        Address::Tcp(host.into(), port)
    }

    #[test]
    fn a_redirection_names_its_node() {
        let moved = |address| ErrorReply::Redirect(Redirect::Moved(address));
        assert_eq!(classify("MOVED 3999 127.0.0.1:6381"), moved(tcp("127.0.0.1", 6381)));
        assert_eq!(classify("MOVED 3999 ::1:6381"), moved(tcp("::1", 6381)));
        assert_eq!(classify("MOVED 3999 :6381"), moved(tcp("10.0.0.1", 6381)));
        assert_eq!(
            classify("ASK 1 node.example:7000"),
            ErrorReply::Redirect(Redirect::Ask(tcp("node.example", 7000)))
        );
        assert_eq!(
            classify("TRYAGAIN Multiple keys request during rehashing of slot"),
            ErrorReply::Redirect(Redirect::TryAgain)
        );
        assert_eq!(classify("MOVED nonsense"), not_executed(SendErrorKind::Moving));
    }

    #[test]
    fn an_error_raised_before_the_script_starts_means_not_executed() {
        for (line, expected) in [
            ("CLUSTERDOWN Hash slot not served", SendErrorKind::Moving),
            ("MASTERDOWN Link with MASTER is down", SendErrorKind::Moving),
            ("LOADING Redis is loading the dataset in memory", SendErrorKind::NotMaster),
            ("READONLY You can't write against a read only replica.", SendErrorKind::NotMaster),
            ("OOM command not allowed when used memory > 'maxmemory'.", SendErrorKind::NotWritable),
            ("MISCONF Redis is configured to save RDB snapshots", SendErrorKind::NotWritable),
            ("NOREPLICAS Not enough good replicas to write.", SendErrorKind::NotWritable),
            ("BUSY Redis is busy running a script.", SendErrorKind::Busy),
            ("NOAUTH Authentication required.", SendErrorKind::Denied),
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
}
