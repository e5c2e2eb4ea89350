//! Merges script calls of one write: several calls to `node_check` become one call to `node_calls`,
//! which decides them one after another. Before its first read, a script costs Redis as much as
//! two checks, and merged calls share this cost.
//!
//! Not here: when to write (`connection`), the arguments (`script::arguments`).

use redis::{Cmd, Pipeline, Value};

use super::pending_command::InFlight;
use crate::store::redis::script::arguments::{NodeCallArguments, encode_merged_call};
use crate::store::redis::script::library::Script;
use crate::store::redis::script::reply::NOT_HERE;

/// Maximum number of calls in a merged call. The more calls there are, the less each one saves.
const CALLS_MAX: usize = 16;

/// Maximum number of keys in a merged call. Redis decides so many in about 0.2 ms, and the calls
/// that wait behind them get their turn afterwards.
const KEYS_MAX: usize = 64;

/// Script call whose write is merged with others.
#[derive(Debug)]
pub(super) struct MergeableCall {
    pub(super) command: Cmd,
    pub(super) in_flight: InFlight,
}

/// Script calls that one call to `script` decides, or a single call that is sent as it is.
#[derive(Debug)]
pub(super) struct MergedCall {
    script: &'static Script,
    key_count: usize,
    pub(super) calls: Vec<MergeableCall>,
}

/// Script calls of a write that can be merged.
#[derive(Debug, Default)]
pub(super) struct CallMerger {
    merged: Vec<MergedCall>,
    pub(super) call_count: usize,
}

impl CallMerger {
    /// Adds a call that `script` can decide together with others.
    pub(super) fn add(&mut self, script: &'static Script, call: MergeableCall) {
        self.call_count += 1;
        let arguments = NodeCallArguments::of(&call.command);
        let last = self.merged.last_mut().filter(|last| last.has_room(script, &arguments));
        match last {
            Some(last) => {
                last.key_count += arguments.key_count;
                last.calls.push(call);
            }
            None => self.merged.push(MergedCall {
                script,
                key_count: arguments.key_count,
                calls: vec![call],
            }),
        }
    }

    /// Appends one command per merged call to a write. A call that is alone is written as it is
    /// and appended to `commands`.
    pub(super) fn write(
        self,
        pipeline: &mut Pipeline,
        commands: &mut Vec<InFlight>,
    ) -> Vec<MergedCall> {
        let is_alone = |merged: &MergedCall| merged.calls.len() == 1;
        let (alone, merged): (Vec<_>, Vec<_>) = self.merged.into_iter().partition(is_alone);
        for MergeableCall { command, in_flight } in alone.into_iter().flat_map(|one| one.calls) {
            pipeline.add_command(command);
            commands.push(in_flight);
        }
        for MergedCall { script, calls, .. } in &merged {
            let arguments: Vec<NodeCallArguments<'_>> =
                calls.iter().map(|call| NodeCallArguments::of(&call.command)).collect();
            pipeline.add_command(encode_merged_call(script, &arguments));
        }
        merged
    }
}

impl MergedCall {
    fn has_room(&self, script: &Script, arguments: &NodeCallArguments<'_>) -> bool {
        let first = self.calls.first().map(|call| NodeCallArguments::of(&call.command));
        std::ptr::eq(self.script, script)
            && self.calls.len() < CALLS_MAX
            && self.key_count + arguments.key_count <= KEYS_MAX
            && first.is_some_and(|first| first.now == arguments.now)
    }

    /// Splits the reply to a merged call into one reply per call. An error applies to each call. A
    /// reply that cannot be split becomes nil, which no script replies.
    pub(super) fn split_reply(reply: Value, count: usize) -> Vec<Value> {
        match reply {
            Value::Array(replies) if replies.len() == count => replies,
            Value::BulkString(text) if text == NOT_HERE => {
                vec![Value::BulkString(text); count]
            }
            Value::ServerError(error) => vec![Value::ServerError(error); count],
            _unreadable => vec![Value::Nil; count],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_call_gets_its_own_reply_or_learns_that_the_keys_are_elsewhere() {
        let replies = vec![Value::Int(1), Value::Int(2)];
        assert_eq!(MergedCall::split_reply(Value::Array(replies.clone()), 2), replies);
        let not_here = Value::BulkString(NOT_HERE.to_vec());
        assert_eq!(MergedCall::split_reply(not_here.clone(), 2), [not_here.clone(), not_here]);
        let error = redis::parse_redis_value(b"-NOSCRIPT No matching script.\r\n").unwrap();
        assert_eq!(MergedCall::split_reply(error.clone(), 2), [error.clone(), error]);
        for unreadable in [Value::Array(replies), Value::Int(7), Value::Nil] {
            assert_eq!(
                MergedCall::split_reply(unreadable, 3),
                [Value::Nil, Value::Nil, Value::Nil]
            );
        }
    }
}
