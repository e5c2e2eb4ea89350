//! Everything that the process is told from outside besides its flags: the environment, the
//! settings file and texts that a flag names. Read once, here; everybody else is handed values.
//!
//! Not here: what the settings mean (`settings`).

use std::io::Read;
use std::path::{Path, PathBuf};
use std::{env, error, fmt, fs, io};

use super::policy_files::named;
use super::settings::Texts;

/// Largest settings file: every setting with a long value fits into a hundredth of it.
const SETTINGS_BYTES_MAX: u64 = 1 << 20;
/// Largest file with a secret or with certificates: a system's whole bundle of authorities is a
/// quarter of it.
const SECRET_BYTES_MAX: u64 = 1 << 20;
/// Largest scenario: its policy and a group for each of a thousand sorts of callers fit in.
const TEXT_BYTES_MAX: u64 = 1 << 20;

/// The environment. Names and values that are not UTF-8 are left out: no setting has one.
pub fn environment() -> Texts {
    let text = |text: std::ffi::OsString| text.into_string().ok();
    env::vars_os().filter_map(|(name, value)| Some((text(name)?, text(value)?))).collect()
}

/// Why a file of settings or with a secret cannot be used.
#[derive(Debug)]
pub enum FileError {
    /// It cannot be read.
    Unreadable {
        /// Which one.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// It cannot be written.
    Unwritable {
        /// Which one.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// It is not what it should be.
    Malformed {
        /// Which one.
        path: PathBuf,
        /// What is wrong; never its content.
        wrong: String,
    },
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FileError::Unreadable { path, error } | FileError::Unwritable { path, error } => {
                write!(f, "{}: {error}", named(path))
            }
            FileError::Malformed { path, wrong } => write!(f, "{}: {wrong}", named(path)),
        }
    }
}

impl error::Error for FileError {}

/// Reads a settings file: YAML, a mapping from flag names to values.
///
/// # Errors
///
/// The file cannot be read, is too large, or is not such a mapping.
pub fn settings_file(path: &Path) -> Result<Texts, FileError> {
    let malformed = |wrong: String| FileError::Malformed { path: path.to_owned(), wrong };
    let text = bounded(path, SETTINGS_BYTES_MAX)?;
    let values: std::collections::BTreeMap<String, serde_yaml::Value> =
        serde_yaml::from_str(&text).map_err(|error| malformed(wrong_yaml(&error)))?;
    let scalar = |(name, value): (String, serde_yaml::Value)| match value {
        serde_yaml::Value::String(text) => Ok((name, text)),
        serde_yaml::Value::Bool(flag) => Ok((name, flag.to_string())),
        serde_yaml::Value::Number(number) => Ok((name, number.to_string())),
        serde_yaml::Value::Null => Ok((name, String::new())),
        serde_yaml::Value::Sequence(_)
        | serde_yaml::Value::Mapping(_)
        | serde_yaml::Value::Tagged(_) => Err(malformed(format!("{name}: one value, not a list"))),
    };
    values.into_iter().map(scalar).collect()
}

/// Where it is wrong, not what stands there: the parser's own words quote it, and a file that was
/// named by mistake may be the one with the password.
fn wrong_yaml(error: &serde_yaml::Error) -> String {
    match error.location() {
        Some(at) => {
            let (line, column) = (at.line(), at.column());
            format!("line {line}, column {column}: not YAML with a `name: value` on each line")
        }
        None => "not YAML with a `name: value` on each line".to_owned(),
    }
}

/// Reads a secret: the file's text without the line feed at its end.
///
/// # Errors
///
/// The file cannot be read or is too large.
pub(super) fn secret_file(path: &Path) -> Result<String, FileError> {
    let text = bounded(path, SECRET_BYTES_MAX)?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

/// Reads a text that the command line names.
///
/// # Errors
///
/// The file cannot be read, is not UTF-8 or is too large.
pub fn read_text(path: &Path) -> Result<String, FileError> {
    bounded(path, TEXT_BYTES_MAX)
}

/// Writes a text to where the command line says, over what was there.
///
/// # Errors
///
/// The file cannot be written.
pub fn write_text(path: &Path, text: &str) -> Result<(), FileError> {
    fs::write(path, text).map_err(|error| FileError::Unwritable { path: path.to_owned(), error })
}

fn bounded(path: &Path, bytes_max: u64) -> Result<String, FileError> {
    let unreadable = |error| FileError::Unreadable { path: path.to_owned(), error };
    let file = fs::File::open(path).map_err(unreadable)?;
    let mut text = String::new();
    let read = file.take(bytes_max + 1).read_to_string(&mut text).map_err(unreadable)?;
    if read as u64 > bytes_max {
        let wrong = format!("more than {bytes_max} bytes");
        return Err(FileError::Malformed { path: path.to_owned(), wrong });
    }
    Ok(text)
}
