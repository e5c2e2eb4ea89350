//! Probes a node while its circuit breaker is open: sends one PING every 100 ms over the open
//! connection, with or without traffic.
//!
//! A script call precedes each PING, because a node whose writes are paused (CLIENT PAUSE WRITE)
//! still replies to a PING. The script does not exist, so the call has no effect.
//!
//! A node that was frozen replies over the open connection as soon as it resumes. If probing takes
//! longer than the reply timeout, a new connection is opened, in case the open one is dead. Not
//! here: opening the breaker (`circuit_breaker`), sending commands (`connection`).

use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::{BoxFuture, OptionFuture};
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{Pipeline, RedisResult, Value};

use super::backoff::Backoff;
use super::circuit_breaker::{PROBE_INTERVAL, PROBE_TIMEOUT};
use super::config::Address;
use super::connection_state::{CloseReason, Connection};
use super::error_reply::ErrorReply;
use crate::domain::FailureKind;

/// Result of probing a node with PINGs.
pub(super) enum ProbeResult {
    /// The node replied to a PING in time.
    Replied,
    /// Probing took longer than the reply timeout, so this new connection was opened.
    Replaced(MultiplexedConnection),
    /// The connection broke, or the client no longer uses the node.
    Closed(CloseReason),
}

/// SHA-1 hash of a script that does not exist.
const ABSENT_SCRIPT: &str = "0000000000000000000000000000000000000000";

impl Connection {
    /// Sends PINGs until a reply to a PING arrives in time, the connection breaks or is replaced,
    /// or the client no longer uses the node. Rejects commands that are queued in the meantime.
    /// `first_ping` is the delay before the first PING.
    ///
    /// Replies are matched to commands by their order. After a lost reply, a PING completes only
    /// when the next PING is sent, [`PROBE_INTERVAL`] later, which exceeds [`PROBE_TIMEOUT`]. A
    /// connection that has lost a reply therefore never passes the probe.
    pub(super) async fn probe(
        &mut self,
        connection: &MultiplexedConnection,
        first_ping: Duration,
        backoff: &mut Backoff,
    ) -> ProbeResult {
        let Connection { node, status, dialer, queue, .. } = self;
        let now = || node.now().unwrap_or_default();
        let next_ping = tokio::time::sleep(first_ping);
        tokio::pin!(next_ping);
        // Resolves to the replies to a script call and to the PING that follows it.
        let mut ping: Option<BoxFuture<'_, RedisResult<Vec<Value>>>> = None;
        let mut sent = now();
        let redial = async {
            tokio::time::sleep(node.context.config.reply_timeout).await;
            dialer.dial(backoff).await
        };
        tokio::pin!(redial);
        let result = loop {
            tokio::select! {
                biased;
                Some(reply) = OptionFuture::from(ping.as_mut()) => {
                    ping = None;
                    let is_in_time = now().saturating_sub(sent) <= PROBE_TIMEOUT;
                    match reply {
                        Ok(replies) if means_unavailable_node(&replies, &node.address) => {}
                        // A node whose ACL does not permit PING still replies.
                        Ok(_) if is_in_time => break ProbeResult::Replied,
                        Ok(_) => {}
                        Err(error) if error.is_timeout() => {}
                        Err(_) => break ProbeResult::Closed(CloseReason::Lost),
                    }
                }
                () = &mut next_ping => {
                    next_ping.set(tokio::time::sleep(PROBE_INTERVAL));
                    sent = now();
                    ping = Some(Box::pin(send_ping(connection.clone())));
                }
                () = status.signal.notified() => {
                    if status.is_broken.load(Ordering::Acquire) {
                        break ProbeResult::Closed(CloseReason::Lost);
                    }
                }
                connection = &mut redial => break ProbeResult::Replaced(connection),
                batch = queue.recv() => {
                    let Some(batch) = batch else {
                        break ProbeResult::Closed(CloseReason::NodeClosed);
                    };
                    status.load.remove(batch.len());
                    node.stats.breaker_rejected.add(batch.len() as u64);
                    for command in batch {
                        command.reject(FailureKind::BreakerOpen);
                    }
                }
            }
        };
        if matches!(result, ProbeResult::Replied) {
            node.close();
        }
        result
    }
}

async fn send_ping(mut connection: MultiplexedConnection) -> RedisResult<Vec<Value>> {
    let mut commands = Pipeline::with_capacity(2);
    commands.cmd("EVALSHA").arg(ABSENT_SCRIPT).arg(0).cmd("PING");
    connection.req_packed_commands(&commands, 0, 2).await
}

fn means_unavailable_node(replies: &[Value], node: &Address) -> bool {
    replies.iter().any(|reply| match reply {
        Value::ServerError(error) => ErrorReply::classify(error, node).means_unavailable_node(),
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_answers_but_cannot_serve_does_not_pass_the_probe() {
        let node = Address::Tcp("10.0.0.1".to_owned(), 6379);
        let is_unavailable = |line: &str| {
            let error = redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap();
            means_unavailable_node(&[error, Value::SimpleString("PONG".to_owned())], &node)
        };
        for line in ["LOADING data", "BUSY running a script", "READONLY replica", "CLUSTERDOWN"] {
            assert!(is_unavailable(line), "{line}");
        }
        for line in ["NOSCRIPT No matching script.", "NOPERM no permissions"] {
            assert!(!is_unavailable(line), "{line}");
        }
    }
}
