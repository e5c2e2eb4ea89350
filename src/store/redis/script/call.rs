//! Calls as requests to a node: a script call of one call alone, or a call that can share a script call.
//! Encodes a call as a script call of its own, and decodes the reply.
//!
//! `decide.lua` decides what it can, and `decide_call.lua` everything else. Not here: the calls of one write
//! (`write_calls`), the replies to `decide.lua` (`replay`).

use std::sync::Arc;
use std::time::Instant;

use redis::{Cmd, Value};
use smallvec::SmallVec;

use super::arguments::{CallScope, Encoder};
use super::library::{Script, ScriptCall};
use super::replay;
use super::reply::{NO_WINDOW_REPLY, ReplyError, ScriptReply, decode_apply};
use super::write_calls::{WriteCalls, is_shareable};
use crate::domain::{Accounting, Call, Check, Micros, OwnedCall};

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

/// Limit of 2^31 hits a second, as [`encode`] encodes it. A test compares both.
const PROBE_LIMIT: &[u8] = &[
    0xce, 0x80, 0, 0, 0, 1, 0xc0, 0xcf, 0, 0, 0, 2, 0x54, 0x0b, 0xe3, 0xff, 0xc0, 0xc0, 12, 0xa1,
    b'w', 0xce, 0x80, 0, 0, 0, 0xce, 0, 0x0f, 0x42, 0x40, 0xc0,
];
/// Call that takes one hit of the limit, likewise.
const PROBE_CALL: &[u8] = &[1, 1, 1, 1];

/// Encodes a take of one hit from the counter `key` by `script`, which must be `decide.lua`. The limit
/// is never reached, and the counter expires at the end of its second.
pub(crate) fn encode_probe(script: &Script, key: &str) -> Cmd {
    let mut command = redis::cmd("EVALSHA");
    command.arg(&script.sha).arg(1).arg(key).arg("").arg(PROBE_LIMIT).arg(PROBE_CALL);
    command
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

/// Request to a node: a call, or the part of a call whose counters the node holds. Boxed, so that
/// the entries of a connection's queue stay small.
#[derive(Debug)]
pub enum NodeRequest {
    /// Script call of its own.
    Script(Box<ScriptCall>),
    /// Call that shares a script call with others of its write.
    Shared(Box<SharedCall>),
}

impl NodeRequest {
    /// Returns the hash slot by which a cluster chooses the node.
    pub(crate) fn slot(&self) -> Option<u16> {
        match self {
            NodeRequest::Script(call) => call.slot,
            NodeRequest::Shared(shared) => shared.slot,
        }
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        match self {
            NodeRequest::Script(call) => call.deadline,
            NodeRequest::Shared(shared) => shared.call.deadline(),
        }
    }

    /// Returns the script call that the request is if it shares none.
    pub fn into_script_call(self) -> ScriptCall {
        match self {
            NodeRequest::Script(call) => *call,
            NodeRequest::Shared(shared) => {
                shared.with_call(|call| encode(&shared.encoder, call, shared.scope, shared.now))
            }
        }
    }
}

impl From<ScriptCall> for NodeRequest {
    fn from(call: ScriptCall) -> NodeRequest {
        NodeRequest::Script(Box::new(call))
    }
}

/// Call, or the part of a call whose counters are on one cluster node, that can share a script call
/// with other calls of its write.
#[derive(Debug)]
pub struct SharedCall {
    call: OwnedCall,
    pub(crate) encoder: Arc<Encoder>,
    /// Time that the script uses instead of the server's clock; only in tests.
    pub(crate) now: Option<Micros>,
    pub(crate) scope: CallScope,
    /// Hash slot of the first counter; `None` if Redis is not a cluster.
    slot: Option<u16>,
}

impl SharedCall {
    /// Copies a call. `None` if it needs a script call of its own.
    pub(crate) fn new(
        call: &Call<'_>,
        encoder: &Arc<Encoder>,
        now: Option<Micros>,
        scope: CallScope,
    ) -> Option<SharedCall> {
        let slot = encoder.slot_of(call.checks);
        let encoder = Arc::clone(encoder);
        is_shareable(call.checks).then(|| SharedCall {
            call: OwnedCall::new(call),
            encoder,
            now,
            scope,
            slot,
        })
    }

    /// Passes the call to a function. Does not allocate for a call of at most ten checks.
    pub(crate) fn with_call<R>(&self, then: impl FnOnce(&Call<'_>) -> R) -> R {
        let checks: SmallVec<[Check<'_>; 10]> = self.call.each_check().collect();
        then(&self.call.to_call(&checks))
    }
}

#[cfg(test)]
mod tests {
    use redis::Arg;

    use super::*;
    use crate::domain::Micros;
    use crate::domain::fixtures::{fixed_window, take};
    use crate::store::redis::script::keys::Prefix;
    use crate::store::redis::script::library::PRODUCTION;

    #[test]
    fn the_probe_is_encoded_like_any_take() {
        let encoder = Encoder::new(Prefix::default(), &PRODUCTION, false);
        let limit = Arc::new(fixed_window(1 << 31, Micros::SECOND));
        let (checks, accounting) = ([take(0, 1, &limit)], Accounting::AllOrNothing);
        let call = Call { checks: &checks, accounting, now: Micros::ZERO, deadline: None };
        let expected = encode(&encoder, &call, CallScope::default(), None).command;
        let arguments = |command: &Cmd| -> Vec<Vec<u8>> {
            let simple = |argument| match argument {
                Arg::Simple(bytes) => Some(<[u8]>::to_vec(bytes)),
                _ => None,
            };
            command.args_iter().filter_map(simple).collect()
        };
        let mut expected = arguments(&expected);
        expected[3] = b"tg1probe".to_vec();
        assert_eq!(arguments(&encode_probe(&PRODUCTION.decide, "tg1probe")), expected);
    }
}
