//! Tests of one connection without a server: the writes that it builds, and the replies that it
//! passes to its callers.

use std::io;
use std::sync::atomic::AtomicU64;

use redis::{Arg, Cmd};
use tokio::sync::mpsc;

use super::*;
use crate::store::redis::client::config::{Address, MonotonicClock};
use crate::store::redis::client::connection_load::LoadMeter;
use crate::store::redis::client::error_reply::Redirect;
use crate::store::redis::client::node_state::NodeState;
use crate::store::redis::client::reply_slot::{CommandReply, ReplyReceiver};
use crate::store::redis::client::send_error::SendError;
use crate::store::redis::script::library::{Script, ScriptCall};

static SCRIPT: Script = Script { name: "count", text: String::new(), sha: String::new() };
static REFUND: Script = Script { name: "refund", text: String::new(), sha: String::new() };
/// Connection whose commands and replies the test passes by hand.
struct Bench {
    connection: Connection,
    outstanding: OutstandingCommands,
    /// Time of the circuit breaker's clock, in microseconds.
    time: Arc<AtomicU64>,
}

impl Bench {
    fn new() -> Bench {
        let (clock, time, _) = MonotonicClock::manual();
        let node = NodeState::for_test(clock);
        let (_, queue) = mpsc::channel(1);
        let connection = Connection::new(&node, &node.connections[0], queue);
        Bench { connection, outstanding: OutstandingCommands::default(), time }
    }

    fn set_time(&self, micros: u64) {
        self.time.store(micros, Ordering::Relaxed);
    }

    /// Adds a command to those that the next write contains.
    fn add(&mut self, command: PendingCommand) {
        self.connection.status.load.add(1);
        self.outstanding.pending.push_back(command);
    }

    fn add_call(&mut self, key: &str) -> ReplyReceiver {
        let (command, reply) = PendingCommand::new(call(&SCRIPT, key).into(), false);
        self.add(command);
        reply
    }

    fn write(&mut self) -> InFlightBatch {
        let batch = self.connection.write_batch(&mut self.outstanding.pending);
        let batch = batch.expect("a command can be written");
        self.outstanding.record_write(&batch);
        batch
    }

    fn reply(
        &mut self,
        batch: InFlightBatch,
        replies: impl Into<Vec<Value>>,
    ) -> Result<(), CloseReason> {
        self.connection.complete(batch, Ok(replies.into()), &mut self.outstanding)
    }

    fn abandon(&mut self, reason: CloseReason) {
        let outstanding = std::mem::take(&mut self.outstanding);
        self.connection.abandon(outstanding, reason);
    }

    /// Returns the number of commands that count as load.
    fn load(&self) -> u64 {
        let (load, mut meter) = (&self.connection.status.load, LoadMeter::default());
        // Two commands take 1 ms, so each outstanding one needs 1 ms of the time left.
        meter.record(load, Micros(10_000), Micros(10_000), 1);
        meter.record(load, Micros(9_000), Micros(11_000), 1);
        let now = Micros(11_000);
        let fits = |commands: &u64| load.can_reply_by(now, Micros(now.0 + commands * 1_000));
        (0..1_000).find(fits).expect("no more than a thousand")
    }

    fn is_breaker_open(&self) -> bool {
        self.connection.node.is_open()
    }

    /// Returns whether a refresh of the topology was requested since the last call.
    fn is_refresh_needed(&self) -> bool {
        self.connection.node.refresh_needed.notified().now_or_never().is_some()
    }
}

fn call(script: &'static Script, key: &str) -> ScriptCall {
    let mut command = redis::cmd("EVALSHA");
    command.arg(&script.sha).arg(1).arg(key);
    ScriptCall { script, command, slot: Some(7), deadline: None }
}

/// Returns the names of the commands in a write.
fn names(batch: &InFlightBatch) -> Vec<String> {
    let name = |command: &Cmd| match command.args_iter().next() {
        Some(Arg::Simple(name)) => String::from_utf8_lossy(name).into_owned(),
        other => panic!("{other:?}"),
    };
    batch.pipeline.cmd_iter().map(name).collect()
}

/// Returns the last command of a write, as sent to the server.
fn last_command(batch: &InFlightBatch) -> Vec<u8> {
    batch.pipeline.cmd_iter().last().unwrap().get_packed_command()
}

fn error(line: &str) -> Value {
    redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap()
}

fn value(reply: ReplyReceiver) -> Value {
    match reply.take() {
        Some(CommandReply::Final(Ok(CallReply::Script(value)))) => value,
        other => panic!("{other:?}"),
    }
}

