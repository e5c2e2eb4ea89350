//! Reads policy files: the ones that are named, and those in directories, in an order that does
//! not depend on the file system.
//!
//! Symbolic links are followed, since Kubernetes mounts a ConfigMap as links that it swaps. Not
//! here: what the files mean (`policy`), when they are read again (`reload`).

use std::collections::BTreeSet;
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{error, fmt};

use super::settings::Settings;
use crate::domain::escaped;
use crate::policy::Source;

/// Files that one policy may have: more is a directory that was named by mistake.
const FILES_MAX: usize = 10_000;
/// How deep directories may be nested: deeper is a loop of links.
const DEPTH_MAX: usize = 16;

/// Where policies are, and how large they may be.
#[derive(Clone, Debug)]
pub struct Places {
    paths: Vec<PathBuf>,
    /// Whether every file of a directory counts (envoyproxy/ratelimit) or only `.yaml` and `.yml`.
    any_extension: bool,
    /// Whether names that begin with a dot are left out of directories.
    skip_dots: bool,
    file_bytes_max: usize,
    bytes_max: usize,
}

/// Why policy files cannot be read.
#[derive(Debug)]
pub enum ReadError {
    /// Nothing says where policies are.
    NoPlace,
    /// A file or directory cannot be read.
    Unreadable {
        /// Which one.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// It is a pipe, a socket or a device: reading it may never end, and it cannot be read again.
    NotAFile {
        /// Which one.
        path: PathBuf,
    },
    /// There are directories, but no policy file in them.
    Empty {
        /// The directories.
        paths: Vec<PathBuf>,
        /// Whether only `.yaml` and `.yml` count.
        yaml_only: bool,
    },
    /// A file, or all files together, are larger than the settings allow.
    TooLarge {
        /// The file at which the bound was passed.
        path: PathBuf,
        /// The bound, in bytes.
        bytes_max: usize,
        /// The setting that holds it.
        setting: &'static str,
    },
    /// Too many files, or directories nested too deep.
    TooMany {
        /// Where it became too many.
        path: PathBuf,
    },
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadError::NoPlace => f.write_str(
                "no policy is named: give --policy FILE|DIR (or RUNTIME_ROOT, as envoyproxy/\
                 ratelimit has it)",
            ),
            ReadError::Unreadable { path, error } => write!(f, "{}: {error}", named(path)),
            ReadError::NotAFile { path } => {
                write!(f, "{}: neither a file nor a directory", named(path))
            }
            ReadError::Empty { paths, yaml_only } => {
                let paths: Vec<_> = paths.iter().map(|path| named(path)).collect();
                let which = if *yaml_only { "no .yaml or .yml file" } else { "no file" };
                write!(
                    f,
                    "{}: {which} in it; names with a leading dot are left out",
                    paths.join(", ")
                )
            }
            ReadError::TooLarge { path, bytes_max, setting } => {
                write!(f, "{}: more than {bytes_max} bytes (--{setting})", named(path))
            }
            ReadError::TooMany { path } => write!(
                f,
                "{}: more than {FILES_MAX} files or {DEPTH_MAX} directories deep; is this the \
                 right directory?",
                named(path)
            ),
        }
    }
}

impl error::Error for ReadError {}

impl Places {
    /// Where the settings say that policies are: `policy`, else `runtime-root` with its
    /// subdirectories.
    ///
    /// # Errors
    ///
    /// [`ReadError::NoPlace`].
    pub fn of(settings: &Settings) -> Result<Places, ReadError> {
        let theirs = settings.policy.is_empty();
        let paths = match &settings.runtime_root {
            _ if !theirs => settings.policy.clone(),
            Some(root) => {
                vec![root.join(&settings.runtime_subdirectory).join(&settings.runtime_appdirectory)]
            }
            None => return Err(ReadError::NoPlace),
        };
        Ok(Places {
            paths,
            any_extension: theirs,
            skip_dots: !theirs || settings.runtime_ignoredotfiles,
            file_bytes_max: settings.policy_file_size,
            bytes_max: settings.policy_size,
        })
    }

