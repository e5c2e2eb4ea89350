//! Flame graphs of the fast paths: the service with ten limits in memory, and Redis with ten limits.
//! Needs perf and inferno (make flame installs both).

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use super::calls;
use super::drive::{self, Bodies};
use super::redis_server::Redis;
use super::servers::{self, DOMAIN, Server};

const LIMITS: usize = 10;
const SECONDS: &str = "5";
/// Samples a second of each core, an odd number so that it is not in step with timers.
const FREQUENCY: &str = "499";
/// Frames narrower than this percentage are left out, so that a picture has about 100 kB.
const NARROWEST: &str = "0.3";

pub fn run(directory: &Path) {
    let dir = tempfile::tempdir().unwrap();
    let windows = calls::policy(DOMAIN, LIMITS);
    let buckets =
        windows.replace("unit: hour", "algorithm: token_bucket, unit: second, burst: 4000000000");
    let windows = servers::write_policy(dir.path(), "windows.yaml", &windows);
    let buckets = servers::write_policy(dir.path(), "buckets.yaml", &buckets);

    let many = servers::bodies(LIMITS);

    let memory = Server::tidegate(&windows, &[]);
    let title = "Tidegate: ten limits a call, in memory";
    draw(&memory, &many, memory.pid(), title, &directory.join("service.svg"));

    let redis = Redis::standalone();
    let scripts = Server::tidegate_on(&redis, &buckets);
    let title = "redis-server: ten token buckets a call, by script";
    draw(&scripts, &many, redis.nodes()[0].pid(), title, &directory.join("redis-script.svg"));
}

/// Draws where a process spends its time while a service is called.
fn draw(service: &Server, bodies: &Bodies, sampled: u32, title: &str, to: &Path) {
    let samples = tempfile::NamedTempFile::new().unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let (connections, streams) = (servers::CONNECTIONS, servers::STREAMS);
                let seen = drive::run(service.port, bodies, 6_400, connections, streams);
                assert_eq!(seen.ok, 6_400, "every call is admitted");
            }
        });
        let recorded = Command::new("perf")
            .args(["record", "--quiet", "--event", "cpu-clock", "--freq", FREQUENCY])
            .args(["--call-graph", "dwarf,16384", "--pid", &sampled.to_string(), "--output"])
            .arg(samples.path())
            .args(["--", "sleep", SECONDS])
            .status();
        done.store(true, Ordering::Relaxed);
        assert!(recorded.expect("perf starts (make flame installs it)").success());
    });
    let mut script = Command::new("perf")
        .args(["script", "--no-inline", "--input"])
        .arg(samples.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("perf starts");
    let mut fold = Command::new("inferno-collapse-perf")
        .stdin(script.stdout.take().expect("a pipe"))
        .stdout(Stdio::piped())
        .spawn()
        .expect("inferno starts (make flame installs it)");
    let drawn = Command::new("inferno-flamegraph")
        .args(["--title", title, "--minwidth", NARROWEST, "--deterministic"])
        .stdin(fold.stdout.take().expect("a pipe"))
        .stdout(File::create(to).expect("a directory"))
        .status();
    assert!(drawn.expect("inferno starts").success());
    assert!(fold.wait().unwrap().success() && script.wait().unwrap().success());
}
