//! What an error reply means: whether the item ran, and what to do about it.
//!
//! Not here: doing it (`lane` loads scripts, `cluster` follows redirections).

use redis::{ServerError, ServerErrorKind};

use super::config::Address;
use super::transport::{SendError, SendFault};
use crate::domain::Executed;

/// An error reply, understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
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

impl Fault {
    /// Reads an error reply. `asked` is the node that gave it: a redirection without a host means
    /// that one's host.
    pub fn of(error: &ServerError, asked: &Address) -> Fault {
        let redirect = |make: fn(Address) -> Redirect| match target(error.details(), asked) {
            Some(address) => Fault::Redirect(make(address)),
            None => no(SendFault::Moving),
        };
        match error.kind() {
            Some(ServerErrorKind::NoScript) => Fault::NoScript,
            Some(ServerErrorKind::Moved) => redirect(Redirect::Moved),
            Some(ServerErrorKind::Ask) => redirect(Redirect::Ask),
            Some(ServerErrorKind::TryAgain) => Fault::Redirect(Redirect::TryAgain),
            Some(ServerErrorKind::ClusterDown | ServerErrorKind::MasterDown) => {
                no(SendFault::Moving)
            }
            Some(ServerErrorKind::BusyLoading | ServerErrorKind::ReadOnly) => {
                no(SendFault::NotMaster)
            }
            Some(ServerErrorKind::NoPerm) => no(SendFault::Denied),
            _ => Fault::of_code(error.code()),
        }
    }

    /// The codes that the library has no name for. Redis checks memory and disk before a script's
    /// first write and not again after it, so that a script refused for them wrote nothing.
    fn of_code(code: &str) -> Fault {
        match code {
            "OOM" | "MISCONF" | "NOREPLICAS" => no(SendFault::NotWritable),
            "BUSY" => no(SendFault::Busy),
            "NOAUTH" | "WRONGPASS" => no(SendFault::Denied),
            _ => {
                Fault::Refused(SendError { executed: Executed::Unknown, fault: SendFault::Script })
            }
        }
    }
}

/// The item did not run.
fn no(fault: SendFault) -> Fault {
    Fault::Refused(SendError { executed: Executed::No, fault })
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

    fn fault(line: &str) -> Fault {
        let asked = Address::Tcp("10.0.0.1".into(), 6379);
        match redis::parse_redis_value(format!("-{line}\r\n").as_bytes()) {
            Ok(Value::ServerError(error)) => Fault::of(&error, &asked),
            other => panic!("{line} is read as {other:?}"),
        }
    }

    fn tcp(host: &str, port: u16) -> Address {
        Address::Tcp(host.into(), port)
    }

    #[test]
    fn a_redirection_names_its_node() {
        let moved = |address| Fault::Redirect(Redirect::Moved(address));
        assert_eq!(fault("MOVED 3999 127.0.0.1:6381"), moved(tcp("127.0.0.1", 6381)));
        assert_eq!(fault("MOVED 3999 ::1:6381"), moved(tcp("::1", 6381)));
        assert_eq!(fault("MOVED 3999 :6381"), moved(tcp("10.0.0.1", 6381)));
        assert_eq!(
            fault("ASK 1 node.example:7000"),
            Fault::Redirect(Redirect::Ask(tcp("node.example", 7000)))
        );
        assert_eq!(
            fault("TRYAGAIN Multiple keys request during rehashing of slot"),
            Fault::Redirect(Redirect::TryAgain)
        );
        assert_eq!(fault("MOVED nonsense"), no(SendFault::Moving));
    }

    #[test]
    fn what_was_refused_before_it_ran_did_not_run() {
        for (line, expected) in [
            ("CLUSTERDOWN Hash slot not served", SendFault::Moving),
            ("MASTERDOWN Link with MASTER is down", SendFault::Moving),
            ("LOADING Redis is loading the dataset in memory", SendFault::NotMaster),
            ("READONLY You can't write against a read only replica.", SendFault::NotMaster),
            ("OOM command not allowed when used memory > 'maxmemory'.", SendFault::NotWritable),
            ("MISCONF Redis is configured to save RDB snapshots", SendFault::NotWritable),
            ("NOREPLICAS Not enough good replicas to write.", SendFault::NotWritable),
            ("BUSY Redis is busy running a script.", SendFault::Busy),
            ("NOAUTH Authentication required.", SendFault::Denied),
            ("NOPERM this user has no permissions", SendFault::Denied),
        ] {
            assert_eq!(fault(line), no(expected), "{line}");
        }
        assert_eq!(fault("NOSCRIPT No matching script."), Fault::NoScript);
    }

    #[test]
    fn a_script_that_failed_may_have_run() {
        for line in ["WRONGTYPE Operation against a key", "ERR user_script:1: boom", "NEW thing"] {
            let expected = SendError { executed: Executed::Unknown, fault: SendFault::Script };
            assert_eq!(fault(line), Fault::Refused(expected), "{line}");
        }
    }
}
