//! A redis-server of the bench's own, on a free port; killed when dropped.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A server that does not answer by then never will.
const STARTS_WITHIN: Duration = Duration::from_secs(20);

pub struct RedisServer {
    child: Child,
    port: u16,
    _dir: tempfile::TempDir,
}

impl RedisServer {
    pub fn start() -> RedisServer {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let dir = tempfile::tempdir().unwrap();
        let child = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no"])
            .current_dir(dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server starts (make tools installs it)");
        let server = RedisServer { child, port, _dir: dir };
        let end = Instant::now() + STARTS_WITHIN;
        while server.client().get_connection().is_err() {
            assert!(Instant::now() < end, "redis-server does not answer");
            std::thread::sleep(Duration::from_millis(10));
        }
        server
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

    /// A line of INFO, as a number.
    pub fn info(&self, section: &str, name: &str) -> u64 {
        let mut connection = self.client().get_connection().unwrap();
        let text: String = redis::cmd("INFO").arg(section).query(&mut connection).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let digits = |rest: &str| {
            rest.chars()
                .skip_while(|c| !c.is_ascii_digit())
                .take_while(char::is_ascii_digit)
                .collect::<String>()
        };
        line.map_or(0, |rest| digits(rest).parse::<u64>().unwrap_or(0))
    }

    pub fn evalshas(&self) -> u64 {
        self.info("commandstats", "cmdstat_evalsha:calls=")
    }

    pub fn used_memory(&self) -> u64 {
        self.info("memory", "used_memory:")
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
