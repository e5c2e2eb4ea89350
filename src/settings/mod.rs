//! Settings of the process, such as addresses, timeouts, the store, response headers and logs.
//!
//! A value comes from the first of these sources that sets it: flag, environment, settings file,
//! default. The table in `table` defines flags, help texts, environment variables, the struct
//! [`Settings`], and the page docs/SETTINGS.md. `app` reads the environment and the settings file;
//! `cli` generates flags from the table. Rate limits are not settings; see `policy`.

mod cross_checks;
mod domain_grants;
mod drop_in;
mod notices;
mod otlp_settings;
mod precedence;
mod redis_settings;
mod table;
mod value_types;

pub use domain_grants::DomainGrant;
pub use drop_in::DropIn;
pub use notices::{Notice, NoticeKind, find_notices};
pub use otlp_settings::{OtlpProtocol, OtlpSettings, TraceSampler};
pub use precedence::{Origin, SettingValue, Sources, TextMap, report};
pub use redis_settings::{RedisAddress, RedisSettings, parse_login};
pub use table::{SettingRow, Settings, TABLE};
pub use value_types::{
    ChargeSetting, CounterAccessSetting, HeaderFamily, LogFormat, LogLevel, OnOff,
    PolicySourceKind, RedisType, ResetSetting, RetryAfterSetting, SecretText, TopValues,
};

use std::fmt;

/// Error in a setting. The process exits with code 64; retrying does not help.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettingError {
    /// Malformed or out-of-range value.
    InvalidValue {
        /// Name of the flag, with its hyphens, or of the environment variable.
        name: String,
        /// Source of the value.
        origin: Origin,
        /// Rejected value, with secrets masked.
        masked: String,
        /// Description of the valid values.
        expected: String,
    },
    /// Unknown name in the settings file.
    UnknownName {
        /// Name that matches no setting.
        name: String,
        /// Position of the name in the settings file.
        origin: Origin,
        /// Name of a similar setting to suggest; `None` if there is none.
        similar: Option<&'static str>,
    },
    /// Settings that contradict each other.
    Conflict {
        /// Names of the flags involved.
        names: &'static str,
        /// Reason for the conflict, and how to resolve it.
        advice: String,
    },
}

impl fmt::Display for SettingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SettingError::InvalidValue { name, origin, masked, expected } => {
                write!(f, "{name} (from {origin}): {masked:?}: {expected}")
            }
            SettingError::UnknownName { name, origin, similar: Some(similar) } => {
                write!(f, "{origin}: unknown setting {name:?}; did you mean {similar:?}?")
            }
            SettingError::UnknownName { name, origin, similar: None } => {
                write!(f, "{origin}: unknown setting {name:?}; `tidegate serve -h` lists all")
            }
            SettingError::Conflict { names, advice } => write!(f, "{names}: {advice}"),
        }
    }
}

impl std::error::Error for SettingError {}
