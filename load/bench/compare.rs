//! Compares this build with another one, call by call: `cargo bench -- compare PATH`.
//!
//! CPU time includes the kernel and varies with the load of the machine. Instructions are those of the
//! process alone, counted by valgrind, and hardly vary.

use std::path::Path;
use std::process::Command;

use super::servers::{self, Server};
use super::{Scale, calls, drive};

const PAIRS: usize = 20;
const COUNTED_CALLS: usize = 3_072;

pub fn run(other: &str, scale: Scale) {
    let dir = tempfile::tempdir().unwrap();
    let this = env!("CARGO_BIN_EXE_tidegate");
    let scale = Scale { pairs: PAIRS, ..scale };
    println!("\nThis build against {other}, embedded store (median of {PAIRS} pairs)");
    println!(
        "{:<16} {:>9} {:>9} {:>7} {:>14} {:>14} {:>7}",
        "call", "other us", "this us", "ratio", "other instr.", "this instr.", "ratio"
    );
    for descriptors in [1, 2, 10] {
        let text = calls::policy(servers::DOMAIN, descriptors);
        let policy = servers::write_policy(dir.path(), &format!("{descriptors}.yaml"), &text);
        let bodies = servers::bodies(descriptors);
        let (others, ours, ratio) = {
            let server = |path| Server::serve(&mut Command::new(path), &policy, &[]);
            servers::paired(&server(other), &server(this), &bodies, scale)
        };
        let drive = |server: &Server, calls| {
            drive::run(server.port, &bodies, calls, servers::CONNECTIONS, servers::STREAMS);
        };
        let counts =
            [other, this].map(|path| instructions(path, &policy, drive, 512, COUNTED_CALLS));
        let counted = counts[1] / counts[0];
        println!(
            "{:<16} {others:>9.2} {ours:>9.2} {ratio:>7.3} {:>14.0} {:>14.0} {counted:>7.3}",
            format!("{descriptors} descriptors"),
            counts[0],
            counts[1]
        );
    }
}

/// Instructions per call: those of a run with calls without those of a run that only starts. `drive`
/// makes a number of calls, `warm_up` of them in both runs.
pub fn instructions(
    path: &str,
    policy: &Path,
    drive: impl Fn(&Server, usize),
    warm_up: usize,
    calls: usize,
) -> f64 {
    let counted = |calls: &[usize]| {
        let mut command = Command::new("valgrind");
        command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null", path]);
        let server = Server::serve(&mut command, policy, &[]);
        // Connections and first allocations are in both runs.
        calls.iter().for_each(|calls| drive(&server, *calls));
        let log = server.terminate();
        let line = log.iter().find_map(|line| line.split_once("Collected : "));
        line.expect("valgrind counts").1.trim().parse::<f64>().expect("a number")
    };
    let most = counted(&[warm_up, warm_up + calls]);
    (most - counted(&[warm_up, warm_up])) / calls as f64
}
