//! Plain charges: charges to counters with INCRBY commands, which need no script.
//!
//! The stored value of a fixed window contains the window's number and its hit count, so INCRBY
//! returns both. All charges to one counter in a write are merged into one INCRBY of their total;
//! the count after each of them follows from the reply, as if each had been sent by itself. If the
//! counter was flushed or has expired, INCRBY creates a key without an expiry. Each write therefore
//! ends with one `EXPIRE … NX` per counter that it charged.
//!
//! A charge is written only while the server's time is known on the connection (`server_time`). A
//! charge is never written twice and never redirected; if it fails, scripts decide the call.
//!
//! If a charge does not pass, the connection that made it refunds all charges of the call on this
//! node, whether or not the caller still waits, and passes the replies on after the refund. Otherwise
//! a script could refuse the call because of the call's own hits. The refund is a script that
//! compares windows, not an INCRBY of a negative number, which could arrive late and reduce the count
//! of the next window.
//!
//! Not here: which calls are charged this way, and how their replies decide the call (`plain_calls`).

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use redis::{Cmd, Pipeline, Value};
use smallvec::SmallVec;

use super::config::Address;
use super::error_reply::{ErrorReply, Redirect};
use super::pending_command::{CommandReply, PendingCommand, PendingReply, ReplyTo};
use super::reply_slot::reply_slot;
use super::server_time::ServerTimeSpan;
use super::transport::{QueuedByTest, ScriptCalls, SendError, SendErrorKind};
use crate::domain::{ExecutionStatus, Micros};
use crate::store::redis::script::arguments::{WindowRefund, encode_window_refunds};

/// Multiplier that packs a window number and a hit count into one stored value: window number ·
/// `COUNT_SPAN` + count.
const COUNT_SPAN: u64 = 10_000_000_000;

/// Modulus of the window numbers in stored values. The numbers repeat after this many windows.
const WINDOW_MODULUS: u64 = 900_000_000;

/// Charge to one counter, made with INCRBY.
#[derive(Clone, Debug)]
pub struct PlainCharge {
    /// Identity of the counter. Charges with the same value in one write charge the same counter.
    pub counter: CounterId,
    /// Key of the counter. On the heap, so that the entries of a connection's queue stay small.
    pub key: Box<[u8]>,
    /// Number of hits to charge.
    pub cost: u32,
    /// Maximum number of hits in a window. A charge that leads to a larger count does not pass.
    pub capacity: u32,
    /// Length of the counter's windows.
    pub window_length: Micros,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChargeReply {
    /// The charge stands: the count is within the limit, and the server's time was certainly within
    /// the window.
    Passed(WindowCharge),
    /// The charge does not decide its check. Contains the charge if one was made; the connection has
    /// refunded it.
    Undecided(Option<WindowCharge>),
    /// The charge may or may not have been made.
    Unknown,
}

/// Charge that was made to a fixed window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowCharge {
    /// Start of the window that was charged.
    pub window: Micros,
    /// Hits in the window after the charge.
    pub count: u64,
    /// Bounds on the server's time during the charge.
    pub span: ServerTimeSpan,
}

impl PlainCharge {
    /// Returns the reply to the charge, given the counter's value after it and the bounds on the
    /// server's time.
    pub fn judge(&self, value: i64, span: Option<ServerTimeSpan>) -> ChargeReply {
        judge_charge(value, self.capacity, self.window_length, span)
    }
}

fn judge_charge(
    value: i64,
    capacity: u32,
    window_length: Micros,
    span: Option<ServerTimeSpan>,
) -> ChargeReply {
    // Charges are written only while the server's time is known.
    let charge = span.and_then(|span| decode_window(value, window_length, span));
    let Some(charge) = charge else { return ChargeReply::Undecided(None) };
    let WindowCharge { window, count, span } = charge;
    let end = window.saturating_add(window_length);
    let is_in_window = span.is_certain && window <= span.earliest && span.latest < end;
    match is_in_window && count <= u64::from(capacity) {
        true => ChargeReply::Passed(charge),
        false => ChargeReply::Undecided(Some(charge)),
    }
}

