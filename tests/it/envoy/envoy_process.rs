//! A running Envoy: find the binary, start it, query its admin port, stop it.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

use super::bootstrap::{Bootstrap, repository};
use super::http_client::{Reply, Request, get};
use crate::support::child_process::until_running;
use crate::support::wait;

/// The release that the documentation names; another one may behave differently.
const VERSION: &str = "/1.40.0/";

/// An Envoy on ports of its own; stops when dropped.
pub struct Envoy {
    child: Child,
    admin: SocketAddr,
    pub address: SocketAddr,
    log: PathBuf,
}

/// The Envoy that `make test` puts into `.venv`.
pub fn binary() -> PathBuf {
    let lib = repository(".venv/lib");
    let found = fs::read_dir(&lib)
        .into_iter()
        .flatten()
        .flatten()
        .map(|python| python.path().join("site-packages/envoy/_bin/envoy"))
        .find(|envoy| envoy.is_file());
    found.unwrap_or_else(|| panic!("there is no Envoy below {}: run `make test`", lib.display()))
}

/// Asks Envoy whether it would accept a bootstrap.
pub fn validate(file: &Path) -> Output {
    Command::new(binary())
        .args(["--mode", "validate", "-l", "error", "-c"])
        .arg(file)
        .stdin(Stdio::null())
        .output()
        .expect("Envoy runs")
}

pub fn version() -> String {
    let output = Command::new(binary()).arg("--version").output().expect("Envoy runs");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

impl Envoy {
    /// Starts Envoy and waits until it listens and `tidegates` of them are healthy in its eyes.
    pub fn start(bootstrap: &Bootstrap, directory: &Path, tidegates: usize) -> Envoy {
        let file = directory.join("envoy.json");
        bootstrap.write(&file);
        let log = directory.join("access.log");
        let admin_file = directory.join("admin");
        let mut child = Command::new(binary())
            .args(["--use-dynamic-base-id", "--concurrency", "1", "-l", "warning"])
            // Access logs are written every second by default; the tests read them.
            .args(["--file-flush-interval-msec", "10"])
            .arg("--admin-address-path")
            .arg(&admin_file)
            .arg("-c")
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(File::create(&log).expect("a writable directory"))
            .stderr(File::create(directory.join("envoy.err")).expect("a writable directory"))
            .spawn()
            .expect("Envoy starts");
        let admin = until_running(&mut child, "Envoy", &directory.join("envoy.err"), || {
            fs::read_to_string(&admin_file).ok()?.trim().parse().ok()
        });
        let unbound = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut edge = Envoy { child, admin, address: unbound, log };
        edge.address = wait::until("Envoy to listen", || {
            if get("/ready").send(edge.admin).status != 200 {
                return None;
            }
            edge.listener()
        });
        edge.wait_for_healthy(tidegates);
        edge
    }

    /// Sends a request from a client to the edge.
    pub fn ask(&self, request: &Request) -> Reply {
        request.send(self.address)
    }

    /// Waits until so many Tidegates answer Envoy's health check.
    pub fn wait_for_healthy(&self, tidegates: usize) {
        wait::until(&format!("{tidegates} healthy Tidegates"), || {
            (self.counter("cluster.tidegate.membership_healthy") == tidegates as u64).then_some(())
        });
    }

    /// One of Envoy's own counters.
    pub fn counter(&self, name: &str) -> u64 {
        let reply = get(&format!("/stats?format=json&filter=^{name}$")).send(self.admin);
        let stats: Value = serde_json::from_str(&reply.body).expect("JSON");
        stats["stats"][0]["value"].as_u64().unwrap_or(0)
    }

    /// Waits for a line of the access log: the first that `wanted` likes.
    pub fn logged(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        wait::until(what, || {
            let text = fs::read_to_string(&self.log).ok()?;
            text.lines()
                .filter_map(|line| serde_json::from_str(line).ok())
                .find(|line| wanted(line))
        })
    }

    fn listener(&self) -> Option<SocketAddr> {
        let reply = get("/listeners?format=json").send(self.admin);
        let listeners: Value = serde_json::from_str(&reply.body).ok()?;
        let address = &listeners["listener_statuses"][0]["local_address"]["socket_address"];
        let port = u16::try_from(address["port_value"].as_u64()?).ok()?;
        Some(SocketAddr::new(address["address"].as_str()?.parse().ok()?, port))
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        // Both may fail only because it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_envoy_of_the_tests_is_the_one_that_the_documentation_names() {
    assert!(version().contains(VERSION), "{}", version());
}
