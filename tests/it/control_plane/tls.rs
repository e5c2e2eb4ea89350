//! Certificates between the service and its control plane: wrong ones, and ones that are replaced.

use super::messages::domain;
use super::plane::{ControlPlane, mutual_tls};
use super::served::{ask, enforces, envoy_gateway_environment, ratelimit, write_certificates};
use crate::support::certificate_authority::{Authority, Identity};
use crate::support::http::get;
use crate::support::tidegate_process::{Tidegate, directory, metric};
use crate::support::wait::until;

const NOT_REACHED: &str = "control plane unreachable, no policy has arrived yet";

/// Starts the service as Envoy Gateway does, without Redis.
fn started(
    plane: &ControlPlane,
    authority: &Authority,
    own: &Identity,
    more: &[(&str, &str)],
) -> Tidegate {
    let files = directory(&[]);
    let certificates = files.path().join("certs");
    write_certificates(&certificates, authority, own);
    let address = format!("localhost:{}", plane.address.port());
    let mut command = ratelimit(&files);
    command.envs(envoy_gateway_environment(&address, "", &certificates));
    command.envs(more.iter().copied());
    Tidegate::start(&mut command, files)
}

#[test]
fn with_a_client_certificate_of_another_authority_the_service_stays_up_and_says_why() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let server = authority.signs("localhost");
    let plane = ControlPlane::start("envoy-ratelimit", Some(mutual_tls(&server, &authority)));
    plane.set("1", vec![domain("edge", 0)]);
    let serving = started(&plane, &authority, &stranger.signs("localhost"), &[]);
    let line = serving.logged_in_time(NOT_REACHED);
    let error = line["error"].as_str().unwrap_or_default().to_ascii_lowercase();
    assert!(error.contains("certificate") || error.contains("alert"), "{error}");
    until("a second failure", || (metric(&serving, "xds_failures_total") >= 2).then_some(()));
    assert_eq!(metric(&serving, "xds_connected"), 0);
    assert_eq!(get(serving.port("http"), "/healthcheck").status, 200);
    assert_eq!(ask(&serving, "edge", "ann"), 200);
    assert!(plane.seen().is_empty(), "the control plane saw no request");
    let lines = serving.log().lines().filter(|line| line.contains(NOT_REACHED)).count();
    assert_eq!(lines, 1, "the same error is logged once");
    // The certificate is mended while the process runs.
    write_certificates(
        &serving.directory().join("certs"),
        &authority,
        &authority.signs("localhost"),
    );
    enforces(&serving, &[("edge.client", 0)]);
}

#[test]
fn a_control_plane_with_another_name_or_authority_is_not_trusted() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let own = authority.signs("localhost");
    let plane = |signed: &Identity| {
        let plane = ControlPlane::start("envoy-ratelimit", Some(mutual_tls(signed, &authority)));
        plane.set("1", vec![domain("edge", 0)]);
        plane
    };
    for wrong in [authority.signs("other.test"), stranger.signs("localhost")] {
        let plane = plane(&wrong);
        let serving = started(&plane, &authority, &own, &[]);
        serving.logged_in_time(NOT_REACHED);
        assert!(plane.seen().is_empty());
    }
    let plane = plane(&authority.signs("other.test"));
    let san = [("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "other.test")];
    let serving = started(&plane, &authority, &own, &san);
    enforces(&serving, &[("edge.client", 0)]);
}

#[test]
fn replaced_certificates_are_used_without_a_restart() {
    let (old, new) = (Authority::new(), Authority::new());
    let server = old.signs("localhost");
    let mut plane = ControlPlane::start("envoy-ratelimit", Some(mutual_tls(&server, &old)));
    plane.set("1", vec![domain("edge", 1)]);
    let serving = started(&plane, &old, &old.signs("localhost"), &[]);
    plane.acknowledged("1");
    // Everything is signed by the new authority: first the service's files, then the control plane.
    write_certificates(&serving.directory().join("certs"), &new, &new.signs("localhost"));
    serving.logged_in_time("certificates of the control plane have changed, connecting again");
    plane.kill();
    plane.set_tls(mutual_tls(&new.signs("localhost"), &new));
    plane.set("2", vec![domain("edge", 2)]);
    plane.restart();
    plane.acknowledged("2");
    enforces(&serving, &[("edge.client", 2)]);
}
