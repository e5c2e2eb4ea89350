//! A running Tidegate that Envoy or NGINX asks.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;

use rustix::process::Signal;

use serde_json::Value;

use crate::support::http::get;
use crate::support::tidegate_process::{self, directory, run, tidegate};

/// A Tidegate that counts in memory unless its settings say otherwise; killed when dropped.
pub struct Tidegate {
    process: tidegate_process::Tidegate,
    pub grpc: SocketAddr,
    pub http: SocketAddr,
}

impl Tidegate {
    /// Starts it with a policy and settings for its environment.
    pub fn start(policy: &Path, settings: &[(&str, &str)]) -> Tidegate {
        let mut command = tidegate();
        command.args(["serve", "--policy"]).arg(policy).envs(settings.iter().copied());
        let process = tidegate_process::Tidegate::start(&mut command, directory(&[]));
        Tidegate { grpc: process.port("grpc"), http: process.port("http"), process }
    }

    /// Asks it without Envoy: the arguments of `tidegate ask` after the address; the answer as JSON.
    pub fn ask(&self, arguments: &[&str]) -> Value {
        let ran = run(&[&["ask", "--json", &self.grpc.to_string()], arguments].concat());
        serde_json::from_str(&ran.out).unwrap_or_else(|_| panic!("{}", ran.err))
    }

    /// Returns what is left of each limit of a descriptor (`k=v,k2=v2`), by the limit's name. Charges
    /// nothing.
    pub fn left(&self, domain: &str, descriptor: &str) -> BTreeMap<String, u64> {
        self.counter(domain, descriptor).lines().filter_map(limit_and_left).collect()
    }

    /// Returns what the debug port says of the counters of a descriptor.
    pub fn counter(&self, domain: &str, descriptor: &str) -> String {
        let path = format!("/counter?domain={domain}&descriptor={descriptor}");
        let reply = get(self.process.port("debug"), &path);
        assert_eq!(reply.status, 200, "{}", reply.body);
        reply.body
    }

    /// Returns what it has logged, as JSON lines.
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// Sends SIGTERM, as an orchestrator does.
    pub fn terminate(&self) {
        self.process.signal(Signal::TERM);
    }

    /// Stops the process without ending it: its sockets stay open, and nothing answers.
    pub fn freeze(&self) {
        self.process.signal(Signal::STOP);
    }

    /// Lets a frozen process go on.
    pub fn thaw(&self) {
        self.process.signal(Signal::CONT);
    }

    /// Kills it and waits for its end.
    pub fn kill(&mut self) {
        self.process.signal(Signal::KILL);
        self.wait_for_exit();
    }

    /// Waits for its end; returns the exit code.
    pub fn wait_for_exit(&mut self) -> Option<i32> {
        self.process.exit_code()
    }
}

/// `rule (name): 3 of 4 left, …` as the name and 3.
fn limit_and_left(line: &str) -> Option<(String, u64)> {
    let (name, left) = line.split_once(" (")?.1.split_once("): ")?;
    Some((name.to_owned(), left.split(' ').next()?.parse().ok()?))
}
