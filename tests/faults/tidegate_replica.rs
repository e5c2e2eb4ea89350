//! A Tidegate of a trial: with the budget that Envoy leaves.

use std::ffi::OsStr;
use std::fs::File;
use std::process::{Command, Stdio};

pub use crate::support::tidegate_process::Tidegate;
use crate::support::tidegate_process::{directory, tidegate};

/// What Envoy's default timeout of 20 ms leaves for Redis. The bench's calls carry no deadline of
/// their own, so that a busy machine does not add errors to the fault. A flag overrides it.
const ENVOYS_BUDGET: &str = "16ms";

/// Serves a policy with these flags.
pub fn start(policy: &str, flags: &[impl AsRef<OsStr>]) -> Tidegate {
    start_by(tidegate(), policy, flags, Stdio::from)
}

/// The same by a command that takes the arguments of `tidegate`. `log` makes its standard error, which
/// copies to the file.
pub fn start_by(
    mut command: Command,
    policy: &str,
    flags: &[impl AsRef<OsStr>],
    log: impl FnOnce(File) -> Stdio,
) -> Tidegate {
    let files = directory(&[("policy.yaml", policy)]);
    command.args(["serve", "--policy"]).arg(files.path().join("policy.yaml")).args(flags);
    command.env_clear().env("TIDEGATE_REDIS_BUDGET", ENVOYS_BUDGET);
    Tidegate::start_logging(&mut command, files, log)
}
