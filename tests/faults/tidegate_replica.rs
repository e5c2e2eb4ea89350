//! A running `tidegate serve`: the real binary on free ports, and what the kernel reports about it.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::support::redis_server::PATIENCE;

/// Between two looks: short against what is waited for, long against what a look costs.
const PAUSE: Duration = Duration::from_millis(5);
/// What Envoy's default timeout of 20 ms leaves for Redis. The bench's calls carry no deadline of
/// their own, so that a busy machine does not add errors to the fault. A flag overrides it.
const ENVOYS_BUDGET: &str = "16ms";

/// The first thing that `look` finds; panics if it finds nothing in time.
pub fn found<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "waited in vain for {what}");
        std::thread::sleep(PAUSE);
    }
}

/// Waits until something is so.
pub fn until(what: &str, mut so: impl FnMut() -> bool) {
    found(what, || so().then_some(()));
}

/// A Tidegate; is killed when dropped.
pub struct Tidegate {
    child: Child,
    ports: BTreeMap<String, SocketAddr>,
    directory: TempDir,
}

impl Tidegate {
    /// Serves a policy with these flags.
    pub fn start(policy: &str, flags: &[&str]) -> Tidegate {
        Tidegate::start_by(policy, |policy, log| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
            command.args(["serve", "--policy", policy]).args(flags).stderr(log);
            command
        })
    }

    /// The same by a command of the caller's, which is given the policy's path and a file for logs.
    pub fn start_by(policy: &str, command: impl FnOnce(&str, File) -> Command) -> Tidegate {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("policy.yaml");
        fs::write(&path, policy).unwrap();
        let log = File::create(directory.path().join("log")).unwrap();
        let child = command(path.to_str().unwrap(), log)
            .env_clear()
            .envs([("GRPC_HOST", "127.0.0.1"), ("GRPC_PORT", "0"), ("HOST", "127.0.0.1")])
            .envs([("PORT", "0"), ("DEBUG_PORT", "0"), ("LOG_FORMAT", "json")])
            .envs([("TIDEGATE_THREADS", "1"), ("TIDEGATE_TEST_INFO_POLL", "500ms")])
            .env("TIDEGATE_REDIS_BUDGET", ENVOYS_BUDGET)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("tidegate starts");
        let mut child = child;
        if let Some(pipe) = child.stderr.take() {
            let log = OpenOptions::new().append(true).open(directory.path().join("log")).unwrap();
            crate::rows::service::read_until_ready(pipe, log);
        }
        let mut this = Tidegate { child, ports: BTreeMap::new(), directory };
        let listening = found("tidegate to listen", || {
            let ended = this.child.try_wait().unwrap();
            assert!(ended.is_none(), "it ended with {ended:?}: {}", this.log());
            this.logged("listening")
        });
        let degraded = "ready, degraded: Redis is not connected";
        found("tidegate to be ready", || this.logged("ready").or(this.logged(degraded)));
        for (name, value) in listening.as_object().unwrap() {
            if let Some(address) = value.as_str().and_then(|text| text.parse().ok()) {
                this.ports.insert(name.clone(), address);
            }
        }
        this
    }

    pub fn grpc(&self) -> SocketAddr {
        self.ports["grpc"]
    }

    pub fn http(&self) -> SocketAddr {
        self.ports["http"]
    }

    /// Replaces its policy, as an operator's editor does.
    pub fn rewrite(&self, policy: &str) {
        let (new, path) = (self.directory.path().join("new"), self.policy());
        fs::write(&new, policy).unwrap();
        fs::rename(new, path).unwrap();
    }

    pub fn policy(&self) -> PathBuf {
        self.directory.path().join("policy.yaml")
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    /// The first line of the log with this message.
    pub fn logged(&self, message: &str) -> Option<Value> {
        let log = self.log();
        let mut lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.find(|line| line["message"] == message)
    }

    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// How it ended, once it has.
    pub fn exit_code(&mut self) -> Option<i32> {
        found("tidegate to end", || self.child.try_wait().unwrap()).code()
    }

    /// It runs still.
    pub fn lives(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// A line of /proc/PID/status that holds a number: `VmRSS` (KiB), `Threads`.
    pub fn status(&self, name: &str) -> u64 {
        let text = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap().split_whitespace().next().unwrap().parse().unwrap()
    }

    /// Asks its HTTP port; `None` where nothing answers.
    pub fn get(&self, path: &str) -> Option<(u16, String)> {
        http_get(self.http(), path)
    }
}

impl Drop for Tidegate {
    fn drop(&mut self) {
        // Both fail only where it has ended already. A stopped process dies of a kill all the same.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The status and the body of an answer, if there is one within a second.
pub fn http_get(address: SocketAddr, path: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(1))).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    let status = text.split(' ').nth(1)?.parse().ok()?;
    let body = text.split_once("\r\n\r\n")?.1.to_owned();
    Some((status, body))
}
