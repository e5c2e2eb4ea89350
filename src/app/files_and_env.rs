//! Input of the process besides its flags: the environment, the settings file, secrets, and text
//! files that a flag names.
//!
//! No other module reads the environment. The meaning of settings is in `settings`, policy files
//! are in `policy_files`.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::{env, error, fmt, fs, io};

use super::policy_files::printable;
use crate::settings::TextMap;

/// Largest settings file: a hundred times what every setting with a long value needs.
const SETTINGS_BYTES_MAX: u64 = 1 << 20;
/// Largest file with a secret or with certificates: four times the CA bundle of a system.
const SECRET_BYTES_MAX: u64 = 1 << 20;
/// Largest scenario of `simulate`: it holds a policy and a thousand groups of callers.
const SCENARIO_BYTES_MAX: u64 = 1 << 20;

/// Returns the environment without names and values that are not UTF-8: no setting has one.
pub fn environment() -> TextMap {
    let text = |text: std::ffi::OsString| text.into_string().ok();
    env::vars_os().filter_map(|(name, value)| Some((text(name)?, text(value)?))).collect()
}

/// An error of a settings file, a secret or a text file.
#[derive(Debug)]
pub enum FileError {
    /// The file cannot be read.
    Unreadable {
        /// Its path.
        path: PathBuf,
        /// Error of the operating system.
        error: io::Error,
    },
    /// The file cannot be written.
    Unwritable {
        /// Its path.
        path: PathBuf,
        /// Error of the operating system.
        error: io::Error,
    },
    /// The file has the wrong format.
    Malformed {
        /// Its path.
        path: PathBuf,
        /// What is wrong, without quoting the content.
        reason: String,
    },
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FileError::Unreadable { path, error } | FileError::Unwritable { path, error } => {
                write!(f, "{}: {error}", printable(path))
            }
            FileError::Malformed { path, reason } => write!(f, "{}: {reason}", printable(path)),
        }
    }
}

impl error::Error for FileError {}

/// Reads a settings file: a YAML mapping from flag names to scalars.
///
/// # Errors
///
/// The file cannot be read, is too large, or is not such a mapping.
pub fn settings_file(path: &Path) -> Result<TextMap, FileError> {
    let malformed = |reason| FileError::Malformed { path: path.to_owned(), reason };
    let text = read_at_most(path, SETTINGS_BYTES_MAX)?;
    let values: std::collections::BTreeMap<String, serde_yaml::Value> =
        serde_yaml::from_str(&text).map_err(|error| malformed(yaml_error(&error)))?;
    let scalar = |(name, value): (String, serde_yaml::Value)| match value {
        serde_yaml::Value::String(text) => Ok((name, text)),
        serde_yaml::Value::Bool(flag) => Ok((name, flag.to_string())),
        serde_yaml::Value::Number(number) => Ok((name, number.to_string())),
        serde_yaml::Value::Null => Ok((name, String::new())),
        serde_yaml::Value::Sequence(_)
        | serde_yaml::Value::Mapping(_)
        | serde_yaml::Value::Tagged(_) => Err(malformed(format!("{name}: must be a single value"))),
    };
    values.into_iter().map(scalar).collect()
}

/// Describes where the YAML is wrong without quoting it, as the parser's own message would: a file
/// named by mistake may be the one with the password.
fn yaml_error(error: &serde_yaml::Error) -> String {
    match error.location() {
        Some(at) => {
            let (line, column) = (at.line(), at.column());
            format!("line {line}, column {column}: expected YAML, `name: value` on each line")
        }
        None => "expected YAML, `name: value` on each line".to_owned(),
    }
}

/// Reads a secret: the text of the file without line breaks at its end.
///
/// # Errors
///
/// The file cannot be read or is too large.
pub(super) fn secret_file(path: &Path) -> Result<String, FileError> {
    let text = read_at_most(path, SECRET_BYTES_MAX)?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

/// Reads a text file named on the command line.
///
/// # Errors
///
/// The file cannot be read, is not UTF-8 or is too large.
pub fn read_text(path: &Path) -> Result<String, FileError> {
    read_at_most(path, SCENARIO_BYTES_MAX)
}

/// Writes a file named on the command line, replacing an existing one.
///
/// # Errors
///
/// The file cannot be written.
pub fn write_text(path: &Path, text: &str) -> Result<(), FileError> {
    fs::write(path, text).map_err(|error| FileError::Unwritable { path: path.to_owned(), error })
}

fn read_at_most(path: &Path, bytes_max: u64) -> Result<String, FileError> {
    let unreadable = |error| FileError::Unreadable { path: path.to_owned(), error };
    let file = fs::File::open(path).map_err(unreadable)?;
    let mut text = String::new();
    let read = file.take(bytes_max + 1).read_to_string(&mut text).map_err(unreadable)?;
    if read as u64 > bytes_max {
        let reason = format!("more than {bytes_max} bytes");
        return Err(FileError::Malformed { path: path.to_owned(), reason });
    }
    Ok(text)
}
