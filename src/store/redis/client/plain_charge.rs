//! Plain charges: charges to counters with INCRBY commands, which need no script.
//!
//! The stored value of a fixed window contains the window's number and its hit count, so INCRBY
//! returns both. All charges to one counter in a write are merged into one INCRBY of their total;
//! the count after each of them follows from the reply, as if each had been sent by itself. If the
//! counter was flushed or has expired, INCRBY creates a key without an expiry. Each write therefore
//! ends with one `EXPIRE … NX` per counter that it charged.
//!
//! A charge is written only while the server's time is known on the connection (`server_time`). A
//! charge is never written twice and never redirected; if it fails, scripts decide the call. Not
//! here: which calls are charged this way, and how their replies decide the call (`plain_calls`).

use redis::{Cmd, Pipeline, Value};
use smallvec::SmallVec;
use tokio::sync::oneshot;

use super::config::Address;
use super::error_reply::{ErrorReply, Redirect};
use super::pending_command::CommandReply;
use super::server_time::ServerTimeSpan;
use super::transport::{SendError, SendErrorKind};

/// Charge to one counter, made with INCRBY.
#[derive(Clone, Debug)]
pub struct PlainCharge {
    /// Identity of the counter. Charges with the same value in one write charge the same counter.
    pub counter: CounterId,
    /// Key of the counter. On the heap, so that the entries of a connection's queue stay small.
    pub key: Box<[u8]>,
    /// Number of hits to charge.
    pub cost: u32,
    /// TTL in seconds, set on the key if it has none. At least one window length.
    pub expire_s: u32,
    /// Hash slot of the key; `None` if Redis is not a cluster.
    pub slot: Option<u16>,
}

/// Identity of a counter, in two halves: with the alignment of a `u128`, the entries of a
/// connection's queue would be larger by a quarter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterId([u64; 2]);

impl From<u128> for CounterId {
    fn from(identity: u128) -> CounterId {
        CounterId([(identity >> 64) as u64, identity as u64])
    }
}

/// Plain charges of one call. Usually there is only one.
pub type PlainCharges = SmallVec<[PlainCharge; 1]>;

/// Reply to one plain charge.
#[derive(Clone, Copy, Debug)]
pub struct ChargeReply {
    /// Value of the counter after the charge, or an error that includes whether the charge may have
    /// been made.
    pub value: Result<i64, SendError>,
    /// Bounds on the server's time during the charge; `None` if they are not known.
    pub span: Option<ServerTimeSpan>,
}

impl ChargeReply {
    /// Creates the reply to a charge that failed.
    pub(crate) const fn failed(error: SendError) -> ChargeReply {
        ChargeReply { value: Err(error), span: None }
    }

    /// Returns whether the charge failed with an error of this kind.
    pub(crate) fn is_error(&self, kind: SendErrorKind) -> bool {
        self.value.is_err_and(|error| error.kind == kind)
    }
}

/// Replies to the plain charges of one call, in the order of the charges.
pub type ChargeReplies = SmallVec<[ChargeReply; 1]>;

/// Reply to the INCRBY of one counter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IncrbyReply {
    /// Reply to the last of the charges that the command contains.
    pub(crate) reply: ChargeReply,
    /// Whether the server replied that it currently cannot serve calls.
    pub(crate) is_node_unavailable: bool,
}

/// Converts an INCRBY reply into a charge reply. For an error reply, also returns the error's
/// classification. An error reply means that nothing was charged: a single command fails before it
/// writes.
pub(crate) fn decode_charge_reply(
    reply: &Value,
    node: &Address,
    span: Option<ServerTimeSpan>,
) -> (ChargeReply, Option<ErrorReply>) {
    let (value, error) = match reply {
        Value::Int(value) => (Ok(*value), None),
        Value::ServerError(error) => {
            let reply = ErrorReply::classify(error, node);
            (Err(SendError::not_executed(error_kind(&reply))), Some(reply))
        }
        // INCRBY returns nothing else, so the outcome is unknown.
        _ => (Err(SendError::LOST), None),
    };
    (ChargeReply { value, span }, error)
}

fn error_kind(reply: &ErrorReply) -> SendErrorKind {
    match reply {
        ErrorReply::NoScript => SendErrorKind::Script,
        ErrorReply::Redirect(Redirect::Moved(_) | Redirect::Ask(_) | Redirect::TryAgain) => {
            SendErrorKind::Reconfiguring
        }
        ErrorReply::Failed(error) => error.kind,
    }
}

