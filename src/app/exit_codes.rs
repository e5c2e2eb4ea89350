//! Failures that end the process, and their exit codes.

use std::{error, fmt, io};

use super::files_and_env::FileError;
use super::policy_files::PolicyFileError;
use crate::policy;
use crate::settings;
use crate::wire::WireError;

/// A failure that ends the process. Retrying helps only if the exit code is 69.
#[derive(Debug)]
pub enum Failure {
    /// The command line is invalid.
    Usage(String),
    /// Settings are invalid.
    Settings(Vec<settings::SettingError>),
    /// A file named by a setting cannot be used.
    File(FileError),
    /// Policy files cannot be read.
    PolicyFiles(PolicyFileError),
    /// The policy has errors.
    Policy(policy::Diagnostics),
    /// The policy has warnings, which `--strict` treats as errors.
    Strict {
        /// Number of warnings.
        warnings: usize,
    },
    /// An address cannot be listened on.
    Address {
        /// The address as given.
        address: String,
        /// Error of the operating system.
        error: io::Error,
    },
    /// The gRPC server cannot start or run.
    Wire(WireError),
    /// The store that the settings require is unavailable.
    Store(String),
    /// `tidegate ask` got no answer.
    Ask {
        /// Address of the service.
        target: String,
        /// What went wrong.
        error: WireError,
    },
    /// The debug port of a service was not reached or rejected a request.
    AdminRequest {
        /// Address of the port.
        endpoint: String,
        /// Its response, or the error of the operating system.
        reason: String,
    },
    /// The operating system refuses to start a thread or a runtime.
    Runtime(io::Error),
    /// A bug in Tidegate.
    Bug(&'static str),
}

impl Failure {
    /// Invalid flags or settings.
    pub const USAGE: u8 = 64;
    const POLICY: u8 = 65;
    const UNAVAILABLE: u8 = 69;
    /// A bug in Tidegate.
    pub const BUG: u8 = 70;

    /// Returns the exit code of the process.
    pub fn exit_code(&self) -> u8 {
        match self {
            Failure::Usage(_) | Failure::Settings(_) | Failure::File(_) => Failure::USAGE,
            Failure::PolicyFiles(PolicyFileError::NotConfigured) => Failure::USAGE,
            Failure::PolicyFiles(_) | Failure::Policy(_) | Failure::Strict { .. } => {
                Failure::POLICY
            }
            Failure::Address { .. }
            | Failure::Store(_)
            | Failure::Ask { .. }
            | Failure::AdminRequest { .. }
            | Failure::Runtime(_) => Failure::UNAVAILABLE,
            Failure::Wire(error) => match error {
                WireError::Bind { .. }
                | WireError::Thread { .. }
                | WireError::Connect { .. }
                | WireError::Refused { .. } => Failure::UNAVAILABLE,
                WireError::HeaderName { .. }
                | WireError::Spread { .. }
                | WireError::Certificate
                | WireError::PrivateKey
                | WireError::ClientAuthority
                | WireError::Tls { .. }
                | WireError::Expired
                | WireError::AllowListWithoutAuthority
                | WireError::Target { .. } => Failure::USAGE,
            },
            Failure::Bug(_) => Failure::BUG,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Usage(reason) | Failure::Store(reason) => f.write_str(reason),
            Failure::Settings(errors) => {
                let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
                f.write_str(&lines.join("\n"))
            }
            Failure::File(error) => error.fmt(f),
            Failure::PolicyFiles(error) => error.fmt(f),
            Failure::Policy(diagnostics) => diagnostics.fmt(f),
            Failure::Strict { warnings: 1 } => {
                f.write_str("1 warning; --strict treats it as an error")
            }
            Failure::Strict { warnings } => {
                write!(f, "{warnings} warnings; --strict treats them as errors")
            }
            Failure::Address { address, error } => {
                write!(f, "{address}: cannot listen: {error}")
            }
            Failure::Wire(error) => f.write_str(&with_sources(error)),
            Failure::Ask { target, error } => write!(f, "{target}: {}", with_sources(error)),
            Failure::AdminRequest { endpoint, reason } => {
                write!(f, "{endpoint}: {}", reason.escape_debug())
            }
            Failure::Runtime(error) => write!(f, "cannot start a runtime: {error}"),
            Failure::Bug(what) => write!(f, "a bug in tidegate: {what}"),
        }
    }
}

/// Joins an error and its causes, each once.
fn with_sources(error: &dyn error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let words = source.to_string();
        if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
        next = source.source();
    }
    text
}

impl error::Error for Failure {}

impl From<FileError> for Failure {
    fn from(error: FileError) -> Self {
        Failure::File(error)
    }
}

impl From<PolicyFileError> for Failure {
    fn from(error: PolicyFileError) -> Self {
        Failure::PolicyFiles(error)
    }
}

impl From<WireError> for Failure {
    fn from(error: WireError) -> Self {
        Failure::Wire(error)
    }
}
