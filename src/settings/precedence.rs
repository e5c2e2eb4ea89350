//! Looks up the value of each setting in this order: flag, environment, settings file, default.
//! Also formats the output of `--print-settings`, which is a valid settings file.
//!
//! `app` reads the environment and the settings file; `value_types` parses values.

use std::collections::BTreeMap;

use super::drop_in_mode::DropIn;
use super::foreign_names::find_similar_name;
use super::server_url::{HIDDEN, hide_secrets};
use super::setting_error::SettingError;
use super::setting_row::{Redaction, SettingRow};
use super::value_types::ValueError;
use crate::domain::escaped;

/// Map from the names of settings or environment variables to unparsed values.
pub type TextMap = BTreeMap<String, String>;

/// Unparsed settings, separated by source: flags, the environment, and the settings file.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// Values of flags, by flag name without leading hyphens.
    pub flags: TextMap,
    /// Environment variables, by name.
    pub environment: TextMap,
    /// Values in the settings file, by flag name.
    pub file: TextMap,
    /// Position of each value in the settings file, as `FILE:LINE`, by flag name. Has no entry for
    /// a value whose position cannot be determined.
    pub file_positions: TextMap,
    /// Information about drop-in mode; `None` if the process is not in drop-in mode.
    pub drop_in: Option<DropIn>,
}

impl Sources {
    #[cfg(test)]
    pub(crate) fn from_flags(flags: &[(&str, &str)]) -> Sources {
        let owned = |(name, text): &(&str, &str)| ((*name).to_owned(), (*text).to_owned());
        Sources { flags: flags.iter().map(owned).collect(), ..Sources::default() }
    }

    #[cfg(test)]
    pub(crate) fn from_environment(variables: &[(&str, &str)]) -> Sources {
        Sources { environment: Sources::from_flags(variables).flags, ..Sources::default() }
    }

    /// Returns the origin of a value in the settings file.
    fn file_origin(&self, name: &str) -> String {
        let position = self.file_positions.get(name);
        position.map_or("settings file".to_owned(), |at| format!("settings file {at}"))
    }
}

/// Unparsed value of a setting, with its source.
#[derive(Clone, Debug)]
pub struct SettingValue {
    /// Row of the settings table that describes the setting.
    pub row: &'static SettingRow,
    /// Value as text, before parsing.
    pub text: String,
    /// Source of the value, as text: `flag`, `environment NAME`, `settings file FILE:LINE`, or one of
    /// the defaults.
    pub origin: String,
}

impl SettingValue {
    /// Returns the value for display. Hides secrets, also those in addresses.
    pub fn masked(&self) -> String {
        match self.row.redaction {
            Redaction::Plain => self.text.clone(),
            Redaction::Hidden if self.text.is_empty() => String::new(),
            Redaction::Hidden => HIDDEN.to_owned(),
            Redaction::Address => hide_secrets(&self.text),
        }
    }
}

/// Origin of a value that no source sets.
const DEFAULT: &str = "default";

/// Looks up the values of all settings, in the order of the table.
pub(super) fn find_all(table: &'static [SettingRow], sources: &Sources) -> Vec<SettingValue> {
    let mut values: Vec<SettingValue> = table.iter().map(|row| find_value(row, sources)).collect();
    let is_control_plane = |value: &SettingValue| {
        value.row.name == "config-type" && value.text.eq_ignore_ascii_case("grpc_xds_sotw")
    };
    if values.iter().any(is_control_plane) {
        let charge = values.iter_mut().find(|value| value.row.name == "charge");
        if let Some(value) = charge.filter(|value| value.origin == DEFAULT) {
            // The gateways charge after the response, and their policies cannot say how.
            "billed".clone_into(&mut value.text);
            "default with a control plane".clone_into(&mut value.origin);
        }
    }
    values
}

/// Returns whether a variable is the address of a Kubernetes Service, which Kubernetes sets in each
/// container of the namespace: a Service `grpc` sets GRPC_PORT, which is also a setting.
pub(super) fn is_service_link(name: &str, text: &str) -> bool {
    let schemes = ["tcp://", "udp://", "sctp://"];
    name.ends_with("_PORT") && schemes.iter().any(|scheme| text.starts_with(scheme))
}

