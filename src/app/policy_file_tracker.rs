//! Detects changes to policy files by polling, and reads changed files once they are complete.
//!
//! A file that is still being written is not read, because half of a policy file is often a valid
//! policy with fewer limits. A file counts as complete once two consecutive polls find the same
//! stamp (device, inode, size and timestamps), or immediately if another file has taken its place,
//! because a rename replaces a whole file. A file that keeps changing is read anyway.

use std::collections::BTreeMap;
use std::path::Path;
use std::{io, mem};

use super::policy_files::{
    FileKey, FileStamp, ListedFile, PolicyFileError, PolicyFiles, ReadFile, escape_path,
};
use crate::policy::Source;

/// Number of polls that read a file after its stamp has changed. One read is not enough: two writes
/// within the timestamp resolution of the file system can leave the same stamp.
const READS_AFTER_CHANGE: u32 = 3;

/// Number of consecutive polls with incomplete files after which the complete files are read
/// anyway, and with them each file that was incomplete at all of these polls. The policy then uses
/// the last contents of each other incomplete file. Earlier polls read no file, so that files
/// copied one after another take effect together.
const INCOMPLETE_POLLS_MAX: u32 = 3;

/// Number of consecutive polls that find a file incomplete after which a warning is due.
pub(super) const UNSETTLED_POLLS: u32 = 10;

/// Tracker of changes to the policy files. Keeps each file's state at the last poll and its last
/// complete contents.
///
/// The contents, at most `--policy-size` bytes in total, are kept so that a change to one file can
/// take effect while another file is still being written.
#[derive(Debug, Default)]
pub(super) struct PolicyFileTracker {
    files: BTreeMap<FileKey, TrackedFile>,
    /// Number of consecutive polls, including the last one, that found incomplete files.
    incomplete_polls: u32,
}

#[derive(Debug, Default)]
struct TrackedFile {
    /// Device, inode, size and timestamps at the last poll or, before the first poll, at the start.
    /// `None` if the file was missing, could not be read, or changed while it was being read.
    stamp: Option<FileStamp>,
    /// Number of consecutive polls, including the last one, that found the file incomplete.
    incomplete_polls: u32,
    /// Whether the file was missing at the last poll.
    is_missing: bool,
    /// Number of polls that must still read the file, even if it does not change again.
    reads_left: u32,
    /// Last complete contents of the file, or `None` if the file has never been complete.
    contents: Option<Vec<u8>>,
}

impl PolicyFileTracker {
    /// Creates a tracker from the files that were read at startup.
    pub(super) fn new(files: Vec<ReadFile>) -> PolicyFileTracker {
        let file = |ReadFile { key, contents, stamp }| {
            let (contents, reads_left) = (Some(contents), READS_AFTER_CHANGE);
            (key, TrackedFile { stamp, reads_left, contents, ..TrackedFile::default() })
        };
        PolicyFileTracker { files: files.into_iter().map(file).collect(), incomplete_polls: 0 }
    }

    /// Lists the policy files, and reads those that are complete and may have changed. Calls `read`
    /// with the last complete contents of all files. Returns its result, or `None` if no file was
    /// read or removed, or if no file is left. If files are incomplete, the first two polls in a row
    /// return `None`, because the files may soon be complete. If `all` is true, every file is read,
    /// even if it has not changed, by this poll or as soon as no file is incomplete.
    ///
    /// # Errors
    ///
    /// Returns an error if a file or directory cannot be read, or if the policy is too large.
    pub(super) fn poll<T>(
        &mut self,
        files: &PolicyFiles,
        all: bool,
        read: impl FnOnce(&[Source]) -> T,
    ) -> Result<Option<T>, PolicyFileError> {
        let was_removed = self.update(files.list()?, all);
        let has_incomplete = self.files.values().any(|file| file.incomplete_polls > 0);
        self.incomplete_polls =
            if has_incomplete { self.incomplete_polls.saturating_add(1) } else { 0 };
        if has_incomplete && self.incomplete_polls < INCOMPLETE_POLLS_MAX {
            return Ok(None);
        }
        let was_read = self.read(files)?;
        if !was_removed && !was_read {
            return Ok(None);
        }
        Ok(self.with_sources(|sources| (!sources.is_empty()).then(|| read(sources))))
    }

