//! Errors in settings, and the source of the value that is wrong.

use std::fmt;

/// Source of a setting's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Command-line flag.
    Flag,
    /// Environment variable, with its name.
    Environment(String),
    /// Settings file, with the position as `FILE:LINE`; empty if the position is unknown.
    File(String),
    /// Built-in default, which applies if no source sets a value.
    Default,
    /// Default that replaces the built-in default in drop-in mode. In this mode, Tidegate runs in
    /// place of envoyproxy/ratelimit.
    DropInDefault,
    /// Default that replaces the built-in default if policies come from a control plane.
    ControlPlaneDefault,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Flag => f.write_str("flag"),
            Origin::Environment(name) => write!(f, "environment {name}"),
            Origin::File(place) if place.is_empty() => f.write_str("settings file"),
            Origin::File(place) => write!(f, "settings file {place}"),
            Origin::Default => f.write_str("default"),
            Origin::DropInDefault => f.write_str("default as ratelimit"),
            Origin::ControlPlaneDefault => f.write_str("default with a control plane"),
        }
    }
}

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
                write!(f, "{origin}: unknown setting {name:?}; `tidegate serve --help` lists all")
            }
            SettingError::Conflict { names, advice } => write!(f, "{names}: {advice}"),
        }
    }
}

impl std::error::Error for SettingError {}
