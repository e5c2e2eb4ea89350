//! Reads environment variables, the settings file, secrets, and text files named by flags.
//!
//! No other module reads the environment. `settings` interprets the values; `policy_files` reads
//! policies.

use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::{env, error, fmt, fs, io};

use rustix::fs::OFlags;

use super::policy_files::{advice_on_path, printable};
use crate::settings::TextMap;

/// Maximum size of a settings file, 1 MiB in bytes. A file that sets every setting has about a
/// hundredth of this size.
const SETTINGS_BYTES_MAX: u64 = 1 << 20;
/// Maximum size of a secret or certificate file, 1 MiB in bytes. A typical CA bundle has a quarter
/// of this size.
const SECRET_BYTES_MAX: u64 = 1 << 20;
/// Maximum size of a `simulate` scenario, 1 MiB in bytes. This is enough for a policy and a
/// thousand groups of callers.
const SCENARIO_BYTES_MAX: u64 = 1 << 20;

/// Returns the environment variables whose names and values are valid UTF-8. Other variables cannot
/// be settings.
pub fn environment() -> TextMap {
    let text = |text: std::ffi::OsString| text.into_string().ok();
    env::vars_os().filter_map(|(name, value)| Some((text(name)?, text(value)?))).collect()
}

/// Error from reading or writing a settings file, secret or text file.
#[derive(Debug)]
pub enum FileError {
    /// The file could not be opened or read, or is not UTF-8.
    Unreadable {
        /// Path of the file.
        path: PathBuf,
        /// Error from the operating system.
        error: io::Error,
    },
    /// The file could not be written.
    Unwritable {
        /// Path of the file.
        path: PathBuf,
        /// Error from the operating system.
        error: io::Error,
    },
    /// The file has the wrong format or is too large.
    Malformed {
        /// Path of the file.
        path: PathBuf,
        /// Description of the problem. It never quotes the contents of the file, which may include
        /// a secret.
        reason: String,
    },
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FileError::Unreadable { path, error } => {
                write!(f, "{}: {error}; {}", printable(path), advice_on_path(path, error))
            }
            FileError::Unwritable { path, error } => write!(f, "{}: {error}", printable(path)),
            FileError::Malformed { path, reason } => write!(f, "{}: {reason}", printable(path)),
        }
    }
}

impl error::Error for FileError {}

/// Reads a settings file: a YAML mapping from flag names to scalars. Returns two maps keyed by flag
/// name: the values, and their positions as `FILE:LINE`.
///
/// # Errors
///
/// Returns an error if the file cannot be read, exceeds 1 MiB, or is not a mapping from names to
/// scalars.
pub fn read_settings_file(path: &Path) -> Result<(TextMap, TextMap), FileError> {
    let malformed = |reason| FileError::Malformed { path: path.to_owned(), reason };
    let file = fs::File::open(path).map_err(unreadable(path))?;
    let text = read_at_most(file, path, SETTINGS_BYTES_MAX)?;
    // A file without values is empty, or has only comments.
    let values: Option<BTreeMap<String, serde_yaml::Value>> =
        serde_yaml::from_str(&text).map_err(|error| malformed(yaml_error(&error)))?;
    let scalar = |(name, value): (String, serde_yaml::Value)| match value {
        serde_yaml::Value::String(text) => Ok((name, text)),
        serde_yaml::Value::Bool(flag) => Ok((name, flag.to_string())),
        serde_yaml::Value::Number(number) => Ok((name, number.to_string())),
        serde_yaml::Value::Null => Ok((name, String::new())),
        serde_yaml::Value::Sequence(_)
        | serde_yaml::Value::Mapping(_)
        | serde_yaml::Value::Tagged(_) => {
            let at = line_of(&text, &name).map_or(String::new(), |line| format!("line {line}: "));
            let reason = format!(
                "{at}{name}: must be a single value; write a list as text, separated by commas"
            );
            Err(malformed(reason))
        }
    };
    let values: TextMap =
        values.unwrap_or_default().into_iter().map(scalar).collect::<Result<_, _>>()?;
    let place = |name: &String| {
        let line = line_of(&text, name)?;
        Some((name.clone(), format!("{}:{line}", printable(path))))
    };
    let places = values.keys().filter_map(place).collect();
    Ok((values, places))
}

/// Returns the line (from 1) on which a name begins in a settings file, because the parser does not
/// report positions. Returns `None` if the file uses flow style, like JSON.
fn line_of(text: &str, name: &str) -> Option<usize> {
    let begins = |line: &str| {
        let line = line.trim_start().trim_start_matches(['"', '\'']);
        let after = line.strip_prefix(name).map(|rest| rest.trim_start_matches(['"', '\'', ' ']));
        after.is_some_and(|rest| rest.starts_with(':'))
    };
    text.lines().position(begins).map(|line| line + 1)
}

/// Formats the line and column of a YAML error. The parser's own message is not used because it
/// quotes the file, and an operator may have named a password file by mistake.
fn yaml_error(error: &serde_yaml::Error) -> String {
    match error.location() {
        Some(at) => {
            let (line, column) = (at.line(), at.column());
            format!("line {line}, column {column}: expected YAML, `name: value` on each line")
        }
        None => "expected YAML, `name: value` on each line".to_owned(),
    }
}

/// Reads a secret from a file and strips trailing line breaks.
///
/// # Errors
///
/// Returns an error if the file cannot be read, is not a regular file, is not UTF-8, or exceeds 1
/// MiB.
pub(super) fn read_secret_file(path: &Path) -> Result<String, FileError> {
    let (file, _) = open_regular_file(path).map_err(unreadable(path))?;
    let text = read_at_most(file, path, SECRET_BYTES_MAX)?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

/// Reads a text file named on the command line.
///
/// # Errors
///
/// Returns an error if the file cannot be read, is not UTF-8, or exceeds 1 MiB.
pub fn read_text_file(path: &Path) -> Result<String, FileError> {
    let file = fs::File::open(path).map_err(unreadable(path))?;
    read_at_most(file, path, SCENARIO_BYTES_MAX)
}

/// Writes a file named on the command line, replacing an existing one.
///
/// # Errors
///
/// Returns [`FileError::Unwritable`] if the operating system rejects the write.
pub fn write_text_file(path: &Path, text: &str) -> Result<(), FileError> {
    fs::write(path, text).map_err(|error| FileError::Unwritable { path: path.to_owned(), error })
}

/// Opens a regular file and returns it with its metadata. Opens with `O_NONBLOCK` and rejects a
/// FIFO, which would otherwise block until another process writes to it.
pub(super) fn open_regular_file(path: &Path) -> io::Result<(fs::File, fs::Metadata)> {
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = fs::OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let metadata = file.metadata()?;
    match metadata.is_file() {
        true => Ok((file, metadata)),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")),
    }
}

fn unreadable(path: &Path) -> impl Fn(io::Error) -> FileError {
    move |error| FileError::Unreadable { path: path.to_owned(), error }
}

fn read_at_most(file: fs::File, path: &Path, bytes_max: u64) -> Result<String, FileError> {
    let mut text = String::new();
    let read = file.take(bytes_max + 1).read_to_string(&mut text).map_err(unreadable(path))?;
    if read as u64 > bytes_max {
        let reason = format!("more than {bytes_max} bytes");
        return Err(FileError::Malformed { path: path.to_owned(), reason });
    }
    Ok(text)
}
