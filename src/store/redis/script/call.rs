//! Encodes a call as a script call of its own, and decodes the reply.
//!
//! `decide.lua` decides what it can, and `apply.lua` everything else. Not here: the calls of one write
//! (`write_calls`), the replies to `decide.lua` (`replay`).

use redis::Value;

use super::arguments::{CallScope, Encoder};
use super::replay;
use super::reply::{NO_WINDOW_REPLY, ReplyError, ScriptReply, decode_apply};
use super::write_calls::{WriteCalls, is_shareable};
use crate::domain::{Accounting, Call, Check, Micros};
use crate::store::redis::client::transport::ScriptCall;

/// Encodes the script call that decides a call, or the part of a call that `scope` describes, with its
/// deadline. Without [`CallScope::spans_slots`], all keys must be in one hash slot of a cluster; with it,
/// the node replies [`NOT_HERE`](super::reply::NOT_HERE) if it does not hold all of them.
///
/// `now` is `None` in production, where the scripts read the server's clock. The time of the call selects
/// the calendar windows to send.
pub fn encode(
    encoder: &Encoder,
    call: &Call<'_>,
    scope: CallScope,
    now: Option<Micros>,
) -> ScriptCall {
    if !is_shareable(call.checks) {
        return encoder.encode_apply(call, scope, now);
    }
    let mut write = WriteCalls::default();
    write.add(encoder, call, now);
    let (slot, deadline) = (encoder.slot_of(call.checks), call.deadline);
    ScriptCall { slot, deadline, ..write.encode(encoder, scope.spans_slots) }
}

/// Decodes the reply to a call that [`encode`] encoded. `is_part` is true if the other checks of an
/// all-or-nothing call are decided elsewhere.
///
/// # Errors
///
/// Returns a [`ReplyError`] if no script can send this reply for these checks.
pub fn decode(
    reply: &Value,
    checks: &[Check<'_>],
    accounting: Accounting,
    is_part: bool,
) -> Result<ScriptReply, ReplyError> {
    match reply {
        Value::ServerError(_) => Err(ReplyError::Error),
        Value::BulkString(reply) if is_shareable(checks) => {
            replay::decode_alone(reply, checks, accounting, is_part)
        }
        Value::Array(numbers) if *numbers == NO_WINDOW_REPLY => Err(ReplyError::NoWindow),
        Value::Array(numbers) => decode_apply(numbers, checks, is_part),
        _ => Err(ReplyError::Shape),
    }
}
