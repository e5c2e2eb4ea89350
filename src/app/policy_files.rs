//! Finds and reads policy files: configured files, and files in configured directories, sorted by
//! path so that the order does not depend on the file system.
//!
//! Follows symbolic links, because Kubernetes mounts a ConfigMap as links that it swaps.
//! `policy_reload` watches for changes.

use std::collections::BTreeSet;
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{error, fmt};

use crate::domain::escaped;
use crate::policy::Source;
use crate::settings::Settings;

/// Maximum number of files in one policy. More files suggest that the wrong directory was
/// configured.
const FILES_MAX: usize = 10_000;
/// Maximum directory depth. Deeper nesting suggests a loop of symbolic links.
const DEPTH_MAX: usize = 16;

/// Paths of the policy files and directories, and the size limits for reading them.
#[derive(Clone, Debug)]
pub(super) struct PolicyFiles {
    paths: Vec<PathBuf>,
    /// Whether to read all files of a directory, as envoyproxy/ratelimit does, instead of only
    /// `.yaml` and `.yml` files.
    any_extension: bool,
    /// Whether to skip files and directories whose names start with a dot.
    skip_dots: bool,
    file_bytes_max: usize,
    bytes_max: usize,
}

/// Error finding or reading policy files.
#[derive(Debug)]
pub enum PolicyFileError {
    /// No setting names a policy.
    NotConfigured,
    /// A policy file or directory could not be read.
    Unreadable {
        /// Path of the file or directory.
        path: PathBuf,
        /// Error from the operating system.
        error: io::Error,
    },
    /// The path is a pipe, a socket or a device. Reading one may block forever.
    NotAFile {
        /// Path of the pipe, socket or device.
        path: PathBuf,
    },
    /// The configured directories contain no policy file.
    Empty {
        /// Paths of the configured directories.
        paths: Vec<PathBuf>,
        /// Whether only files named `.yaml` or `.yml` count as policy files.
        yaml_only: bool,
    },
    /// A policy file, or all policy files together, exceed the configured size.
    TooLarge {
        /// File that exceeds the limit.
        path: PathBuf,
        /// Configured limit, in bytes.
        bytes_max: usize,
        /// Name of the setting: `policy-file-size` or `policy-size`.
        setting: &'static str,
    },
    /// The directories contain more than 10,000 files or are nested more than 16 deep.
    TooMany {
        /// First file or directory beyond the limit.
        path: PathBuf,
    },
}

impl fmt::Display for PolicyFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PolicyFileError::NotConfigured => f.write_str(
                "no policy is configured: give --policy FILE|DIR, or RUNTIME_ROOT as in \
                 envoyproxy/ratelimit",
            ),
            PolicyFileError::Unreadable { path, error } => {
                write!(f, "{}: {error}", printable(path))
            }
            PolicyFileError::NotAFile { path } => {
                write!(f, "{}: neither a file nor a directory", printable(path))
            }
            PolicyFileError::Empty { paths, yaml_only } => {
                let paths: Vec<_> = paths.iter().map(|path| printable(path)).collect();
                let which = if *yaml_only { "no .yaml or .yml file" } else { "no file" };
                write!(
                    f,
                    "{}: {which} in it; names with a leading dot are skipped",
                    paths.join(", ")
                )
            }
            PolicyFileError::TooLarge { path, bytes_max, setting } => {
                write!(f, "{}: more than {bytes_max} bytes (--{setting})", printable(path))
            }
            PolicyFileError::TooMany { path } => write!(
                f,
                "{}: more than {FILES_MAX} files or {DEPTH_MAX} directories deep; is this the \
                 right directory?",
                printable(path)
            ),
        }
    }
}

impl error::Error for PolicyFileError {}

impl PolicyFiles {
    /// Takes the paths from `--policy`, else from `--runtime-root` and its subdirectories.
    ///
    /// # Errors
    ///
    /// Returns [`PolicyFileError::NotConfigured`] if neither is set.
    pub(super) fn new(settings: &Settings) -> Result<PolicyFiles, PolicyFileError> {
        let is_runtime_root = settings.policy.is_empty();
        let paths = match &settings.runtime_root {
            _ if !is_runtime_root => settings.policy.clone(),
            Some(root) => {
                vec![root.join(&settings.runtime_subdirectory).join(&settings.runtime_appdirectory)]
            }
            None => return Err(PolicyFileError::NotConfigured),
        };
        Ok(PolicyFiles {
            paths,
            any_extension: is_runtime_root,
            skip_dots: !is_runtime_root || settings.runtime_ignoredotfiles,
            file_bytes_max: settings.policy_file_size,
            bytes_max: settings.policy_size,
        })
    }

    /// Lists the policy files: configured files in the given order, files of a directory sorted by
    /// path.
    fn find(&self) -> Result<Vec<(PathBuf, Metadata)>, PolicyFileError> {
        let mut found = Vec::new();
        for path in &self.paths {
            let metadata = metadata_of(path)?;
            if metadata.is_dir() {
                self.walk(path, 0, &mut found)?;
            } else if metadata.is_file() {
                found.push((path.clone(), metadata));
            } else {
                return Err(PolicyFileError::NotAFile { path: path.clone() });
            }
        }
        // A file may be configured twice, or be configured and also lie in a configured directory.
        let mut seen = BTreeSet::new();
        found.retain(|(path, _)| seen.insert(path.clone()));
        if found.is_empty() {
            let paths = self.paths.clone();
            return Err(PolicyFileError::Empty { paths, yaml_only: !self.any_extension });
        }
        Ok(found)
    }

