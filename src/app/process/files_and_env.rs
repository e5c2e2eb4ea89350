//! Reads environment variables, the settings file, secrets, and text files named on the command
//! line.
//!
//! No other module reads the environment. `settings` interprets the values; `policy_files` reads
//! policies.

use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::{env, error, fmt, fs, io};

use rustix::fs::OFlags;

use super::exit_codes::Failure;
use crate::domain::{escaped, nearest_word};
use crate::settings::{SettingError, Settings, Sources, TABLE, TextMap};
use crate::tls::ClientCertificates;

/// Maximum size of a settings file in bytes, 1 MiB. A file that sets every setting is about a
/// hundredth of this size.
const SETTINGS_BYTES_MAX: u64 = 1 << 20;
/// Maximum size of a secret or certificate file in bytes, 1 MiB. A typical CA bundle is a quarter
/// of this size.
const SECRET_BYTES_MAX: u64 = 1 << 20;
/// Maximum size of a `simulate` scenario in bytes, 1 MiB. This is enough for a policy and a
/// thousand groups of callers.
const SCENARIO_BYTES_MAX: u64 = 1 << 20;

/// Returns the environment variables whose names and values are valid UTF-8. Other variables cannot
/// be settings.
pub fn environment() -> TextMap {
    let text = |text: std::ffi::OsString| text.into_string().ok();
    env::vars_os().filter_map(|(name, value)| Some((text(name)?, text(value)?))).collect()
}

/// Error from reading or writing a file: policy, settings, secret, or text.
#[derive(Debug)]
pub struct FileError {
    path: PathBuf,
    /// Line and, if known, column of the problem, counted from 1, as `:3:5`. Empty if the problem
    /// concerns the whole file or directory.
    position: String,
    /// Description of the problem. It never quotes a value that may be a secret.
    reason: String,
    /// Whether there is no file with this path.
    pub(crate) is_missing: bool,
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}: {}", escape_path(&self.path), self.position, self.reason)
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
    let file = fs::File::open(path).map_err(unreadable(path))?;
    let text = read_at_most(file, path, SETTINGS_BYTES_MAX)?;
    let malformed_at = |name: &str, reason: String| {
        let position = find_line(&text, name).map_or(String::new(), |line| format!(":{line}"));
        FileError { position, ..malformed(path, reason) }
    };
    // A file without values is empty, or has only comments.
    let values: Option<BTreeMap<String, serde_yaml::Value>> =
        serde_yaml::from_str(&text).map_err(|error| yaml_error(path, &text, &error))?;
    let policy_keys = ["domain", "domains"];
    if let Some(key) = policy_keys.iter().find(|key| values.iter().any(|it| it.contains_key(**key)))
    {
        let reason = "this is a policy, not a settings file: pass it with --policy";
        return Err(malformed_at(key, reason.to_owned()));
    }
    let scalar = |(name, value): (String, serde_yaml::Value)| match value {
        serde_yaml::Value::String(text) => Ok((name, text)),
        serde_yaml::Value::Bool(flag) => Ok((name, flag.to_string())),
        serde_yaml::Value::Number(number) => Ok((name, number.to_string())),
        serde_yaml::Value::Null => Ok((name, String::new())),
        serde_yaml::Value::Sequence(items) => {
            let joined = join_texts(&items).filter(|joined| is_valid(&name, joined));
            let list = joined.unwrap_or_else(|| "VALUE,VALUE".to_owned());
            let reason =
                format!("{name} must be a single value, not a list; write `{name}: {list}`");
            Err(malformed_at(&name, reason))
        }
        serde_yaml::Value::Mapping(_) | serde_yaml::Value::Tagged(_) => {
            let reason = format!("{name} must be a single value; write `{name}: VALUE`");
            Err(malformed_at(&name, reason))
        }
    };
    let values: TextMap =
        values.unwrap_or_default().into_iter().map(scalar).collect::<Result<_, _>>()?;
    let place = |name: &String| {
        let line = find_line(&text, name)?;
        Some((name.clone(), format!("{}:{line}", escape_path(path))))
    };
    let places = values.keys().filter_map(place).collect();
    Ok((values, places))
}

