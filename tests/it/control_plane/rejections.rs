//! Responses that are not accepted, the order of answers, and where the errors are shown.

use std::thread::sleep;
use std::time::Duration;

use super::messages::{broken, domain, resource, yearly};
use super::plane::ControlPlane;
use super::served::{counts, enforces, plain};
use crate::support::http::get;
use crate::support::tidegate_process::metric;
use crate::support::wait::until;

#[test]
fn a_rejected_resource_is_named_in_the_log_the_metrics_and_on_the_page() {
    let plane = ControlPlane::start("test", None);
    plane.set("1", vec![domain("good", 1), broken("bad")]);
    let serving = plain(&plane.address.to_string(), &[], &[]);
    let nack = plane.rejected();
    assert_eq!(nack.request.version_info, "", "nothing was acknowledged yet");
    let message = "resource from the control plane rejected, it has no earlier version";
    let line = serving.logged_in_time(message);
    assert_eq!((&line["resource"], &line["path"]), (&"bad".into(), &"descriptors[1]".into()));
    let reason = line["reason"].as_str().unwrap_or_default();
    assert!(reason.starts_with("a second descriptor with key"), "{reason}");
    let page = get(serving.port("http"), "/metrics").body;
    let series =
        r#"tidegate_xds_rejected_info{resource="bad",path="descriptors[1]",reason="a second"#;
    assert!(page.contains(series), "{page}");
    assert!(page.contains("tidegate_config_last_reload_successful 0\n"), "{page}");
    let now: serde_json::Value =
        serde_json::from_str(&get(serving.port("debug"), "/now").body).expect("JSON");
    let shown = &now["control_plane"]["rejections"][0];
    assert_eq!((&shown["resource"], &shown["path"]), (&"bad".into(), &"descriptors[1]".into()));
    assert_eq!(now["control_plane"]["received_version"], "1");
    // Repeated responses are neither compiled nor counted as further failures.
    until("three NACKs", || (plane.nacks().len() >= 3).then_some(()));
    assert_eq!(metric(&serving, "xds_compiled_domains_total"), 2);
    assert_eq!(metric(&serving, "config_load_error_total"), 1);
    // Mended, everything is clean again.
    plane.set("2", vec![domain("bad", 4), domain("good", 1)]);
    plane.acknowledged("2");
    enforces(&serving, &[("bad.client", 4), ("good.client", 1)]);
    counts(&serving, "xds_rejections", 0);
    counts(&serving, "config_last_reload_successful", 1);
    let kept = "resource from the control plane rejected, its last good version stays in force";
    assert!(serving.logged(kept).is_none(), "{}", serving.log());
    let nacks = metric(&serving, "xds_nacks_total");
    assert_eq!(nacks, plane.nacks().len() as u64);
    assert_eq!(metric(&serving, "xds_acks_total"), 1);
    assert!(metric(&serving, "xds_responses_total") > nacks, "each answer has a response");
    assert_eq!(metric(&serving, "xds_connects_total"), 1);
    assert_eq!(metric(&serving, "xds_domains"), 2);
    assert!(!get(serving.port("http"), "/metrics").body.contains("xds_rejected_info{"));
    plane.set("3", vec![broken("bad"), domain("good", 1)]);
    assert_eq!(serving.logged_in_time(kept)["resource"], "bad");
    enforces(&serving, &[("bad.client", 4), ("good.client", 1)]);
}

#[test]
fn before_the_first_policy_nothing_claims_that_one_is_in_force() {
    let mut plane = ControlPlane::start("test", None);
    let address = plane.address.to_string();
    plane.kill();
    let serving = plain(&address, &[("FORCE_START_WITHOUT_INITIAL_CONFIG", "true")], &[]);
    serving.logged_in_time("control plane unreachable, no policy has arrived yet");
    let without = || {
        let now = get(serving.port("debug"), "/now").body;
        let now: serde_json::Value = serde_json::from_str(&now).expect("JSON");
        now["modes"]["without_policy"] == true
    };
    assert!(without(), "every call passes, and the page says so");
    plane.set("1", vec![domain("edge", 1)]);
    plane.restart();
    enforces(&serving, &[("edge.client", 1)]);
    assert!(!without());
    let kept = "control plane unreachable, the last good policy stays in force";
    assert!(serving.logged(kept).is_none(), "{}", serving.log());
    plane.kill();
    serving.logged_in_time(kept);
}