    /// Calls `read` with the last complete contents of all files, in policy order (see
    /// [`FileKey`]). Moves the contents instead of copying them, because they may have 64 MiB.
    pub(super) fn with_sources<T>(&mut self, read: impl FnOnce(&[Source]) -> T) -> T {
        let (mut complete, mut sources) = (Vec::new(), Vec::new());
        for ((_, path), file) in &mut self.files {
            let Some(text) = file.contents.take() else { continue };
            sources.push(Source { name: escape_path(path), text });
            complete.push(file);
        }
        let result = read(&sources);
        for (file, source) in complete.into_iter().zip(sources) {
            file.contents = Some(source.text);
        }
        result
    }

    /// Returns whether the last poll found incomplete files. If so, the next poll should come soon.
    pub(super) fn has_incomplete_files(&self) -> bool {
        self.incomplete_polls > 0
    }

    /// Returns the paths of the files that the last poll found incomplete for the
    /// [`UNSETTLED_POLLS`]th time in a row.
    pub(super) fn newly_unsettled_files(&self) -> impl Iterator<Item = &Path> {
        let is_due = |file: &TrackedFile| file.incomplete_polls == UNSETTLED_POLLS;
        self.files.iter().filter(move |(_, file)| is_due(file)).map(|((_, path), _)| &**path)
    }

    /// Discards the file stamps, so that the next polls read all files again.
    pub(super) fn discard_stamps(&mut self) {
        self.files.values_mut().for_each(|file| file.stamp = None);
    }

    /// Updates the tracked files to match `listed`. Schedules [`READS_AFTER_CHANGE`] reads of each
    /// file whose stamp has changed, or of every file if `all` is true. Returns whether a file was
    /// removed.
    fn update(&mut self, listed: Vec<ListedFile>, all: bool) -> bool {
        let mut former = mem::take(&mut self.files);
        for ListedFile { key, stamp } in listed {
            let mut file = former.remove(&key).unwrap_or_default();
            let is_unchanged = file.stamp == Some(stamp);
            let is_replaced = file.stamp.is_some_and(|former| !former.is_same_file(&stamp));
            file.incomplete_polls = match is_unchanged || is_replaced {
                true => 0,
                false => file.incomplete_polls.saturating_add(1),
            };
            if !is_unchanged || all {
                file.reads_left = READS_AFTER_CHANGE;
            }
            file.stamp = Some(stamp);
            file.is_missing = false;
            self.files.insert(key, file);
        }
        // A file may be missing for a moment while it is being replaced, so a file counts as
        // removed only when two consecutive polls do not find it.
        let mut was_removed = false;
        for (key, file) in former {
            if file.contents.is_none() {
                continue;
            }
            if file.is_missing {
                was_removed = true;
                continue;
            }
            let contents = file.contents;
            let (is_missing, incomplete_polls) = (true, 1);
            let missing =
                TrackedFile { is_missing, incomplete_polls, contents, ..TrackedFile::default() };
            self.files.insert(key, missing);
        }
        was_removed
    }

