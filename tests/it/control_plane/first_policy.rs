//! The first policy: what waits for it, and what does not.

use std::fs::File;
use std::process::{Command, Stdio};

use super::messages::domain;
use super::plane::ControlPlane;
use super::served::{ask, enforces, plain};
use crate::support::http::get;
use crate::support::tidegate_process::{directory, tidegate};
use crate::support::wait::until;

#[test]
fn without_the_first_policy_no_port_opens_and_a_signal_ends_the_wait() {
    let plane = ControlPlane::start("default", None);
    let files = directory(&[]);
    let log = files.path().join("log");
    let mut child = tidegate()
        .args(["serve", "--config-type", "GRPC_XDS_SOTW"])
        .args(["--xds-server", &plane.address.to_string()])
        .envs([("GRPC_PORT", "0"), ("PORT", "0"), ("DEBUG_PORT", "0")])
        .stderr(File::create(&log).expect("writable"))
        .stdout(Stdio::null())
        .spawn()
        .expect("tidegate starts");
    plane.sees("the first request", |_| true);
    let text = || std::fs::read_to_string(&log).unwrap_or_default();
    let waits = "waiting for the first policy from the control plane";
    until("the wait", || text().contains(waits).then_some(()));
    assert!(!text().contains("listening"), "{}", text());
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().expect("kill").success());
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
    assert!(text().contains("stopped before the first policy was received"), "{}", text());
}

#[test]
fn the_first_policy_opens_the_ports_even_if_it_is_empty_of_rules() {
    let plane = ControlPlane::start("test", None);
    plane.set("7", Vec::new());
    let serving = plain(&plane.address.to_string(), &[], &[]);
    plane.acknowledged("7");
    assert_eq!(ask(&serving, "edge", "ann"), 200);
    plane.set("8", vec![domain("edge", 0)]);
    enforces(&serving, &[("edge.client", 0)]);
    assert_eq!(ask(&serving, "edge", "ann"), 429);
}

#[test]
fn a_forced_start_is_ready_at_once_or_with_the_first_policy() {
    let plane = ControlPlane::start("test", None);
    let forced = ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true");
    let healthy = ("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "true");
    let server = plane.address.to_string();
    let at_once = plain(&server, &[forced], &[]);
    let later = plain(&server, &[forced, healthy], &[]);
    let status = |serving, path| {
        get(crate::support::tidegate_process::Tidegate::port(serving, "http"), path).status
    };
    assert_eq!([status(&at_once, "/healthcheck"), status(&at_once, "/readyz")], [200, 200]);
    assert_eq!(status(&later, "/healthcheck"), 500);
    assert_eq!(ask(&later, "edge", "ann"), 200, "calls are answered all the same");
    plane.set("1", vec![domain("edge", 1)]);
    until("readiness", || (status(&later, "/healthcheck") == 200).then_some(()));
    enforces(&at_once, &[("edge.client", 1)]);
}
