//! The life of a rate limit service under Envoy Gateway, from the first start without a policy on.

#![allow(clippy::disallowed_methods, reason = "measures how soon a policy is in force")]

use std::time::{Duration, Instant};

use super::messages::{broken, domain};
use super::plane::{ControlPlane, mutual_tls};
use super::served::{
    ask, counts, enforces, envoy_gateway_environment, ratelimit, rules, write_certificates,
};
use crate::support::certificate_authority::Authority;
use crate::support::http::get;
use crate::support::proof;
use crate::support::redis_server::Server as RedisServer;
use crate::support::tidegate_process::{Tidegate, directory, metric, run};
use crate::support::wait::until;

/// How soon a policy is in force after it was sent.
const IN_FORCE_WITHIN: Duration = Duration::from_secs(1);

/// How soon after its return a control plane's policy is in force. The longest wait between attempts to
/// connect is as long.
const BACK_WITHIN: Duration = Duration::from_secs(5);

/// Prints how long something took. Whole proofs judge it.
fn took(what: &str, since: Instant, at_most: Duration) {
    let took = since.elapsed();
    println!("{what}: in force after {took:?}");
    assert!(!proof::judges_times() || took <= at_most, "{what}: {took:?}");
}

#[test]
fn under_envoy_gateway_policies_come_change_break_vanish_and_outlive_the_control_plane() {
    let authority = Authority::new();
    let files = directory(&[]);
    let certificates = files.path().join("certs");
    write_certificates(&certificates, &authority, &authority.signs("localhost"));
    let server = authority.signs("localhost");
    let mut plane = ControlPlane::start("envoy-ratelimit", Some(mutual_tls(&server, &authority)));
    let redis = RedisServer::start(&[]);
    let address = format!("localhost:{}", plane.address.port());
    let store = format!("localhost:{}", redis.port);
    let mut command = ratelimit(&files);
    command.envs(envoy_gateway_environment(&address, &store, &certificates));
    // So long that a busy machine does not count on its own.
    command.env("TIDEGATE_REDIS_BUDGET", "10s");
    let serving = Tidegate::start(&mut command, files);

    // Up without a policy: healthy, and every call is OK.
    let first = plane.sees("the first request", |_| true);
    assert_eq!(first.request.node.as_ref().map(|node| &*node.id), Some("envoy-ratelimit"));
    assert!(first.request.version_info.is_empty() && first.request.resource_names.is_empty());
    assert_eq!(get(serving.port("http"), "/healthcheck").status, 200);
    assert_eq!(ask(&serving, "first/edge", "ann"), 200);
    let ca = serving.directory().join("certs/ca.crt").display().to_string();
    let grpc = format!("localhost:{}", serving.port("grpc").port());
    let answer = run(&["ask", &grpc, "first/edge", "client=ann", "--ca", &ca]).with_code(0);
    assert!(answer.out.contains("OK"), "over TLS, without a client certificate: {}", answer.out);

    // Two domains.
    let sent = Instant::now();
    plane.set("1", vec![domain("second/edge", 2), domain("first/edge", 3)]);
    plane.acknowledged("1");
    enforces(&serving, &[("first/edge.client", 3), ("second/edge.client", 2)]);
    took("the first policy", sent, IN_FORCE_WITHIN);
    let asked =
        |domain, times| (0..times).map(|_| ask(&serving, domain, "ann")).collect::<Vec<_>>();
    assert_eq!(asked("first/edge", 4), [200, 200, 200, 429]);

    // One is broken: the other is taken, and the broken one stays as it was.
    plane.set("2", vec![broken("first/edge"), domain("second/edge", 5)]);
    enforces(&serving, &[("first/edge.client", 3), ("second/edge.client", 5)]);
    let nack = plane.rejected();
    assert_eq!(nack.request.version_info, "1", "the version that was acknowledged last");
    let reason = nack.rejection().unwrap_or_default();
    assert!(reason.starts_with("first/edge: descriptors[1]: a second descriptor"), "{reason}");
    assert_eq!(asked("first/edge", 1), [429], "its counter stays, too");
    until("a third NACK", || (plane.nacks().len() >= 3).then_some(()));
    let pauses: Vec<_> = plane.nacks().windows(2).map(|pair| pair[1].at - pair[0].at).collect();
    // The clocks of two processes; a second less a scheduling delay.
    let least = Duration::from_millis(900);
    assert!(pauses.iter().all(|pause| *pause >= least), "at most one a second: {pauses:?}");

    // Everything is removed.
    plane.set("", Vec::new());
    plane.acknowledged("");
    enforces(&serving, &[]);
    assert_eq!(asked("first/edge", 2), [200, 200]);

    // Back, and the control plane is killed: limits and counters stay.
    plane.set("4", vec![domain("first/edge", 3)]);
    plane.acknowledged("4");
    enforces(&serving, &[("first/edge.client", 3)]);
    plane.kill();
    counts(&serving, "xds_connected", 0);
    assert_eq!(asked("first/edge", 1), [429]);
    assert_eq!(ask(&serving, "first/edge", "bob"), 200);
    assert_eq!(get(serving.port("http"), "/healthcheck").status, 200);

    // It returns, and counts its versions from 1 again.
    plane.set("1", vec![domain("first/edge", 4)]);
    let returned = Instant::now();
    plane.restart();
    enforces(&serving, &[("first/edge.client", 4)]);
    took("the policy of a control plane that returned", returned, BACK_WITHIN);
    assert_eq!(asked("first/edge", 2), [200, 429], "one more, because the limit is 4 now");
    assert_eq!(rules(&serving).len(), 1);
    assert_eq!(metric(&serving, "xds_rejections"), 0);
}
