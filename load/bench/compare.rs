//! Compares this build with another one, call by call: `cargo bench -- compare PATH`.
//!
//! CPU time includes the kernel and varies with the load of the machine. Instructions are those of the
//! process alone, counted by valgrind, and hardly vary.

use std::process::Command;

use super::servers::{self, Server};
use super::{Scale, calls, instructions};

const PAIRS: usize = 20;

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
        let counts = [other, this].map(|path| instructions::of_tidegate(path, &policy, &bodies));
        let counted = counts[1] / counts[0];
        println!(
            "{:<16} {others:>9.2} {ours:>9.2} {ratio:>7.3} {:>14.0} {:>14.0} {counted:>7.3}",
            format!("{descriptors} descriptors"),
            counts[0],
            counts[1]
        );
    }
}
