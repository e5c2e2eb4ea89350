//! Server processes under load, Tidegate and the no-op server, and what a call costs them.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;

use super::drive::{self, Bodies};
use super::redis_server::Redis;
use super::{Scale, calls, cpu};

pub const DOMAIN: &str = "bench";
pub const CONNECTIONS: usize = 4;
pub const STREAMS: usize = 16;

/// A server process; killed when dropped.
pub struct Server {
    child: Child,
    pub port: u16,
    log: Option<JoinHandle<Vec<String>>>,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn noop() -> Server {
        Server::serve_noop(&mut Command::new(std::env::current_exe().unwrap()))
    }

    /// The no-op server by a command that takes its arguments.
    pub fn serve_noop(command: &mut Command) -> Server {
        Server::spawn(command.arg("noop-server"), |line| line.trim().parse().ok())
    }

    /// Tidegate on the embedded store, as built with this bench.
    pub fn tidegate(policy: &Path, more: &[(&str, &str)]) -> Server {
        Server::serve(&mut Command::new(env!("CARGO_BIN_EXE_tidegate")), policy, more)
    }

    /// Tidegate on Redis, with a budget that a queue on a busy machine does not exceed.
    pub fn tidegate_on(redis: &Redis, policy: &Path) -> Server {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        Server::serve(command.envs(on_redis(redis)), policy, &[])
    }

    /// Tidegate by a command that takes its arguments.
    pub fn serve(command: &mut Command, policy: &Path, more: &[(&str, &str)]) -> Server {
        command.args(["serve", "--policy"]).arg(policy);
        command.env("GRPC_HOST", "127.0.0.1").env("GRPC_PORT", "0");
        command.env("HOST", "127.0.0.1").env("PORT", "0").env("DEBUG_PORT", "0");
        command.env("LOG_FORMAT", "json").envs(more.iter().copied());
        Server::spawn(command, port_of_log_line)
    }

    /// Starts a server that logs its port, in a line from which `port` takes it.
    pub fn spawn(command: &mut Command, port: impl Fn(&str) -> Option<u16>) -> Server {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        let errors = writer.try_clone().expect("the pipe's second end");
        let child = command
            .stdin(Stdio::null())
            .stdout(writer)
            .stderr(errors)
            .spawn()
            .expect("the server starts");
        // The command holds the pipe's writing ends; with it they go, and the reader ends with the
        // server.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut lines = BufReader::new(reader).lines();
        let port = loop {
            let line = lines.next().expect("the server says its port").unwrap();
            if let Some(port) = port(&line) {
                break port;
            }
        };
        let log = std::thread::spawn(move || lines.map_while(Result::ok).collect());
        Server { child, port, log: Some(log) }
    }

    /// Ends the server by SIGTERM and returns what it printed since it listened.
    pub fn terminate(mut self) -> Vec<String> {
        let process = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(process, rustix::process::Signal::TERM).unwrap();
        self.child.wait().unwrap();
        self.log.take().and_then(|log| log.join().ok()).unwrap_or_default()
    }
}

/// Settings for a server on Redis, with a budget that a queue on a busy machine does not exceed.
pub fn on_redis(redis: &Redis) -> Vec<(&'static str, String)> {
    let mut settings = redis.environment().to_vec();
    settings.push(("TIDEGATE_REDIS_BUDGET", "2s".to_owned()));
    settings.push(("TIDEGATE_REQUIRE_REDIS", "true".to_owned()));
    settings
}

/// `serve` logs one line with `"grpc":"ADDRESS"` once it listens.
fn port_of_log_line(line: &str) -> Option<u16> {
    let log: serde_json::Value = serde_json::from_str(line).ok()?;
    if log["message"] != "listening" {
        return None;
    }
    log["grpc"].as_str()?.rsplit(':').next()?.parse().ok()
}

/// CPU microseconds per call of one run.
pub fn cost(server: &Server, bodies: &Bodies, calls: usize) -> f64 {
    let before = cpu::of_process(server.pid());
    let seen = drive::run(server.port, bodies, calls, CONNECTIONS, STREAMS);
    let spent = cpu::of_process(server.pid()) - before;
    assert_eq!(seen.failed, 0, "every call is answered");
    spent.as_secs_f64() * 1e6 / seen.answered as f64
}

/// Fewer calls the more descriptors each has beyond ten, so that a row takes no longer.
pub fn fewer(calls: usize, descriptors: usize) -> usize {
    (calls * 10 / descriptors.max(10)).max(1)
}

/// Calls of a thousand clients, or fewer if they have more than ten descriptors.
pub fn bodies(descriptors: usize) -> Bodies {
    bodies_of(descriptors, fewer(1_000, descriptors))
}

/// One call of each client, in an order in which neighbours are far apart.
pub fn bodies_of(descriptors: usize, clients: usize) -> Bodies {
    /// Coprime to every number of clients here.
    const STRIDE: usize = 611_953;
    (0..clients)
        .map(|nth| calls::request(DOMAIN, descriptors, nth * STRIDE % clients))
        .map(|request| calls::framed(&request))
        .collect()
}

pub fn write_policy(dir: &Path, name: &str, text: &str) -> PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

/// Medians of two sides and of the ratios pair by pair.
pub fn paired(one: &Server, other: &Server, bodies: &Bodies, scale: Scale) -> (f64, f64, f64) {
    cost(one, bodies, scale.calls / 4);
    cost(other, bodies, scale.calls / 4);
    let (mut a, mut b, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..scale.pairs {
        std::thread::sleep(scale.settle);
        let (first, second) = (cost(one, bodies, scale.calls), cost(other, bodies, scale.calls));
        a.push(first);
        b.push(second);
        ratios.push(second / first);
    }
    (cpu::median(a), cpu::median(b), cpu::median(ratios))
}
