//! Instructions per gRPC call of this build, beside the no-op server, which decodes and encodes the
//! same bytes: `cargo bench -- instructions`.
//!
//! They are those of the process alone, counted by valgrind, and hardly vary.

use std::path::Path;
use std::process::Command;

use super::drive::Bodies;
use super::servers::{self, Server};
use super::{calls, drive};

/// Calls before those that are counted.
const WARM_UP_CALLS: usize = 512;
const COUNTED_CALLS: usize = 3_072;

pub fn run() {
    let dir = tempfile::tempdir().unwrap();
    println!("\nInstructions per gRPC call, embedded store");
    println!("{:<16} {:>10} {:>10} {:>7}", "call", "no-op", "tidegate", "ratio");
    let noop = std::env::current_exe().unwrap();
    for descriptors in [1, 2, 10] {
        let text = calls::policy(servers::DOMAIN, descriptors);
        let policy = servers::write_policy(dir.path(), &format!("{descriptors}.yaml"), &text);
        let bodies = servers::bodies(descriptors);
        let noop = of_calls(noop.to_str().unwrap(), Server::serve_noop, &bodies);
        let ours = of_tidegate(env!("CARGO_BIN_EXE_tidegate"), &policy, &bodies);
        println!(
            "{:<16} {noop:>10.0} {ours:>10.0} {:>7.3}",
            format!("{descriptors} descriptors"),
            ours / noop
        );
    }
}

/// Instructions per call of the `tidegate` at a path.
pub fn of_tidegate(path: &str, policy: &Path, bodies: &Bodies) -> f64 {
    of_calls(path, |command| Server::serve(command, policy, &[]), bodies)
}

/// Instructions per call of the program at a path, which `serve` starts by a command.
pub fn of_calls(path: &str, serve: impl Fn(&mut Command) -> Server, bodies: &Bodies) -> f64 {
    let drive = |server: &Server, calls| {
        drive::run(server.port, bodies, calls, servers::CONNECTIONS, servers::STREAMS);
    };
    count(path, serve, drive, WARM_UP_CALLS, COUNTED_CALLS)
}

/// Instructions per call of the program at a path: those of a run with calls without those of a run
/// that only starts. `serve` starts it by a command, and `drive` makes a number of calls, `warm_up`
/// of them in both runs.
pub fn count(
    path: &str,
    serve: impl Fn(&mut Command) -> Server,
    drive: impl Fn(&Server, usize),
    warm_up: usize,
    calls: usize,
) -> f64 {
    let counted = |calls: &[usize]| {
        let mut command = Command::new("valgrind");
        command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null", path]);
        let server = serve(&mut command);
        // Connections and first allocations are in both runs.
        calls.iter().for_each(|calls| drive(&server, *calls));
        let log = server.terminate();
        let line = log.iter().find_map(|line| line.split_once("Collected : "));
        line.expect("valgrind counts").1.trim().parse::<f64>().expect("a number")
    };
    let most = counted(&[warm_up, warm_up + calls]);
    (most - counted(&[warm_up, warm_up])) / calls as f64
}
