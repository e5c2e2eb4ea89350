//! Transport over one Redis server that plays a standalone server or a cluster of three nodes, and
//! follows a script: when a command is written, when it runs, and when its reply arrives.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::{ConnectionLike, Value};
use tidegate::domain::ExecutionStatus;
use tidegate::domain::Micros;
use tidegate::store::redis::client::plain_charge::{
    ChargeReplies, ChargeReply, PendingCharges, PlainCharge, PlainCharges,
};
use tidegate::store::redis::client::server_time::ServerTimeSpan;
use tidegate::store::redis::client::transport::{
    PendingScript, PendingScripts, QueuedByTest, ScriptCall, ScriptCalls, SendError, SendErrorKind,
    Transport,
};

use crate::support::redis_server::Server;

/// What becomes of one command, in milliseconds of the paused clock.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    pub written_after: u64,
    pub runs_after: u64,
    pub answered_after: u64,
    pub fate: Fate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The server runs the command, and its reply arrives.
    Answered,
    /// The command is lost before the server runs it; nobody knows.
    LostBefore,
    /// The server runs the command, and its reply is lost.
    LostAfter,
    /// The server says that it has not run the command.
    NotExecuted,
    /// The command is not sent, because its answer would come too late.
    Shed,
}

impl Step {
    /// Everything happens at once.
    pub const PROMPT: Step =
        Step { written_after: 0, runs_after: 0, answered_after: 0, fate: Fate::Answered };
}

#[derive(Clone)]
pub struct Scripted(Arc<State>);

struct State {
    connection: Mutex<redis::Connection>,
    is_cluster: bool,
    has_plain_commands: bool,
    steps: Mutex<VecDeque<Step>>,
    losses: AtomicU64,
    /// Number of commands that ran although nobody hears their reply, because it was lost.
    lost_after_running: AtomicU64,
    /// Number of script calls of callers.
    submitted: AtomicU64,
}

impl Scripted {
    pub fn new(server: &Server, is_cluster: bool, has_plain_commands: bool) -> Scripted {
        let connection = Mutex::new(server.client().get_connection().unwrap());
        Scripted(Arc::new(State {
            connection,
            is_cluster,
            has_plain_commands,
            steps: Mutex::default(),
            losses: AtomicU64::new(0),
            lost_after_running: AtomicU64::new(0),
            submitted: AtomicU64::new(0),
        }))
    }

    /// The same server, without a script: every command is answered before the caller waits.
    pub fn prompt(&self) -> Prompt {
        Prompt(self.clone())
    }

    /// Sets what becomes of the next commands. After them, everything is prompt.
    pub fn follow(&self, steps: &[Step]) {
        *self.0.steps.lock().unwrap() = steps.iter().copied().collect();
    }

    /// Says that a server may have lost counters.
    pub fn lose(&self) {
        self.0.losses.fetch_add(1, Ordering::SeqCst);
    }

    pub fn submitted(&self) -> u64 {
        self.0.submitted.load(Ordering::SeqCst)
    }

    pub fn lost_after_running(&self) -> u64 {
        self.0.lost_after_running.load(Ordering::SeqCst)
    }

    fn next_step(&self) -> Step {
        self.0.steps.lock().unwrap().pop_front().unwrap_or(Step::PROMPT)
    }

    fn run(&self, call: &ScriptCall) -> Result<Value, SendError> {
        let mut connection = self.0.connection.lock().unwrap();
        loop {
            match connection.req_command(&call.command).and_then(Value::extract_error) {
                Ok(value) => return Ok(value),
                Err(error) if error.code() == Some("NOSCRIPT") => {
                    let mut load = redis::cmd("SCRIPT");
                    load.arg("LOAD").arg(&call.script.text).exec(&mut *connection).unwrap();
                }
                Err(error) => panic!("{}: {error}", call.script.name),
            }
        }
    }

    /// Charges like the service's connections, which refund a call's charges if one does not pass.
    fn charge_now(&self, charges: &[PlainCharge]) -> ChargeReplies {
        let mut connection = self.0.connection.lock().unwrap();
        let (seconds, micros): (u64, u64) = redis::cmd("TIME").query(&mut *connection).unwrap();
        let now = Micros(seconds * 1_000_000 + micros);
        let late = Micros(now.0 + 1_000);
        let span = Some(ServerTimeSpan { earliest: now, latest: late, is_certain: true });
        let mut incrby = |charge: &PlainCharge, hits: i64| -> i64 {
            redis::cmd("INCRBY").arg(&*charge.key).arg(hits).query(&mut *connection).unwrap()
        };
        let replies: ChargeReplies = charges
            .iter()
            .map(|charge| charge.judge(incrby(charge, i64::from(charge.cost)), span))
            .collect();
        if replies.iter().all(|reply| matches!(reply, ChargeReply::Passed(_))) {
            return replies;
        }
        for charge in charges {
            incrby(charge, -i64::from(charge.cost));
        }
        replies
            .into_iter()
            .map(|reply| match reply {
                ChargeReply::Passed(charge) => ChargeReply::Undecided(Some(charge)),
                other => other,
            })
            .collect()
    }