/// Converts the reply to a call's plain charges into one reply for each of `count` charges. An
/// error applies to every charge.
pub(crate) fn into_charge_replies(reply: CommandReply, count: usize) -> ChargeReplies {
    let error = match reply {
        CommandReply::Charged(replies) if replies.len() == count => return replies,
        CommandReply::Failed(error) => error,
        CommandReply::Charged(_) | CommandReply::Value(_) | CommandReply::Redirect(..) => {
            SendError::LOST
        }
    };
    std::iter::repeat_n(ChargeReply::failed(error), count).collect()
}

/// Plain charges in one write. Each counter gets one INCRBY with the total cost of its charges, and
/// one EXPIRE.
#[derive(Debug, Default)]
pub(crate) struct MergedCharges {
    counters: Vec<ChargedCounter>,
    calls: Vec<ChargedCall>,
    /// Approximate size of the commands, in bytes.
    pub(crate) wire_size: usize,
}

/// Counter that a write charges.
#[derive(Debug)]
struct ChargedCounter {
    identity: CounterId,
    key: Box<[u8]>,
    expire_s: u32,
    /// Total cost of the charges so far, in hits.
    cost: u64,
}

/// Call whose plain charges were written. If dropped, its caller receives [`SendError::LOST`].
#[derive(Debug)]
struct ChargedCall {
    charges: SmallVec<[MergedCharge; 1]>,
    reply: Option<oneshot::Sender<CommandReply>>,
}

/// Part of an INCRBY that charges one call.
#[derive(Clone, Copy, Debug)]
struct MergedCharge {
    /// Index of the counter in [`MergedCharges::counters`].
    counter: usize,
    /// Cost of this charge and of the earlier charges to the counter in the same write, in hits.
    cumulative_cost: u64,
}

impl MergedCharges {
    /// Adds the charges of a call, with the sender of the replies to its caller.
    pub(crate) fn add(
        &mut self,
        charges: PlainCharges,
        reply: Option<oneshot::Sender<CommandReply>>,
    ) {
        let charges = charges.into_iter().map(|charge| self.merge(charge)).collect();
        self.calls.push(ChargedCall { charges, reply });
    }

    fn merge(&mut self, charge: PlainCharge) -> MergedCharge {
        let PlainCharge { counter: identity, key, cost, expire_s, .. } = charge;
        let cost = u64::from(cost);
        // A linear search: a write has fewer than 100 counters, and often only one.
        let found = self.counters.iter().position(|counter| counter.identity == identity);
        let counter = found.unwrap_or(self.counters.len());
        match self.counters.get_mut(counter) {
            Some(counter) => counter.cost += cost,
            None => {
                self.wire_size += 2 * (key.len() + COMMAND_OVERHEAD);
                self.counters.push(ChargedCounter { identity, key, expire_s, cost });
            }
        }
        let cumulative_cost = self.counters.get(counter).map_or(cost, |counter| counter.cost);
        MergedCharge { counter, cumulative_cost }
    }

    /// Returns the number of calls with plain charges.
    pub(crate) fn call_count(&self) -> usize {
        self.calls.len()
    }

    /// Returns the number of INCRBY commands, which is also that of the EXPIRE commands.
    pub(crate) fn counter_count(&self) -> usize {
        self.counters.len()
    }

    /// Appends the INCRBY and then the EXPIRE commands to a write.
    pub(crate) fn write(&self, pipeline: &mut Pipeline) {
        for ChargedCounter { key, cost, .. } in &self.counters {
            let mut command = new_command(3, key);
            command.arg("INCRBY").arg(&**key).arg(*cost);
            pipeline.add_command(command);
        }
        for ChargedCounter { key, expire_s, .. } in &self.counters {
            let mut command = new_command(4, key);
            command.arg("EXPIRE").arg(&**key).arg(*expire_s).arg("NX");
            pipeline.add_command(command);
        }
    }