/// Decodes a counter's value into the charged window and its hit count. Returns `None` if the charge
/// needs no refund, because no script will read that window again: the window had ended when the
/// charge was sent, or no script wrote the value.
fn decode_window(value: i64, length: Micros, span: ServerTimeSpan) -> Option<WindowCharge> {
    let value = u64::try_from(value).ok()?;
    let (number, count, length) = (value / COUNT_SPAN, value % COUNT_SPAN, length.0.max(1));
    let first = span.earliest.0 / length;
    // A clock that steps back may leave a window that has not begun.
    let last = span.latest.0 / length + 1;
    let ahead = (number + WINDOW_MODULUS).checked_sub(first % WINDOW_MODULUS)? % WINDOW_MODULUS;
    let is_live = number < WINDOW_MODULUS && first.saturating_add(ahead) <= last;
    is_live.then(|| WindowCharge { window: Micros((first + ahead) * length), count, span })
}

impl From<SendError> for ChargeReply {
    fn from(error: SendError) -> ChargeReply {
        match error.executed {
            ExecutionStatus::NotExecuted => ChargeReply::Undecided(None),
            ExecutionStatus::Unknown => ChargeReply::Unknown,
        }
    }
}

/// Replies to the plain charges of one call, in the order of the charges.
pub type ChargeReplies = SmallVec<[ChargeReply; 1]>;

/// Reply to the INCRBY of one counter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IncrbyReply {
    /// Value of the counter after the last of the charges that the command contains, or an error
    /// that includes whether the charges may have been made.
    pub(crate) value: Result<i64, SendError>,
    /// Whether the server replied that it currently cannot serve calls.
    pub(crate) is_node_unavailable: bool,
}

/// Converts an INCRBY reply into the counter's value. For an error reply, also returns the error's
/// classification. An error reply means that nothing was charged: a single command fails before it
/// writes.
pub(crate) fn decode_charge_reply(
    reply: &Value,
    node: &Address,
) -> (Result<i64, SendError>, Option<ErrorReply>) {
    match reply {
        Value::Int(value) => (Ok(*value), None),
        Value::ServerError(error) => {
            let reply = ErrorReply::classify(error, node);
            (Err(SendError::not_executed(error_kind(&reply))), Some(reply))
        }
        // INCRBY returns nothing else, so the outcome is unknown.
        _ => (Err(SendError::LOST), None),
    }
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
        CommandReply::Charged(_)
        | CommandReply::Value(_)
        | CommandReply::Decided(_)
        | CommandReply::Redirect(..) => SendError::LOST,
    };
    std::iter::repeat_n(ChargeReply::from(error), count).collect()
}

/// Plain charges of one call that were queued: a future that resolves to their replies, in the order
/// of the charges.
#[derive(Debug)]
pub struct PendingCharges {
    /// Charges of each node that has not replied.
    nodes: SmallVec<[NodeCharges; 1]>,
    replies: ChargeReplies,
}

/// Plain charges that were queued for one node.
#[derive(Debug)]
pub(crate) struct NodeCharges {
    pub(crate) reply: PendingReply,
    /// Index of each charge in the call.
    pub(crate) indices: SmallVec<[u16; 8]>,
}

impl NodeCharges {
    /// Creates the charges of a node that has all `count` charges of the call.
    pub(crate) fn all(reply: PendingReply, count: usize) -> NodeCharges {
        NodeCharges { reply, indices: (0..).take(count).collect() }
    }
}

impl PendingCharges {
    /// Creates the future for `count` charges.
    pub(crate) fn new(nodes: SmallVec<[NodeCharges; 1]>, count: usize) -> PendingCharges {
        // A charge without a reply is one with an unknown outcome.
        let replies = std::iter::repeat_n(ChargeReply::Unknown, count).collect();
        PendingCharges { nodes, replies }
    }

    /// Creates charges that a transport of a test has queued. `nodes` are the indices of the charges
    /// that each node has.
    #[doc(hidden)]
    pub fn queued(nodes: &[Vec<u16>], count: usize) -> (Vec<QueuedByTest>, PendingCharges) {
        let queue = |indices: &Vec<u16>| {
            let (sender, receiver) = reply_slot();
            let reply = PendingReply { receiver, tracker: None };
            let indices = indices.iter().copied().collect();
            (QueuedByTest(sender), NodeCharges { reply, indices })
        };
        let (queued, nodes): (Vec<_>, SmallVec<_>) = nodes.iter().map(queue).unzip();
        (queued, PendingCharges::new(nodes, count))
    }

