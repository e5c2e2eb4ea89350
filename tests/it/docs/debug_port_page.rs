//! Every request in docs/ADMIN.md is sent to a process, and answered as the page shows: JSON with the
//! same fields and types, text with the same lines except for numbers.

#![allow(clippy::disallowed_methods, reason = "runs the page with our PATH")]

use std::mem::discriminant;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::code_blocks::{Block, blocks, without_numbers};
use crate::support::http;
use crate::support::redis_server::Server;
use crate::support::tidegate_process::{Tidegate, directory, tidegate};
use crate::support::wait::until;

const TOKEN: &str = "between-friends";

#[test]
fn every_request_on_the_page_is_answered_as_it_shows() {
    let server = Server::start(&[]);
    let files = directory(&[("token", TOKEN)]);
    let token = files.path().join("token").display().to_string();
    let policy = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/first.yaml");
    let mut command = tidegate();
    command.arg("serve").arg("--policy").arg(policy).args(["--debug-token-file", &token]);
    command.args(["--redis-url", &format!("127.0.0.1:{}", server.port), "--require-redis", "true"]);
    let serving = Tidegate::start(command.args(["--top-values", "shortened"]), files);
    let send = |block: &str| block.lines().fold(String::new(), |_, line| shell(line, &serving));
    let (mut sent, mut printed, mut answers) = (Vec::new(), String::new(), 0);
    for block in blocks().into_iter().filter(|block| block.place.starts_with("docs/ADMIN.md:")) {
        let Block { kind, text, place } = block;
        let compare = match kind.as_str() {
            "sh debug" => {
                printed = send(&text);
                sent.push(text);
                continue;
            }
            "json answer" => json_answer_difference,
            "text answer" => text_difference,
            _ => continue,
        };
        answers += 1;
        let request = sent.last().expect("a request");
        if request.contains("-X POST") {
            assert_eq!(compare(&text, &printed), None, "{place}: {request} printed {printed}");
            continue;
        }
        // Lists, rates, and the history follow the calls a little later.
        until(&format!("{request:?} to be answered as on {place}"), || {
            let Some(difference) = compare(&text, &printed) else { return Some(()) };
            eprintln!("{place}: {difference}");
            printed = send(request);
            None
        });
    }
    assert!(answers > 15, "{answers}");
    let list = http::get(serving.port("debug"), "/").body;
    let paths = list.lines().filter_map(|line| line.split(' ').next());
    for path in paths.filter(|path| path.starts_with('/')) {
        let address = format!("localhost:6070{path}");
        let is_to = |block: &String| block.split([' ', '?', '\'', '\n']).any(|it| it == address);
        assert!(sent.iter().any(is_to), "docs/ADMIN.md sends no request to {path}");
    }
}

/// Runs a line of the page with our binary, ports, and token; what it printed.
fn shell(line: &str, serving: &Tidegate) -> String {
    let line = line
        .replace("curl ", "curl --silent --show-error --fail-with-body ")
        .replace("localhost:6070", &serving.port("debug").to_string())
        .replace("localhost:8081", &serving.port("grpc").to_string());
    let binary = Path::new(env!("CARGO_BIN_EXE_tidegate")).parent().expect("a directory");
    let path = format!("{}:{}", binary.display(), std::env::var("PATH").expect("a PATH"));
    let output = Command::new("sh")
        .args(["-c", &line])
        .envs([("PATH", path.as_str()), ("TOKEN", TOKEN)])
        .output()
        .expect("sh runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    let printed = String::from_utf8(output.stdout).expect("UTF-8");
    let hint = "if curl is missing: apt-get install curl";
    assert!(output.status.success(), "{line}: {errors}{printed} ({hint})");
    printed
}

/// The first line of the page that was not printed.
fn text_difference(shown: &str, printed: &str) -> Option<String> {
    let printed = without_numbers(printed);
    let is_printed = |line: &&str| printed.lines().any(|it| it == without_numbers(line));
    shown.lines().find(|line| !is_printed(line)).map(|line| format!("{line:?} was not printed"))
}

fn json_answer_difference(shown: &str, printed: &str) -> Option<String> {
    let [shown, printed] = [shown, printed].map(|text| serde_json::from_str(text).expect("JSON"));
    json_difference(&shown, &printed, "")
}

/// The first field that the page shows and the answer lacks or has with another type.
fn json_difference(shown: &Value, printed: &Value, path: &str) -> Option<String> {
    match (shown, printed) {
        (Value::Object(shown), Value::Object(printed)) => shown.iter().find_map(|(name, value)| {
            let path = format!("{path}.{name}");
            match printed.get(name) {
                Some(printed) => json_difference(value, printed, &path),
                None => Some(format!("{path} is absent")),
            }
        }),
        (Value::Array(shown), Value::Array(printed)) => match (shown.first(), printed.first()) {
            (Some(shown), Some(printed)) => json_difference(shown, printed, path),
            (Some(_), None) => Some(format!("{path} is empty")),
            (None, _) => None,
        },
        (Value::Null, _) => None,
        (_, Value::Null) if !shown.is_object() => None,
        _ if discriminant(shown) == discriminant(printed) => None,
        _ => Some(format!("{path} is {printed}")),
    }
}