    /// Passes each caller the replies to its charges. `replies` are the replies to the INCRBY
    /// commands, in the order of [`write`](Self::write). Returns the number of calls for which the
    /// node was unavailable.
    pub(crate) fn complete(self, replies: &[IncrbyReply]) -> u64 {
        let MergedCharges { counters, calls, .. } = self;
        let mut unavailable_calls = 0;
        for ChargedCall { charges, reply } in calls {
            let mut is_node_unavailable = false;
            let each: ChargeReplies = charges
                .iter()
                .map(|charge| {
                    let at = charge.counter;
                    let Some((incrby, counter)) = replies.get(at).zip(counters.get(at)) else {
                        return ChargeReply::failed(SendError::LOST);
                    };
                    is_node_unavailable |= incrby.is_node_unavailable;
                    let later_cost = counter.cost - charge.cumulative_cost;
                    let value = incrby.reply.value;
                    let value = value.map(|value| value.saturating_sub_unsigned(later_cost));
                    ChargeReply { value, ..incrby.reply }
                })
                .collect();
            unavailable_calls += u64::from(is_node_unavailable);
            if let Some(reply) = reply {
                // `send` fails if the caller's deadline has passed.
                let _ = reply.send(CommandReply::Charged(each));
            }
        }
        unavailable_calls
    }
}

/// Returns an empty command with room for an INCRBY or EXPIRE of this key, so that it does not grow
/// with each argument.
fn new_command(arg_count: usize, key: &[u8]) -> Cmd {
    Cmd::with_capacity(arg_count, key.len() + COMMAND_OVERHEAD)
}

/// Returns whether the reply to an EXPIRE shows that the server will never execute EXPIRE. Returns
/// false for a redirect or a temporary error, because either would also prevent the INCRBY.
pub(crate) fn is_denied(expire: &Value, node: &Address) -> bool {
    let Value::ServerError(error) = expire else { return false };
    match ErrorReply::classify(error, node) {
        ErrorReply::NoScript | ErrorReply::Redirect(_) => false,
        ErrorReply::Failed(error) => {
            matches!(error.kind, SendErrorKind::Denied | SendErrorKind::Script)
        }
    }
}

/// Approximate number of bytes of an INCRBY or EXPIRE command without its key.
const COMMAND_OVERHEAD: usize = 40;

/// Oldest major version of Redis that supports `EXPIRE … NX`.
const REDIS_MAJOR_MIN: u32 = 7;

/// Returns whether a server can execute plain charges. The server replied `info` to `INFO server`
/// and `expire` to `EXPIRE … NX` on any key. A redirect from a cluster node also shows that the ACL
/// permits EXPIRE.
pub(crate) fn is_supported(info: Option<&str>, expire: &Value, node: &Address) -> bool {
    let is_permitted = match expire {
        Value::Int(_) => true,
        Value::ServerError(error) => {
            matches!(ErrorReply::classify(error, node), ErrorReply::Redirect(_))
        }
        _ => false,
    };
    is_permitted && info.and_then(redis_major).is_some_and(|major| major >= REDIS_MAJOR_MIN)
}

