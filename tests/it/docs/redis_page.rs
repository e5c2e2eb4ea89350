//! The ACLs and the shell commands for Redis in the documentation are the tested ones.

#![allow(clippy::disallowed_methods, reason = "runs the page with our PATH")]

use std::path::Path;
use std::process::Command;

use crate::support::acl;
use crate::support::redis_server::Server;
use crate::support::tidegate_process::{Tidegate, directory, run, tidegate};

fn page() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/REDIS.md");
    std::fs::read_to_string(path).unwrap()
}

fn blocks(kind: &str) -> Vec<String> {
    let (page, fence) = (page(), format!("```{kind}\n"));
    let after = page.split(&fence).skip(1);
    after.map(|rest| rest.split("```").next().unwrap().to_owned()).collect()
}

#[test]
fn the_least_privilege_on_the_page_is_the_one_that_tests_run_under() {
    let shown: Vec<String> = blocks("text acl")
        .concat()
        .lines()
        .filter(|line| line.starts_with("user "))
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    let tested = [acl::SINGLE, acl::SENTINEL_MASTER, acl::SENTINEL, acl::CLUSTER].map(|rules| {
        let line = acl::line(rules).replace(acl::PASSWORD, "PASSWORD");
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    });
    assert_eq!(shown, tested);
}

#[test]
fn an_operator_finds_a_counter_and_sees_that_every_key_ends() {
    let server = Server::start(&[]);
    let url = format!("127.0.0.1:{}", server.port);
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let policy = root.join("config/first.yaml").display().to_string();
    let mut command = tidegate();
    command.args(["serve", "--policy", &policy, "--redis-url", &url, "--require-redis", "true"]);
    let serving = Tidegate::start(&mut command, directory(&[]));
    run(&["ask", &serving.port("grpc").to_string(), "edge", "api_token=demo"]).with_code(0);
    let lines: Vec<String> = blocks("sh redis").concat().lines().map(str::to_owned).collect();
    let [explain, scan] = lines.as_slice() else { panic!("two commands: {lines:?}") };
    let told = shell(explain, server.port);
    let key = told.lines().find_map(|line| line.trim().strip_prefix("in Redis ")).expect(&told);
    let found = shell(scan, server.port);
    assert!(found.lines().any(|line| line.starts_with(key)), "{key} is not in\n{found}");
    for line in found.lines() {
        let left: i64 = line.rsplit(' ').next().unwrap().parse().unwrap();
        // -1 is a key that never ends; -2 one that has ended since it was found.
        assert!(left > 0 || left == -2, "{line}: never ends");
    }
}

/// Runs a line of the page, with our server and our binary for those it means.
fn shell(line: &str, port: u16) -> String {
    let binary = Path::new(env!("CARGO_BIN_EXE_tidegate")).parent().unwrap();
    let path = format!("{}:{}", binary.display(), std::env::var("PATH").unwrap());
    let output = Command::new("sh")
        .args(["-c", &line.replace("redis-cli", &format!("redis-cli -p {port}"))])
        .env("PATH", path)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
