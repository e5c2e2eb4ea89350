//! A Redis server and the scripts, without the store: encodes a call, runs it, decodes the reply.

use redis::Value;
use tidegate::domain::{Accounting, Call, Check, Micros, Outcome};
use tidegate::store::redis::script::arguments::{CallScope, Encoder};
use tidegate::store::redis::script::call;
use tidegate::store::redis::script::keys::Prefix;
use tidegate::store::redis::script::library::{ScriptCall, Scripts};
use tidegate::store::redis::script::replay::{CallResult, Replay};
use tidegate::store::redis::script::write_calls::WriteCalls;

use super::limits::{self, START};
use super::plain_transport::Plain;
use super::redis_server::Server;

/// Encodes a whole call whose counters are in one slot.
pub fn encode_call(
    encoder: &Encoder,
    checks: &[Check<'_>],
    accounting: Accounting,
    now: Option<Micros>,
    local_now: Micros,
) -> ScriptCall {
    let call = Call { checks, accounting, now: local_now, deadline: None };
    call::encode(encoder, &call, CallScope::default(), now)
}

/// A Redis server of its own, and calls to it.
pub struct Bench {
    server: Server,
    pub plain: Plain,
    pub encoder: Encoder,
}

impl Bench {
    /// Scripts as production runs them, or strictly.
    pub async fn new(scripts: &'static Scripts, arguments: &[&str]) -> Bench {
        Bench::on(Server::start(arguments), scripts).await
    }

    /// Calls to a server that is there.
    pub async fn on(server: Server, scripts: &'static Scripts) -> Bench {
        let plain = Plain(server.connect().await);
        Bench { server, plain, encoder: Encoder::new(Prefix::default(), scripts, false) }
    }

    pub fn port(&self) -> u16 {
        self.server.port
    }

    pub async fn decide(
        &self,
        checks: &[Check<'_>],
        accounting: Accounting,
        now: Option<Micros>,
    ) -> Vec<Outcome> {
        let item = encode_call(&self.encoder, checks, accounting, now, now.unwrap_or(START));
        let reply = self.plain.run(&item).await.unwrap_or_else(|e| panic!("{checks:?}: {e}"));
        call::decode(&reply, checks, accounting, false)
            .unwrap_or_else(|e| panic!("{checks:?}: {e:?}: {reply:?}"))
            .outcomes
    }

    /// All-or-nothing calls that share a script call.
    pub async fn shared(&self, calls: &[&[Check<'_>]], now: Option<Micros>) -> Vec<Vec<Outcome>> {
        let call = |checks| limits::call(checks, now.unwrap_or(START));
        let mut write = WriteCalls::default();
        for checks in calls {
            assert!(write.fits(&call(checks), now));
            write.add(&self.encoder, &call(checks), now);
        }
        let reply = self.plain.run(&write.encode(&self.encoder, false)).await.unwrap();
        let Value::BulkString(reply) = reply else { panic!("{reply:?}") };
        let mut replay = Replay::new(write.limits(), &reply).unwrap();
        for (nth, checks) in calls.iter().enumerate() {
            replay.next(&call(checks), write.places(nth), false).unwrap();
        }
        let results = replay.finish().unwrap();
        assert_eq!(results.error_code, None);
        let outcomes = results.each.into_iter().map(|result| match result {
            CallResult::Decided(reply) => {
                assert!(!reply.disagrees);
                reply.outcomes
            }
            other => panic!("{other:?}"),
        });
        outcomes.collect()
    }

    /// One check, all or nothing.
    pub async fn one(&self, check: Check<'_>, now: Option<Micros>) -> Outcome {
        self.decide(&[check], Accounting::AllOrNothing, now).await[0]
    }

    /// The text of a check's key.
    pub fn text(&self, check: &Check<'_>) -> Vec<u8> {
        Prefix::default().key(&check.key, &check.limit.algorithm).to_vec()
    }

    pub async fn command<T: redis::FromRedisValue>(&self, words: &[&[u8]]) -> T {
        let mut command = redis::Cmd::new();
        for word in words {
            command.arg(*word);
        }
        command.query_async(&mut self.plain.0.clone()).await.unwrap()
    }
}
