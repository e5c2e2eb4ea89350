//! A running `tidegate serve`: the real binary, on ports of its own.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::wait;

/// A Tidegate; is killed when dropped.
pub struct Tidegate {
    child: Child,
    pub grpc: SocketAddr,
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
        let mut tidegate = Tidegate { child, grpc: unbound, _directory: directory };
        tidegate.grpc = wait::until("tidegate to serve", || {
            let text = fs::read_to_string(&log).unwrap_or_default();
            if let Some(status) = tidegate.child.try_wait().expect("a child") {
                panic!("tidegate ended with {status}: {text}");
            }
            text.lines().find_map(bound_address)
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

    /// Asks it to stop, as an orchestrator does.
    pub fn terminate(&self) {
        let pid = self.child.id().to_string();
        let kill = Command::new("kill").args(["-TERM", &pid]).status().expect("kill runs");
        assert!(kill.success());
    }

    /// Waits until it has ended; its exit code.
    pub fn wait_for_exit(&mut self) -> Option<i32> {
        let status = wait::until("tidegate to end", || self.child.try_wait().expect("a child"));
        status.code()
    }
}

/// The gRPC address, in the line of the log that says where it listens.
fn bound_address(line: &str) -> Option<SocketAddr> {
    let line: Value = serde_json::from_str(line).ok()?;
    (line["message"] == "listening").then(|| line["grpc"].as_str()?.parse().ok())?
}

impl Drop for Tidegate {
    fn drop(&mut self) {
        // Both may fail only because it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