fn find_value(row: &'static SettingRow, sources: &Sources) -> SettingValue {
    let named = |texts: &'_ TextMap| texts.get(row.name).filter(|_| row.has_flag()).cloned();
    let flag = named(&sources.flags).map(|text| (text, "flag".to_owned()));
    // An empty variable counts as unset, because deployment manifests unset variables that way.
    let in_environment = |name: &String| {
        let text = sources.environment.get(name).filter(|text| !text.is_empty())?;
        if is_service_link(name, text) {
            return None;
        }
        Some((text.clone(), format!("environment {name}")))
    };
    let found = flag
        .or_else(|| {
            let compat = row.compat_names.iter().map(|name| (*name).to_owned());
            std::iter::once(row.variable()).chain(compat).find_map(|name| in_environment(&name))
        })
        .or_else(|| named(&sources.file).map(|text| (text, sources.file_origin(row.name))));
    let (text, origin) = found.unwrap_or_else(|| {
        let of_drop_in = sources.drop_in.as_ref().and_then(|_| row.drop_in_default());
        let of_drop_in = of_drop_in.map(|text| (text, "default as ratelimit"));
        let (text, origin) = of_drop_in.unwrap_or((row.default, DEFAULT));
        (text.to_owned(), origin.to_owned())
    });
    SettingValue { row, text, origin }
}

/// Parses the value of the setting whose field in `Settings` is named `field`. On failure, appends
/// an error to `errors` and returns `None`.
pub(super) fn parse<T>(
    values: &[SettingValue],
    field: &str,
    parser: impl Fn(&str) -> Result<T, ValueError>,
    errors: &mut Vec<SettingError>,
) -> Option<T> {
    let value = values.iter().find(|value| value.row.field == field)?;
    match parser(value.text.trim()) {
        Ok(parsed) => Some(parsed),
        Err(expected) => {
            let SettingValue { row, origin, .. } = value;
            let (hyphens, name) = (if row.has_flag() { "--" } else { "" }, row.name);
            let text = format!("{hyphens}{name} (from {origin}): {:?}: {expected}", value.masked());
            errors.push(SettingError::InvalidValue(text));
            None
        }
    }
}

/// Returns an error for every unknown name in the settings file.
pub(super) fn find_unknown_names(
    table: &'static [SettingRow],
    sources: &Sources,
) -> Vec<SettingError> {
    let is_unknown =
        |name: &&String| !table.iter().any(|row| row.name == name.as_str() && row.has_flag());
    let error = |name: &String| {
        let help = match find_similar_name(table, name) {
            Some(similar) => format!("did you mean {similar:?}?"),
            None => "`tidegate serve --help` lists all".to_owned(),
        };
        let origin = sources.file_origin(name);
        SettingError::UnknownName(format!("{origin}: unknown setting {name:?}; {help}"))
    };
    sources.file.keys().filter(is_unknown).map(error).collect()
}

/// Formats all settings as a settings file. A comment after each value names its source. A line
/// with a masked value is commented out, because reading the file would otherwise replace the
/// secret with the masked value. So is a setting without a flag, which is not a key of the file.
pub fn report(values: &[SettingValue]) -> String {
    use std::fmt::Write;
    let line = |value: &SettingValue| {
        let (masked, name) = (value.masked(), value.row.name);
        match masked == value.text && value.row.has_flag() {
            true => format!("{name}: {}", format_yaml_scalar(&masked)),
            false => format!("# {name}: {}", escaped(&masked)),
        }
    };
    let lines: Vec<String> = values.iter().map(line).collect();
    let is_short = |line: &&String| line.len() <= COMMENT_COLUMN_MAX;
    let width = lines.iter().filter(is_short).map(String::len).max().unwrap_or(0);
    let mut out = String::new();
    for (line, value) in lines.iter().zip(values) {
        // Writing into a String cannot fail.
        let _ = writeln!(out, "{line:width$}  # {}", escaped(&value.origin));
    }
    out
}

/// Maximum column at which [`report`] aligns comments. The comment of a longer line follows its
/// value directly, and does not move the comments of other lines.
const COMMENT_COLUMN_MAX: usize = 50;

/// Units of numbers that need no quotes in YAML. The empty text means a number without a unit. Any
/// other text that begins with a digit needs quotes, because YAML may parse it as a number or a
/// date.
const PLAIN_UNITS: [&str; 8] = ["", "ms", "s", "m", "h", "KiB", "MiB", "GiB"];

