//! A row of the table of settings: how one of them is named, shown and explained.
//!
//! Not here: the rows (`table`), where values come from (`source`).

/// How a value may be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Show {
    /// As it is.
    Plain,
    /// With logins masked.
    Address,
    /// Not at all.
    Hidden,
}

/// One setting, as `--help` and docs/SETTINGS.md describe it.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The field of [`Settings`].
    pub field: &'static str,
    /// The flag, without the leading hyphens.
    pub name: &'static str,
    /// The text that stands where nobody gives one.
    pub default: &'static str,
    /// How its value may be shown.
    pub show: Show,
    /// What envoyproxy/ratelimit calls it in the environment.
    pub theirs: &'static [&'static str],
    /// The line of help.
    pub help: &'static str,
}

impl Row {
    /// Our name for it in the environment.
    pub fn variable(&self) -> String {
        format!("TIDEGATE_{}", self.field.to_ascii_uppercase())
    }
}