#[test]
fn every_answer_carries_the_newest_nonce_and_one_policy_is_in_force_at_the_end() {
    let plane = ControlPlane::start("test", None);
    plane.set("0", vec![domain("edge", 1)]);
    let serving = plain(&plane.address.to_string(), &[], &[]);
    plane.acknowledged("0");
    for version in 1..=50_u32 {
        // Resources in another order each time.
        let mut resources = vec![domain("edge", version), domain("other", 7), domain("third", 8)];
        resources.rotate_left(version as usize % 3);
        plane.set(&version.to_string(), resources);
        sleep(Duration::from_millis(u64::from(version % 4)));
    }
    plane.acknowledged("50");
    enforces(&serving, &[("edge.client", 50), ("other.client", 7), ("third.client", 8)]);
    let seen = plane.seen();
    let last = seen.last().expect("an ACK");
    assert!(!last.stale, "the newest response is the one that is answered last");
    // The two domains that never changed were compiled once.
    let compiled = metric(&serving, "xds_compiled_domains_total");
    let changes = metric(&serving, "xds_acks_total");
    assert!(compiled <= changes + 2, "{compiled} domains in {changes} versions");
}

/// The second NACK of a version is held back for a second.
#[test]
fn a_response_of_another_type_leaves_the_nack_that_is_due() {
    let plane = ControlPlane::start("test", None);
    plane.set("1", vec![domain("good", 1), broken("bad")]);
    let serving = plain(&plane.address.to_string(), &[], &[]);
    plane.rejected();
    plane.send_another_type();
    serving.logged_in_time("ignored a response of another type from the control plane");
    until("the second NACK", || (plane.nacks().len() >= 2).then_some(()));
}

#[test]
fn a_response_beyond_the_size_is_not_read_and_the_policy_stays() {
    let plane = ControlPlane::start("test", None);
    plane.set("1", vec![domain("edge", 1)]);
    let bound = [("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "2048")];
    let serving = plain(&plane.address.to_string(), &bound, &[]);
    let many = (0..200).map(|at| yearly(&format!("key-{at}"), 1)).collect();
    plane.set("2", vec![resource("edge", many)]);
    let line =
        serving.logged_in_time("control plane unreachable, the last good policy stays in force");
    let error = line["error"].as_str().unwrap_or_default();
    assert!(error.contains("2048") || error.contains("too large"), "{error}");
    enforces(&serving, &[("edge.client", 1)]);
    plane.set("3", vec![domain("edge", 3)]);
    enforces(&serving, &[("edge.client", 3)]);
}

#[test]
fn node_metadata_and_headers_reach_the_control_plane() {
    let plane = ControlPlane::start("test", None);
    plane.set("1", vec![domain("edge", 1)]);
    let more = [
        ("CONFIG_GRPC_XDS_NODE_METADATA", "zone=a,team=edge"),
        ("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "X-Tenant:blue,x-other:1:2"),
    ];
    let serving = plain(&plane.address.to_string(), &more, &[]);
    let first = plane.sees("the first request", |_| true);
    assert_eq!(first.tenant.as_deref(), Some("blue"));
    let metadata = first.request.node.and_then(|node| node.metadata).expect("metadata");
    let names: Vec<_> = metadata.fields.keys().map(String::as_str).collect();
    assert_eq!(names, ["team", "zone"]);
    let config = get(serving.port("debug"), "/config").body;
    assert!(!config.contains("blue"), "headers may carry a secret: {config}");
}
