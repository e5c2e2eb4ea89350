//! Two Tidegates behind one Envoy; one is stopped under load.
//!
//! Each counts in its own memory and names its limit differently, so the headers of a response tell
//! which one decided.

#![allow(clippy::disallowed_methods, reason = "sends on a schedule of the real clock")]

use std::net::SocketAddr;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::backend::Backend;
use super::bootstrap::Bootstrap;
use super::envoy_process::Envoy;
use super::http_client::{Reply, get};
use super::stack::written;
use super::tidegate_behind_envoy::Tidegate;

/// 200 requests a second for 4 seconds, by 8 clients.
const CLIENTS: u32 = 8;
const REQUESTS_PER_CLIENT: u32 = 100;
const BETWEEN_REQUESTS: Duration = Duration::from_millis(40);

/// After a second of load; the rest shows who answers.
const STOP_AFTER: Duration = Duration::from_secs(1);

/// Each Tidegate admits so many, so that both answers are seen: the survivor decides more.
const LIMIT: usize = 250;

/// Between saying NOT_SERVING and leaving: several health checks of 250 ms, and over within the run.
const DRAIN_DELAY: &str = "2s";

struct TimedReply {
    sent: Instant,
    reply: Reply,
}

fn policy(name: &str) -> String {
    format!(
        "{{domain: edge, descriptors: [{{key: plan, rate_limit: {{name: {name}, unit: year, \
         requests_per_unit: {LIMIT}}}}}]}}"
    )
}

#[test]
fn no_request_is_lost_when_one_of_two_is_stopped_and_the_survivor_decides_the_rest() {
    let directory = TempDir::new().expect("a temporary directory");
    let backend = Backend::start();
    let policies = [written(&policy("leaver")), written(&policy("survivor"))];
    let [mut leaver, survivor] = policies
        .each_ref()
        .map(|policy| Tidegate::start(policy.path(), &[("TIDEGATE_DRAIN_DELAY", DRAIN_DELAY)]));
    let bootstrap = Bootstrap::shipped()
        .with_rate_limits(
            "[{actions: [{generic_key: {descriptor_key: plan, descriptor_value: all}}]}]",
        )
        .aimed_at(backend.address, &[leaver.grpc, survivor.grpc]);
    let edge = Envoy::start(&bootstrap, directory.path(), 2);

    let (seen, unhealthy_since) = thread::scope(|scope| {
        let clients: Vec<_> =
            (0..CLIENTS).map(|_| scope.spawn(|| send_steadily(edge.address))).collect();
        sleep(STOP_AFTER);
        leaver.terminate();
        edge.wait_for_healthy(1);
        let unhealthy_since = Instant::now();
        assert_eq!(leaver.wait_for_exit(), Some(0));
        let seen: Vec<TimedReply> =
            clients.into_iter().flat_map(|client| client.join().expect("a client")).collect();
        (seen, unhealthy_since)
    });

    assert_eq!(seen.len() as u32, CLIENTS * REQUESTS_PER_CLIENT);
    for TimedReply { sent, reply } in &seen {
        assert!(matches!(reply.status, 200 | 429), "{reply:?}");
        assert!(
            decided_by(reply, "survivor")
                || (decided_by(reply, "leaver") && *sent < unhealthy_since),
            "{reply:?}"
        );
    }
    assert!(seen.iter().any(|seen| decided_by(&seen.reply, "leaver")), "there was nobody to leave");
    let by_survivor: Vec<_> =
        seen.iter().filter(|seen| decided_by(&seen.reply, "survivor")).collect();
    let admitted = by_survivor.iter().filter(|seen| seen.reply.status == 200).count();
    assert_eq!(admitted, LIMIT, "of {} that the survivor decided", by_survivor.len());
}

fn decided_by(reply: &Reply, name: &str) -> bool {
    let shown = reply.header("x-ratelimit-limit").unwrap_or_default();
    shown.contains(&format!("name=\"{name}\""))
}

/// One client's requests, each at its time, whether or not the one before took long.
fn send_steadily(edge: SocketAddr) -> Vec<TimedReply> {
    let began = Instant::now();
    let send = |number| {
        let due = began + BETWEEN_REQUESTS * number;
        sleep(due.saturating_duration_since(Instant::now()));
        let sent = Instant::now();
        TimedReply { sent, reply: get("/").send(edge) }
    };
    (0..REQUESTS_PER_CLIENT).map(send).collect()
}
