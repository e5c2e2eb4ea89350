//! Script calls as requests to a transport, and their replies.

use redis::Value;
use tidegate::store::redis::client::send_error::SendError;
use tidegate::store::redis::client::transport::{CallReply, NodeRequests, PendingCall, Transport};
use tidegate::store::redis::script::call::NodeRequest;
use tidegate::store::redis::script::library::ScriptCall;

/// Sends script calls in one round trip, and waits for the value of each.
pub async fn send(
    transport: &impl Transport,
    calls: impl IntoIterator<Item = ScriptCall>,
) -> Vec<Result<Value, SendError>> {
    let requests: NodeRequests = calls.into_iter().map(NodeRequest::from).collect();
    let mut replies = Vec::new();
    for pending in transport.submit(requests) {
        replies.push(pending.await.map(value));
    }
    replies
}

pub fn value(reply: CallReply) -> Value {
    match reply {
        CallReply::Script(value) => value,
        other => panic!("{other:?}"),
    }
}

/// A request that has its reply.
pub fn ready(reply: Result<Value, SendError>) -> PendingCall {
    PendingCall::ready(reply.map(CallReply::Script))
}