fn failure(reply: ReplyReceiver) -> SendError {
    match reply.take() {
        Some(CommandReply::Final(Err(error))) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_write_holds_at_most_128_commands_and_ends_at_16_kib() {
    let mut bench = Bench::new();
    let replies: Vec<_> = (0..130).map(|_| bench.add_call("key")).collect();
    assert_eq!(bench.write().commands.len(), 128);
    assert_eq!(bench.write().commands.len(), 2);
    let stats = &bench.connection.node.stats;
    assert_eq!((stats.writes.get(), stats.calls.get()), (2, 130));
    assert_eq!(stats.write_sizes.snapshot().sum, 130);
    drop(replies);

    let mut bench = Bench::new();
    // A command counts as 40 bytes more than its key.
    let sizes = [8_192, 8_191, 100, 8_192, 8_192, 100];
    let replies = sizes.map(|bytes| bench.add_call(&"k".repeat(bytes - 40)));
    let writes = [(); 3].map(|()| bench.write().commands.len());
    assert_eq!(writes, [3, 2, 1]);
    drop(replies);
}

#[test]
fn a_call_that_nobody_waits_for_or_that_cannot_be_answered_in_time_is_not_written() {
    let mut bench = Bench::new();
    let Connection { meter, status, .. } = &mut bench.connection;
    // The smallest round trip takes 2 ms.
    meter.record(&status.load, Micros(8_000), Micros(10_000), 1);
    bench.set_time(10_000);
    let mut add = |script: &'static Script, deadline: u64| {
        let (mut command, reply) = PendingCommand::new(call(script, "key").into(), false);
        command.deadline = Micros(deadline);
        bench.add(command);
        reply
    };
    let (in_time, late) = (add(&SCRIPT, 12_000), add(&SCRIPT, 11_999));
    drop(add(&SCRIPT, u64::MAX));
    drop(add(&REFUND, u64::MAX));
    let batch = bench.write();
    assert_eq!(batch.commands.len(), 2, "the first call and the refund");
    assert_eq!(failure(late), SendError::not_executed(FailureKind::Overload));
    let stats = &bench.connection.node.stats;
    assert_eq!((stats.shed.get(), stats.abandoned.get(), stats.calls.get()), (1, 1, 2));
    assert_eq!(bench.load(), 2);
    assert_eq!(bench.reply(batch, [Value::Int(1), Value::Int(2)]), Ok(()));
    assert_eq!(value(in_time), Value::Int(1));
    assert_eq!(bench.load(), 0);
}

#[test]
fn a_call_whose_script_is_missing_is_sent_again_three_times() {
    let mut bench = Bench::new();
    let reply = bench.add_call("key");
    for attempt in 0..4 {
        let batch = bench.write();
        assert_eq!(last_command(&batch), call(&SCRIPT, "key").command.get_packed_command());
        let mut replies = vec![error("NOSCRIPT No matching script.")];
        if attempt > 0 {
            assert_eq!(names(&batch), ["SCRIPT", "EVALSHA"]);
            replies.insert(0, Value::Okay);
        }
        assert_eq!(bench.reply(batch, replies), Ok(()));
        assert_eq!(bench.load(), u64::from(attempt < 3), "attempt {attempt}");
    }
    assert!(bench.connection.write_batch(&mut bench.outstanding.pending).is_none());
    assert_eq!(failure(reply), SendError::not_executed(FailureKind::Script));
    assert_eq!(bench.connection.node.stats.noscript.get(), 4);
}

#[test]
fn each_reply_of_a_write_goes_to_its_own_command() {
    let mut bench = Bench::new();
    let (command, asking) = PendingCommand::new(call(&SCRIPT, "a").into(), true);
    bench.add(command);
    let (missing, other) = (bench.add_call("b"), bench.add_call("c"));
    let batch = bench.write();
    assert_eq!(names(&batch), ["ASKING", "EVALSHA", "EVALSHA", "EVALSHA"]);
    let noscript = || error("NOSCRIPT No matching script.");
    let int = Value::Int;
    assert_eq!(bench.reply(batch, [Value::Okay, int(7), noscript(), noscript()]), Ok(()));
    assert_eq!(value(asking), Value::Int(7));

    let batch = bench.write();
    assert_eq!(names(&batch), ["SCRIPT", "EVALSHA", "EVALSHA"], "it is loaded once");
    let sent: Vec<Vec<u8>> =
        batch.pipeline.cmd_iter().skip(1).map(|command| command.get_packed_command()).collect();
    assert_eq!(sent, ["b", "c"].map(|key| call(&SCRIPT, key).command.get_packed_command()));
    assert_eq!(bench.reply(batch, [Value::Okay, int(8), int(9)]), Ok(()));
    assert_eq!((value(missing), value(other)), (Value::Int(8), Value::Int(9)));
}

#[test]
fn a_redirected_call_is_returned_to_its_caller_and_counted() {
    let mut bench = Bench::new();
    let replies = ["a", "b", "c"].map(|key| bench.add_call(key));
    let batch = bench.write();
    let lines = ["MOVED 7 10.0.0.2:6379", "ASK 7 10.0.0.3:6379", "TRYAGAIN half"];
    assert_eq!(bench.reply(batch, lines.map(error)), Ok(()));
    let node = |host: &str| Address::Tcp(host.to_owned(), 6379);
    let expected =
        [Redirect::Moved(node("10.0.0.2")), Redirect::Ask(node("10.0.0.3")), Redirect::TryAgain];
    for ((reply, expected), key) in replies.into_iter().zip(expected).zip(["a", "b", "c"]) {
        let Some(CommandReply::Redirect(redirect, returned)) = reply.take() else {
            panic!("{expected:?} is not returned")
        };
        assert_eq!((redirect, returned.slot), (expected, Some(7)));
        let sent = call(&SCRIPT, key).command.get_packed_command();
        assert_eq!(returned.command.get_packed_command(), sent);
    }
    let stats = &bench.connection.node.stats;
    assert_eq!((stats.moved.get(), stats.ask.get(), stats.tryagain.get()), (1, 1, 1));
    assert_eq!((stats.errors().map(|(_, count)| count).sum::<u64>(), bench.load()), (0, 0));
}

#[test]
fn the_connection_to_a_server_that_became_a_replica_is_closed() {
    let readonly = || error("READONLY You can't write against a read only replica.");
    let failed = SendError::not_executed(FailureKind::ReadOnly);
    let mut bench = Bench::new();
    let (first, second) = (bench.add_call("a"), bench.add_call("b"));
    let batch = bench.write();
    let result = bench.reply(batch, [readonly(), Value::Int(1)]);
    assert_eq!(result, Err(CloseReason::Demoted));
    assert_eq!((failure(first), value(second)), (failed, Value::Int(1)));
    let mut errors = bench.connection.node.stats.errors().filter(|(_, count)| *count > 0);
    assert_eq!(errors.next(), Some((FailureKind::ReadOnly, 1)));
    assert!(bench.is_refresh_needed());
}

#[test]
fn a_breaker_opens_if_half_of_the_replies_say_that_the_node_cannot_serve() {
    for (errors, opens) in [(9, false), (10, true)] {
        let reply = |at: i64| if at < errors { error("LOADING data") } else { Value::Int(at) };
        let mut bench = Bench::new();
        let callers: Vec<_> = (0..20).map(|_| bench.add_call("key")).collect();
        let batch = bench.write();
        assert_eq!(bench.reply(batch, (0..20).map(reply).collect::<Vec<_>>()), Ok(()));
        assert_eq!(bench.is_breaker_open(), opens, "{errors} script calls");
        drop(callers);
    }
}

#[test]
fn a_call_without_a_reply_is_counted_once_as_unknown() {
    let io_error = |kind: io::ErrorKind| Err(RedisError::from(io::Error::from(kind)));
    for (result, timeouts) in [
        (Ok(vec![Value::Int(1)]), 0),
        (io_error(io::ErrorKind::ConnectionReset), 0),
        (io_error(io::ErrorKind::TimedOut), 1),
    ] {
        let mut bench = Bench::new();
        let replies = ["a", "b"].map(|key| bench.add_call(key));
        let batch = bench.write();
        let queued = bench.add_call("c");
        let result = bench.connection.complete(batch, result, &mut bench.outstanding);
        assert_eq!(result, Err(CloseReason::Lost));
        bench.abandon(CloseReason::Lost);
        for reply in replies {
            assert_eq!(failure(reply), SendError::LOST);
        }
        assert_eq!(failure(queued), SendError::not_executed(FailureKind::NotConnected));
        let stats = &bench.connection.node.stats;
        assert_eq!((stats.unknown.get(), stats.timeouts.get()), (2, timeouts));
        assert_eq!((stats.answers.get(), bench.load()), (0, 0));
    }
}

#[test]
fn an_opened_breaker_leaves_written_calls_unknown_and_rejects_the_others() {
    let mut bench = Bench::new();
    let written = bench.add_call("a");
    let batch = bench.write();
    let queued = bench.add_call("b");
    bench.abandon(CloseReason::BreakerOpened);
    assert_eq!(failure(queued), SendError::not_executed(FailureKind::BreakerOpen));
    assert_eq!((bench.connection.node.stats.unknown.get(), bench.load()), (1, 0));
    drop((batch, written));
}

#[test]
fn silence_begins_at_the_last_reply_or_at_the_oldest_write() {
    let bench = Bench::new();
    let connection = &bench.connection;
    connection.node.record_replies(1, 0, Micros(10_000));
    bench.set_time(30_000);
    let left = |sent| connection.time_until_open(Some(&Micros(sent)));
    assert_eq!(left(4_000), Some(Duration::from_millis(30)));
    assert_eq!(left(25_000), Some(Duration::from_millis(45)));
    assert_eq!(connection.time_until_open(None), None);
    bench.set_time(60_001);
    assert_eq!(left(4_000), Some(Duration::ZERO));
}

#[test]
fn a_lost_connection_is_counted_and_requests_a_refresh() {
    let bench = Bench::new();
    assert!(!bench.is_refresh_needed());
    bench.connection.record_loss(CloseReason::Lost);
    assert_eq!(bench.connection.node.stats.losses.get(), 1);
    assert!(bench.is_refresh_needed());
}
