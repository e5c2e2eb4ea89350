//! Runs the `tidegate` binary: once, to its end, or as a service until dropped.

use std::collections::BTreeMap;
use std::env;
use std::fs::{self, File};
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use super::acl;
use super::child_process::until_running;
use super::http;
use super::redis_server::Server;
use super::wait::until;

/// The binary, which Cargo builds before integration tests and benches, in the directory above theirs.
pub fn program() -> PathBuf {
    let test = env::current_exe().expect("a path");
    test.ancestors().nth(2).expect("a directory of the profile").join("tidegate")
}

/// The binary by a link with another name, which it may heed, and with no environment.
pub fn linked(link: &Path) -> Command {
    symlink(program(), link).expect("writable");
    let mut command = Command::new(link);
    command.env_clear().stdin(Stdio::null());
    command
}

/// The binary, with no environment.
pub fn tidegate() -> Command {
    let mut command = Command::new(program());
    command.env_clear().stdin(Stdio::null());
    command
}

/// What a run to the end printed, and its exit code.
pub struct ProcessOutput {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl ProcessOutput {
    /// Asserts the exit code; on a mismatch shows what was printed.
    pub fn with_code(self, code: i32) -> ProcessOutput {
        assert_eq!(self.code, code, "\nstdout:\n{}\nstderr:\n{}", self.out, self.err);
        self
    }
}

pub fn ran(command: &mut Command) -> ProcessOutput {
    let Output { status, stdout, stderr } = command.output().expect("tidegate runs");
    ProcessOutput {
        code: status.code().expect("an exit code"),
        out: String::from_utf8(stdout).expect("UTF-8"),
        err: String::from_utf8(stderr).expect("UTF-8"),
    }
}

/// Runs with these arguments and no environment.
pub fn run(arguments: &[&str]) -> ProcessOutput {
    ran(tidegate().args(arguments))
}

/// Runs in a directory with these files, with these arguments and no environment.
pub fn run_with(files: &[(&str, &str)], arguments: &[&str]) -> ProcessOutput {
    let files = directory(files);
    ran(tidegate().args(arguments).current_dir(files.path()))
}

/// A directory with files.
pub fn directory(files: &[(&str, &str)]) -> TempDir {
    let directory = TempDir::new().expect("a temporary directory");
    for (name, text) in files {
        let path = directory.path().join(name);
        fs::create_dir_all(path.parent().expect("a parent")).expect("writable");
        fs::write(path, text).expect("writable");
    }
    directory
}

/// Five a day for each client.
pub const FIVE_A_DAY: &str = "
domain: edge
descriptors:
  - key: client
    rate_limit: {name: daily, unit: year, requests_per_unit: 5}
";

/// The value of `tidegate_NAME`, summed over its labels.
pub fn metric(serving: &Tidegate, name: &str) -> u64 {
    let text = http::get(serving.port("http"), "/metrics").body;
    let name = format!("tidegate_{name}");
    let rest = |line| str::strip_prefix(line, &*name).filter(|rest| rest.starts_with(['{', ' ']));
    let mut values = text.lines().filter_map(rest).peekable();
    assert!(values.peek().is_some(), "no {name} in\n{text}");
    values.map(|rest| rest.rsplit(' ').next().unwrap().parse::<u64>().expect("a number")).sum()
}

/// The status of the call of a client of the domain `edge`.
pub fn asked(serving: &Tidegate, client: &str) -> u16 {
    let body = format!(
        r#"{{"domain":"edge","descriptors":[{{"entries":[{{"key":"client","value":"{client}"}}]}}]}}"#
    );
    http::post(serving.port("http"), "/json", &body).status
}

/// A serving process; killed when dropped.
pub struct Tidegate {
    child: Child,
    log: PathBuf,
    ports: BTreeMap<String, SocketAddr>,
    _directory: TempDir,
}

impl Tidegate {
    /// Serves this policy on free ports.
    pub fn policy(text: &str, arguments: &[&str]) -> Tidegate {
        Tidegate::with_files(&[("policy.yaml", text)], arguments, &[])
    }

