//! A password file that is rewritten under load, as with the tokens of a cloud provider.

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use crate::support::acl;
use crate::support::redis_server::Server;
use crate::support::tidegate_process::{Tidegate, asked, metric};
use crate::support::wait::until;

const LIMIT: u64 = 300;
const ROTATIONS: u64 = 6;
const CALLERS: usize = 3;

/// Status codes of the answers, by client.
type Answers = BTreeMap<(u64, u16), u64>;

#[test]
fn open_connections_log_in_again_when_the_password_changes_and_no_call_notices() {
    let policy = format!(
        "domain: edge\non_store_failure: error\ndescriptors:\n  - key: client\n    \
         rate_limit: {{unit: year, requests_per_unit: {LIMIT}}}\n"
    );
    let server = Server::start(&[&acl::line(acl::SINGLE)]);
    let login = |password: &str| format!("{}:{password}\n", acl::USER);
    let password = login(acl::PASSWORD);
    let url = format!("127.0.0.1:{}", server.port);
    let redis = ["--redis-url", &url, "--require-redis", "true", "--redis-auth-file", "password"];
    // Rejected calls ask Redis, too, and no call is given up on a busy machine.
    let patient = ["--rejection-cache", "false", "--redis-budget", "60s"];
    let files = [("policy.yaml", &*policy), ("password", &password)];
    let serving = Tidegate::with_files(&files, &[&redis[..], &patient].concat(), &[]);
    let [file, next] = ["password", "next"].map(|name| serving.directory().join(name));
    let connections = metric(&serving, "redis_connections");
    let (connects, losses) =
        (metric(&serving, "redis_connects_total"), metric(&serving, "redis_losses_total"));

    let (round, admitted) = (AtomicU64::new(0), AtomicU64::new(0));
    let call_until_the_end = || {
        let mut answers = Answers::new();
        loop {
            let client = round.load(Ordering::SeqCst);
            if client > ROTATIONS {
                return answers;
            }
            let status = asked(&serving, &client.to_string());
            admitted.fetch_add(u64::from(status == 200), Ordering::SeqCst);
            *answers.entry((client, status)).or_default() += 1;
        }
    };
    let answers = thread::scope(|scope| {
        let callers: Vec<_> = (0..CALLERS).map(|_| scope.spawn(call_until_the_end)).collect();
        let mut old = acl::PASSWORD.to_owned();
        for rotation in 1..=ROTATIONS {
            let (logins, new) = (logins(&server), format!("token-{rotation}"));
            server.ask(&["ACL", "SETUSER", acl::USER, &format!(">{new}")]);
            fs::write(&next, login(&new)).unwrap();
            fs::rename(&next, &file).unwrap();
            until("each connection to log in again", || {
                (self::logins(&server) >= logins + connections).then_some(())
            });
            server.ask(&["ACL", "SETUSER", acl::USER, &format!("<{old}")]);
            until("the limit to be reached", || {
                (admitted.load(Ordering::SeqCst) >= LIMIT * rotation).then_some(())
            });
            old = new;
            round.store(rotation + u64::from(rotation == ROTATIONS), Ordering::SeqCst);
        }
        let mut answers = Answers::new();
        for caller in callers {
            for (kind, count) in caller.join().unwrap() {
                *answers.entry(kind).or_default() += count;
            }
        }
        answers
    });

    assert!(answers.keys().all(|(_, status)| [200, 429].contains(status)), "{answers:?}");
    for client in 0..ROTATIONS {
        assert_eq!(answers.get(&(client, 200)), Some(&LIMIT), "{answers:?}");
    }
    let calls: u64 = answers.values().sum();
    assert_eq!(metric(&serving, "redis_script_decisions_total"), calls, "Redis decided every call");
    assert_eq!(metric(&serving, "redis_connects_total"), connects);
    assert_eq!(metric(&serving, "redis_losses_total"), losses);
    assert_eq!(metric(&serving, "redis_errors_total"), 0);
    assert_eq!(logins(&server), connections * ROTATIONS, "one login each");
}

#[test]
fn a_rejected_password_is_logged_and_the_connection_stays_logged_in() {
    let policy = "domain: edge\ndescriptors:\n  - key: client\n    \
                  rate_limit: {unit: year, requests_per_unit: 2}\non_store_failure: error\n";
    let server = Server::start(&[&acl::line(acl::SINGLE)]);
    let serving = Tidegate::on_redis(&server, policy, &["--redis-budget", "60s"]);
    let losses = metric(&serving, "redis_losses_total");
    let file = serving.directory().join("auth");
    fs::write(file, format!("{}:not-the-password\n", acl::USER)).unwrap();
    let line = serving.logged_in_time("Redis denied the login or a command");
    assert!(line["reason"].as_str().unwrap().starts_with("WRONGPASS"), "{line}");
    let statuses = [0, 0, 0].map(|client| asked(&serving, &client.to_string()));
    assert_eq!(statuses, [200, 200, 429]);
    assert_eq!(metric(&serving, "redis_losses_total"), losses);
}

/// The number of AUTH commands that Redis has accepted. A login while connecting is part of HELLO.
fn logins(server: &Server) -> u64 {
    let info = redis::from_redis_value::<String>(server.ask(&["INFO", "commandstats"])).unwrap();
    let Some(row) = info.lines().find(|row| row.starts_with("cmdstat_auth:")) else { return 0 };
    assert!(row.contains("failed_calls=0"), "{row}");
    let calls = row.split_once("calls=").unwrap().1.split(',').next().unwrap();
    calls.parse().unwrap()
}
