//! Finds and reads policy files: configured files, and files in configured directories, sorted by
//! path so that the order does not depend on the file system.
//!
//! Follows symbolic links, because Kubernetes mounts a ConfigMap as links and updates it by
//! replacing them. `watched_files` keeps their contents, and `policy_watcher` watches for changes.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::process::exit_codes::Failure;
use super::process::files_and_env::{
    FileError, FileStamp, escape_path, malformed, open_regular_file, unreadable, unreadable_with,
};
use crate::policy::Source;
use crate::settings::Settings;

/// Maximum number of files in one policy. More files suggest that the wrong directory was
/// configured.
const FILES_MAX: usize = 10_000;
/// Maximum directory depth. Deeper nesting suggests a loop of symbolic links.
const DEPTH_MAX: usize = 16;

/// Configured paths of policy files and directories, and the options for reading them. The options
/// determine which files of a directory are read, and limit the size of each file and the total
/// size.
#[derive(Clone, Debug)]
pub(super) struct PolicyFiles {
    paths: Vec<PathBuf>,
    /// Whether to read all files of a directory, as envoyproxy/ratelimit does. If not, only `.yaml`
    /// and `.yml` files are read.
    any_extension: bool,
    /// Whether to skip files and directories whose names start with a dot.
    skip_dotfiles: bool,
    file_bytes_max: usize,
    total_bytes_max: usize,
}

/// Policy file found by listing the configured paths.
#[derive(Clone, Debug)]
pub(super) struct ListedFile {
    pub(super) key: FileKey,
    pub(super) stamp: FileStamp,
}

/// Position of a file in policy order: the index of the configured path that contains the file,
/// then the file's own path.
pub(super) type FileKey = (usize, PathBuf);

impl PolicyFiles {
    /// Determines the policy paths from the settings: `--policy` or, if it is not set,
    /// RUNTIME_ROOT and its subdirectories.
    ///
    /// # Errors
    ///
    /// Returns [`Failure::Usage`] if neither is set.
    pub(super) fn new(settings: &Settings) -> Result<PolicyFiles, Failure> {
        let is_runtime_root = settings.policy.is_empty();
        let paths = match &settings.runtime_root {
            _ if !is_runtime_root => settings.policy.clone(),
            Some(root) => {
                // An absolute path stays below the root, as with Go's filepath.Join.
                let below = |path: &PathBuf, name: &str| path.join(name.trim_start_matches('/'));
                let subdirectory = below(root, &settings.runtime_subdirectory);
                vec![below(&subdirectory, &settings.runtime_appdirectory)]
            }
            None => {
                let reason = "no policy is configured: give --policy FILE|DIR, or RUNTIME_ROOT as \
                              in envoyproxy/ratelimit";
                return Err(Failure::Usage(reason.to_owned()));
            }
        };
        Ok(PolicyFiles {
            paths,
            any_extension: is_runtime_root,
            skip_dotfiles: !is_runtime_root || settings.runtime_ignoredotfiles,
            file_bytes_max: settings.policy_file_size,
            total_bytes_max: settings.policy_size,
        })
    }

    /// Lists the policy files. Configured paths keep their order, and the files in each directory
    /// are sorted by path.
    ///
    /// # Errors
    ///
    /// Returns an error for the first file or directory whose metadata cannot be read.
    pub(super) fn list(&self) -> Result<Vec<ListedFile>, FileError> {
        let mut found = Vec::new();
        for (root, path) in self.paths.iter().enumerate() {
            let metadata =
                fs::metadata(path).map_err(|error| self.unreadable_root_error(path, error))?;
            if metadata.is_dir() {
                self.walk(root, path, 0, &mut found)?;
            } else if metadata.is_file() {
                let stamp = FileStamp::from_metadata(&metadata);
                found.push(ListedFile { key: (root, path.clone()), stamp });
            } else {
                return Err(malformed(path, NOT_A_FILE));
            }
        }
        // A file may be configured twice, or be configured and also lie in a configured directory.
        let mut seen = BTreeSet::new();
        found.retain(|file| seen.insert(file.key.1.clone()));
        if found.is_empty() {
            let paths: Vec<_> = self.paths.iter().map(|path| path.display().to_string()).collect();
            let reason = match self.any_extension {
                true => {
                    "the directory has no files (names with a leading dot are skipped); correct the path"
                }
                false => {
                    "no .yaml or .yml file in it (names with a leading dot are skipped); rename \
                     the files to .yaml, or give each file by its own name"
                }
            };
            return Err(malformed(Path::new(&paths.join(", ")), reason));
        }
        Ok(found)
    }

