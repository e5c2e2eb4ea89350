//! Errors in settings.

use std::fmt;

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
