//! A cgroup with the memory limit that the chart computes: the kernel kills a process that needs more.

use std::fs;
use std::path::{Path, PathBuf};

use super::tidegate_process::Tidegate;

/// The limit of a default installation, as values.yaml says: 432 MiB, 10,000 connections of 105 KiB,
/// and 1,000,000 counters of 96 bytes. tests/chart checks the template.
pub const CHART_LIMIT_BYTES: u64 = 1_549 << 20;

/// Hierarchies of either version, with the name of the limit.
const HIERARCHIES: [(&str, &str); 2] =
    [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];

/// A cgroup with the limit of the chart, and one process in it. When dropped, releases the process,
/// and is removed.
pub struct MemoryCgroup {
    directory: PathBuf,
    process: String,
}

impl MemoryCgroup {
    /// Moves a process into a cgroup; `None` where none can be made.
    pub fn of(serving: &Tidegate) -> Option<MemoryCgroup> {
        let process = serving.id().to_string();
        HIERARCHIES.into_iter().find_map(|(root, limit)| {
            let directory = Path::new(root).join(format!("tidegate-test-{process}"));
            fs::create_dir(&directory).ok()?;
            let cgroup = MemoryCgroup { directory, process: process.clone() };
            fs::write(cgroup.directory.join(limit), CHART_LIMIT_BYTES.to_string()).ok()?;
            fs::write(cgroup.directory.join("cgroup.procs"), &cgroup.process).ok()?;
            Some(cgroup)
        })
    }
}

impl Drop for MemoryCgroup {
    fn drop(&mut self) {
        let parent = self.directory.with_file_name("cgroup.procs");
        // Fails if the process has ended, or never was in the cgroup.
        let _ = fs::write(parent, &self.process);
        let _ = fs::remove_dir(&self.directory);
    }
}
