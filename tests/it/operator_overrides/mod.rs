//! Overrides that operators set at run time, on real replicas that share a real Redis.

mod bounds;
mod memory_only;
mod replicas;
mod surviving;

use serde_json::Value;

use crate::support::http::{self, Reply};
use crate::support::redis_server::Server;
use crate::support::tidegate_process::{FIVE_A_DAY, Tidegate, asked, directory};
use crate::support::wait::until;

const TOKEN: &str = "between-friends";

/// A replica with an operator's token, and these arguments.
fn replica(arguments: &[&str]) -> Tidegate {
    let files = [("policy.yaml", FIVE_A_DAY), ("token", TOKEN)];
    Tidegate::with_files(&files, &[&["--debug-token-file", "token"], arguments].concat(), &[])
}

/// Such a replica on a Redis with these arguments.
fn replica_on(server: &Server, arguments: &[&str]) -> Tidegate {
    let url = format!("127.0.0.1:{}", server.port);
    replica(&[&["--redis-url", &url][..], arguments].concat())
}

fn three_on(server: &Server) -> [Tidegate; 3] {
    [(); 3].map(|()| replica_on(server, &[]))
}

/// Posts an operator's order; it must succeed.
fn order(replica: &Tidegate, path: &str) -> String {
    let Reply { status, body, .. } = http::order(replica.port("debug"), path, TOKEN);
    assert_eq!(status, 200, "{path}: {body}");
    body
}

/// The first page of the overrides in force.
fn listed(replica: &Tidegate) -> Value {
    let reply = http::get(replica.port("debug"), "/overrides");
    assert_eq!(reply.status, 200, "{}", reply.body);
    serde_json::from_str(&reply.body).expect("JSON")
}

/// The reasons of the overrides in force, sorted.
fn reasons(replica: &Tidegate) -> Vec<String> {
    let text = |item: &Value| item["override"]["reason"].as_str().unwrap_or_default().to_owned();
    let mut reasons: Vec<_> =
        listed(replica)["overrides"].as_array().expect("a list").iter().map(text).collect();
    reasons.sort();
    reasons
}

/// Waits until exactly overrides with these reasons are in force on every replica.
fn await_reasons<'t>(replicas: impl IntoIterator<Item = &'t Tidegate>, expected: &[&str]) {
    for replica in replicas {
        until(&format!("{expected:?} in force"), || (reasons(replica) == expected).then_some(()));
    }
}