    /// Returns the error for a configured path that cannot be read.
    fn unreadable_root_error(&self, path: &Path, error: io::Error) -> FileError {
        if !self.any_extension {
            return unreadable(path)(error);
        }
        let variables =
            "RUNTIME_ROOT, RUNTIME_SUBDIRECTORY, and RUNTIME_APPDIRECTORY (config, if not set)";
        let advice = match first_missing(path) {
            Some(missing) => format!(
                "{} does not exist: mount the directory, or correct {variables}, which make up the \
                 path",
                escape_path(missing)
            ),
            None => format!("the path is {variables}: correct one of them"),
        };
        unreadable_with(path, &error, &advice)
    }

    fn walk(
        &self,
        root: usize,
        directory: &Path,
        depth: usize,
        found: &mut Vec<ListedFile>,
    ) -> Result<(), FileError> {
        let mut paths = Vec::new();
        for entry in fs::read_dir(directory).map_err(unreadable(directory))? {
            let entry = entry.map_err(unreadable(directory))?;
            if !self.skip_dotfiles && entry.file_name() == "..data" {
                let reason = "this is a mounted ConfigMap, whose directories with leading dots hold \
                              each file once more: unset RUNTIME_IGNOREDOTFILES, or set it to true";
                return Err(malformed(directory, reason));
            }
            if !(self.skip_dotfiles && entry.file_name().as_encoded_bytes().starts_with(b".")) {
                paths.push(entry.path());
            }
        }
        paths.sort();
        for path in paths {
            let Some(metadata) = metadata_of_entry(&path)? else { continue };
            if metadata.is_dir() {
                if depth + 1 >= DEPTH_MAX {
                    return Err(too_many(&path));
                }
                self.walk(root, &path, depth + 1, found)?;
            } else if self.is_policy_file(&path) {
                // A FIFO or a socket with the name of a policy must not be skipped silently.
                if !metadata.is_file() {
                    return Err(malformed(&path, NOT_A_FILE));
                }
                if found.len() >= FILES_MAX {
                    return Err(too_many(&path));
                }
                found.push(ListedFile {
                    key: (root, path),
                    stamp: FileStamp::from_metadata(&metadata),
                });
            }
        }
        Ok(())
    }

    /// Returns whether a file in a directory is part of the policy. Test files may be next to the
    /// policies that they test.
    fn is_policy_file(&self, path: &Path) -> bool {
        let name = path.file_name().unwrap_or_default().as_encoded_bytes();
        let is_test = TEST_SUFFIXES.iter().any(|suffix| name.ends_with(suffix));
        let is_yaml = |extension: &OsStr| extension == "yaml" || extension == "yml";
        self.any_extension || !is_test && path.extension().is_some_and(is_yaml)
    }

    /// Reads a policy file, given the total size of the other files. Returns the file's contents
    /// and, if it did not change while it was being read, its stamp.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read, or if the file or the whole policy is too
    /// large.
    pub(super) fn read_file(
        &self,
        path: &Path,
        other_bytes: usize,
    ) -> Result<(Source, Option<FileStamp>), FileError> {
        let unreadable = unreadable(path);
        let (mut file, before) = open_regular_file(path).map_err(&unreadable)?;
        let left = self.total_bytes_max.saturating_sub(other_bytes);
        let bytes_max = self.file_bytes_max.min(left);
        let mut text = Vec::new();
        let most = bytes_max as u64 + 1;
        file.by_ref().take(most).read_to_end(&mut text).map_err(&unreadable)?;
        if text.len() > bytes_max {
            let (setting, bytes_max) = match left < self.file_bytes_max {
                true => ("policy-size", self.total_bytes_max),
                false => ("policy-file-size", self.file_bytes_max),
            };
            return Err(malformed(path, format!("more than {bytes_max} bytes (--{setting})")));
        }
        let [before, after] = [before, file.metadata().map_err(&unreadable)?];
        let [before, after] = [FileStamp::from_metadata(&before), FileStamp::from_metadata(&after)];
        let source = Source { name: escape_path(path), text };
        Ok((source, (before == after).then_some(after)))
    }
}

/// Ends of the names of test files (`tidegate test`).
const TEST_SUFFIXES: [&[u8]; 2] = [b".test.yaml", b".test.yml"];

const NOT_A_FILE: &str = "neither a file nor a directory; remove it, or correct the path";

fn too_many(path: &Path) -> FileError {
    let reason = format!(
        "more than {FILES_MAX} files, or deeper than {DEPTH_MAX} directories: correct the path, or \
         move other files elsewhere"
    );
    malformed(path, reason)
}

/// Returns the shortest prefix of a path that does not exist, or `None` if the whole path exists.
fn first_missing(path: &Path) -> Option<&Path> {
    let parts: Vec<&Path> = path.ancestors().filter(|part| !part.as_os_str().is_empty()).collect();
    parts.into_iter().rev().find(|part| part.symlink_metadata().is_err())
}

