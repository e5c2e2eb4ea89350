//! CPU per decision over gRPC: the no-op server and Tidegate in turn, one pair after the other.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;

use bytes::Bytes;

use super::{Scale, calls, cpu, drive};

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

    /// Tidegate by a command that takes its arguments.
    pub fn serve(command: &mut Command, policy: &Path, more: &[(&str, &str)]) -> Server {
        command.args(["serve", "--policy"]).arg(policy);
        command.env("GRPC_HOST", "127.0.0.1").env("GRPC_PORT", "0");
        command.env("HOST", "127.0.0.1").env("PORT", "0").env("DEBUG_PORT", "0");
        command.env("LOG_FORMAT", "json").envs(more.iter().copied());
        Server::spawn(command, port_of_log_line)
    }

    fn spawn(command: &mut Command, port: impl Fn(&str) -> Option<u16>) -> Server {
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

/// `serve` logs one line with `"grpc":"ADDRESS"` once it listens.
fn port_of_log_line(line: &str) -> Option<u16> {
    let log: serde_json::Value = serde_json::from_str(line).ok()?;
    if log["message"] != "listening" {
        return None;
    }
    log["grpc"].as_str()?.rsplit(':').next()?.parse().ok()
}

/// CPU microseconds per call of one run.
pub fn cost(server: &Server, bodies: &[Bytes], calls: usize) -> f64 {
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

pub fn bodies(descriptors: usize) -> Vec<Bytes> {
    (0..fewer(1_000, descriptors))
        .map(|client| calls::framed(&calls::request(DOMAIN, descriptors, client)))
        .collect()
}

pub fn write_policy(dir: &Path, name: &str, text: &str) -> std::path::PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

pub fn run(scale: Scale) {
    let dir = tempfile::tempdir().unwrap();
    println!(
        "\nCPU per decision over gRPC, embedded store ({CONNECTIONS} connections x {STREAMS} calls in flight, median of {} pairs)",
        scale.pairs
    );
    println!("{:<22} {:>12} {:>12} {:>8}", "call", "no-op us", "tidegate us", "ratio");
    for descriptors in [1, 2, 10, 256, 1_024] {
        let policy = write_policy(
            dir.path(),
            &format!("{descriptors}.yaml"),
            &calls::policy(DOMAIN, descriptors),
        );
        let (noop, ours) = (Server::noop(), Server::tidegate(&policy, &[]));
        let scale = Scale { calls: fewer(scale.calls, descriptors), ..scale };
        let (noop, ours, ratio) = paired(&noop, &ours, &bodies(descriptors), scale);
        println!(
            "{:<22} {noop:>12.2} {ours:>12.2} {ratio:>8.2}",
            format!("{descriptors} descriptors")
        );
    }
    println!("\nCPU per decision against the number of rules (2 descriptors)");
    println!("{:<22} {:>12} {:>12} {:>8}", "rules", "no-op us", "tidegate us", "ratio");
    for kind in ["exact", "default", "pattern"] {
        for rules in [10, 1_000, 100_000] {
            let text = super::lookup::policy(DOMAIN, kind, rules);
            let policy = write_policy(dir.path(), &format!("{kind}{rules}.yaml"), &text);
            // 100,000 rules take 10 MB.
            let size = [("TIDEGATE_POLICY_FILE_SIZE", "16MiB")];
            let (noop, ours) = (Server::noop(), Server::tidegate(&policy, &size));
            let bodies = super::lookup::bodies(DOMAIN, kind, rules);
            let (noop, ours, ratio) = paired(&noop, &ours, &bodies, scale);
            println!("{:<22} {noop:>12.2} {ours:>12.2} {ratio:>8.2}", format!("{rules} {kind}"));
        }
    }
}

/// Medians of the two sides and of the ratios pair by pair.
pub fn paired(noop: &Server, ours: &Server, bodies: &[Bytes], scale: Scale) -> (f64, f64, f64) {
    cost(noop, bodies, scale.calls / 4);
    cost(ours, bodies, scale.calls / 4);
    let (mut a, mut b, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..scale.pairs {
        std::thread::sleep(scale.settle);
        let (one, other) = (cost(noop, bodies, scale.calls), cost(ours, bodies, scale.calls));
        a.push(one);
        b.push(other);
        ratios.push(other / one);
    }
    (cpu::median(a), cpu::median(b), cpu::median(ratios))
}
