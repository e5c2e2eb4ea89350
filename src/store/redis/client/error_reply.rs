//! What an error reply means: whether the item ran, and what to do about it.
//!
//! Not here: doing it (`connection` loads scripts, `cluster` follows redirections).

use redis::{ServerError, ServerErrorKind};

use super::config::Address;
use super::transport::{SendError, SendErrorKind};
use crate::domain::Executed;

/// An error reply, understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ErrorReply {
    /// The script is not loaded: load it and send this item again.
    NoScript,
    /// The item belongs elsewhere, or later.
    Redirect(Redirect),
    /// The item brings no reply.
    Refused(SendError),
}

/// Where an item that did not run belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Redirect {
    /// The slot lives there now.
    Moved(Address),
    /// This key is there already; the slot is still here.
    Ask(Address),
    /// The keys are on their way; a moment later, same place.
    TryAgain,
}

impl ErrorReply {
    /// Reads an error reply. `asked` is the node that gave it: a redirection without a host means
    /// that one's host.
    pub fn of(error: &ServerError, asked: &Address) -> ErrorReply {
        let redirect = |make: fn(Address) -> Redirect| match target(error.details(), asked) {
            Some(address) => ErrorReply::Redirect(make(address)),
            None => no(SendErrorKind::Moving),
        };
        match error.kind() {
            Some(ServerErrorKind::NoScript) => ErrorReply::NoScript,
            Some(ServerErrorKind::Moved) => redirect(Redirect::Moved),
            Some(ServerErrorKind::Ask) => redirect(Redirect::Ask),
            Some(ServerErrorKind::TryAgain) => ErrorReply::Redirect(Redirect::TryAgain),
            Some(ServerErrorKind::ClusterDown | ServerErrorKind::MasterDown) => {
                no(SendErrorKind::Moving)
            }
            Some(ServerErrorKind::BusyLoading | ServerErrorKind::ReadOnly) => {
                no(SendErrorKind::NotMaster)
            }
            Some(ServerErrorKind::NoPerm) => no(SendErrorKind::Denied),
            _ => ErrorReply::of_code(error.code()),
        }
    }

    /// The codes that the library has no name for. Redis checks memory and disk before a script's
    /// first write and not again after it, so that a script refused for them wrote nothing.
    fn of_code(code: &str) -> ErrorReply {
        match code {
            "OOM" | "MISCONF" | "NOREPLICAS" => no(SendErrorKind::NotWritable),
            "BUSY" => no(SendErrorKind::Busy),
            "NOAUTH" | "WRONGPASS" => no(SendErrorKind::Denied),
            _ => ErrorReply::Refused(SendError {
                executed: Executed::Unknown,
                fault: SendErrorKind::Script,
            }),
        }
    }
}

/// The item did not run.
fn no(fault: SendErrorKind) -> ErrorReply {
    ErrorReply::Refused(SendError { executed: Executed::No, fault })
}

/// The address in `<slot> <host>:<port>`; the host is the asked one's where it is empty or unknown.
fn target(details: Option<&str>, asked: &Address) -> Option<Address> {
    let (_, place) = details?.trim().split_once(' ')?;
    let (host, port) = place.rsplit_once(':')?;
    let port = port.parse().ok()?;
    match (host, asked) {
        ("" | "?", Address::Tcp(asked, _)) => Some(Address::Tcp(asked.clone(), port)),
        ("" | "?", Address::Unix(_)) => None,
        (host, _) => Some(Address::Tcp(host.to_owned(), port)),
    }
}

#[cfg(test)]
mod tests {
    use redis::Value;

    use super::*;

    fn fault(line: &str) -> ErrorReply {
        let asked = Address::Tcp("10.0.0.1".into(), 6379);
        match redis::parse_redis_value(format!("-{line}\r\n").as_bytes()) {
            Ok(Value::ServerError(error)) => ErrorReply::of(&error, &asked),
            other => panic!("{line} is read as {other:?}"),
        }
    }

    fn tcp(host: &str, port: u16) -> Address {
        Address::Tcp(host.into(), port)
    }

    #[test]
    fn a_redirection_names_its_node() {
        let moved = |address| ErrorReply::Redirect(Redirect::Moved(address));
        assert_eq!(fault("MOVED 3999 127.0.0.1:6381"), moved(tcp("127.0.0.1", 6381)));
        assert_eq!(fault("MOVED 3999 ::1:6381"), moved(tcp("::1", 6381)));
        assert_eq!(fault("MOVED 3999 :6381"), moved(tcp("10.0.0.1", 6381)));
        assert_eq!(
            fault("ASK 1 node.example:7000"),
            ErrorReply::Redirect(Redirect::Ask(tcp("node.example", 7000)))
        );
        assert_eq!(
            fault("TRYAGAIN Multiple keys request during rehashing of slot"),
            ErrorReply::Redirect(Redirect::TryAgain)
        );
        assert_eq!(fault("MOVED nonsense"), no(SendErrorKind::Moving));
    }

    #[test]
    fn what_was_refused_before_it_ran_did_not_run() {
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
            assert_eq!(fault(line), no(expected), "{line}");
        }
        assert_eq!(fault("NOSCRIPT No matching script."), ErrorReply::NoScript);
    }

    #[test]
    fn a_script_that_failed_may_have_run() {
        for line in ["WRONGTYPE Operation against a key", "ERR user_script:1: boom", "NEW thing"] {
            let expected = SendError { executed: Executed::Unknown, fault: SendErrorKind::Script };
            assert_eq!(fault(line), ErrorReply::Refused(expected), "{line}");
        }
    }
}
