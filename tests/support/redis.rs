//! A real redis-server of a test's own, and a plain transport to it.
//!
//! Free port, temporary directory, killed on drop. Not here: the connections, sentinels, clusters.
#![allow(
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "waits for a real server with a deadline, and says why a script failed"
)]

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use redis::Value;
use redis::aio::MultiplexedConnection;
use tempfile::TempDir;
use tidegate::domain::Executed;
use tidegate::store::redis::client::transport::{
    Replies, ScriptCall, ScriptCalls, SendError, SendErrorKind, Transport,
};

/// A server that has not answered by then never will.
const STARTS_WITHIN: Duration = Duration::from_secs(20);

pub struct Server {
    pub port: u16,
    child: Child,
    _dir: TempDir,
}

impl Server {
    /// Starts a server with these arguments beside our own.
    pub fn start(arguments: &[&str]) -> Server {
        // A free port may be taken by somebody else before the server binds it: then again.
        (0..10).find_map(|_| Server::try_start(arguments)).expect("redis-server does not start")
    }

    fn try_start(arguments: &[&str]) -> Option<Server> {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let dir = tempfile::tempdir().unwrap();
        let child = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no", "--enable-debug-command", "local"])
            .args(arguments)
            .current_dir(dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap_or_else(|e| panic!("redis-server: {e}; apt-get install redis-server"));
        let mut server = Server { port, child, _dir: dir };
        let deadline = Instant::now() + STARTS_WITHIN;
        while Instant::now() < deadline {
            if server.child.try_wait().unwrap().is_some() {
                return None;
            }
            if server.pid_that_answers() == Some(server.child.id()) {
                return Some(server);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        None
    }

    fn pid_that_answers(&self) -> Option<u32> {
        let mut connection = self.client().get_connection().ok()?;
        let info: String = redis::cmd("INFO").arg("server").query(&mut connection).ok()?;
        let pid = info.lines().find_map(|line| line.strip_prefix("process_id:"))?;
        pid.trim().parse().ok()
    }

    pub fn client(&self) -> redis::Client {
        redis::Client::open(format!("redis://127.0.0.1:{}/", self.port)).unwrap()
    }

    pub async fn connect(&self) -> MultiplexedConnection {
        let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
        self.client().get_multiplexed_async_connection_with_config(&config).await.unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// One connection, and nothing that a connection does for speed or safety.
#[derive(Clone)]
pub struct Plain(pub MultiplexedConnection);

impl Plain {
    /// Runs an item; loads its script first where the server does not know it. Not executed means
    /// not charged, so that may happen as often as somebody flushes the scripts in between.
    pub async fn run(&self, item: &ScriptCall) -> redis::RedisResult<Value> {
        let mut connection = self.0.clone();
        loop {
            let reply = connection.send_packed_command(&item.command).await;
            match reply.and_then(Value::extract_error) {
                Err(error) if error.code() == Some("NOSCRIPT") => {
                    let mut load = redis::cmd("SCRIPT");
                    load.arg("LOAD").arg(&item.script.text);
                    let sha: String = load.query_async(&mut connection).await?;
                    assert_eq!(sha, item.script.sha, "the server hashes the script as we do");
                }
                other => return other,
            }
        }
    }
}

impl Transport for Plain {
    fn is_cluster(&self) -> bool {
        false
    }

    async fn send(&self, items: ScriptCalls) -> Replies {
        let mut replies = Replies::new();
        for item in &items {
            let failed = SendError { executed: Executed::Unknown, fault: SendErrorKind::Script };
            replies.push(self.run(item).await.map_err(|error| {
                println!("{}: {error}", item.script.name);
                failed
            }));
        }
        replies
    }

    fn post(&self, item: ScriptCall) {
        let this = self.clone();
        tokio::spawn(async move { this.run(&item).await });
    }
}
