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

/// The interval that holds the median with a probability of at least 95 %, by the order of the values
/// alone; all values if there are fewer than six.
pub fn median_interval(mut values: Vec<f64>) -> (f64, f64) {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    // Each value lies below the median with probability 1/2, so that the number of those that do is
    // binomial.
    let (mut share, mut below, mut cut) = (0.5_f64.powi(n as i32), 0.0, 0);
    for k in 0..n {
        below += share;
        if below > 0.025 {
            break;
        }
        cut = k;
        share *= (n - k) as f64 / (k + 1) as f64;
    }
    (values[cut], values[n - 1 - cut])
}

/// Load averages of the machine over 1, 5, and 15 minutes.
pub fn load_average() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().take(3).collect::<Vec<_>>().join(" ")
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