/// Returns the metadata of a directory entry, or `None` if the entry was removed after it was
/// listed, as temporary files often are. A dangling symbolic link is an error.
fn metadata_of_entry(path: &Path) -> Result<Option<Metadata>, FileError> {
    let is_gone = |error: &io::Error| {
        error.kind() == io::ErrorKind::NotFound && fs::symlink_metadata(path).is_err()
    };
    match fs::metadata(path) {
        Err(error) if is_gone(&error) => Ok(None),
        metadata => metadata.map(Some).map_err(unreadable(path)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::watched_files::WatchedFiles;
    use crate::settings::Sources;

    #[test]
    fn a_fifo_or_socket_with_the_name_of_a_policy_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("a.yaml"), "").unwrap();
        let policy = directory.path().display().to_string();
        let (settings, _) = Settings::read(&Sources::from_flags(&[("policy", &policy)])).unwrap();
        let files = PolicyFiles::new(&settings).unwrap();
        let _other = std::os::unix::net::UnixListener::bind(directory.path().join("s")).unwrap();
        assert_eq!(files.list().unwrap().len(), 1, "not the name of a policy");
        let _socket =
            std::os::unix::net::UnixListener::bind(directory.path().join("b.yaml")).unwrap();
        let error = files.list().unwrap_err().to_string();
        assert!(error.contains("b.yaml: neither a file nor a directory"), "{error}");
    }

    #[test]
    fn a_config_map_whose_dotfiles_are_read_is_recognized() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        fs::create_dir_all(root.join("config/..2026_01_01")).unwrap();
        fs::write(root.join("config/..2026_01_01/a.yaml"), "").unwrap();
        std::os::unix::fs::symlink("..2026_01_01", root.join("config/..data")).unwrap();
        std::os::unix::fs::symlink("..data/a.yaml", root.join("config/a.yaml")).unwrap();
        let list = |ignores: &str| {
            let root = root.display().to_string();
            let dotfiles = ("RUNTIME_IGNOREDOTFILES", ignores);
            let sources = Sources::from_environment(&[("RUNTIME_ROOT", &root), dotfiles]);
            PolicyFiles::new(&Settings::read(&sources).unwrap().0).unwrap().list()
        };
        assert_eq!(list("true").unwrap().len(), 1);
        let error = list("false").unwrap_err().to_string();
        assert!(error.contains("config: this is a mounted ConfigMap"), "{error}");
    }

    #[test]
    fn the_directories_below_the_runtime_root_stay_below_it() {
        for (subdirectory, directory, expected) in [
            ("", "config", "/r/config"),
            ("x", "config", "/r/x/config"),
            ("/x", "config", "/r/x/config"),
            ("/x", "/config", "/r/x/config"),
            ("//x/", "/a/b", "/r/x/a/b"),
            ("/", "/", "/r"),
        ] {
            let sources = Sources::from_environment(&[
                ("RUNTIME_ROOT", "/r"),
                ("RUNTIME_SUBDIRECTORY", subdirectory),
                ("RUNTIME_APPDIRECTORY", directory),
            ]);
            let files = PolicyFiles::new(&Settings::read(&sources).unwrap().0).unwrap();
            assert_eq!(files.paths, [PathBuf::from(expected)], "{subdirectory} {directory}");
        }
    }

    #[test]
    fn the_sizes_of_each_file_and_of_all_files_are_bounded() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["a.yaml", "b.yml", "c.txt", ".d.yaml"] {
            fs::write(directory.path().join(name), [b'#'; 1_024]).unwrap();
        }
        let read = |policy_size: &str, policy_file_size: &str| {
            let policy = directory.path().display().to_string();
            let sources = Sources::from_flags(&[
                ("policy", &policy),
                ("policy-size", policy_size),
                ("policy-file-size", policy_file_size),
            ]);
            let (settings, _) = Settings::read(&sources).unwrap();
            let files = WatchedFiles::read_all(&PolicyFiles::new(&settings).unwrap());
            files.map(|files| files.sources().len()).map_err(|error| error.to_string())
        };
        assert_eq!(read("2048", "1024"), Ok(2), "c.txt and .d.yaml are no policy files");
        let error = read("2047", "1024").unwrap_err();
        assert!(error.ends_with("b.yml: more than 2047 bytes (--policy-size)"), "{error}");
        fs::write(directory.path().join("a.yaml"), [b'#'; 1_025]).unwrap();
        let error = read("4096", "1024").unwrap_err();
        assert!(error.ends_with("a.yaml: more than 1024 bytes (--policy-file-size)"), "{error}");
    }
}