    /// Creates a future that has resolved.
    pub fn ready(replies: ChargeReplies) -> PendingCharges {
        PendingCharges { nodes: SmallVec::new(), replies }
    }

    /// Returns whether a single node has the charges that wait for a reply, so that its connection
    /// refunds all of them if one does not pass.
    pub fn is_on_one_node(&self) -> bool {
        self.nodes.len() <= 1
    }

    /// Ends the caller's wait. Charges that are not written on a node yet are not made. Returns
    /// whether no charge has been made and none will be. If not, the future still resolves to the
    /// replies.
    pub fn leave(&mut self) -> bool {
        let PendingCharges { nodes, replies } = self;
        nodes.retain(|NodeCharges { reply, indices }| {
            let is_written = !reply.leave();
            for index in indices.iter().filter(|_| !is_written) {
                replies[usize::from(*index)] = ChargeReply::Undecided(None);
            }
            is_written
        });
        nodes.is_empty() && replies.iter().all(|reply| *reply == ChargeReply::Undecided(None))
    }

    /// Returns the replies that have arrived. A charge without one has an unknown outcome.
    pub fn replies_so_far(&self) -> ChargeReplies {
        self.replies.clone()
    }
}

impl Future for PendingCharges {
    type Output = ChargeReplies;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<ChargeReplies> {
        let PendingCharges { nodes, replies } = self.get_mut();
        nodes.retain(|node| {
            let Poll::Ready(reply) = Pin::new(&mut node.reply).poll(context) else { return true };
            let charged = into_charge_replies(reply, node.indices.len());
            for (index, reply) in node.indices.iter().zip(charged) {
                replies[usize::from(*index)] = reply;
            }
            false
        });
        if nodes.is_empty() { Poll::Ready(std::mem::take(replies)) } else { Poll::Pending }
    }
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
    slot: Option<u16>,
    window_length: Micros,
    /// Total cost of the charges so far, in hits.
    cost: u64,
}

/// Call whose plain charges were written. If dropped, its caller receives [`SendError::LOST`].
#[derive(Debug)]
struct ChargedCall {
    charges: SmallVec<[MergedCharge; 1]>,
    reply: Option<ReplyTo>,
}

/// Part of an INCRBY that charges one call.
#[derive(Clone, Copy, Debug)]
struct MergedCharge {
    /// Index of the counter in [`MergedCharges::counters`].
    counter: usize,
    /// Cost of this charge, in hits.
    cost: u32,
    /// Maximum number of hits in the counter's window.
    capacity: u32,
    /// Cost of this charge and of the earlier charges to the counter in the same write, in hits.
    cumulative_cost: u64,
}

/// Result of [`MergedCharges::complete`].
#[derive(Debug, Default)]
pub(crate) struct CompletedCharges {
    /// Number of calls for which the node was unavailable.
    pub(crate) unavailable_calls: u64,
    /// Refunds of calls whose charges did not all pass, for the connection to write next.
    pub(crate) refunds: Vec<PendingCommand>,
}

impl MergedCharges {
    /// Adds the charges of a call, with the sender of the replies to its caller.
    pub(crate) fn add(&mut self, charges: PlainCharges, reply: Option<ReplyTo>) {
        let charges = charges.into_iter().map(|charge| self.merge(charge)).collect();
        self.calls.push(ChargedCall { charges, reply });
    }

