//! Floods under the memory limit that the chart computes: the process is not killed.

use std::fs;
use std::path::{Path, PathBuf};

use super::target::{asked, client, descriptor, question, target};
use crate::support::raw_http2::{begun, open_files};
use crate::support::tidegate_process::Tidegate;

/// The limit of a default installation, as values.yaml says: 304 MiB + 10,000 connections * 64 KiB +
/// 1,000,000 counters * 96 bytes. tests/chart checks the template.
const CHART_LIMIT_BYTES: u64 = 1_021 << 20;

/// A cgroup with a memory limit; removed when dropped.
struct MemoryCgroup(PathBuf);

impl MemoryCgroup {
    /// Moves the process into a cgroup; `None` where none can be made.
    fn of(serving: &Tidegate) -> Option<MemoryCgroup> {
        let name = format!("tidegate-test-{}", serving.id());
        let (directory, file) =
            [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")]
                .into_iter()
                .map(|(root, file)| (Path::new(root).join(&name), file))
                .find(|(directory, file)| {
                    let made = fs::create_dir(directory).is_ok();
                    let limited = made
                        && fs::write(directory.join(file), CHART_LIMIT_BYTES.to_string()).is_ok();
                    if made && !limited {
                        let _ = fs::remove_dir(directory);
                    }
                    limited
                })?;
        let cgroup = MemoryCgroup(directory);
        let moved = fs::write(cgroup.0.join("cgroup.procs"), serving.id().to_string());
        let _ = file;
        moved.is_ok().then_some(cgroup)
    }
}

impl Drop for MemoryCgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connections_and_half_messages_fit_the_memory_limit_of_the_chart() {
    let (serving, address) = target(&["--keepalive-interval", "0s", "--preface-timeout", "60s"]);
    let Some(cgroup) = MemoryCgroup::of(&serving) else {
        println!("no memory cgroup can be made here: the limit of the chart is not tested");
        return;
    };
    // Beyond the bound of connections, each newcomer closes the longest idle one.
    let connections = crate::support::proof::times(1_000, 11_000) as usize;
    open_files(connections + 1_000);
    let mut idle = Vec::with_capacity(connections);
    for number in 0..connections {
        idle.push(begun(address).await);
        if number % 500 == 499 {
            tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        }
    }
    let told = asked(&mut client(address).await, &question(vec![descriptor(b"ann")])).await;
    assert!(!told.refused);
    drop(idle);
    drop(serving);
    drop(cgroup);
}
