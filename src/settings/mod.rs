//! Process settings: addresses, timeouts, the store, headers, logs. From flags, then the
//! environment, then a settings file, then the default; each value knows where it came from.
//!
//! One table (`table`) is the flags, their help, the environment's names, the struct [`Settings`]
//! and the README's list. Not here: limits (`policy`), reading the environment or files (`app`),
//! flags as clap sees them (`cli`).

mod domain_grants;
mod ignored;
mod otlp_settings;
mod precedence;
mod redis_settings;
mod row;
mod table;
mod value_types;

pub use domain_grants::DomainGrant;
pub use ignored::{Notice, notices};
pub use otlp_settings::{OtlpSettings, TraceSampler};
pub use precedence::{Given, Origin, Sources, Texts, report};
pub use redis_settings::{RedisAddress, RedisSettings, RedisTls, Topology, login};
pub use row::Row;
pub use table::{Settings, TABLE};
pub use value_types::{
    HeaderFamily, LogFormat, LogLevel, OnOff, RedisType, ResetForm, RetryAfterForm, SecretText,
    StoreKind, TopValues,
};

use std::fmt;

/// A setting that cannot be used: which, where it was given, what is wrong, what to do.
///
/// A start with one of these ends with exit code 64; trying again does not help.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettingError {
    /// A value is malformed or out of bounds.
    Value {
        /// The setting, as its flag's name.
        name: &'static str,
        /// Where the value was given.
        origin: Origin,
        /// The value, masked where it is a secret.
        shown: String,
        /// What is wrong with it, and what would be right.
        wrong: String,
    },
    /// A name of the settings file that is no setting.
    Unknown {
        /// The name as it was written.
        name: String,
        /// The nearest setting, if one is near.
        nearest: Option<&'static str>,
    },
    /// A setting of envoyproxy/ratelimit under which we would silently do something else.
    Refused {
        /// Its environment name.
        name: &'static str,
        /// Why not, and the way out.
        way_out: &'static str,
    },
    /// Two settings that do not go together.
    Together {
        /// Which ones.
        names: &'static str,
        /// Why not, and the way out.
        way_out: String,
    },
}

impl fmt::Display for SettingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SettingError::Value { name, origin, shown, wrong } => {
                write!(f, "--{name} (from {origin}): {shown:?}: {wrong}")
            }
            SettingError::Unknown { name, nearest: Some(nearest) } => {
                write!(f, "settings file: {name:?} is no setting; did you mean {nearest:?}?")
            }
            SettingError::Unknown { name, nearest: None } => {
                write!(f, "settings file: {name:?} is no setting; --help lists them")
            }
            SettingError::Refused { name, way_out } => write!(f, "{name}: {way_out}"),
            SettingError::Together { names, way_out } => write!(f, "{names}: {way_out}"),
        }
    }
}

impl std::error::Error for SettingError {}