    /// Reads the files that are complete or keep changing, if they may have changed since the last
    /// read. Returns whether any file was read.
    fn read(&mut self, files: &PolicyFiles) -> Result<bool, PolicyFileError> {
        let mut was_read = false;
        let mut bytes: usize = self.files.values().map(TrackedFile::bytes).sum();
        for ((_, path), file) in &mut self.files {
            let is_readable = matches!(file.incomplete_polls, 0 | INCOMPLETE_POLLS_MAX..);
            let Some(stamp) = file.stamp.filter(|_| is_readable && file.reads_left > 0) else {
                continue;
            };
            bytes -= file.bytes();
            match files.read_file(path, bytes) {
                // Since it was listed, the file must not have changed, or must have been replaced.
                Ok((contents, Some(read))) if read == stamp || !read.is_same_file(&stamp) => {
                    file.stamp = Some(read);
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::settings::{Settings, Sources};

    fn policy_files(directory: &Path) -> PolicyFiles {
        let sources = Sources::from_flags(&[("policy", &directory.display().to_string())]);
        PolicyFiles::new(&Settings::read(&sources).unwrap().0).unwrap()
    }

    fn texts(sources: &[Source]) -> Vec<&str> {
        sources.iter().map(|source| str::from_utf8(&source.text).unwrap()).collect()
    }

    /// Returns a directory with two policy files, its configuration, and a tracker that has found
    /// both files complete.
    fn tracker_of_two_files() -> (tempfile::TempDir, PolicyFiles, PolicyFileTracker) {
        let directory = tempfile::tempdir().unwrap();
        for name in ["a", "b"] {
            fs::write(directory.path().join(name).with_extension("yaml"), name).unwrap();
        }
        let files = policy_files(directory.path());
        let mut tracker = PolicyFileTracker::new(files.read().unwrap());
        for _ in 0..=READS_AFTER_CHANGE {
            tracker.poll(&files, false, <[Source]>::to_vec).unwrap();
        }
        assert!(
            tracker.poll(&files, false, <[Source]>::to_vec).unwrap().is_none(),
            "nothing has changed"
        );
        (directory, files, tracker)
    }

    #[test]
    fn a_file_that_changes_while_it_is_read_keeps_its_last_complete_contents() {
        let (directory, files, mut tracker) = tracker_of_two_files();
        let path = directory.path().join("a.yaml");
        fs::write(&path, "new").unwrap();
        tracker.update(files.list().unwrap(), false);
        tracker.update(files.list().unwrap(), false);
        // The listing says that the file is complete, but it is written once more before it is
        // read.
        fs::write(&path, "newer").unwrap();
        assert!(!tracker.read(&files).unwrap());
        assert_eq!(texts(&tracker.with_sources(<[Source]>::to_vec)), ["a", "b"]);
        for _ in 0..2 {
            tracker.poll(&files, false, <[Source]>::to_vec).unwrap();
        }
        assert_eq!(texts(&tracker.with_sources(<[Source]>::to_vec)), ["newer", "b"]);
    }

    #[test]
    fn a_removed_file_counts_as_removed_at_the_second_poll() {
        let (directory, files, mut tracker) = tracker_of_two_files();
        fs::remove_file(directory.path().join("a.yaml")).unwrap();
        assert!(
            tracker.poll(&files, false, <[Source]>::to_vec).unwrap().is_none(),
            "it may be being replaced"
        );
        let left = tracker.poll(&files, false, <[Source]>::to_vec).unwrap().expect("a change");
        assert_eq!(texts(&left), ["b"]);
    }

    #[test]
    fn a_change_takes_effect_at_the_third_poll_while_other_files_keep_changing() {
        let (directory, files, mut tracker) = tracker_of_two_files();
        fs::write(directory.path().join("a.yaml"), "a2").unwrap();
        let mut polls = (1..=3).map(|poll| {
            let file = |name: String| directory.path().join(name);
            fs::write(file(format!("c{poll}.yaml")), "half").unwrap();
            let sources = tracker.poll(&files, false, <[Source]>::to_vec).unwrap();
            fs::remove_file(file(format!("c{poll}.yaml"))).unwrap();
            sources
        });
        assert!(polls.by_ref().take(2).all(|sources| sources.is_none()), "c may become complete");
        let sources = polls.next().flatten().expect("a change");
        assert_eq!(texts(&sources), ["a2", "b"], "no c was there for three polls");
    }

    #[test]
    fn a_file_that_changes_at_every_poll_is_read_from_the_third_on() {
        let (directory, files, mut tracker) = tracker_of_two_files();
        let mut polls = (1..=14).map(|poll| {
            fs::write(directory.path().join("b.yaml"), "b".repeat(poll + 1)).unwrap();
            let sources = tracker.poll(&files, false, <[Source]>::to_vec).unwrap();
            assert_eq!(tracker.newly_unsettled_files().count(), usize::from(poll == 10));
            sources
        });
        assert!(polls.by_ref().take(2).all(|sources| sources.is_none()), "b may become complete");
        for (poll, sources) in (3..).zip(polls) {
            assert_eq!(texts(&sources.expect("a change")), ["a", &"b".repeat(poll + 1)]);
        }
    }

    /// Replaces a file by renaming a complete one.
    fn replace(directory: &Path, name: &str, text: &str) {
        fs::write(directory.join(".new"), text).unwrap();
        fs::rename(directory.join(".new"), directory.join(name)).unwrap();
    }

    #[test]
    fn a_file_that_was_replaced_by_renaming_is_read_at_the_next_poll() {
        let (directory, files, mut tracker) = tracker_of_two_files();
        for round in 0..20 {
            let text = format!("a{round}");
            replace(directory.path(), "a.yaml", &text);
            let sources =
                tracker.poll(&files, false, <[Source]>::to_vec).unwrap().expect("a change");
            assert_eq!(texts(&sources), [&text, "b"]);
        }
        // Several files in one poll, and one that is not complete.
        replace(directory.path(), "a.yaml", "new a");
        replace(directory.path(), "b.yaml", "new b");
        let sources = tracker.poll(&files, false, <[Source]>::to_vec).unwrap().expect("a change");
        assert_eq!(texts(&sources), ["new a", "new b"]);
        replace(directory.path(), "a.yaml", "newer a");
        fs::write(directory.path().join("b.yaml"), "half of b").unwrap();
        assert!(
            tracker.poll(&files, false, <[Source]>::to_vec).unwrap().is_none(),
            "they take effect together"
        );
        let sources = tracker.poll(&files, false, <[Source]>::to_vec).unwrap().expect("a change");
        assert_eq!(texts(&sources), ["newer a", "half of b"]);
    }

    #[test]
    fn every_swap_of_the_links_of_a_config_map_is_seen_at_the_next_poll() {
        let mount = tempfile::tempdir().unwrap();
        let swap = |round: usize| {
            let version = mount.path().join(format!("..{round}"));
            fs::create_dir(&version).unwrap();
            for name in ["a.yaml", "b.yaml"] {
                fs::write(version.join(name), format!("{name} {round}")).unwrap();
            }
            std::os::unix::fs::symlink(&version, mount.path().join("..new")).unwrap();
            fs::rename(mount.path().join("..new"), mount.path().join("..data")).unwrap();
        };
        swap(0);
        for name in ["a.yaml", "b.yaml"] {
            let target = Path::new("..data").join(name);
            std::os::unix::fs::symlink(target, mount.path().join(name)).unwrap();
        }
        let files = policy_files(mount.path());
        let mut tracker = PolicyFileTracker::new(files.read().unwrap());
        for round in 1..20 {
            swap(round);
            let sources =
                tracker.poll(&files, false, <[Source]>::to_vec).unwrap().expect("a change");
            assert_eq!(texts(&sources), [format!("a.yaml {round}"), format!("b.yaml {round}")]);
        }
    }

    #[test]
    fn a_requested_reload_waits_for_a_file_that_is_being_written() {
        let (directory, files, mut tracker) = tracker_of_two_files();
        let all =
            tracker.poll(&files, true, <[Source]>::to_vec).unwrap().expect("every file is read");
        assert_eq!(texts(&all), ["a", "b"]);
        fs::write(directory.path().join("a.yaml"), "half").unwrap();
        assert!(tracker.poll(&files, true, <[Source]>::to_vec).unwrap().is_none());
        fs::write(directory.path().join("a.yaml"), "half and half").unwrap();
        assert!(tracker.poll(&files, true, <[Source]>::to_vec).unwrap().is_none());
        assert!(tracker.has_incomplete_files(), "the next poll comes soon");
        let whole = tracker.poll(&files, false, <[Source]>::to_vec).unwrap().expect("a change");
        assert_eq!(texts(&whole), ["half and half", "b"]);
    }

    #[test]
    fn files_changed_one_after_the_other_take_effect_together() {
        let (directory, files, mut tracker) = tracker_of_two_files();
        fs::write(directory.path().join("a.yaml"), "a2").unwrap();
        assert!(tracker.poll(&files, false, <[Source]>::to_vec).unwrap().is_none());
        fs::write(directory.path().join("b.yaml"), "b2").unwrap();
        assert!(
            tracker.poll(&files, false, <[Source]>::to_vec).unwrap().is_none(),
            "the second file is not complete"
        );
        let both = tracker.poll(&files, false, <[Source]>::to_vec).unwrap().expect("a change");
        assert_eq!(texts(&both), ["a2", "b2"]);
    }

    #[test]
    fn the_size_of_all_files_is_bounded_at_a_reload_too() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: usize| {
            fs::write(directory.path().join(name), vec![b'#'; bytes]).unwrap();
        };
        write("a.yaml", 1_024);
        write("b.yaml", 1_024);
        let path = directory.path().display().to_string();
        let flags = [("policy", &*path), ("policy-size", "2048"), ("policy-file-size", "2048")];
        let settings = Settings::read(&Sources::from_flags(&flags)).unwrap().0;
        let files = PolicyFiles::new(&settings).unwrap();
        let mut tracker = PolicyFileTracker::new(files.read().unwrap());
        (0..2).for_each(|_| drop(tracker.poll(&files, true, <[Source]>::to_vec).unwrap()));
        write("b.yaml", 1_025);
        assert!(tracker.poll(&files, true, <[Source]>::to_vec).unwrap().is_none());
        let error = tracker.poll(&files, true, <[Source]>::to_vec).unwrap_err().to_string();
        assert!(error.ends_with("b.yaml: more than 2048 bytes (--policy-size)"), "{error}");
    }
}