    /// Serves `policy.yaml` in a directory with these files, with these arguments and variables.
    pub fn with_files(
        files: &[(&str, &str)],
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Tidegate {
        let files = directory(files);
        let mut command = tidegate();
        command.current_dir(files.path()).args(["serve", "--policy"]);
        command.arg(files.path().join("policy.yaml")).args(arguments);
        Tidegate::start(command.envs(environment.iter().copied()), files)
    }

    /// Serves policies of several domains, separated by `---`, each from a file of its own.
    pub fn domains(text: &str, arguments: &[&str]) -> Tidegate {
        let files = directory(&[]);
        Tidegate::write_domains(files.path(), text);
        let mut command = tidegate();
        command.args(["serve", "--policy"]).arg(files.path().join("policy")).args(arguments);
        Tidegate::start(&mut command, files)
    }

    /// Replaces such policies at once, as Kubernetes does.
    pub fn write_domains(directory: &Path, text: &str) {
        let version = TempDir::new_in(directory).expect("writable").keep();
        for (at, domain) in text.split("---\n").enumerate() {
            fs::write(version.join(format!("{at}.yaml")), domain).expect("writable");
        }
        let link = directory.join("next");
        symlink(&version, &link).expect("a link");
        fs::rename(link, directory.join("policy")).expect("writable");
    }

    /// Serves this policy on a Redis with the ACL of a single server.
    pub fn on_redis(server: &Server, policy: &str, arguments: &[&str]) -> Tidegate {
        let login = format!("{}:{}", acl::USER, acl::PASSWORD);
        let url = format!("127.0.0.1:{}", server.port);
        let redis = ["--redis-url", &url, "--redis-auth-file", "auth"];
        let files = [("policy.yaml", policy), ("auth", &*login)];
        Tidegate::with_files(&files, &[&redis, arguments].concat(), &[])
    }

    /// Starts a command that serves; `kept` lives as long as it.
    pub fn start(command: &mut Command, kept: TempDir) -> Tidegate {
        Tidegate::start_logging(command, kept, Stdio::from)
    }

    /// The same with another standard error, which copies to the file of the log.
    pub fn start_logging(
        command: &mut Command,
        kept: TempDir,
        log: impl FnOnce(File) -> Stdio,
    ) -> Tidegate {
        let serving = Tidegate::spawn(command, kept, log);
        let degraded = "ready, degraded: Redis is not connected";
        until("tidegate to be ready", || serving.logged("ready").or(serving.logged(degraded)));
        serving
    }

    /// The same, but waits only until it listens.
    pub fn start_listening(command: &mut Command, kept: TempDir) -> Tidegate {
        Tidegate::spawn(command, kept, Stdio::from)
    }

    fn spawn(command: &mut Command, kept: TempDir, stderr: impl FnOnce(File) -> Stdio) -> Tidegate {
        let log = kept.path().join(".log");
        let file = File::create(&log).expect("writable");
        // A test may set its own interval.
        if !command.get_envs().any(|(name, _)| name == "TIDEGATE_TEST_INFO_POLL") {
            command.env("TIDEGATE_TEST_INFO_POLL", "500ms");
        }
        let child = command
            .envs([("GRPC_HOST", "127.0.0.1"), ("GRPC_PORT", "0"), ("HOST", "127.0.0.1")])
            .envs([("PORT", "0"), ("DEBUG_PORT", "0"), ("LOG_FORMAT", "json")])
            .env("TIDEGATE_THREADS", "1")
            .stdout(Stdio::null())
            .stderr(stderr(file))
            .spawn()
            .expect("tidegate starts");
        let mut serving = Tidegate { child, log, ports: BTreeMap::new(), _directory: kept };
        let log = serving.log.clone();
        let listening = until_running(&mut serving.child, "tidegate", &log, || {
            logged_in(&fs::read_to_string(&log).unwrap_or_default(), "listening")
        });
        for (name, value) in listening.as_object().expect("fields") {
            if let Some(address) = value.as_str().and_then(|text| text.parse().ok()) {
                serving.ports.insert(name.clone(), address);
            }
        }
        serving
    }

    /// A port by its name in the log: grpc, http, debug, prometheus.
    pub fn port(&self, name: &str) -> SocketAddr {
        self.ports[name]
    }

    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The first line of the log with this message.
    pub fn logged(&self, message: &str) -> Option<Value> {
        logged_in(&self.log(), message)
    }

    /// The same, waiting for it.
    pub fn logged_in_time(&self, message: &str) -> Value {
        until(&format!("{message:?} in the log"), || self.logged(message))
    }

    /// Asks it once for a client, by `tidegate ask`: what was printed.
    pub fn ask(&self, client: &str) -> String {
        let descriptor = format!("client={client}");
        run(&["ask", &self.port("grpc").to_string(), "edge", &descriptor]).with_code(0).out
    }

    /// Replaces its policy file, as an editor does.
    pub fn rewrite(&self, policy: &str) {
        let new = self.directory().join("new");
        fs::write(&new, policy).expect("writable");
        fs::rename(new, self.directory().join("policy.yaml")).expect("writable");
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("it runs");
    }

    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("a child").is_none()
    }

    pub fn exit_code(&mut self) -> Option<i32> {
        until("tidegate to end", || self.child.try_wait().expect("a child")).code()
    }

    /// A number of its /proc status, such as VmRSS in KiB.
    pub fn proc_status(&self, field: &str) -> usize {
        let status = fs::read_to_string(format!("/proc/{}/status", self.id())).expect("Linux");
        let line = status.lines().find(|line| line.starts_with(field)).expect("the field");
        line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).expect("a number")
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn directory(&self) -> &Path {
        self.log.parent().expect("a directory")
    }
}

fn logged_in(log: &str, message: &str) -> Option<Value> {
    let mut lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.find(|line| line["message"] == message)
}

impl Drop for Tidegate {
    fn drop(&mut self) {
        // Both fail only where it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
