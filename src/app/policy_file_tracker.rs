//! Detects changed policy files from poll to poll, and reads them once they are complete.
//!
//! A file that is still being written is left alone, because half of a policy is often valid, with
//! fewer limits. A file counts as complete once two consecutive polls find the same stamp.

use std::collections::BTreeMap;
use std::{io, mem};

use super::policy_files::{
    FileKey, FileStamp, ListedFile, PolicyFileError, PolicyFiles, printable,
};
use crate::policy::Source;

/// Number of polls that read a file after its stamp changed. One is not enough: a second write within
/// the timestamp resolution of the file system leaves the stamp unchanged.
const READS_AFTER_CHANGE: u32 = 3;

/// Number of consecutive polls with incomplete files after which the complete ones are used without
/// them. Until then all changes are awaited, so that files copied one after the other take effect
/// together.
const BUSY_POLLS_MAX: u32 = 3;

/// Policy files as found by the last polls, with their last complete contents.
///
/// The contents are kept, at most `--policy-size` of them, so that a change of one file can take effect
/// while another one is being written.
#[derive(Debug, Default)]
pub(super) struct PolicyFileTracker {
    files: BTreeMap<FileKey, TrackedFile>,
    /// Consecutive polls with incomplete files.
    busy_polls: u32,
}

#[derive(Debug, Default)]
struct TrackedFile {
    /// `None` if the file changed while it was being read, or could not be read.
    stamp: Option<FileStamp>,
    is_complete: bool,
    /// Whether the last poll did not find the file.
    is_missing: bool,
    /// Number of further polls that read the file.
    reads_left: u32,
    /// Last complete contents; `None` if the file has never been complete.
    contents: Option<Vec<u8>>,
}

impl PolicyFileTracker {
    /// Creates a tracker of files that were read at startup.
    pub(super) fn new(contents: Vec<(FileKey, Vec<u8>)>) -> PolicyFileTracker {
        let file = |contents| TrackedFile { contents: Some(contents), ..TrackedFile::default() };
        let files = contents.into_iter().map(|(key, contents)| (key, file(contents))).collect();
        PolicyFileTracker { files, busy_polls: 0 }
    }

    /// Polls the files. Returns all files with their last complete contents if a file was read or
    /// removed, and `None` if there is nothing to do. With `all`, reads every file at once.
    ///
    /// # Errors
    ///
    /// Returns an error if a file or directory cannot be read, or if the policy is too large.
    pub(super) fn poll(
        &mut self,
        files: &PolicyFiles,
        all: bool,
    ) -> Result<Option<Vec<Source>>, PolicyFileError> {
        let was_removed = self.update(files.list()?, all);
        let is_busy = self.files.values().any(|file| !file.is_complete);
        self.busy_polls = if is_busy { self.busy_polls.saturating_add(1) } else { 0 };
        if is_busy && self.busy_polls < BUSY_POLLS_MAX && !all {
            return Ok(None);
        }
        let was_read = self.read(files)?;
        if !was_removed && !was_read {
            return Ok(None);
        }
        Ok(Some(self.sources()).filter(|sources| !sources.is_empty()))
    }

    /// Returns the last complete contents of all files, in the order of the policy.
    pub(super) fn sources(&self) -> Vec<Source> {
        let source = |((_, path), file): (&FileKey, &TrackedFile)| {
            Some(Source { name: printable(path), text: file.contents.clone()? })
        };
        self.files.iter().filter_map(source).collect()
    }

    /// Returns whether a file may be incomplete, so that the next poll should come soon.
    pub(super) fn is_busy(&self) -> bool {
        self.busy_polls > 0
    }

    /// Forgets the stamps, so that the next polls read all files again.
    pub(super) fn forget_stamps(&mut self) {
        self.files.values_mut().for_each(|file| file.stamp = None);
    }

    /// Replaces the tracked files by the listed ones. Files whose stamp has changed, or all files with
    /// `all`, will be read several times. Returns whether a file was removed.
    fn update(&mut self, listed: Vec<ListedFile>, all: bool) -> bool {
        let mut former = mem::take(&mut self.files);
        for ListedFile { key, stamp } in listed {
            let mut file = former.remove(&key).unwrap_or_default();
            file.is_complete = all || file.stamp == Some(stamp);
            if !file.is_complete || all {
                file.reads_left = READS_AFTER_CHANGE;
            }
            file.stamp = Some(stamp);
            file.is_missing = false;
            self.files.insert(key, file);
        }
        // A file may be missing for a moment while it is being replaced, so a file counts as removed
        // only when two consecutive polls do not find it.
        let mut was_removed = false;
        for (key, file) in former {
            if file.contents.is_none() {
                continue;
            }
            if file.is_missing || all {
                was_removed = true;
                continue;
            }
            let contents = file.contents;
            let missing = TrackedFile { is_missing: true, contents, ..TrackedFile::default() };
            self.files.insert(key, missing);
        }
        was_removed
    }

    /// Reads the files that are complete and may have changed. Returns whether any was read.
    fn read(&mut self, files: &PolicyFiles) -> Result<bool, PolicyFileError> {
        let mut was_read = false;
        let mut bytes: usize = self.files.values().map(TrackedFile::bytes).sum();
        for ((_, path), file) in &mut self.files {
            let Some(stamp) = file.stamp.filter(|_| file.is_complete && file.reads_left > 0) else {
                continue;
            };
            bytes -= file.bytes();
            match files.read_file(path, bytes) {
                Ok((contents, read)) if read == Some(stamp) => {
                    file.contents = Some(contents);
                    file.reads_left -= 1;
                    was_read = true;
                }
                // The file changed while it was being read, so old and new contents may be mixed.
                Ok(_) => file.stamp = None,
                Err(PolicyFileError::Unreadable { error, .. })
                    if error.kind() == io::ErrorKind::NotFound =>
                {
                    file.stamp = None;
                }
                Err(error) => return Err(error),
            }
            bytes += file.bytes();
        }
        Ok(was_read)
    }
}

impl TrackedFile {
    fn bytes(&self) -> usize {
        self.contents.as_ref().map_or(0, Vec::len)
    }
}
