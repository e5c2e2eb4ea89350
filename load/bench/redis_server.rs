//! Redis servers of the bench's own, on free ports: a standalone server, or the masters of a Cluster.
//! Killed when dropped.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tidegate_test_support::redis_server::{free_port, redis_cli};
use tidegate_test_support::wait::until_so;

use super::cpu;

/// Masters of a Cluster; it has no replicas.
const MASTERS: usize = 3;
/// Where valgrind writes its count.
const COUNT_FILE: &str = "instructions";
/// Where it writes the counts that are asked for in between.
const DUMP_FILE: &str = "counts";

/// Where a service counts: one standalone server, or the masters of a Cluster.
pub struct Redis {
    nodes: Vec<RedisServer>,
}

impl Redis {
    pub fn standalone() -> Redis {
        Redis { nodes: vec![RedisServer::start()] }
    }

    /// A Cluster without replicas, whose slots are assigned.
    pub fn cluster() -> Redis {
        let lines = ["--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf"];
        let node = |_| RedisServer::start_at(free_port(), &lines);
        let nodes: Vec<RedisServer> = (0..MASTERS).map(node).collect();
        let addresses: Vec<String> = nodes.iter().map(RedisServer::address).collect();
        let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
        redis_cli(&[&["--cluster", "create", "--cluster-yes"], &addresses[..]].concat());
        until_so("the Cluster settles", || nodes.iter().all(RedisServer::knows_all_slots));
        Redis { nodes }
    }

    /// `REDIS_TYPE` and `REDIS_URL`, as Tidegate and envoyproxy/ratelimit read them.
    pub fn environment(&self) -> [(&'static str, String); 2] {
        let addresses: Vec<String> = self.nodes.iter().map(RedisServer::address).collect();
        let kind = if self.is_cluster() { "CLUSTER" } else { "SINGLE" };
        [("REDIS_TYPE", kind.to_owned()), ("REDIS_URL", addresses.join(","))]
    }

    pub fn is_cluster(&self) -> bool {
        self.nodes.len() > 1
    }

    pub fn name(&self) -> &'static str {
        if self.is_cluster() { "Cluster" } else { "standalone" }
    }

    pub fn nodes(&self) -> &[RedisServer] {
        &self.nodes
    }

    /// CPU time of all servers so far.
    pub fn cpu(&self) -> Duration {
        self.nodes.iter().map(|node| cpu::of_process(node.pid())).sum()
    }
}

pub struct RedisServer {
    child: Child,
    port: u16,
    /// `None` once another server has it.
    dir: Option<tempfile::TempDir>,
}

impl RedisServer {
    pub fn start() -> RedisServer {
        RedisServer::start_at(free_port(), &[])
    }

    fn start_at(port: u16, more: &[&str]) -> RedisServer {
        let program = &mut Command::new("redis-server");
        RedisServer::start_in(tempfile::tempdir().unwrap(), port, program, more)
    }

    fn start_in(
        dir: tempfile::TempDir,
        port: u16,
        program: &mut Command,
        more: &[&str],
    ) -> RedisServer {
        let child = program
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no"])
            .args(more)
            .current_dir(dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server starts (make tools installs it)");
        let server = RedisServer { child, port, dir: Some(dir) };
        until_so("redis-server answers", || server.client().get_connection().is_ok());
        server
    }

    /// Stops the server, and starts one with the same data whose instructions are counted. It is 50
    /// times slower.
    pub fn restart_counted(mut self) -> RedisServer {
        let mut connection = self.client().get_connection().unwrap();
        // The server ends without a reply.
        let _ = redis::cmd("SHUTDOWN").arg("SAVE").exec(&mut connection);
        self.child.wait().expect("it ends");
        let dir = self.dir.take().expect("it has a directory");
        let server = RedisServer::start_in(dir, self.port, &mut counted_program(), &[]);
        let mut connection = server.client().get_connection().unwrap();
        let is_loading = |error: redis::RedisError| error.code() == Some("LOADING");
        while redis::cmd("PING").exec(&mut connection).is_err_and(is_loading) {
            std::thread::sleep(Duration::from_millis(100));
        }
        server
    }

    /// Sets the count of a counted server to zero.
    pub fn count_from_now(&self) {
        self.control("--zero");
    }

    /// Instructions of a counted server since the count was zero.
    pub fn counted(&self) -> f64 {
        self.control("--dump");
        let dir = self.dir.as_ref().expect("it has a directory").path();
        let dumps = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
        let dump = dumps.filter(|path| path.to_string_lossy().contains("counts.")).last();
        let path = dump.expect("valgrind writes a file");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        let total = text.lines().find_map(|line| line.strip_prefix("totals: "));
        total.expect("valgrind counts").trim().parse().expect("a number")
    }

    fn control(&self, action: &str) {
        let mut command = Command::new("callgrind_control");
        command.arg(action).arg(self.pid().to_string()).stdout(Stdio::null());
        let done = command.stderr(Stdio::null()).status();
        assert!(done.expect("callgrind_control starts").success());
    }

    fn knows_all_slots(&self) -> bool {
        let mut connection = self.client().get_connection().unwrap();
        let info: String = redis::cmd("CLUSTER").arg("INFO").query(&mut connection).unwrap();
        info.contains("cluster_state:ok") && info.contains("cluster_slots_ok:16384")
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub fn client(&self) -> redis::Client {
        redis::Client::open(("127.0.0.1", self.port)).unwrap()
    }

    /// Bytes that its data takes.
    pub fn used_memory(&self) -> u64 {
        let mut connection = self.client().get_connection().unwrap();
        let text: String = redis::cmd("INFO").arg("memory").query(&mut connection).unwrap();
        let bytes = text.lines().find_map(|line| line.strip_prefix("used_memory:"));
        bytes.and_then(|bytes| bytes.trim().parse().ok()).expect("a number of bytes")
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A redis-server whose instructions valgrind counts.
fn counted_program() -> Command {
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", &format!("--callgrind-out-file={DUMP_FILE}")]);
    command.arg(format!("--log-file={COUNT_FILE}")).arg("redis-server");
    command
}

/// The version of the redis-server that is measured.
pub fn version() -> String {
    let output = Command::new("redis-server").arg("--version").output();
    let text = output.expect("redis-server starts (make tools installs it)").stdout;
    let text = String::from_utf8_lossy(&text).into_owned();
    let version = text.split_whitespace().find_map(|word| word.strip_prefix("v="));
    version.expect("a version").to_owned()
}
