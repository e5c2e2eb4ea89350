//! Failures that end the process, and their exit codes.

use std::{error, fmt, io};

use super::files_and_env::FileError;
use crate::domain::with_causes;
use crate::policy;
use crate::settings::SettingError;
use crate::wire::WireError;

/// Failure that ends the process, with a message for the operator. There is one variant for each exit
/// code, and two more for an invalid policy. Only unavailability may be temporary.
#[derive(Debug)]
pub enum Failure {
    /// A flag, a setting, or a file that one of them names is invalid.
    Usage(String),
    /// The policy files or a test file are missing, unreadable, too large or invalid.
    InvalidPolicy(String),
    /// A policy does not compile. Contains every error with its position.
    Policy(policy::Diagnostics),
    /// A policy does not compile, and its errors were already printed in a machine-readable format.
    Reported,
    /// Tests of `tidegate test` have failed, and were reported.
    TestsFailed {
        /// Number of failed tests, at least 1.
        failed: usize,
        /// Number of all tests.
        tests: usize,
    },
    /// A listen address cannot be bound; Redis, a service, or its debug port is unreachable, or
    /// returned an error; or the operating system failed to start a thread or a Tokio runtime.
    Unavailable(String),
    /// Tidegate has a bug. Contains a description of the violated assumption.
    Bug(&'static str),
}

impl Failure {
    /// Exit code for invalid flags or settings.
    pub const USAGE: u8 = 64;
    /// Exit code for a bug in Tidegate.
    pub const BUG: u8 = 70;

    /// Returns the process exit code for this failure.
    pub fn exit_code(&self) -> u8 {
        match self {
            Failure::TestsFailed { .. } => 1,
            Failure::Usage(_) => Failure::USAGE,
            Failure::InvalidPolicy(_) | Failure::Policy(_) | Failure::Reported => 65,
            Failure::Unavailable(_) => 69,
            Failure::Bug(_) => Failure::BUG,
        }
    }

    /// Returns the failure for a policy file that cannot be read.
    pub(crate) fn policy_files(error: FileError) -> Failure {
        Failure::InvalidPolicy(error.to_string())
    }

    /// Returns the failure for a thread or a Tokio runtime that cannot be started.
    pub(crate) fn runtime(error: io::Error) -> Failure {
        Failure::Unavailable(format!("cannot start a runtime: {error}"))
    }

    /// Returns the failure for a listen address that cannot be resolved or bound. `host` and `port` are
    /// the names of the flags that set it; equal if it is a Unix socket.
    pub(crate) fn address([host, port]: [&str; 2], address: &str, error: &io::Error) -> Failure {
        let advice = match error.kind() {
            _ if host == port => format!(
                "give another path with {port}, in a directory that exists and that this user may \
                 write"
            ),
            io::ErrorKind::AddrInUse => {
                format!("stop the process that uses this port, or choose another with {port}")
            }
            io::ErrorKind::PermissionDenied => {
                format!("ports below 1024 need privileges: choose another with {port}")
            }
            io::ErrorKind::AddrNotAvailable => format!(
                "no interface of this machine has this address: set {host} to one that it has, or \
                 to 0.0.0.0 for all"
            ),
            _ => format!("correct {host} or {port}"),
        };
        Failure::Unavailable(format!("{address}: cannot listen: {error}; {advice}"))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Usage(reason)
            | Failure::InvalidPolicy(reason)
            | Failure::Unavailable(reason) => f.write_str(reason),
            Failure::Policy(diagnostics) => diagnostics.fmt(f),
            Failure::Reported => f.write_str("the policy has errors"),
            Failure::TestsFailed { failed, tests } => write!(f, "{failed} of {tests} tests failed"),
            Failure::Bug(what) => write!(f, "a bug in tidegate: {what}"),
        }
    }
}

impl error::Error for Failure {}

impl From<Vec<SettingError>> for Failure {
    fn from(errors: Vec<SettingError>) -> Self {
        let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
        Failure::Usage(lines.join("\n"))
    }
}

impl From<FileError> for Failure {
    fn from(error: FileError) -> Self {
        Failure::Usage(error.to_string())
    }
}

impl From<WireError> for Failure {
    fn from(error: WireError) -> Self {
        let reason = with_causes(&error);
        match error {
            WireError::Bind { .. } | WireError::Thread { .. } => Failure::Unavailable(reason),
            WireError::HeaderName { .. } | WireError::Tls(_) => Failure::Usage(reason),
        }
    }
}
