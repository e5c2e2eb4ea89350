//! Settings of the process: addresses, timeouts, the store, headers, logs.
//!
//! A value comes from a flag, else from the environment, else from the settings file, else from the
//! default. The table in `table` defines the flags, their help, the names in the environment, the
//! struct [`Settings`], and the page docs/SETTINGS.md. `app` reads the environment and the file,
//! `cli` turns the table into flags. Limits are not settings; they are in `policy`.

mod cross_checks;
mod domain_grants;
mod notices;
mod otlp_settings;
mod precedence;
mod redis_settings;
mod table;
mod value_types;

pub use domain_grants::DomainGrant;
pub use notices::{Notice, notices};
pub use otlp_settings::{OtlpSettings, TraceSampler};
pub use precedence::{Origin, SettingValue, Sources, TextMap, report};
pub use redis_settings::{RedisAddress, RedisSettings, RedisTls, RedisTopology, parse_login};
pub use table::{SettingRow, Settings, TABLE};
pub use value_types::{
    HeaderFamily, LogFormat, LogLevel, OnOff, RedisType, ResetForm, RetryAfterForm, SecretText,
    StoreKind, TopValues,
};

use std::fmt;

/// An invalid setting. The process exits with code 64, and retrying does not help.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettingError {
    /// A value is malformed or out of range.
    Value {
        /// Name of the flag.
        name: &'static str,
        /// Where the value comes from.
        origin: Origin,
        /// The value, masked if it is a secret.
        shown: String,
        /// What the value must be.
        expected: String,
    },
    /// The settings file contains an unknown name.
    Unknown {
        /// The name as written.
        name: String,
        /// A similar setting.
        similar: Option<&'static str>,
    },
    /// A setting of envoyproxy/ratelimit that would make it behave differently from Tidegate.
    Unsupported {
        /// Its name in the environment.
        name: &'static str,
        /// Why, and what to do instead.
        advice: &'static str,
    },
    /// Settings contradict each other.
    Conflict {
        /// Their names.
        names: &'static str,
        /// Why, and what to do instead.
        advice: String,
    },
}

impl fmt::Display for SettingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SettingError::Value { name, origin, shown, expected } => {
                write!(f, "--{name} (from {origin}): {shown:?}: {expected}")
            }
            SettingError::Unknown { name, similar: Some(similar) } => {
                write!(f, "settings file: unknown setting {name:?}; did you mean {similar:?}?")
            }
            SettingError::Unknown { name, similar: None } => {
                write!(f, "settings file: unknown setting {name:?}; --help lists all settings")
            }
            SettingError::Unsupported { name, advice } => write!(f, "{name}: {advice}"),
            SettingError::Conflict { names, advice } => write!(f, "{names}: {advice}"),
        }
    }
}

impl std::error::Error for SettingError {}
