//! Failures that end the process, and their exit codes.

use std::{error, fmt, io};

use super::files_and_env::FileError;
use crate::domain::with_causes;
use crate::policy;
use crate::settings;
use crate::wire::WireError;

/// Failure that ends the process. Only failures with exit code 69 may be temporary.
#[derive(Debug)]
pub enum Failure {
    /// The command line is invalid.
    Usage(String),
    /// One or more settings are invalid. Contains the errors, each with the source of the invalid
    /// value.
    Settings(Vec<settings::SettingError>),
    /// A file named by a setting or a flag cannot be read or written, or is malformed.
    File(FileError),
    /// The certificate, private key, or client CA of the gRPC port cannot be read or used.
    Certificate {
        /// Names of the flags that set the affected files. Each name is followed by the file's path
        /// unless `error` contains the path.
        files: String,
        /// Reason why the files cannot be used.
        error: Box<Failure>,
    },
    /// The policy files are missing, unreadable, too large or too many.
    PolicyFiles(FileError),
    /// A policy does not compile. Contains every error with its position.
    Policy(policy::Diagnostics),
    /// A policy does not compile, and its errors were already printed in a machine-readable format.
    Reported,
    /// A policy is valid but has warnings, and `--strict` is set.
    Strict {
        /// Number of warnings, at least 1.
        warnings: usize,
    },
    /// A file of `tidegate test` is invalid. Contains its name, the place, and the reason.
    InvalidTest(String),
    /// Tests of `tidegate test` have failed, and were reported.
    TestsFailed {
        /// Number of failed tests, at least 1.
        failed: usize,
        /// Number of all tests.
        tests: usize,
    },
    /// A listen address cannot be resolved or bound.
    Address {
        /// Flags that set the address: first the host, then the port.
        flags: [&'static str; 2],
        /// Address that cannot be resolved or bound.
        address: String,
        /// Error from resolving or binding the address.
        error: io::Error,
    },
    /// The gRPC server cannot start or run.
    Wire(WireError),
    /// Redis, a service, or its debug port is unreachable, or returned an error. Contains a message
    /// for the operator.
    Unavailable(String),
    /// The operating system failed to start a thread or a Tokio runtime.
    Runtime(io::Error),
    /// Tidegate has a bug. Contains a description of the violated assumption.
    Bug(&'static str),
}

impl Failure {
    const TESTS_FAILED: u8 = 1;
    /// Exit code for invalid flags or settings.
    pub const USAGE: u8 = 64;
    const INVALID_POLICY: u8 = 65;
    const UNAVAILABLE: u8 = 69;
    /// Exit code for a bug in Tidegate.
    pub const BUG: u8 = 70;

    /// Returns the process exit code for this failure.
    pub fn exit_code(&self) -> u8 {
        match self {
            Failure::Usage(_)
            | Failure::Settings(_)
            | Failure::File(_)
            | Failure::Certificate { .. } => Failure::USAGE,
            Failure::PolicyFiles(_)
            | Failure::Policy(_)
            | Failure::Reported
            | Failure::Strict { .. }
            | Failure::InvalidTest(_) => Failure::INVALID_POLICY,
            Failure::TestsFailed { .. } => Failure::TESTS_FAILED,
            Failure::Address { .. } | Failure::Unavailable(_) | Failure::Runtime(_) => {
                Failure::UNAVAILABLE
            }
            Failure::Wire(error) => match error {
                WireError::Bind { .. } | WireError::Thread { .. } => Failure::UNAVAILABLE,
                WireError::HeaderName { .. } | WireError::Tls(_) => Failure::USAGE,
            },
            Failure::Bug(_) => Failure::BUG,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Usage(reason)
            | Failure::Unavailable(reason)
            | Failure::InvalidTest(reason) => f.write_str(reason),
            Failure::TestsFailed { failed, tests } => write!(f, "{failed} of {tests} tests failed"),
            Failure::Reported => f.write_str("the policy has errors"),
            Failure::Settings(errors) => {
                let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
                f.write_str(&lines.join("\n"))
            }
            Failure::File(error) | Failure::PolicyFiles(error) => error.fmt(f),
            Failure::Certificate { files, error } => write!(f, "{files}: {error}"),
            Failure::Policy(diagnostics) => diagnostics.fmt(f),
            Failure::Strict { warnings: 1 } => {
                f.write_str("1 warning; --strict treats it as an error")
            }
            Failure::Strict { warnings } => {
                write!(f, "{warnings} warnings; --strict treats them as errors")
            }
            Failure::Address { flags, address, error } => {
                let advice = address_advice(*flags, error);
                write!(f, "{address}: cannot listen: {error}; {advice}")
            }
            Failure::Wire(error) => f.write_str(&with_causes(error)),
            Failure::Runtime(error) => write!(f, "cannot start a runtime: {error}"),
            Failure::Bug(what) => write!(f, "a bug in tidegate: {what}"),
        }
    }
}

/// Returns advice for an address that cannot be bound. `host` and `port` are the names of the flags
/// that set the address.
fn address_advice([host, port]: [&str; 2], error: &io::Error) -> String {
    match error.kind() {
        // A Unix socket.
        _ if host == port => format!(
            "give another path with {port}, in a directory that exists and that this user may write"
        ),
        io::ErrorKind::AddrInUse => {
            format!("stop the process that uses this port, or choose another with {port}")
        }
        io::ErrorKind::PermissionDenied => {
            format!("ports below 1024 need privileges: choose another with {port}")
        }
        io::ErrorKind::AddrNotAvailable => {
            format!(
                "no interface of this machine has this address: set {host} to one that it has, or \
                 to 0.0.0.0 for all"
            )
        }
        _ => format!("correct {host} or {port}"),
    }
}

impl error::Error for Failure {}

impl From<FileError> for Failure {
    fn from(error: FileError) -> Self {
        Failure::File(error)
    }
}

impl From<WireError> for Failure {
    fn from(error: WireError) -> Self {
        Failure::Wire(error)
    }
}