    fn merge(&mut self, charge: PlainCharge) -> MergedCharge {
        let PlainCharge { counter: identity, key, cost, capacity, window_length, slot } = charge;
        let call_cost = cost;
        let cost = u64::from(cost);
        // A linear search: a write has fewer than 100 counters, and often only one.
        let found = self.counters.iter().position(|counter| counter.identity == identity);
        let counter = found.unwrap_or(self.counters.len());
        match self.counters.get_mut(counter) {
            Some(counter) => counter.cost += cost,
            None => {
                self.wire_size += 2 * (key.len() + COMMAND_OVERHEAD);
                let counter = ChargedCounter { identity, key, slot, window_length, cost };
                self.counters.push(counter);
            }
        }
        let cumulative_cost = self.counters.get(counter).map_or(cost, |counter| counter.cost);
        MergedCharge { counter, cost: call_cost, capacity, cumulative_cost }
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
        for ChargedCounter { key, window_length, .. } in &self.counters {
            let mut command = new_command(4, key);
            // One window and a second, so that the key outlives any window that it may count.
            let expire_s = window_length.0.div_ceil(Micros::SECOND.0) + 1;
            command.arg("EXPIRE").arg(&**key).arg(expire_s).arg("NX");
            pipeline.add_command(command);
        }
    }

    /// Passes each caller the replies to its charges. `replies` are the replies to the INCRBY
    /// commands, in the order of [`write`](Self::write), and `span` bounds the server's time
    /// meanwhile. If a charge of a call did not pass, all charges of the call are refunded first.
    pub(crate) fn complete(
        self,
        replies: &[IncrbyReply],
        span: Option<ServerTimeSpan>,
    ) -> CompletedCharges {
        let MergedCharges { counters, calls, .. } = self;
        let mut completed = CompletedCharges::default();
        for ChargedCall { charges, reply } in calls {
            let mut is_node_unavailable = false;
            let mut each: ChargeReplies = charges
                .iter()
                .map(|charge| {
                    let at = charge.counter;
                    let Some((incrby, counter)) = replies.get(at).zip(counters.get(at)) else {
                        return ChargeReply::Unknown;
                    };
                    is_node_unavailable |= incrby.is_node_unavailable;
                    let later_cost = counter.cost - charge.cumulative_cost;
                    incrby.value.map_or_else(ChargeReply::from, |value| {
                        let value = value.saturating_sub_unsigned(later_cost);
                        judge_charge(value, charge.capacity, counter.window_length, span)
                    })
                })
                .collect();
            completed.unavailable_calls += u64::from(is_node_unavailable);
            let mut refunds = undo_unless_all_passed(&charges, &counters, &mut each);
            match (reply, refunds.pop()) {
                (Some(ReplyTo::Caller(caller)), Some(last)) => {
                    completed
                        .refunds
                        .extend(refunds.into_iter().map(PendingCommand::without_reply));
                    completed.refunds.push(PendingCommand::refund(last, caller, each));
                }
                (Some(reply), _) => reply.send(CommandReply::Charged(each)),
                (None, _) => {}
            }
        }
        completed
    }
}

/// If a charge of a call is undecided, marks all charges of the call that were made as undecided, and
/// returns the script calls that refund them, one per hash slot. Charges next to an unknown one
/// stand, as after any call that was not answered.
fn undo_unless_all_passed(
    charges: &[MergedCharge],
    counters: &[ChargedCounter],
    replies: &mut [ChargeReply],
) -> ScriptCalls {
    let is_undecided = |reply: &ChargeReply| matches!(reply, ChargeReply::Undecided(_));
    if !replies.iter().any(is_undecided) {
        return ScriptCalls::new();
    }
    let keeps_passed = replies.contains(&ChargeReply::Unknown);
    let mut refunds = SmallVec::<[WindowRefund<'_>; 4]>::new();
    for (charge, reply) in charges.iter().zip(replies) {
        match *reply {
            ChargeReply::Passed(made) if !keeps_passed => {
                *reply = ChargeReply::Undecided(Some(made))
            }
            ChargeReply::Passed(_) | ChargeReply::Undecided(_) | ChargeReply::Unknown => {}
        }
        if let (ChargeReply::Undecided(Some(made)), Some(counter)) =
            (*reply, counters.get(charge.counter))
        {
            refunds.push(WindowRefund {
                key: &counter.key,
                slot: counter.slot,
                hits: charge.cost,
                charged_at: made.span.latest,
                window: made.window,
                window_length: counter.window_length,
                capacity: charge.capacity,
            });
        }
    }
    refunds.sort_by_key(|refund| refund.slot);
    refunds.chunk_by(|one, next| one.slot == next.slot).map(encode_window_refunds).collect()
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
mod tests;