/// Returns the major version in a reply to INFO, or `None` if the reply contains no version. Valkey
/// reports the Redis version with which it is compatible.
fn redis_major(info: &str) -> Option<u32> {
    let version = info.lines().find_map(|line| line.strip_prefix("redis_version:"))?;
    version.trim().split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_charges_need_redis_7_and_permission_for_expire() {
        let node = Address::Tcp("127.0.0.1".into(), 6379);
        let error =
            |line: &str| redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap();
        let info = |version| format!("# Server\r\nredis_version:{version}\r\nrun_id:0a\r\n");
        let new = info("7.0.15");
        assert!(is_supported(Some(&new), &Value::Int(0), &node));
        assert!(is_supported(Some(&info("8.2.1")), &Value::Int(1), &node));
        let moved = error("MOVED 3999 127.0.0.1:6381");
        assert!(is_supported(Some(&new), &moved, &node), "another node holds the key");
        assert!(!is_supported(Some(&info("6.2.14")), &Value::Int(0), &node));
        assert!(!is_supported(None, &Value::Int(0), &node), "INFO is denied");
        assert!(!is_supported(Some("# Server\r\n"), &Value::Int(0), &node));
        for denied in ["NOPERM no permissions", "ERR Unsupported option NX"] {
            assert!(!is_supported(Some(&new), &error(denied), &node), "{denied}");
        }
        assert!(!is_supported(Some(&new), &Value::Nil, &node));
    }

    #[test]
    fn a_denied_expire_differs_from_one_that_another_node_would_execute() {
        let node = Address::Tcp("127.0.0.1".into(), 6379);
        let error =
            |line: &str| redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap();
        for denied in ["NOPERM no permissions", "ERR syntax error"] {
            assert!(is_denied(&error(denied), &node), "{denied}");
        }
        for other in ["MOVED 1 127.0.0.1:1", "ASK 1 127.0.0.1:1", "CLUSTERDOWN", "READONLY"] {
            assert!(!is_denied(&error(other), &node), "{other}");
        }
        assert!(!is_denied(&Value::Int(0), &node));
    }

    #[test]
    fn charges_to_one_counter_are_one_command_and_each_gets_its_own_count() {
        let charge = |counter: u128, cost: u32| {
            let key = format!("tg1w:{{{counter}}}").into_bytes().into();
            PlainCharge { counter: counter.into(), key, cost, expire_s: 61, slot: None }
        };
        let mut merged = MergedCharges::default();
        let calls = [
            vec![charge(2, 1)],
            vec![charge(1, 4), charge(2, 5)],
            vec![charge(3, 1)],
            vec![charge(2, 3)],
        ];
        let receivers = calls.map(|charges| {
            let (sender, receiver) = oneshot::channel();
            merged.add(charges.into_iter().collect(), Some(sender));
            receiver
        });
        assert_eq!((merged.call_count(), merged.counter_count()), (4, 3));
        let mut pipeline = Pipeline::new();
        merged.write(&mut pipeline);
        let commands: Vec<Vec<u8>> =
            pipeline.cmd_iter().map(|command| command.get_packed_command()).collect();
        let mut expected = Pipeline::new();
        for (counter, cost) in [(2, 9), (1, 4), (3, 1)] {
            expected.cmd("INCRBY").arg(format!("tg1w:{{{counter}}}")).arg(cost);
        }
        for counter in [2, 1, 3] {
            expected.cmd("EXPIRE").arg(format!("tg1w:{{{counter}}}")).arg(61).arg("NX");
        }
        let expected: Vec<Vec<u8>> =
            expected.cmd_iter().map(|command| command.get_packed_command()).collect();
        assert_eq!(commands, expected);

        let reply = |value| IncrbyReply {
            reply: ChargeReply { value, span: None },
            is_node_unavailable: value.is_err(),
        };
        let busy = SendError::not_executed(SendErrorKind::Busy);
        assert_eq!(merged.complete(&[Ok(109), Ok(54), Err(busy)].map(reply)), 1);
        let counts = receivers.map(|mut receiver| match receiver.try_recv() {
            Ok(CommandReply::Charged(replies)) => {
                replies.iter().map(|reply| reply.value).collect::<Vec<_>>()
            }
            other => panic!("{other:?}"),
        });
        // Counter 2 had 100 hits before.
        assert_eq!(counts, [vec![Ok(101)], vec![Ok(54), Ok(106)], vec![Err(busy)], vec![Ok(109)]]);
    }

    #[test]
    fn an_error_reply_means_that_nothing_was_charged() {
        let node = Address::Tcp("127.0.0.1".into(), 6379);
        let decode = |reply: Value| {
            let (reply, error) = decode_charge_reply(&reply, &node, None);
            (reply.value, error.is_some())
        };
        assert_eq!(decode(Value::Int(7)), (Ok(7), false));
        for (line, kind) in [
            ("MOVED 1 127.0.0.1:1", SendErrorKind::Reconfiguring),
            ("TRYAGAIN half", SendErrorKind::Reconfiguring),
            ("READONLY replica", SendErrorKind::LoadingOrReplica),
            ("NOPERM no permissions", SendErrorKind::Denied),
            ("ERR value is not an integer", SendErrorKind::Script),
        ] {
            let error = redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap();
            assert_eq!(decode(error), (Err(SendError::not_executed(kind)), true), "{line}");
        }
        assert_eq!(decode(Value::Nil), (Err(SendError::LOST), false), "it may have been charged");
    }

    #[test]
    fn an_error_of_the_call_applies_to_each_of_its_charges() {
        let values = |reply: CommandReply, count: usize| -> Vec<Result<i64, SendError>> {
            into_charge_replies(reply, count).iter().map(|reply| reply.value).collect()
        };
        let full = SendError::not_executed(SendErrorKind::QueueFull);
        assert_eq!(values(CommandReply::Failed(full), 2), [Err(full), Err(full)]);
        let charged = || {
            let reply = ChargeReply { value: Ok(1), span: None };
            CommandReply::Charged(ChargeReplies::from_iter([reply]))
        };
        assert_eq!(values(charged(), 1), [Ok(1)]);
        assert_eq!(values(charged(), 2), [Err(SendError::LOST), Err(SendError::LOST)]);
        assert_eq!(values(CommandReply::Value(Value::Int(1)), 1), [Err(SendError::LOST)]);
    }
}
