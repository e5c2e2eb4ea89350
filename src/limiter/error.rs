//! Errors of the library. A rejected call is not an error.

use std::fmt;

/// Reason why a [`Limiter`](crate::Limiter) cannot be built or its policy cannot be replaced. A
/// retry with the same arguments fails again.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigError {
    /// The policy is invalid. The text has one line for each error, such as
    /// `policy.yaml:2:30: descriptors[0].rate_limit.unit: …`. A line contains the file name, the
    /// line number, the column, the path, and usually a fix.
    Policy(String),
    /// An option is out of range, or the Redis options are invalid. The text names the option.
    Option(String),
    /// A limiter with counters in Redis was built outside a tokio runtime.
    NoRuntime,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigError::Policy(text) | ConfigError::Option(text) => f.write_str(text),
            ConfigError::NoRuntime => {
                f.write_str("a limiter over Redis must be built on a tokio runtime")
            }
        }
    }
}

impl std::error::Error for ConfigError {}

/// Reason why a call was not decided.
///
/// Only a call that failed with [`Unavailable`](Self::Unavailable) may succeed on a retry. The
/// other variants mean that the call is invalid or exceeds a bound; no limit was charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CheckError {
    /// Redis did not reply in time, and a limit of the call has `on_store_failure: error`. Never
    /// returned by a limiter with counters in memory. The caller decides whether to admit such a
    /// call.
    Unavailable,
    /// The domain is empty.
    EmptyDomain,
    /// The call has no descriptors.
    NoDescriptors,
    /// The call has more than `max` descriptors.
    TooManyDescriptors {
        /// Maximum number of descriptors, 2,048.
        max: usize,
    },
    /// A descriptor has more than `max` entries.
    TooManyEntries {
        /// Position of the descriptor in the call, from 0.
        descriptor: usize,
        /// Maximum number of entries, 160.
        max: usize,
    },
    /// The key of an entry is empty.
    EmptyKey {
        /// Position of the descriptor in the call, from 0.
        descriptor: usize,
    },
    /// The domain, keys, values, and holders together exceed `max` bytes.
    TooLarge {
        /// Maximum size in bytes, 1 MiB.
        max: usize,
    },
    /// The call checks more than `max` limits.
    TooManyChecks {
        /// Maximum number of limits that one call may check, 2,048.
        max: usize,
    },
    /// The call is more work for Redis than one call may be: 12 µs for a window or bucket, 50 µs for
    /// a sliding log or hybrid counter, 30 µs for concurrency and 1 µs for each slot. Split its
    /// descriptors over several calls, or ask for fewer slots.
    TooMuchWork {
        /// Maximum work of one call in microseconds, 24,576.
        max: u64,
    },
}

impl CheckError {
    /// Returns whether a retry of the same call may succeed.
    pub fn is_retryable(&self) -> bool {
        *self == CheckError::Unavailable
    }
}

impl fmt::Display for CheckError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CheckError::Unavailable => f.write_str("Redis did not answer in time"),
            CheckError::EmptyDomain => f.write_str("the domain must not be empty"),
            CheckError::NoDescriptors => f.write_str("a call needs at least one descriptor"),
            CheckError::TooManyDescriptors { max } => {
                write!(f, "at most {max} descriptors in one call")
            }
            CheckError::TooManyEntries { descriptor, max } => {
                write!(f, "descriptors[{descriptor}]: at most {max} entries")
            }
            CheckError::EmptyKey { descriptor } => {
                write!(f, "descriptors[{descriptor}]: a key must not be empty")
            }
            CheckError::TooLarge { max } => {
                write!(f, "the descriptors of a call may have at most {max} bytes together")
            }
            CheckError::TooManyChecks { max } => {
                write!(f, "the call checks more than {max} limits")
            }
            CheckError::TooMuchWork { max } => {
                write!(
                    f,
                    "the call needs more than {max} µs of Redis; split its descriptors over several"
                )
            }
        }
    }
}

impl std::error::Error for CheckError {}
