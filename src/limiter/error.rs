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
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CheckError {
    /// Redis did not reply in time, and a limit of the call has `on_store_failure: error`. Never
    /// returned by a limiter with counters in memory. The caller decides whether to admit such a
    /// call. A retry may succeed.
    Unavailable,
    /// The call is invalid or exceeds a bound, which the text names with the descriptor. No limit
    /// was charged, and a retry fails again.
    ///
    /// Work for Redis, at most 24,576 µs per call, is 12 µs for a window or bucket, 50 µs for a
    /// sliding log or hybrid counter, 30 µs for concurrency and 1 µs for each slot.
    Invalid(String),
}

impl fmt::Display for CheckError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CheckError::Unavailable => f.write_str("Redis did not answer in time"),
            CheckError::Invalid(reason) => f.write_str(reason),
        }
    }
}

impl std::error::Error for CheckError {}
