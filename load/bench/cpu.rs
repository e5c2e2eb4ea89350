//! CPU time of a process, by the kernel's own accounting.

use std::fs;
use std::time::Duration;

/// On-CPU time of all threads of a process so far.
pub fn of_process(pid: u32) -> Duration {
    let mut total = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task")).expect("the process is running") {
        let path = task.expect("a readable task list").path().join("schedstat");
        // A thread that ended in between has no file any more; its time is lost, and no server of
        // ours ends threads while it serves.
        let Ok(text) = fs::read_to_string(path) else { continue };
        let on_cpu = text.split_whitespace().next().and_then(|word| word.parse::<u64>().ok());
        total += on_cpu.expect("schedstat begins with nanoseconds on the CPU");
    }
    Duration::from_nanos(total)
}

pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

pub fn describe_machine() {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo
        .lines()
        .find(|line| line.starts_with("model name"))
        .and_then(|line| line.split(':').nth(1))
        .map_or("unknown", str::trim);
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let commit = std::process::Command::new("git")
        .args(["rev-parse", "--short", "HEAD"])
        .output()
        .ok()
        .and_then(|out| String::from_utf8(out.stdout).ok())
        .unwrap_or_default();
    println!("machine: {cores} cores, {model}; commit {}", commit.trim());
}
