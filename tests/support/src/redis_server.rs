//! Real redis-server processes on free ports, each in a temporary directory, killed on drop.

use std::fmt::Write as _;
use std::hash::{BuildHasher, RandomState};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use redis::Value;
use redis::aio::MultiplexedConnection;
use tempfile::TempDir;

use super::wait::until_so;

/// What to say when a program is missing.
const INSTALL: &str = "install Redis 7 or newer: apt-get install redis-server";
/// No test waits longer for anything than this.
pub const PATIENCE: Duration = super::wait::PATIENCE;

/// A running redis-server (or sentinel).
pub struct Server {
    pub port: u16,
    pub dir: TempDir,
    child: Child,
    tls: bool,
}

/// A directory in memory, if the system has one. Nodes of a cluster and sentinels sync their
/// configuration to disk, and a busy disk would stop them for longer than a call may take.
fn directory_in_memory() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

impl Server {
    /// Starts a server with these configuration lines besides the port; waits until it answers.
    pub fn start(lines: &[&str]) -> Server {
        for _ in 0..10 {
            if let Some(server) = Server::try_start(free_port(), lines, &[]) {
                return server;
            }
        }
        panic!("redis-server does not start");
    }

    /// The same as a sentinel.
    pub fn start_sentinel(lines: &[&str]) -> Server {
        for _ in 0..10 {
            if let Some(server) = Server::try_start(free_port(), lines, &["--sentinel"]) {
                return server;
            }
        }
        panic!("redis-server --sentinel does not start");
    }

    /// Starts one at a port that is known to be free; `None` if it was taken meanwhile.
    pub fn try_start(port: u16, lines: &[&str], arguments: &[&str]) -> Option<Server> {
        let dir = directory_in_memory();
        let tls = lines.iter().any(|line| line.starts_with("tls-port"));
        let sentinel = arguments.contains(&"--sentinel");
        let mut config = String::new();
        if !tls {
            writeln!(config, "port {port}").unwrap();
        }
        writeln!(config, "bind 127.0.0.1\ndir {}", dir.path().display()).unwrap();
        if !sentinel {
            config.push_str("save \"\"\nappendonly no\n");
        }
        for line in lines {
            writeln!(config, "{}", line.replace("{port}", &port.to_string())).unwrap();
        }
        let file = dir.path().join("redis.conf");
        std::fs::write(&file, config).unwrap();
        let log = std::fs::File::create(dir.path().join("log")).unwrap();
        let child = Command::new("redis-server")
            .arg(&file)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("redis-server: {error}; {INSTALL}"));
        let mut server = Server { port, dir, child, tls };
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            if server.child.try_wait().unwrap().is_some() {
                return None;
            }
            if server.is_up() {
                return Some(server);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("redis-server does not answer; its log:\n{}", server.log());
    }

    fn is_up(&self) -> bool {
        if self.tls {
            return std::net::TcpStream::connect(("127.0.0.1", self.port)).is_ok();
        }
        self.try_ask(&["PING"]).is_ok() && self.is_ours()
    }

    /// Whether the process that listens on the port is the one started here: another program may
    /// have taken the port in the meantime.
    fn is_ours(&self) -> bool {
        let info = self.try_ask(&["INFO", "server"]).map(redis::from_redis_value::<String>);
        let process = format!("process_id:{}\r\n", self.child.id());
        info.is_ok_and(|info| info.is_ok_and(|info| info.contains(&process)))
    }

    pub fn client(&self) -> redis::Client {
        redis::Client::open(("127.0.0.1", self.port)).unwrap()
    }

    /// An asynchronous connection without a timeout of its own.
    pub async fn connect(&self) -> MultiplexedConnection {
        let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
        self.client().get_multiplexed_async_connection_with_config(&config).await.unwrap()
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// Asks as the server's default user.
    pub fn ask(&self, words: &[&str]) -> Value {
        self.try_ask(words).unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    pub fn try_ask(&self, words: &[&str]) -> redis::RedisResult<Value> {
        // Its handshake has this time, too. A node of Valkey that has just lost its last slot is silent
        // while it connects to its new master.
        let mut connection = self.client().get_connection_with_timeout(PATIENCE)?;
        connection.set_read_timeout(Some(PATIENCE))?;
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        command.query(&mut connection)
    }

    /// The integer under a key, 0 where there is none.
    pub fn count(&self, key: &str) -> u64 {
        redis::from_redis_value::<Option<u64>>(self.ask(&["GET", key])).unwrap().unwrap_or(0)
    }

    /// Freezes the process.
    pub fn freeze(&self) {
        self.signal("-STOP");
    }

    /// Thaws it.
    pub fn thaw(&self) {
        self.signal("-CONT");
    }

    /// Kills it as a power cut would.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Restarts a killed server on its port, with its configuration and the files it left behind.
    pub fn restart(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.child = Command::new("redis-server")
            .arg(self.dir.path().join("redis.conf"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        until_so("redis-server starts again", || self.is_up());
    }

    fn signal(&self, signal: &str) {
        let line = format!("kill {signal} {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &line]).status().unwrap().success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs redis-cli and demands success.
pub fn redis_cli(arguments: &[&str]) -> String {
    let output = Command::new("redis-cli")
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|error| panic!("redis-cli: {error}; {INSTALL}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "redis-cli {arguments:?}: {text}");
    text
}

/// A port that is free now, as is the one 10,000 above it (where a cluster node talks to others).
/// Below the range that the system draws outgoing ports from.
pub fn free_port() -> u16 {
    static STEP: AtomicU16 = AtomicU16::new(0);
    // Different processes start at different places, one process never tries a port twice.
    let begin = std::process::id().wrapping_mul(131) as u16 ^ RandomState::new().hash_one(1) as u16;
    loop {
        let step = STEP.fetch_add(1, Ordering::Relaxed);
        let port = 11_000 + begin.wrapping_add(step) % 10_000;
        let free = |port| TcpListener::bind(("127.0.0.1", port)).is_ok();
        if free(port) && free(port + 10_000) {
            return port;
        }
    }
}

/// Waits for a condition, and says what for if it does not come.
pub async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < end, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