    fn walk(
        &self,
        directory: &Path,
        depth: usize,
        found: &mut Vec<(PathBuf, Metadata)>,
    ) -> Result<(), PolicyFileError> {
        let unreadable = |error| PolicyFileError::Unreadable { path: directory.to_owned(), error };
        let mut paths = Vec::new();
        for entry in fs::read_dir(directory).map_err(unreadable)? {
            let entry = entry.map_err(unreadable)?;
            if !(self.skip_dots && entry.file_name().as_encoded_bytes().starts_with(b".")) {
                paths.push(entry.path());
            }
        }
        paths.sort();
        for path in paths {
            let metadata = metadata_of(&path)?;
            if metadata.is_dir() {
                if depth + 1 >= DEPTH_MAX {
                    return Err(PolicyFileError::TooMany { path });
                }
                self.walk(&path, depth + 1, found)?;
            } else if metadata.is_file() && self.is_policy_file(&path) {
                if found.len() >= FILES_MAX {
                    return Err(PolicyFileError::TooMany { path });
                }
                found.push((path, metadata));
            }
        }
        Ok(())
    }

    fn is_policy_file(&self, path: &Path) -> bool {
        self.any_extension
            || path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml")
    }

    /// Reads all policy files into memory.
    ///
    /// # Errors
    ///
    /// Returns an error for the first file or directory that cannot be read or is too large.
    pub(super) fn read(&self) -> Result<Vec<Source>, PolicyFileError> {
        let mut files = Vec::new();
        let mut left = self.bytes_max;
        for (path, _) in self.find()? {
            let bytes_max = self.file_bytes_max.min(left);
            let bytes = read_up_to(&path, bytes_max)?.ok_or_else(|| {
                let of_all = bytes_max < self.file_bytes_max;
                let setting = if of_all { "policy-size" } else { "policy-file-size" };
                let bytes_max = if of_all { self.bytes_max } else { self.file_bytes_max };
                PolicyFileError::TooLarge { path: path.clone(), bytes_max, setting }
            })?;
            left -= bytes.len();
            files.push(Source { name: printable(&path), text: bytes });
        }
        Ok(files)
    }

    /// Hashes the metadata of all policy files. The hash changes when a file is written, added or
    /// removed, or when a symbolic link on its path is swapped.
    ///
    /// # Errors
    ///
    /// Returns an error for the first file or directory whose metadata cannot be read.
    pub(super) fn stamp(&self) -> Result<MetadataStamp, PolicyFileError> {
        let mut hasher = blake3::Hasher::new();
        for (path, metadata) in self.find()? {
            let path = path.as_os_str().as_encoded_bytes();
            hasher.update(&(path.len() as u64).to_le_bytes()).update(path);
            for number in [metadata.dev(), metadata.ino(), metadata.size()] {
                hasher.update(&number.to_le_bytes());
            }
            let (mtime, ctime) = (metadata.mtime_nsec(), metadata.ctime_nsec());
            for number in [metadata.mtime(), mtime, metadata.ctime(), ctime] {
                hasher.update(&number.to_le_bytes());
            }
        }
        Ok(MetadataStamp(hasher.finalize()))
    }
}

/// Hash of the path, inode, size and times of every policy file. It detects changes cheaply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MetadataStamp(blake3::Hash);

/// Hash of the names and contents of all policy files. It identifies a policy across replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint(blake3::Hash);

impl Fingerprint {
    /// Hashes the names and contents of `files`, in order.
    pub(super) fn of(files: &[Source]) -> Fingerprint {
        let mut hasher = blake3::Hasher::new();
        for file in files {
            for part in [file.name.as_bytes(), &file.text] {
                hasher.update(&(part.len() as u64).to_le_bytes()).update(part);
            }
        }
        Fingerprint(hasher.finalize())
    }
}

impl fmt::Display for Fingerprint {
    /// Writes the first 16 hexadecimal digits, which are enough to compare replicas by eye.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.to_hex()[..16])
    }
}

/// Escapes control characters in a path, so that a file name cannot forge a log line or send escape
/// sequences to a terminal.
pub(super) fn printable(path: &Path) -> String {
    escaped(&path.display().to_string()).into_owned()
}

fn metadata_of(path: &Path) -> Result<Metadata, PolicyFileError> {
    fs::metadata(path).map_err(|error| PolicyFileError::Unreadable { path: path.to_owned(), error })
}

/// Reads a file. Returns `None` if the file is larger than `bytes_max` bytes.
fn read_up_to(path: &Path, bytes_max: usize) -> Result<Option<Vec<u8>>, PolicyFileError> {
    let unreadable = |error| PolicyFileError::Unreadable { path: path.to_owned(), error };
    let file = File::open(path).map_err(unreadable)?;
    let mut bytes = Vec::new();
    file.take(bytes_max as u64 + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    Ok((bytes.len() <= bytes_max).then_some(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_name_cannot_forge_a_log_line() {
        let name = printable(Path::new("a\n{\"level\":\"ERROR\"}\u{1b}[31m/é.yaml"));
        assert_eq!(name, "a\\n{\"level\":\"ERROR\"}\\u{1b}[31m/é.yaml");
    }
}
