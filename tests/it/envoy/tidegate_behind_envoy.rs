//! A running `tidegate serve`: the real binary, on ports of its own.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use super::http_client::get;
use crate::support::wait;

/// A Tidegate; is killed when dropped.
pub struct Tidegate {
    child: Child,
    pub grpc: SocketAddr,
    pub http: SocketAddr,
    debug: SocketAddr,
    _directory: TempDir,
}

impl Tidegate {
    /// Starts it with a policy and settings for its environment; it gets no other environment, and
    /// counts in memory.
    pub fn start(policy: &Path, settings: &[(&str, &str)]) -> Tidegate {
        let directory = TempDir::new().expect("a temporary directory");
        let log = directory.path().join("log");
        let output = File::create(&log).expect("a writable directory");
        let child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .args(["serve", "--policy"])
            .arg(policy)
            .env_clear()
            .envs([("GRPC_HOST", "127.0.0.1"), ("GRPC_PORT", "0"), ("HOST", "127.0.0.1")])
            .envs([("PORT", "0"), ("DEBUG_PORT", "0"), ("LOG_FORMAT", "json")])
            // One thread: several Tidegates share the machine with Envoy and the tests.
            .env("TIDEGATE_THREADS", "1")
            .envs(settings.iter().copied())
            .stdin(Stdio::null())
            .stdout(output.try_clone().expect("another handle"))
            .stderr(output)
            .spawn()
            .expect("tidegate starts");
        let unbound = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut tidegate =
            Tidegate { child, grpc: unbound, http: unbound, debug: unbound, _directory: directory };
        [tidegate.grpc, tidegate.http, tidegate.debug] = wait::until("tidegate to serve", || {
            let text = fs::read_to_string(&log).unwrap_or_default();
            if let Some(status) = tidegate.child.try_wait().expect("a child") {
                panic!("tidegate ended with {status}: {text}");
            }
            text.lines().find_map(bound_addresses)
        });
        tidegate
    }

    /// Asks it without Envoy: the words after the address of `tidegate ask`; the answer as JSON.
    pub fn ask(&self, words: &[&str]) -> Value {
        let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .args(["ask", "--json", &self.grpc.to_string()])
            .args(words)
            .output()
            .expect("tidegate runs");
        serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)))
    }

    /// What is left of each limit of a descriptor (`k=v,k2=v2`), by the limit's name. Charges nothing.
    pub fn left(&self, domain: &str, descriptor: &str) -> BTreeMap<String, u64> {
        let reply =
            get(&format!("/counter?domain={domain}&descriptor={descriptor}")).send(self.debug);
        assert_eq!(reply.status, 200, "{reply:?}");
        reply.body.lines().filter_map(standing).collect()
    }

    /// Asks it to stop, as an orchestrator does.
    pub fn terminate(&self) {
        self.signal("-TERM");
    }

    /// Lets it run no further: its sockets stay open, and nothing answers.
    pub fn freeze(&self) {
        self.signal("-STOP");
    }

    /// Ends it at once.
    pub fn kill(&mut self) {
        self.child.kill().expect("a child that runs");
        self.wait_for_exit();
    }

    fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        let kill = Command::new("kill").args([signal, &pid]).status().expect("kill runs");
        assert!(kill.success());
    }

    /// Waits until it has ended; its exit code.
    pub fn wait_for_exit(&mut self) -> Option<i32> {
        let status = wait::until("tidegate to end", || self.child.try_wait().expect("a child"));
        status.code()
    }
}

/// `rule (name): 3 of 4 left, …` as the name and 3.
fn standing(line: &str) -> Option<(String, u64)> {
    let (name, left) = line.split_once(" (")?.1.split_once("): ")?;
    Some((name.to_owned(), left.split(' ').next()?.parse().ok()?))
}

/// The addresses of gRPC, of HTTP and of the debug side, in the line of the log that says where it listens.
fn bound_addresses(line: &str) -> Option<[SocketAddr; 3]> {
    let line: Value = serde_json::from_str(line).ok()?;
    let address = |name: &str| line[name].as_str()?.parse().ok();
    (line["message"] == "listening")
        .then(|| Some([address("grpc")?, address("http")?, address("debug")?]))?
}

impl Drop for Tidegate {
    fn drop(&mut self) {
        // Both may fail only because it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
