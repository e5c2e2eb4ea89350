//! Transport over one plain Redis connection, without what the service's connections do for speed
//! or safety.

use redis::Value;
use redis::aio::MultiplexedConnection;
use tidegate::domain::{ExecutionStatus, FailureKind};
use tidegate::store::redis::client::send_error::SendError;
use tidegate::store::redis::client::transport::{
    NodeRequests, PendingCall, PendingCalls, Transport,
};
use tidegate::store::redis::script::call::NodeRequest;
use tidegate::store::redis::script::library::ScriptCall;

/// Sends each item by itself and waits for its reply.
#[derive(Clone)]
pub struct Plain(pub MultiplexedConnection);

impl Plain {
    /// Runs an item; loads its script first where the server does not know it. Not executed means
    /// not charged, so that may happen as often as somebody flushes the scripts in between.
    pub async fn run(&self, item: &ScriptCall) -> redis::RedisResult<Value> {
        let mut connection = self.0.clone();
        loop {
            let reply = connection.send_packed_command(&item.command).await;
            match reply.and_then(Value::extract_error) {
                Err(error) if error.code() == Some("NOSCRIPT") => {
                    let mut load = redis::cmd("SCRIPT");
                    load.arg("LOAD").arg(&item.script.text);
                    let sha: String = load.query_async(&mut connection).await?;
                    assert_eq!(sha, item.script.sha, "the server hashes the script as we do");
                }
                other => return other,
            }
        }
    }
}

impl Transport for Plain {
    fn is_cluster(&self) -> bool {
        false
    }

    fn submit(&self, items: NodeRequests) -> PendingCalls {
        let run = |item: ScriptCall| {
            let this = self.clone();
            PendingCall::boxed(async move {
                this.run(&item).await.map_err(|error| {
                    println!("{}: {error}", item.script.name);
                    SendError { executed: ExecutionStatus::Unknown, kind: FailureKind::Script }
                })
            })
        };
        items.into_iter().map(NodeRequest::into_script_call).map(run).collect()
    }

    fn send_in_background(&self, item: ScriptCall) {
        let this = self.clone();
        tokio::spawn(async move { this.run(&item).await });
    }
}