    /// The files, named ones in the order given, those of a directory by path.
    fn find(&self) -> Result<Vec<(PathBuf, Metadata)>, ReadError> {
        let mut found = Vec::new();
        for path in &self.paths {
            let metadata = look(path)?;
            if metadata.is_dir() {
                self.walk(path, 0, &mut found)?;
            } else if metadata.is_file() {
                found.push((path.clone(), metadata));
            } else {
                return Err(ReadError::NotAFile { path: path.clone() });
            }
        }
        // A file that is named twice, or named and in a directory, is one file.
        let mut seen = BTreeSet::new();
        found.retain(|(path, _)| seen.insert(path.clone()));
        if found.is_empty() {
            let paths = self.paths.clone();
            return Err(ReadError::Empty { paths, yaml_only: !self.any_extension });
        }
        Ok(found)
    }

    fn walk(
        &self,
        directory: &Path,
        depth: usize,
        found: &mut Vec<(PathBuf, Metadata)>,
    ) -> Result<(), ReadError> {
        let unreadable = |error| ReadError::Unreadable { path: directory.to_owned(), error };
        let mut paths = Vec::new();
        for entry in fs::read_dir(directory).map_err(unreadable)? {
            let entry = entry.map_err(unreadable)?;
            if !(self.skip_dots && entry.file_name().as_encoded_bytes().starts_with(b".")) {
                paths.push(entry.path());
            }
        }
        paths.sort();
        for path in paths {
            let metadata = look(&path)?;
            if metadata.is_dir() {
                if depth + 1 >= DEPTH_MAX {
                    return Err(ReadError::TooMany { path });
                }
                self.walk(&path, depth + 1, found)?;
            } else if metadata.is_file() && self.counts(&path) {
                if found.len() >= FILES_MAX {
                    return Err(ReadError::TooMany { path });
                }
                found.push((path, metadata));
            }
        }
        Ok(())
    }

    fn counts(&self, path: &Path) -> bool {
        self.any_extension
            || path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml")
    }

    /// Reads every file.
    ///
    /// # Errors
    ///
    /// The first file or directory that cannot be read, or a bound that is passed.
    pub fn read(&self) -> Result<Vec<Source>, ReadError> {
        let mut files = Vec::new();
        let mut left = self.bytes_max;
        for (path, _) in self.find()? {
            let bytes_max = self.file_bytes_max.min(left);
            let bytes = read_up_to(&path, bytes_max)?.ok_or_else(|| {
                let of_all = bytes_max < self.file_bytes_max;
                let setting = if of_all { "policy-size" } else { "policy-file-size" };
                let bytes_max = if of_all { self.bytes_max } else { self.file_bytes_max };
                ReadError::TooLarge { path: path.clone(), bytes_max, setting }
            })?;
            left -= bytes.len();
            files.push(Source { name: named(&path), text: bytes });
        }
        Ok(files)
    }

    /// What the file system says about the files: it changes when a file is written, added,
    /// removed, or a link to it or above it is swapped.
    ///
    /// # Errors
    ///
    /// As [`Places::read`].
    pub fn stamp(&self) -> Result<Stamp, ReadError> {
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
        Ok(Stamp(hasher.finalize()))
    }
}

/// The file system's word on the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp(blake3::Hash);

/// The content of all files: equal where names and bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint(blake3::Hash);

impl Fingerprint {
    /// Of these files.
    pub fn of(files: &[Source]) -> Fingerprint {
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
    /// Sixteen hexadecimal digits: enough to compare replicas by eye.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.to_hex()[..16])
    }
}

/// The path as it is printed: a name may hold line breaks and control characters, and must not
/// write a second line into a log nor steer a terminal.
pub(super) fn named(path: &Path) -> String {
    escaped(&path.display().to_string()).into_owned()
}

fn look(path: &Path) -> Result<Metadata, ReadError> {
    fs::metadata(path).map_err(|error| ReadError::Unreadable { path: path.to_owned(), error })
}

/// The file's bytes; `None` where there are more than `bytes_max`.
fn read_up_to(path: &Path, bytes_max: usize) -> Result<Option<Vec<u8>>, ReadError> {
    let unreadable = |error| ReadError::Unreadable { path: path.to_owned(), error };
    let file = File::open(path).map_err(unreadable)?;
    let mut bytes = Vec::new();
    file.take(bytes_max as u64 + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    Ok((bytes.len() <= bytes_max).then_some(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_write_a_line_of_its_own() {
        let name = named(Path::new("a\n{\"level\":\"ERROR\"}\u{1b}[31m/é.yaml"));
        assert_eq!(name, "a\\n{\"level\":\"ERROR\"}\\u{1b}[31m/é.yaml");
    }
}
