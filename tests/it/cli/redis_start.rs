//! Start with Redis, without it, and with its password in a file.

use crate::support::acl;
use crate::support::redis_server::{Server, free_port};
use crate::support::tidegate_process::{FIVE_A_DAY, Tidegate, ran, run_with, tidegate};
use crate::support::wait::until;

#[test]
fn two_processes_share_a_limit() {
    let server = Server::start(&[]);
    let url = format!("127.0.0.1:{}", server.port);
    let flags = ["--redis-url", &url, "--redis-budget", "2s"];
    let both = [0, 1].map(|_| Tidegate::policy(FIVE_A_DAY, &flags));
    let passed = (0..6).filter(|call| both[call % 2].ask("ann").starts_with("OK")).count();
    assert_eq!(passed, 5);
}

#[test]
fn require_store_ends_with_69_without_redis() {
    let url = format!("127.0.0.1:{}", free_port());
    let redis = ["--redis-url", &url, "--require-redis", "true"];
    let ports = ["--grpc-port", "0", "--http-port", "0", "--debug-port", "0"];
    let arguments = [&["serve", "--policy", "policy.yaml"], &redis[..], &ports].concat();
    let ran = run_with(&[("policy.yaml", FIVE_A_DAY)], &arguments).with_code(69);
    assert!(ran.err.contains("--require-redis"), "{}", ran.err);
}

#[test]
fn it_starts_without_redis_and_connects_later() {
    let port = free_port();
    let url = format!("127.0.0.1:{port}");
    let flags = ["--redis-url", &url, "--redis-timeout", "100ms", "--redis-budget", "2s"];
    // Without a rule of its own it would be answered from the local store at once.
    let policy = format!("on_store_failure: error\n{FIVE_A_DAY}");
    let serving = Tidegate::policy(&policy, &flags);
    let ask = || {
        let address = serving.port("grpc").to_string();
        ran(tidegate().args(["ask", &address, "edge", "client=ann"])).code
    };
    assert_eq!(ask(), 69, "nobody counts, nobody answers");
    let _server = Server::try_start(port, &[], &[]).expect("the port is still free");
    until("it is answered", || (ask() == 0).then_some(()));
}

#[test]
fn without_redis_the_default_is_the_local_store() {
    let url = format!("127.0.0.1:{}", free_port());
    let serving = Tidegate::policy(FIVE_A_DAY, &["--redis-url", &url, "--redis-timeout", "100ms"]);
    let answers: Vec<bool> = (0..6).map(|_| serving.ask("ann").starts_with("OK")).collect();
    assert_eq!(answers, [true, true, true, true, true, false]);
}

#[test]
fn a_password_is_read_from_its_file_with_the_user_before_it() {
    let server = Server::start(&[&acl::line(acl::SINGLE)]);
    // From now on nobody is let in without a name.
    server.ask(&["CONFIG", "SET", "requirepass", "nobody-knows"]);
    let login = format!("{}:{}\n", acl::USER, acl::PASSWORD);
    let files = [("policy.yaml", FIVE_A_DAY), ("password", &*login)];
    let url = format!("redis://127.0.0.1:{}", server.port);
    let redis = ["--redis-url", &url, "--require-redis", "true", "--redis-budget", "2s"];
    let arguments = [&redis[..], &["--redis-auth-file", "password"]].concat();
    let serving = Tidegate::with_files(&files, &arguments, &[]);
    assert!(serving.ask("ann").starts_with("OK"));
}
