//! A stand: a backend, a Tidegate and an Envoy between them, for one test.

use std::ops::Deref;
use std::path::Path;

use tempfile::{NamedTempFile, TempDir};

use super::backend::Backend;
use super::bootstrap::{Bootstrap, repository};
use super::envoy_process::Edge;
use super::tidegate_behind_envoy::Tidegate;

/// A backend, a Tidegate and an Envoy; it is used as the Envoy that it stands behind.
pub struct Stand {
    // Dropped in this order: nobody asks what is gone already.
    edge: Edge,
    pub backend: Backend,
    pub tidegate: Tidegate,
    // Held for as long as somebody reads in them.
    _directory: TempDir,
    _policy: Option<NamedTempFile>,
}

impl Stand {
    /// A policy and an Envoy that asks about it.
    pub fn new(bootstrap: Bootstrap, policy: &Path) -> Stand {
        Stand::with_settings(bootstrap, policy, &[])
    }

    /// The same, with settings for Tidegate's environment.
    pub fn with_settings(bootstrap: Bootstrap, policy: &Path, settings: &[(&str, &str)]) -> Stand {
        let directory = TempDir::new().expect("a temporary directory");
        let backend = Backend::start();
        let tidegate = Tidegate::start(policy, settings);
        let bootstrap = bootstrap.aimed_at(backend.address, &[tidegate.grpc]);
        let edge = Edge::start(&bootstrap, directory.path(), 1);
        Stand { edge, backend, tidegate, _directory: directory, _policy: None }
    }

    /// An example of `config/examples/`, as it ships.
    pub fn of_example(name: &str) -> Stand {
        Stand::new(example(name), &repository(&format!("config/examples/{name}/policy.yaml")))
    }

    /// A policy of a test's own, and the descriptors that every request sends.
    pub fn of(policy: &str, rate_limits: &str) -> Stand {
        Stand::of_with_settings(policy, rate_limits, &[])
    }

    /// The same, with settings for Tidegate's environment.
    pub fn of_with_settings(policy: &str, rate_limits: &str, settings: &[(&str, &str)]) -> Stand {
        let file = written(policy);
        let bootstrap = Bootstrap::shipped().with_rate_limits(rate_limits);
        let stand = Stand::with_settings(bootstrap, file.path(), settings);
        Stand { _policy: Some(file), ..stand }
    }
}

impl Deref for Stand {
    type Target = Edge;

    fn deref(&self) -> &Edge {
        &self.edge
    }
}

/// The bootstrap with the routes of an example.
pub fn example(name: &str) -> Bootstrap {
    let routes = repository(&format!("config/examples/{name}/routes.yaml"));
    Bootstrap::shipped().with_routes(&routes)
}

/// A policy in a file, for as long as it is held.
pub fn written(policy: &str) -> NamedTempFile {
    let file = tempfile::Builder::new().suffix(".yaml").tempfile().expect("a temporary file");
    std::fs::write(file.path(), policy).expect("a writable file");
    file
}
