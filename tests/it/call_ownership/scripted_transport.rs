//! Transport over one Redis server that plays a standalone server or a cluster of three nodes, and
//! follows a script: when a command is written, when it runs, and when its reply arrives.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::{ConnectionLike, Value};
use tidegate::domain::{ExecutionStatus, FailureKind};
use tidegate::store::redis::client::send_error::SendError;
use tidegate::store::redis::client::transport::{
    NodeRequests, PendingCall, PendingCalls, QueuedByTest, Transport,
};
use tidegate::store::redis::script::call::NodeRequest;
use tidegate::store::redis::script::library::ScriptCall;

use crate::support::redis_server::Server;
use crate::support::requests;

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
    steps: Mutex<VecDeque<Step>>,
    losses: AtomicU64,
    /// Number of commands that ran although nobody hears their reply, because it was lost.
    lost_after_running: AtomicU64,
    /// Number of script calls of callers.
    submitted: AtomicU64,
}

impl Scripted {
    pub fn new(server: &Server, is_cluster: bool) -> Scripted {
        let connection = Mutex::new(server.client().get_connection().unwrap());
        Scripted(Arc::new(State {
            connection,
            is_cluster,
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

    /// Plays one step of the script for a command.
    fn play(&self, step: Step, queued: QueuedByTest, call: ScriptCall) {
        let this = self.clone();
        let not_executed = |kind| Err(SendError { executed: ExecutionStatus::NotExecuted, kind });
        tokio::spawn(async move {
            let pause = |millis| tokio::time::sleep(Duration::from_millis(millis));
            pause(step.written_after).await;
            if step.fate == Fate::Shed {
                return queued.reply(not_executed(FailureKind::Overload));
            }
            if !queued.mark_written() {
                return;
            }
            pause(step.runs_after).await;
            let reply = match step.fate {
                Fate::Answered => this.run(&call),
                Fate::NotExecuted => not_executed(FailureKind::ReadOnly),
                Fate::LostAfter => {
                    drop(this.run(&call));
                    this.0.lost_after_running.fetch_add(1, Ordering::SeqCst);
                    Err(SendError::LOST)
                }
                Fate::LostBefore | Fate::Shed => Err(SendError::LOST),
            };
            pause(step.answered_after).await;
            queued.reply(reply);
        });
    }
}

impl Transport for Scripted {
    fn is_cluster(&self) -> bool {
        self.0.is_cluster
    }

    fn submit(&self, calls: NodeRequests) -> PendingCalls {
        let queue = |call: ScriptCall| {
            let (queued, pending) = PendingCall::queued();
            self.0.submitted.fetch_add(1, Ordering::SeqCst);
            // A refund is never sent again, so a lost one leaves a counter too high, as documented.
            let step = if call.script.name == "refund" { Step::PROMPT } else { self.next_step() };
            self.play(step, queued, call);
            pending
        };
        calls.into_iter().map(NodeRequest::into_script_call).map(queue).collect()
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

    fn submit(&self, calls: NodeRequests) -> PendingCalls {
        let run = |call: NodeRequest| requests::ready(self.0.run(&call.into_script_call()));
        calls.into_iter().map(run).collect()
    }

    fn send_in_background(&self, call: ScriptCall) {
        self.0.run(&call).unwrap();
    }
}