    /// Plays one step of the script for a command.
    fn play<R: Send + 'static>(
        &self,
        step: Step,
        queued: QueuedByTest,
        run: impl FnOnce(&Scripted) -> R + Send + 'static,
        answer: impl FnOnce(QueuedByTest, Result<R, SendError>) + Send + 'static,
    ) {
        let this = self.clone();
        let not_executed = |kind| Err(SendError { executed: ExecutionStatus::NotExecuted, kind });
        tokio::spawn(async move {
            let pause = |millis| tokio::time::sleep(Duration::from_millis(millis));
            pause(step.written_after).await;
            if step.fate == Fate::Shed {
                return answer(queued, not_executed(SendErrorKind::Overload));
            }
            if !queued.mark_written() {
                return;
            }
            pause(step.runs_after).await;
            let reply = match step.fate {
                Fate::Answered => Ok(run(&this)),
                Fate::NotExecuted => not_executed(SendErrorKind::LoadingOrReplica),
                Fate::LostAfter => {
                    drop(run(&this));
                    this.0.lost_after_running.fetch_add(1, Ordering::SeqCst);
                    Err(SendError::LOST)
                }
                Fate::LostBefore | Fate::Shed => Err(SendError::LOST),
            };
            pause(step.answered_after).await;
            answer(queued, reply);
        });
    }
}

impl Transport for Scripted {
    fn is_cluster(&self) -> bool {
        self.0.is_cluster
    }

    fn submit(&self, calls: ScriptCalls) -> PendingScripts {
        let queue = |call: ScriptCall| {
            let (queued, pending) = PendingScript::queued();
            let answer = |queued: QueuedByTest, reply: Result<_, _>| {
                queued.reply(reply.and_then(|reply| reply))
            };
            self.0.submitted.fetch_add(1, Ordering::SeqCst);
            // A refund is never sent again, so a lost one leaves a counter too high, as documented.
            let step = if call.script.name == "refund" { Step::PROMPT } else { self.next_step() };
            self.play(step, queued, move |this| this.run(&call), answer);
            pending
        };
        calls.into_iter().map(queue).collect()
    }

    fn can_charge(&self) -> bool {
        self.0.has_plain_commands
    }

    fn charge(
        &self,
        charges: PlainCharges,
        _: Option<std::time::Instant>,
    ) -> Option<PendingCharges> {
        let node_of = |charge: &PlainCharge| usize::from(charge.slot.unwrap_or(0) % 3);
        let of_node = |node: usize| -> Vec<u16> {
            (0..)
                .zip(&charges)
                .filter(|(_, charge)| node_of(charge) == node)
                .map(|(at, _)| at)
                .collect()
        };
        let nodes: Vec<Vec<u16>> = (0..3).map(of_node).filter(|node| !node.is_empty()).collect();
        let (queued, pending) = PendingCharges::queued(&nodes, charges.len());
        for (queued, indices) in queued.into_iter().zip(nodes) {
            let charges: Vec<PlainCharge> =
                indices.iter().map(|at| charges[usize::from(*at)].clone()).collect();
            let answer = |queued: QueuedByTest, reply: Result<ChargeReplies, SendError>| match reply
            {
                Ok(replies) => queued.charged(replies),
                Err(error) => queued.reply(Err(error)),
            };
            self.play(self.next_step(), queued, move |this| this.charge_now(&charges), answer);
        }
        Some(pending)
    }

    fn send_in_background(&self, call: ScriptCall) {
        let this = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(3)).await;
            this.run(&call).unwrap();
        });
    }

    fn counter_losses(&self) -> u64 {
        self.0.losses.load(Ordering::SeqCst)
    }
}

/// Transport that runs every command before its caller waits.
pub struct Prompt(Scripted);

impl Transport for Prompt {
    fn is_cluster(&self) -> bool {
        false
    }

    fn submit(&self, calls: ScriptCalls) -> PendingScripts {
        calls.iter().map(|call| PendingScript::ready(self.0.run(call))).collect()
    }

    fn send_in_background(&self, call: ScriptCall) {
        self.0.run(&call).unwrap();
    }
}