/// Words that YAML parses as a boolean or as null.
const YAML_WORDS: [&str; 9] = ["true", "false", "yes", "no", "on", "off", "null", "y", "n"];

/// Formats text as a YAML scalar. Adds quotes unless the text is `true`, `false`, a number with an
/// optional unit, or a plain word that YAML parses as text.
fn format_yaml_scalar(text: &str) -> String {
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let is_number = unit.len() < text.len()
        && PLAIN_UNITS.contains(&unit)
        && (text.len() - unit.len() == 1 || !text.starts_with('0'))
        // More digits do not fit into 64 bits.
        && text.len() - unit.len() < 19;
    let is_word = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/')
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/_.-".contains(&byte))
        && !YAML_WORDS.contains(&text.to_ascii_lowercase().as_str());
    match text {
        "true" | "false" => text.to_owned(),
        _ if is_number || is_word => text.to_owned(),
        _ => format!("'{}'", text.replace('\'', "''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::TABLE;

    fn text_map(pairs: &[(&str, &str)]) -> TextMap {
        pairs.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
    }

    fn origin_of(sources: &Sources, name: &str) -> (String, String) {
        let all = find_all(TABLE, sources);
        let one = all.iter().find(|one| one.row.name == name).unwrap();
        (one.text.clone(), one.origin.clone())
    }

    #[test]
    fn a_flag_wins_over_the_environment_the_file_and_the_default() {
        let mut sources = Sources::default();
        assert_eq!(origin_of(&sources, "grpc-port"), ("8081".into(), "default".into()));
        sources.file = text_map(&[("grpc-port", "1")]);
        assert_eq!(origin_of(&sources, "grpc-port"), ("1".into(), "settings file".into()));
        sources.environment = text_map(&[("GRPC_PORT", "2")]);
        let compat = "environment GRPC_PORT".into();
        assert_eq!(origin_of(&sources, "grpc-port"), ("2".into(), compat));
        sources.environment.insert("TIDEGATE_GRPC_PORT".into(), "3".into());
        let own = "environment TIDEGATE_GRPC_PORT".into();
        assert_eq!(origin_of(&sources, "grpc-port"), ("3".into(), own));
        sources.flags = text_map(&[("grpc-port", "4")]);
        assert_eq!(origin_of(&sources, "grpc-port"), ("4".into(), "flag".into()));
    }

    #[test]
    fn an_empty_variable_counts_as_unset() {
        let sources = Sources { environment: text_map(&[("GRPC_PORT", "")]), ..Sources::default() };
        assert_eq!(origin_of(&sources, "grpc-port").1, "default");
    }

    #[test]
    fn secrets_are_never_in_the_report() {
        let environment = text_map(&[("REDIS_AUTH", "hunter2"), ("REDIS_URL", "redis://u:pw@h:1")]);
        let printed = report(&find_all(TABLE, &Sources { environment, ..Sources::default() }));
        assert!(!printed.contains("hunter2") && !printed.contains("pw@"), "{printed}");
        let masked = |line: &str| line.starts_with("# redis-") && line.contains("(hidden)");
        assert_eq!(printed.lines().filter(|line| masked(line)).count(), 2, "{printed}");
    }

    #[test]
    fn an_unknown_name_in_the_file_gets_a_suggestion() {
        let file = text_map(&[("grpc_port", "1"), ("nonsense", "1")]);
        let errors = find_unknown_names(TABLE, &Sources { file, ..Sources::default() });
        assert_eq!(errors.len(), 2);
        assert!(errors[0].to_string().contains("did you mean \"grpc-port\""), "{}", errors[0]);
    }

    #[test]
    fn with_a_control_plane_bills_are_charged_unless_a_source_says_otherwise() {
        let environment = text_map(&[("CONFIG_TYPE", "GRPC_XDS_SOTW")]);
        let mut sources = Sources { environment, ..Sources::default() };
        let billed = ("billed".to_owned(), "default with a control plane".to_owned());
        assert_eq!(origin_of(&sources, "charge"), billed);
        sources.flags = text_map(&[("charge", "admitted")]);
        assert_eq!(origin_of(&sources, "charge"), ("admitted".to_owned(), "flag".to_owned()));
    }
}
