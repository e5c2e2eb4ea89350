//! Row of the settings table.

use super::drop_in_mode::DROP_IN_DEFAULTS;

/// Redaction of a setting's value in `--print-settings` and in errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Redaction {
    /// The value is displayed unchanged.
    Plain,
    /// The value is an address, of which what may be secret is hidden.
    Address,
    /// The value is never displayed. Unless it is empty, `(hidden)` is shown instead.
    Hidden,
}

/// Row of the settings table, with all properties of one setting except its parser.
#[derive(Clone, Copy, Debug)]
pub struct SettingRow {
    /// Heading under which `--help` and docs/SETTINGS.md list the setting.
    pub section: &'static str,
    /// Name of the field in [`Settings`](super::Settings).
    pub field: &'static str,
    /// Name of the flag, without leading hyphens, and key in the settings file; or, in upper case,
    /// the environment variable of a setting without a flag.
    pub name: &'static str,
    /// Placeholder for the value in `--help`, such as `DURATION`, or the valid keywords, separated
    /// by `|`.
    pub value_name: &'static str,
    /// Default value as text, before parsing.
    pub default: &'static str,
    /// Redaction that is applied when the value is displayed.
    pub redaction: Redaction,
    /// Other environment variables of envoyproxy/ratelimit or OpenTelemetry that set this value.
    pub compat_names: &'static [&'static str],
    /// Help text for `--help` and docs/SETTINGS.md.
    pub help: &'static str,
}

impl SettingRow {
    /// Returns whether the setting's value contains no secret and is displayed unchanged.
    pub fn is_shown_unchanged(&self) -> bool {
        self.redaction == Redaction::Plain
    }

    /// Returns whether the setting has a flag and a key in the settings file, in addition to its
    /// environment variables.
    pub fn has_flag(&self) -> bool {
        !self.name.starts_with(|c: char| c.is_ascii_uppercase())
    }

    /// Returns the name of the environment variable, such as `TIDEGATE_GRPC_PORT`.
    pub fn variable(&self) -> String {
        match self.has_flag() {
            true => format!("TIDEGATE_{}", self.field.to_ascii_uppercase()),
            false => self.name.to_owned(),
        }
    }

    /// Returns the default value in drop-in mode; `None` if it does not differ from the built-in
    /// default.
    pub fn drop_in_default(&self) -> Option<&'static str> {
        DROP_IN_DEFAULTS.iter().find(|(name, _)| *name == self.name).map(|(_, value)| *value)
    }
}
