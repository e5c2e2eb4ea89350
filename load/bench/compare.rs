//! Compares this build with another one, call by call: `cargo bench -- compare PATH`.
//!
//! CPU time includes the kernel and varies with the load of the machine. Instructions are those of the
//! process alone, counted by valgrind, and hardly vary.

use std::path::Path;
use std::process::Command;

use super::redis_server::Redis;
use super::servers::{self, Server};
use super::{Scale, calls, cpu_instructions};

const PAIRS: usize = 20;

pub fn run(other: &str, scale: Scale) {
    let dir = tempfile::tempdir().unwrap();
    let scale = Scale { pairs: PAIRS, ..scale };
    println!("\nThis build against {other} (median of {PAIRS} pairs)");
    println!(
        "{:<26} {:>9} {:>9} {:>7} {:>14} {:>14} {:>7}",
        "call", "other us", "this us", "ratio", "other instr.", "this instr.", "ratio"
    );
    let (redis, cluster) = (Redis::standalone(), Redis::cluster());
    for (store, settings) in [
        ("memory", Vec::new()),
        ("Redis", servers::on_redis(&redis)),
        ("Cluster", servers::on_redis(&cluster)),
    ] {
        for descriptors in [1, 2, 10] {
            let text = calls::policy(servers::DOMAIN, descriptors);
            let policy = servers::write_policy(dir.path(), &format!("{descriptors}.yaml"), &text);
            let name = format!("{descriptors} descriptors, {store}");
            println!("{name:<26} {}", row(other, &policy, &settings, descriptors, scale));
        }
    }
}

fn row(
    other: &str,
    policy: &Path,
    settings: &[(&'static str, String)],
    descriptors: usize,
    scale: Scale,
) -> String {
    let this = env!("CARGO_BIN_EXE_tidegate");
    let bodies = servers::bodies(descriptors);
    let serve = |command: &mut Command| Server::serve(command.envs(settings.to_vec()), policy, &[]);
    let server = |path| serve(&mut Command::new(path));
    let (others, ours, ratio) = servers::paired(&server(other), &server(this), &bodies, scale);
    let counts = [other, this].map(|path| cpu_instructions::of_calls(path, serve, &bodies));
    let counted = counts[1] / counts[0];
    format!(
        "{others:>9.2} {ours:>9.2} {ratio:>7.3} {:>14.0} {:>14.0} {counted:>7.3}",
        counts[0], counts[1]
    )
}
