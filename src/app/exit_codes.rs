//! Why the process ends otherwise than as it was asked to, and with which exit code.
//!
//! Not here: printing (`cli`).

use std::{error, fmt, io};

use super::environment::FileError;
use super::policy_files::ReadError;
use super::settings;
use crate::policy;
use crate::wire::WireError;

/// A failure. Trying again helps only where the exit code is 69.
#[derive(Debug)]
pub enum Failure {
    /// The command line asks for something that cannot be.
    Usage(String),
    /// Settings cannot be used.
    Settings(Vec<settings::SettingError>),
    /// A file that a setting names cannot be used.
    File(FileError),
    /// Policy files cannot be read.
    Read(ReadError),
    /// The policy has faults.
    Policy(policy::Diagnostics),
    /// The policy has warnings, and those were to count as faults.
    Strict {
        /// How many.
        warnings: usize,
    },
    /// An address cannot be listened on.
    Address {
        /// The address as it was given.
        address: String,
        /// What the system says.
        error: io::Error,
    },
    /// The gRPC side cannot do what it is told.
    Wire(WireError),
    /// The store that the settings ask for is not to be had.
    Store(String),
    /// A question was not answered.
    Unanswered {
        /// Who was asked.
        target: String,
        /// What went wrong.
        error: WireError,
    },
    /// The debug port did not do what it was asked.
    Debug {
        /// Who was asked.
        target: String,
        /// What it, or the system, said.
        said: String,
    },
    /// The system grants no runtime or no thread.
    Runtime(io::Error),
    /// Something that cannot happen did.
    Bug(&'static str),
}

impl Failure {
    /// Flags or settings.
    pub const USAGE: u8 = 64;
    const POLICY: u8 = 65;
    const UNAVAILABLE: u8 = 69;
    /// A bug of ours.
    pub const BUG: u8 = 70;

    /// The exit code that says which sort of failure it is.
    pub fn exit_code(&self) -> u8 {
        match self {
            Failure::Usage(_) | Failure::Settings(_) | Failure::File(_) => Failure::USAGE,
            Failure::Read(ReadError::NoPlace) => Failure::USAGE,
            Failure::Read(_) | Failure::Policy(_) | Failure::Strict { .. } => Failure::POLICY,
            Failure::Address { .. }
            | Failure::Store(_)
            | Failure::Unanswered { .. }
            | Failure::Debug { .. }
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
            Failure::Usage(wrong) | Failure::Store(wrong) => f.write_str(wrong),
            Failure::Settings(faults) => {
                let lines: Vec<String> = faults.iter().map(ToString::to_string).collect();
                f.write_str(&lines.join("\n"))
            }
            Failure::File(fault) => fault.fmt(f),
            Failure::Read(fault) => fault.fmt(f),
            Failure::Policy(faults) => faults.fmt(f),
            Failure::Strict { warnings: 1 } => f.write_str("1 warning, and --strict"),
            Failure::Strict { warnings } => write!(f, "{warnings} warnings, and --strict"),
            Failure::Address { address, error } => {
                write!(f, "{address}: cannot be listened on: {error}")
            }
            Failure::Wire(error) => f.write_str(&with_sources(error)),
            Failure::Unanswered { target, error } => {
                write!(f, "{target}: {}", with_sources(error))
            }
            Failure::Debug { target, said } => write!(f, "{target}: {}", said.escape_debug()),
            Failure::Runtime(error) => write!(f, "the system grants no runtime: {error}"),
            Failure::Bug(what) => write!(f, "a bug in tidegate: {what}"),
        }
    }
}

/// An error and what caused it, once each.
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
    fn from(fault: FileError) -> Self {
        Failure::File(fault)
    }
}

impl From<ReadError> for Failure {
    fn from(fault: ReadError) -> Self {
        Failure::Read(fault)
    }
}

impl From<WireError> for Failure {
    fn from(error: WireError) -> Self {
        Failure::Wire(error)
    }
}
