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

/// Error in a setting, as text. The process exits with code 64; retrying does not help.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettingError {
    /// Malformed or out-of-range value.
    InvalidValue(String),
    /// Unknown name in the settings file.
    UnknownName(String),
    /// Settings that contradict each other.
    Conflict(String),
}

impl SettingError {
    /// Returns the error for the flags `names`, which contradict each other.
    pub(super) fn conflict(names: &str, advice: &str) -> SettingError {
        SettingError::Conflict(format!("{names}: {advice}"))
    }
}

impl fmt::Display for SettingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SettingError::InvalidValue(text)
            | SettingError::UnknownName(text)
            | SettingError::Conflict(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for SettingError {}
