//! Mistakes of new users, and the whole message that each of them gets, many to a file of
//! `tests/mistakes`. A line `=== NAME` begins a mistake, and `--- FILE` an input file of it, or its
//! `message`. A mistake that has no `policy.yaml` gets one with a limit that is right.
//!
//! First come environment variables, one per line, then the command line, and then, for a service
//! that starts all the same, `until TEXT`: it is stopped when its log has this text. `as nobody`
//! drops the right to read any file. Names in braces are ports of real servers. `message` has the
//! exit code and everything that is printed, without times, and without log lines of other events.

mod servers;

use std::fmt::Write as _;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use self::servers::Servers;
use crate::envoy::bootstrap::repository;
use crate::support::heavy;
use crate::support::tidegate_process::{directory, tidegate};
use crate::support::wait::until;

/// Parts of log lines that are no answer to a mistake: normal events, notices about other settings,
/// and how an outage goes on.
const OTHER: [&str; 4] = [
    " INFO ",
    "risky setting name=\"--",
    "the circuit breaker opened",
    "degraded: deciding without Redis",
];
/// How a connection ends that the server closes; which of them depends on the moment.
const CLOSED: [&str; 2] = ["broken pipe", "Connection reset by peer (os error 104)"];
/// The user and group that own nothing, on every Linux.
const NOBODY: u32 = 65_534;

const POLICY: &str = "\
domain: edge
descriptors:
  - key: remote_address
    rate_limit: {unit: minute, requests_per_unit: 100}
";

struct Mistake {
    name: String,
    command: String,
    files: Vec<(String, String)>,
    message: String,
}

fn mistakes() -> Vec<Mistake> {
    let entries = fs::read_dir(repository("tests/mistakes")).expect("the folder");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let texts = files.iter().map(|file| fs::read_to_string(file).expect("UTF-8"));
    let mistakes = |text: String| {
        let text = format!("\n{}", text.strip_suffix('\n').expect("a last line"));
        text.split("\n=== ").skip(1).map(Mistake::read).collect::<Vec<_>>()
    };
    texts.flat_map(mistakes).collect()
}

impl Mistake {
    fn read(text: &str) -> Mistake {
        let mut parts = text.split("\n--- ").map(|part| match part.split_once('\n') {
            Some((name, text)) => (name.to_owned(), format!("{text}\n")),
            None => (part.to_owned(), String::new()),
        });
        let (name, command) = parts.next().expect("a name");
        let mut files: Vec<(String, String)> = parts.collect();
        let (last, message) = files.pop().expect("a message");
        assert_eq!(last, "message", "{name}");
        if files.iter().all(|(name, _)| name != "policy.yaml") {
            files.push(("policy.yaml".to_owned(), POLICY.to_owned()));
        }
        Mistake { name, command, files, message }
    }
}

/// Runs a mistake: the exit code and everything printed.
fn message(mistake: &Mistake, servers: &Servers) -> String {
    let files: Vec<_> =
        mistake.files.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
    let directory = directory(&files);
    servers.write_certificates(directory.path());
    let written = &mistake.command;
    let mut command = tidegate();
    command.current_dir(directory.path()).env("NO_COLOR", "1");
    let (mut ends_with, mut is_nobody) = (None, false);
    for line in written.lines() {
        if let Some(text) = line.strip_prefix("until ") {
            ends_with = Some(text.to_owned());
        } else if line == "as nobody" {
            is_nobody = true;
        } else if let Some(arguments) = line.strip_prefix("tidegate") {
            let arguments = servers.fill(arguments);
            let (arguments, input) = match arguments.split_once(" < ") {
                Some((arguments, input)) => (arguments, Some(input)),
                None => (arguments.as_str(), None),
            };
            command.args(arguments.split_whitespace());
            if let Some(input) = input {
                command.stdin(File::open(directory.path().join(input)).expect("a file"));
            }
        } else {
            let (name, value) = line.split_once('=').expect("NAME=VALUE");
            command.env(name, servers.fill(value));
        }
    }
    if is_nobody {
        deny_reading(directory.path(), &mut command);
    }
    let printed = run(command, directory.path(), ends_with.as_deref());
    servers.forget_ports(&printed)
}

