//! State of the policy files: which are complete, which have changed, and their last complete contents.
//!
//! A file that is still being written is not read, because half of a policy file is often a valid
//! policy with fewer limits. A file counts as complete once two consecutive polls find the same
//! stamp (device, inode, size and timestamps), or immediately if another file has taken its place,
//! because a rename replaces a whole file. A file that keeps changing is read anyway.

use std::collections::BTreeMap;
use std::mem;
use std::path::Path;

use super::policy_files::{FileKey, ListedFile, PolicyFiles};
use super::process::files_and_env::{FileError, FileStamp};
use crate::policy::Source;

#[cfg(test)]
mod tests;

/// Number of consecutive polls with incomplete files after which the complete files are read
/// anyway, and with them each file that was incomplete at all of these polls. The policy then uses
/// the last contents of each other incomplete file. Earlier polls read no file, so that files
/// copied one after another take effect together.
const INCOMPLETE_POLLS_MAX: u32 = 3;

/// Number of consecutive polls that find a file incomplete after which a warning is due.
pub(super) const UNSETTLED_POLLS: u32 = 10;

/// State of the policy files at the last poll, and the last complete contents of each.
///
/// The contents, at most `--policy-size` bytes in total, are kept so that a change to one file can
/// take effect while another file is still being written.
#[derive(Debug, Default)]
pub(super) struct WatchedFiles {
    files: BTreeMap<FileKey, WatchedFile>,
    /// Number of consecutive polls, including the last one, that found incomplete files.
    pub(super) incomplete_polls: u32,
    /// Whether the contents may have changed since the last poll that returned true.
    pub(super) has_changed: bool,
}

#[derive(Debug, Default)]
struct WatchedFile {
    /// Stamp that the last poll found. `None` if the file was missing.
    listed: Option<FileStamp>,
    /// Stamp of `source`. `None` if the file changed while it was being read, or must be read
    /// again.
    read: Option<FileStamp>,
    /// Last complete contents of the file, or `None` if the file has never been complete.
    source: Option<Source>,
    /// Number of consecutive polls, including the last one, that found the file incomplete.
    incomplete_polls: u32,
}

impl WatchedFile {
    fn bytes(&self) -> usize {
        self.source.as_ref().map_or(0, |source| source.text.len())
    }
}

impl WatchedFiles {
    /// Reads all policy files. Called at startup.
    ///
    /// # Errors
    ///
    /// Returns an error for the first file or directory that cannot be read or is too large.
    pub(super) fn read_all(files: &PolicyFiles) -> Result<WatchedFiles, FileError> {
        let (mut all, mut bytes) = (WatchedFiles::default(), 0);
        for ListedFile { key, .. } in files.list()? {
            let (source, stamp) = files.read_file(&key.1, bytes)?;
            bytes += source.text.len();
            let source = Some(source);
            let file = WatchedFile { listed: stamp, read: stamp, source, incomplete_polls: 0 };
            all.files.insert(key, file);
        }
        Ok(all)
    }

    /// Makes the next polls read all files, even those that have not changed.
    pub(super) fn reread(&mut self) {
        self.files.values_mut().for_each(|file| file.read = None);
    }

    /// Lists the policy files, and reads those that are complete and have changed. Returns whether
    /// the contents may have changed. If files are incomplete, the first two polls in a row read
    /// nothing and return false, because the files may soon be complete.
    ///
    /// # Errors
    ///
    /// Returns an error if a file or directory cannot be read, or if the policy is too large.
    pub(super) fn poll(&mut self, files: &PolicyFiles) -> Result<bool, FileError> {
        self.update(files.list()?);
        self.incomplete_polls = match self.files.values().any(|file| file.incomplete_polls > 0) {
            true => self.incomplete_polls.saturating_add(1),
            false => 0,
        };
        if self.incomplete_polls > 0 && self.incomplete_polls < INCOMPLETE_POLLS_MAX {
            return Ok(false);
        }
        self.read(files)?;
        Ok(mem::take(&mut self.has_changed))
    }

    /// Updates the files to match `listed`.
    fn update(&mut self, listed: Vec<ListedFile>) {
        let mut former = mem::take(&mut self.files);
        for ListedFile { key, stamp } in listed {
            let mut file = former.remove(&key).unwrap_or_default();
            let is_complete = |last: FileStamp| last == stamp || !last.is_same_file(&stamp);
            file.incomplete_polls = match file.listed.is_some_and(is_complete) {
                true => 0,
                false => file.incomplete_polls.saturating_add(1),
            };
            file.listed = Some(stamp);
            self.files.insert(key, file);
        }
        // A file may be missing for a moment while it is being replaced, so a file counts as
        // removed only when two consecutive polls do not find it.
        for (key, file) in former.into_iter().filter(|(_, file)| file.source.is_some()) {
            match file.listed {
                None => self.has_changed = true,
                Some(_) => {
                    let missing =
                        WatchedFile { listed: None, read: None, incomplete_polls: 1, ..file };
                    self.files.insert(key, missing);
                }
            }
        }
    }

    /// Reads the files that are complete or keep changing, if they have changed since the last read.
    fn read(&mut self, files: &PolicyFiles) -> Result<(), FileError> {
        let mut bytes: usize = self.files.values().map(WatchedFile::bytes).sum();
        for ((_, path), file) in &mut self.files {
            let is_readable = matches!(file.incomplete_polls, 0 | INCOMPLETE_POLLS_MAX..);
            let Some(stamp) = file.listed.filter(|_| is_readable && file.read != file.listed)
            else {
                continue;
            };
            bytes -= file.bytes();
            match files.read_file(path, bytes) {
                // Since it was listed, the file must not have changed, or must have been replaced.
                Ok((source, Some(read))) if read == stamp || !read.is_same_file(&stamp) => {
                    (file.listed, file.read, file.source) = (Some(read), Some(read), Some(source));
                    self.has_changed = true;
                }
                // The file changed while it was being read, so old and new contents may be mixed.
                Ok(_) => file.listed = None,
                Err(error) if error.is_missing => file.listed = None,
                Err(error) => return Err(error),
            }
            bytes += file.bytes();
        }
        Ok(())
    }

    /// Returns the paths of the files that the last poll found incomplete for the
    /// [`UNSETTLED_POLLS`]th time in a row.
    pub(super) fn newly_unsettled(&self) -> impl Iterator<Item = &Path> {
        let is_due = |file: &WatchedFile| file.incomplete_polls == UNSETTLED_POLLS;
        self.files.iter().filter(move |(_, file)| is_due(file)).map(|((_, path), _)| &**path)
    }

    /// Returns the last complete contents of all files, in policy order (see [`FileKey`]).
    pub(super) fn sources(&self) -> Vec<&Source> {
        self.files.values().filter_map(|file| file.source.as_ref()).collect()
    }
}