/// Returns the number of the line, from 1, that begins with a setting's name and a colon in a
/// settings file. Needed because the parser does not report positions. Returns `None` if there is
/// no such line, for example because the file uses flow style, like JSON.
fn find_line(text: &str, name: &str) -> Option<usize> {
    let begins = |line: &str| {
        let line = line.trim_start().trim_start_matches(['"', '\'']);
        let after = line.strip_prefix(name).map(|rest| rest.trim_start_matches(['"', '\'', ' ']));
        after.is_some_and(|rest| rest.starts_with(':'))
    };
    text.lines().position(begins).map(|line| line + 1)
}

/// Maximum length of a value that an error message quotes, in characters.
const QUOTED_CHARS_MAX: usize = 200;

/// Returns whether an error message may suggest the setting called `name` with this value: it is
/// valid, and no secret or address, which may contain a password.
fn is_valid(name: &str, value: &str) -> bool {
    let file = TextMap::from([(name.to_owned(), value.to_owned())]);
    let errors = Settings::read(&Sources { file, ..Sources::default() }).err().unwrap_or_default();
    TABLE.iter().any(|row| row.name == name && row.is_shown_unchanged())
        && !errors.iter().any(|error| matches!(error, SettingError::InvalidValue { .. }))
}

/// Joins a YAML list of strings and numbers with commas. Returns `None` if the list is empty or has
/// items of other types, or if the result exceeds [`QUOTED_CHARS_MAX`].
fn join_texts(items: &[serde_yaml::Value]) -> Option<String> {
    let text = |item: &serde_yaml::Value| match item {
        serde_yaml::Value::String(text) => Some(text.clone()),
        serde_yaml::Value::Number(number) => Some(number.to_string()),
        _ => None,
    };
    let joined = items.iter().map(text).collect::<Option<Vec<_>>>()?.join(",");
    (!joined.is_empty() && joined.chars().count() <= QUOTED_CHARS_MAX).then_some(joined)
}

/// Returns the error for a settings file that is not YAML. The parser's message is not used: it
/// quotes the file, which may be a password file passed by mistake.
fn yaml_error(path: &Path, text: &str, error: &serde_yaml::Error) -> FileError {
    let (position, reason) = find_wrong_separator(text).unwrap_or_else(|| {
        (position_of(error), "this is not YAML: write `name: value` on each line".to_owned())
    });
    FileError { position, ..malformed(path, reason) }
}

/// Returns the position of a YAML error, as [`FileError`] has it.
fn position_of(error: &serde_yaml::Error) -> String {
    error.location().map_or(String::new(), |at| format!(":{}:{}", at.line(), at.column()))
}

/// Finds the first line that begins with a setting's name and `=`, or `:` without a space.
/// Returns the position of that separator and an error message that suggests the correct line, or
/// `None` if there is no such line.
fn find_wrong_separator(text: &str) -> Option<(String, String)> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    for (nth, line) in text.lines().enumerate() {
        let setting = line.trim_start();
        let rest = setting.trim_start_matches(is_name);
        let name = setting[..setting.len() - rest.len()].replace('_', "-");
        let separator = rest.trim_start();
        let wrong = match separator.as_bytes() {
            [b'=', ..] => "=",
            [b':', next, ..] if *next != b' ' => ":",
            _ => continue,
        };
        if !TABLE.iter().any(|row| row.name == name) {
            continue;
        }
        let column = line.chars().count() - separator.chars().count() + 1;
        let value = separator[1..].trim();
        let is_quotable = !value.is_empty() && value.chars().count() <= QUOTED_CHARS_MAX;
        let value = if is_quotable && is_valid(&name, value) { value } else { "VALUE" };
        let reason =
            format!("this is not YAML: `{wrong}` instead of `: `; did you mean `{name}: {value}`?");
        return Some((format!(":{}:{column}", nth + 1), reason));
    }
    None
}

