//! A backend, a Tidegate and an Envoy between them, for one test.

use std::ops::Deref;
use std::path::Path;

use tempfile::{NamedTempFile, TempDir};

use super::backend::Backend;
use super::bootstrap::{Bootstrap, repository};
use super::envoy_process::Envoy;
use super::tidegate_behind_envoy::Tidegate;

/// A backend, a Tidegate and an Envoy; dereferences to the Envoy.
pub struct Stack {
    // Dropped in this order, so that nothing calls a process that is gone.
    edge: Envoy,
    pub backend: Backend,
    pub tidegate: Tidegate,
    // Held as long as the processes read them.
    _directory: TempDir,
    _policy: Option<NamedTempFile>,
}

impl Stack {
    /// A policy and an Envoy that asks about it.
    pub fn new(bootstrap: Bootstrap, policy: &Path) -> Stack {
        Stack::with_settings(bootstrap, policy, &[])
    }

    /// The same, with settings for Tidegate's environment.
    pub fn with_settings(bootstrap: Bootstrap, policy: &Path, settings: &[(&str, &str)]) -> Stack {
        let directory = TempDir::new().expect("a temporary directory");
        let backend = Backend::start();
        let tidegate = Tidegate::start(policy, settings);
        let bootstrap = bootstrap.aimed_at(backend.address, &[tidegate.grpc]);
        let edge = Envoy::start(&bootstrap, directory.path(), 1);
        Stack { edge, backend, tidegate, _directory: directory, _policy: None }
    }

    /// An example of `config/examples/`, as it ships.
    pub fn of_example(name: &str) -> Stack {
        Stack::new(example(name), &repository(&format!("config/examples/{name}/policy.yaml")))
    }

    /// A policy of a test's own, and the descriptors that every request sends.
    pub fn of(policy: &str, rate_limits: &str) -> Stack {
        Stack::of_with_settings(policy, rate_limits, &[])
    }

    /// The same, with settings for Tidegate's environment.
    pub fn of_with_settings(policy: &str, rate_limits: &str, settings: &[(&str, &str)]) -> Stack {
        let file = written(policy);
        let bootstrap = Bootstrap::shipped().with_rate_limits(rate_limits);
        let stack = Stack::with_settings(bootstrap, file.path(), settings);
        Stack { _policy: Some(file), ..stack }
    }
}

impl Deref for Stack {
    type Target = Envoy;

    fn deref(&self) -> &Envoy {
        &self.edge
    }
}

/// The bootstrap with the routes of an example, and with its filters, if it has some.
pub fn example(name: &str) -> Bootstrap {
    let file = |name_of_file| repository(&format!("config/examples/{name}/{name_of_file}.yaml"));
    let bootstrap = Bootstrap::shipped().with_routes(&file("routes"));
    let (first, others) = (file("first_filters"), file("filters"));
    let bootstrap = if others.exists() { bootstrap.with_filters(&others) } else { bootstrap };
    if first.exists() { bootstrap.with_first_filters(&first) } else { bootstrap }
}

/// A policy in a file, for as long as it is held.
pub fn written(policy: &str) -> NamedTempFile {
    let file = tempfile::Builder::new().suffix(".yaml").tempfile().expect("a temporary file");
    std::fs::write(file.path(), policy).expect("a writable file");
    file
}