/// Makes the policy unreadable. Root can read everything, so it becomes nobody.
fn deny_reading(directory: &Path, command: &mut Command) {
    let mode = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("ours");
    };
    mode(directory, 0o755);
    mode(&directory.join("policy.yaml"), 0o000);
    if rustix::process::getuid().is_root() {
        // The binary's folder may be closed to others.
        let program = directory.join("tidegate");
        // By another process: one that a test starts here meanwhile would inherit the open copy, and a
        // program that is open for writing cannot be run.
        let copied = Command::new("cp").arg(command.get_program()).arg(&program).status();
        assert!(copied.expect("cp").success(), "the binary");
        mode(&program, 0o755);
        let mut as_nobody = Command::new(&program);
        as_nobody.args(command.get_args()).env_clear().env("NO_COLOR", "1");
        as_nobody.current_dir(directory).uid(NOBODY).gid(NOBODY);
        *command = as_nobody;
    }
}

fn run(mut command: Command, directory: &Path, ends_with: Option<&str>) -> String {
    let (out, err) = (directory.join(".out"), directory.join(".err"));
    command.stdout(File::create(&out).unwrap()).stderr(File::create(&err).unwrap());
    if ends_with.is_some() {
        command.stdin(Stdio::null());
    }
    let mut child = command.spawn().expect("tidegate starts");
    let read = |path: &Path| fs::read_to_string(path).expect("UTF-8");
    if let Some(text) = ends_with {
        // Advice is sought beside the start, and may come after it.
        let is_explained = |log: &str| !text.contains("degraded") || log.contains("advice=");
        until(&format!("{text:?} in the log of {command:?}"), || {
            let log = read(&err);
            (log.contains(text) && is_explained(&log)).then_some(())
        });
        let pid = child.id().to_string();
        assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    }
    let status = until(&format!("{command:?} to end"), || child.try_wait().unwrap());
    let mut text = String::new();
    writeln!(text, "exit code {}", status.code().expect("a code")).unwrap();
    for line in read(&out).lines() {
        writeln!(text, "{line}").unwrap();
    }
    let (mut logged, mut printed) = (Vec::new(), String::new());
    for line in read(&err).lines().filter(|line| !OTHER.iter().any(|other| line.contains(other))) {
        match without_time(line) {
            Some(line) => logged.push(line.to_owned()),
            None => writeln!(printed, "{line}").unwrap(),
        }
    }
    // The search for advice runs beside the start, so the order of their lines varies.
    logged.sort();
    logged.iter().for_each(|line| writeln!(text, "{line}").unwrap());
    text.push_str(&printed);
    let place = directory.display().to_string();
    let user = match rustix::process::getuid() {
        root if root.is_root() => NOBODY,
        user => user.as_raw(),
    };
    let text = text.replace(&format!("{place}/"), "");
    let text = text.replace(&format!("as user {user}:"), "as user {user}:");
    CLOSED.iter().fold(text, |text, closed| text.replace(closed, "{closed}"))
}

/// Returns a log line without its time; `None` if it is none.
fn without_time(line: &str) -> Option<&str> {
    let (time, rest) = line.split_once("Z ")?;
    time.starts_with("20").then(|| rest.trim_start())
}

/// Returns how a mistake's message differs from the expected one, and writes the new one to a file.
fn difference(mistake: &Mistake, servers: &Servers) -> Option<String> {
    let Mistake { name, message: expected, .. } = mistake;
    let found = message(mistake, servers);
    (found != *expected).then(|| {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("mistakes");
        fs::create_dir_all(&directory).unwrap();
        let place = directory.join(name);
        fs::write(&place, &found).unwrap();
        format!("{name}: {} has\n{found}\nbut expected is\n{expected}", place.display())
    })
}

#[test]
fn every_mistake_gets_a_message_with_its_place_its_cause_and_the_way_out() {
    let _turn = heavy::blocking_turn();
    let mistakes = mistakes();
    assert!(mistakes.len() >= 127, "only {} mistakes", mistakes.len());
    let servers = Servers::start();
    // Most of them wait, for a timeout or for Redis.
    let (next, wrong) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let compare_the_rest = || {
        while let Some(mistake) = mistakes.get(next.fetch_add(1, Ordering::Relaxed)) {
            let difference = difference(mistake, &servers);
            wrong.lock().unwrap().extend(difference);
        }
    };
    thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(compare_the_rest))));
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{} messages differ:\n{}", wrong.len(), wrong.join("\n"));
}