/// Reads a secret from a file and strips trailing line breaks.
///
/// # Errors
///
/// Returns an error if the file cannot be read, is not a regular file, is not UTF-8, or exceeds 1
/// MiB.
pub(crate) fn read_secret_file(path: &Path) -> Result<String, FileError> {
    let (file, _) = open_regular_file(path).map_err(unreadable(path))?;
    let text = read_at_most(file, path, SECRET_BYTES_MAX)?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

/// Reads a list of objects from a file, YAML or JSON. Returns each as JSON.
///
/// # Errors
///
/// Returns an error if the file cannot be read, exceeds `bytes_max`, or is not a list.
pub(crate) fn read_json_list(path: &Path, bytes_max: u64) -> Result<Vec<String>, FileError> {
    let (file, _) = open_regular_file(path).map_err(unreadable(path))?;
    let text = read_at_most(file, path, bytes_max)?;
    let items: Result<Option<Vec<serde_json::Value>>, _> = serde_yaml::from_str(&text);
    let items = items.map_err(|error| FileError {
        position: position_of(&error),
        ..malformed(path, "this is not a list of overrides, as `tidegate override export` prints")
    })?;
    Ok(items.unwrap_or_default().iter().map(ToString::to_string).collect())
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
/// Returns an error if the operating system rejects the write.
pub fn write_text_file(path: &Path, text: &str) -> Result<(), FileError> {
    fs::write(path, text).map_err(|error| malformed(path, error.to_string()))
}

/// Device, inode, size and timestamps of a file. The stamp changes when the file is written or
/// replaced, or when a symbolic link on its path is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileStamp {
    device_inode_size: [u64; 3],
    mtime_ctime: [i64; 4],
}

impl FileStamp {
    /// Returns whether both stamps are of one file. If not, another file has taken its place.
    pub(crate) fn is_same_file(&self, other: &FileStamp) -> bool {
        self.device_inode_size[..2] == other.device_inode_size[..2]
    }

    pub(crate) fn from_metadata(metadata: &fs::Metadata) -> FileStamp {
        FileStamp {
            device_inode_size: [metadata.dev(), metadata.ino(), metadata.size()],
            mtime_ctime: [
                metadata.mtime(),
                metadata.mtime_nsec(),
                metadata.ctime(),
                metadata.ctime_nsec(),
            ],
        }
    }
}

/// Opens a regular file and returns it with its metadata. Rejects other files, such as a FIFO. Uses
/// `O_NONBLOCK`, because opening a FIFO would otherwise block until another process opens it for
/// writing.
pub(crate) fn open_regular_file(path: &Path) -> io::Result<(fs::File, fs::Metadata)> {
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = fs::OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let metadata = file.metadata()?;
    match metadata.is_file() {
        true => Ok((file, metadata)),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")),
    }
}

/// Returns a function that converts an error from the operating system to the error for this path.
pub(crate) fn unreadable(path: &Path) -> impl Fn(io::Error) -> FileError {
    move |error| unreadable_with(path, &error, &advice_on_path(path, &error))
}

/// Returns the error for a file or directory that cannot be read, with advice for the operator.
pub(crate) fn unreadable_with(path: &Path, error: &io::Error, advice: &str) -> FileError {
    let is_missing = error.kind() == io::ErrorKind::NotFound;
    FileError { is_missing, ..malformed(path, format!("{error}; {advice}")) }
}

/// Returns the error for a whole file or directory that cannot be used for this reason.
pub(crate) fn malformed(path: &Path, reason: impl Into<String>) -> FileError {
    let (path, reason) = (path.to_owned(), reason.into());
    FileError { path, position: String::new(), reason, is_missing: false }
}

fn read_at_most(file: fs::File, path: &Path, bytes_max: u64) -> Result<String, FileError> {
    let mut text = String::new();
    let read = file.take(bytes_max + 1).read_to_string(&mut text).map_err(unreadable(path))?;
    if read as u64 > bytes_max {
        return Err(malformed(path, format!("more than {bytes_max} bytes")));
    }
    Ok(text)
}

/// Escapes control characters in a path, so that a file name cannot forge a log line or send escape
/// sequences to a terminal.
pub(crate) fn escape_path(path: &Path) -> String {
    escaped(&path.display().to_string()).into_owned()
}

/// Maximum number of file names in a directory that are compared with the name of a missing file,
/// to suggest the most similar one.
const COMPARED_NAMES_MAX: usize = 1_000;

/// Returns advice for an operator on a path that cannot be read, for example the name of a similar
/// file.
fn advice_on_path(path: &Path, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => match (fs::read_link(path), similar_file(path)) {
            (Ok(target), _) => format!(
                "this is a symbolic link to {}, which does not exist: correct or remove the link",
                escape_path(&target)
            ),
            (Err(_), Some(similar)) => format!("did you mean {}?", escape_path(&similar)),
            (Err(_), None) => "correct the path".to_owned(),
        },
        io::ErrorKind::PermissionDenied => {
            let user = rustix::process::geteuid().as_raw();
            format!(
                "tidegate runs as user {user}: let it read the file, for example with chmod a+r"
            )
        }
        _ => "correct the path".to_owned(),
    }
}

