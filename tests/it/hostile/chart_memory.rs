//! Floods under the memory limit that the chart computes: the process is not killed.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::net::TcpStream;

use super::half_received::begin_half_messages;
use super::target::{asked, client, descriptor, question, target};
use crate::support::http::get;
use crate::support::memory_cgroup::{CHART_LIMIT_BYTES, MemoryCgroup};
use crate::support::proof;
use crate::support::raw_http2::{connect, open_files};
use crate::support::tidegate_process::{FIVE_A_DAY, Tidegate, metric};
use crate::support::wait::until;

/// The default bound of a policy file.
const POLICY_BYTES: usize = 4 << 20;

/// A policy of just under 4 MiB, in `make test`, which is not optimised, of 1 MiB: the usual rule, then
/// as many others as fit.
fn large_policy(rule: &str) -> String {
    let (mut text, bytes_max) = (FIVE_A_DAY.to_owned(), POLICY_BYTES / proof::times(4, 1) as usize);
    for number in 0.. {
        let length = text.len();
        writeln!(text, "  - {{key: k{number}, {rule}}}").unwrap();
        if text.len() > bytes_max {
            text.truncate(length);
            break;
        }
    }
    text
}

/// Replaces the policy and waits until it was read.
fn reload(serving: &Tidegate, text: &str, counter: &str) {
    let reads = || metric(serving, counter);
    let before = reads();
    fs::write(serving.directory().join("policy.yaml"), text).unwrap();
    until("the policy is read", || (reads() > before).then_some(()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn floods_and_large_policies_fit_the_memory_limit_of_the_chart() {
    let (serving, address) = target(&[]);
    // The kernel would end the process beyond the limit of the chart, where cgroups can be made.
    let _cgroup = MemoryCgroup::of(&serving);
    // Beyond the bound of connections, each newcomer closes the longest idle one.
    let connections = proof::times(1_000, 11_000) as usize;
    open_files(connections + 1_000);
    let mut idle = Vec::with_capacity(connections);
    for number in 0..connections {
        // They answer keepalive pings, or the server would close them.
        idle.push(connect(address).await);
        if number % 500 == 499 {
            tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        }
    }
    let half = begin_half_messages(address, 12, 20).await;

    let good = large_policy("rate_limit: {unit: day, requests_per_unit: 5}");
    reload(&serving, &good, "config_load_success_total");
    reload(&serving, &large_policy("rate_limit: 5"), "config_load_error_total");
    reload(&serving, &good.replace("per_unit: 5", "per_unit: 6"), "config_load_success_total");
    let http = serving.port("http");
    let request = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
    let slow_readers: Vec<TcpStream> = (0..40)
        .map(|_| {
            let mut socket = TcpStream::connect(http).unwrap();
            socket.write_all(request.as_bytes()).unwrap();
            socket
        })
        .collect();
    let scraped = get(http, "/metrics").body;
    println!("a scrape has {} bytes", scraped.len());

    let told = asked(&mut client(address).await, &question(vec![descriptor(b"ann")])).await;
    assert!(!told.refused);
    let peak = serving.proc_status("VmHWM");
    println!("{peak} KiB at the peak");
    assert!(peak << 10 <= CHART_LIMIT_BYTES as usize, "{peak} KiB");
    drop((idle, half, slow_readers));
}