/// Returns the path of the file whose name is most similar to that of a missing file in the same
/// directory, or `None` if no name is similar.
fn similar_file(path: &Path) -> Option<PathBuf> {
    let directory = path.parent()?;
    let listed = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
    let entries = fs::read_dir(listed).ok()?.take(COMPARED_NAMES_MAX).flatten();
    let names: Vec<String> = entries.filter_map(|e| e.file_name().into_string().ok()).collect();
    let similar = nearest_word(path.file_name()?.to_str()?, names.iter().map(String::as_str))?;
    Some(directory.join(similar))
}

/// Reads a PEM file with certificates or a private key.
///
/// # Errors
///
/// Returns [`Failure::Usage`] if the file cannot be read or exceeds 1 MiB.
pub fn read_pem_file(path: &Path) -> Result<Vec<u8>, Failure> {
    Ok(read_secret_file(path)?.into_bytes())
}

/// Reads the PEM files of a TLS client: CA certificates, and the client's certificate chain and
/// private key.
pub(crate) fn read_certificates(
    authority: Option<&Path>,
    identity: Option<(&Path, &Path)>,
) -> Result<ClientCertificates, Failure> {
    let authority = authority.map(read_pem_file).transpose()?;
    let identity = match identity {
        Some((chain, key)) => Some((read_pem_file(chain)?, read_pem_file(key)?)),
        None => None,
    };
    Ok(ClientCertificates { authority, identity, skip_hostname: false })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("s.yaml");
        fs::write(&path, text).expect("writable");
        let error = read_settings_file(&path).unwrap_err().to_string();
        error.rsplit_once('/').expect("a path").1.to_owned()
    }

    #[test]
    fn a_dangling_link_is_named_and_does_not_suggest_itself() {
        let directory = tempfile::tempdir().expect("a directory");
        let links = [
            ("policy.yaml", "gone.yaml"),
            ("chain.yaml", "policy.yaml"),
            ("..data", "..2026_01_01"),
            ("far.yaml", "/nowhere/far.yaml"),
            ("loop-end.yaml", "no-directory/../policy.yaml"),
            ("policy.yam", "policy.yaml"),
        ];
        for (link, target) in links {
            std::os::unix::fs::symlink(target, directory.path().join(link)).expect("a link");
        }
        for (link, target) in links {
            let path = directory.path().join(link);
            let expected = format!("this is a symbolic link to {target}, which does not exist");
            for error in [
                read_settings_file(&path).unwrap_err(),
                read_secret_file(&path).unwrap_err(),
                unreadable(&path)(io::ErrorKind::NotFound.into()),
            ] {
                let error = error.to_string();
                assert!(error.contains(&expected) && !error.contains("did you mean"), "{error}");
            }
        }
        let missing =
            unreadable(&directory.path().join("polcy.yaml"))(io::ErrorKind::NotFound.into());
        assert!(missing.to_string().contains("did you mean"), "{missing}");
    }

    #[test]
    fn a_line_without_colon_and_space_gets_a_suggestion() {
        let told = error("grpc-port: 1\npolicy = a=b.yaml\n");
        assert_eq!(
            told,
            "s.yaml:2:8: this is not YAML: `=` instead of `: `; did you mean `policy: a=b.yaml`?"
        );
        let told = error("grpc_port:9000");
        assert_eq!(
            told,
            "s.yaml:1:10: this is not YAML: `:` instead of `: `; did you mean `grpc-port: 9000`?"
        );
    }

    #[test]
    fn an_error_quotes_nothing_that_may_be_a_secret() {
        for text in ["hunter2", "key-secret = hunter2", "hunter2 = x\n", "key-secret: [hunter2]"] {
            let told = error(text);
            assert!(!told.contains("hunter2"), "{told}");
        }
        assert!(error("key-secret = hunter2").ends_with("did you mean `key-secret: VALUE`?"));
        assert!(error("key-secret: [a]").ends_with("write `key-secret: VALUE,VALUE`"));
        assert_eq!(
            error("policy: [a, 1]"),
            "s.yaml:1: policy must be a single value, not a list; write `policy: a,1`"
        );
    }

    #[test]
    fn a_file_name_cannot_forge_a_log_line() {
        let name = escape_path(Path::new("a\n{\"level\":\"ERROR\"}\u{1b}[31m/é.yaml"));
        assert_eq!(name, "a\\n{\"level\":\"ERROR\"}\\u{1b}[31m/é.yaml");
    }
}
