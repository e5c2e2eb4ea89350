//! Watches the policy files and activates a changed policy. If the new policy has errors, the last
//! valid policy stays active.
//!
//! The watcher polls, because polling detects swapped ConfigMap links, replaced files and unmounted
//! directories on every file system. Kernel events miss some of these.
//!
//! A file that is still being written is not read, because half of a policy file is often a valid
//! policy with fewer limits. A file counts as complete once two consecutive polls find the same
//! stamp (device, inode, size and timestamps), or immediately if another file has taken its place,
//! because a rename replaces a whole file. A file that keeps changing is read anyway.

use std::collections::BTreeMap;
use std::mem;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::active_policy::ActivePolicy;
use super::load_policy::{Fingerprint, LoadedPolicy, PolicyLoader};
use super::policy_files::{FileKey, ListedFile, PolicyFiles, ReadFile};
use super::process::exit_codes::Failure;
use super::process::files_and_env::{FileError, FileStamp, escape_path};
use super::process::watcher_thread::{POLL_INTERVAL, Poll};
use crate::policy::{Diagnostic, Policy, Source};

#[cfg(test)]
mod tests;

/// Maximum number of diagnostics logged per load. One more line reports how many were omitted. A
/// single mistake can cause a thousand diagnostics, which would bury all other log lines.
pub(super) const LOGGED_DIAGNOSTICS_MAX: usize = 20;

/// Interval between polls while files are incomplete, 750 ms. Three such polls take less than 3 s,
/// so a change takes effect within 3 s even if other files keep changing.
const INCOMPLETE_POLL_INTERVAL: Duration = Duration::from_millis(750);

/// Interval between polls while a reload that a signal has requested waits for files to be complete,
/// 100 ms. A file that is being written changes more often.
const REQUESTED_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Number of consecutive polls with incomplete files after which the complete files are read
/// anyway, and with them each file that was incomplete at all of these polls. The policy then uses
/// the last contents of each other incomplete file. Earlier polls read no file, so that files
/// copied one after another take effect together.
const INCOMPLETE_POLLS_MAX: u32 = 3;

/// Number of consecutive polls that find a file incomplete after which a warning is due.
const UNSETTLED_POLLS: u32 = 10;

/// State of the policy files at the last poll, and the last complete contents of each.
///
/// The contents, at most `--policy-size` bytes in total, are kept so that a change to one file can
/// take effect while another file is still being written.
#[derive(Debug, Default)]
struct WatchedFiles {
    files: BTreeMap<FileKey, WatchedFile>,
    /// Number of consecutive polls, including the last one, that found incomplete files.
    incomplete_polls: u32,
    /// Whether the contents may have changed since the last poll that returned true.
    has_changed: bool,
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
    /// Creates the state from the files that were read at startup.
    fn new(files: Vec<ReadFile>) -> WatchedFiles {
        let file = |ReadFile { key, source, stamp }| {
            let source = Some(source);
            (key, WatchedFile { listed: stamp, read: stamp, source, incomplete_polls: 0 })
        };
        WatchedFiles { files: files.into_iter().map(file).collect(), ..WatchedFiles::default() }
    }

    /// Makes the next polls read all files, even those that have not changed.
    fn reread(&mut self) {
        self.files.values_mut().for_each(|file| file.read = None);
    }

    /// Lists the policy files, and reads those that are complete and have changed. Returns whether
    /// the contents may have changed. If files are incomplete, the first two polls in a row read
    /// nothing and return false, because the files may soon be complete.
    ///
    /// # Errors
    ///
    /// Returns an error if a file or directory cannot be read, or if the policy is too large.
    fn poll(&mut self, files: &PolicyFiles) -> Result<bool, FileError> {
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
    fn newly_unsettled(&self) -> impl Iterator<Item = &Path> {
        let is_due = |file: &WatchedFile| file.incomplete_polls == UNSETTLED_POLLS;
        self.files.iter().filter(move |(_, file)| is_due(file)).map(|((_, path), _)| &**path)
    }

    /// Returns the last complete contents of all files, in policy order (see [`FileKey`]).
    fn sources(&self) -> Vec<&Source> {
        self.files.values().filter_map(|file| file.source.as_ref()).collect()
    }
}

/// Reloader that polls the policy files and compiles them when they change.
pub(super) struct PolicyReloader {
    loader: PolicyLoader,
    files: WatchedFiles,
    active: ActivePolicy,
    /// Fingerprint of the files that were compiled last, even if they were invalid.
    last_read: Option<Fingerprint>,
    /// Whether a signal has requested a reload that has not ended yet.
    is_requested: bool,
    /// Whether reading the files has failed and has not succeeded since. Used to log a failure that
    /// lasts for several polls only once.
    is_unreadable: bool,
}

impl PolicyReloader {
    /// Creates a reloader whose active policy is from `files`.
    pub(super) fn new(loader: PolicyLoader, active: ActivePolicy, files: Vec<ReadFile>) -> Self {
        PolicyReloader {
            loader,
            files: WatchedFiles::new(files),
            last_read: active.fingerprint,
            active,
            is_requested: false,
            is_unreadable: false,
        }
    }

    /// Returns the time until the next poll.
    pub(super) fn pause(&self) -> Duration {
        match self.files.incomplete_polls {
            0 => POLL_INTERVAL,
            _ if self.is_requested => REQUESTED_POLL_INTERVAL,
            _ => INCOMPLETE_POLL_INTERVAL,
        }
    }

    /// Reads the files that have changed, or every file if a signal has requested the poll. Returns
    /// the new policy if the contents have changed and are valid. Runs on a thread of its own,
    /// because reading a large policy must not delay decisions or probes.
    pub(super) fn poll(&mut self, poll: Poll) -> Option<Arc<Policy>> {
        if poll == Poll::Requested {
            self.is_requested = true;
            self.files.reread();
        }
        let polled = self.files.poll(&self.loader.files);
        for file in self.files.newly_unsettled() {
            let (file, polls) = (escape_path(file), UNSETTLED_POLLS);
            let advice = "write a new file and rename it, or half of a policy may take effect";
            tracing::warn!(file, polls, advice, "a policy file changes each time that it is read");
        }
        match polled {
            Ok(true) => self.load(),
            Ok(false) => None,
            Err(error) => {
                self.report_unreadable(&Failure::policy_files(error));
                None
            }
        }
    }

    /// Compiles the last complete contents of the files, unless they are the same as before.
    fn load(&mut self) -> Option<Arc<Policy>> {
        let sources = self.files.sources();
        if sources.is_empty() {
            return None;
        }
        let was_requested = mem::take(&mut self.is_requested);
        self.is_unreadable = false;
        let fingerprint = Fingerprint::from_sources(&sources);
        if self.last_read.replace(fingerprint) == Some(fingerprint) {
            if was_requested {
                tracing::info!(%fingerprint, "policy files read again, nothing has changed");
            }
            // If the files were unreadable for a while, the metrics still show a failed reload.
            if self.active.fingerprint == Some(fingerprint) {
                self.active.telemetry.record_policy_unchanged();
            }
            return None;
        }
        match self.loader.compile(&sources, self.active.next_rule) {
            Ok(loaded) => Some(self.accept(loaded)),
            Err(failure) => {
                self.report_failure(&failure);
                None
            }
        }
    }

    fn accept(&mut self, loaded: LoadedPolicy) -> Arc<Policy> {
        log_warnings(&loaded.warnings);
        let policy = Arc::new(loaded.policy);
        self.active.log_reload(&policy, Some(loaded.files), loaded.fingerprint);
        self.active.replace(&policy, loaded.fingerprint);
        policy
    }

    /// Logs a failure to read the files. Further failures are not logged until a poll succeeds.
    /// That poll compares the contents with those of the active policy.
    fn report_unreadable(&mut self, failure: &Failure) {
        self.is_requested = false;
        self.files.has_changed = true;
        if !self.is_unreadable {
            self.is_unreadable = true;
            self.report_failure(failure);
        }
    }

    fn report_failure(&self, failure: &Failure) {
        self.active.telemetry.record_policy_load_failure();
        let text = failure.to_string();
        for error in text.lines().take(LOGGED_DIAGNOSTICS_MAX) {
            tracing::error!(error, "policy error");
        }
        let errors = text.lines().count();
        tracing::error!(errors, "policy not reloaded, the last good one stays in force");
    }
}

pub(super) fn log_warnings(warnings: &[Diagnostic]) {
    for warning in warnings.iter().take(LOGGED_DIAGNOSTICS_MAX) {
        tracing::warn!(warning = %warning, "policy warning");
    }
    if warnings.len() > LOGGED_DIAGNOSTICS_MAX {
        let more = warnings.len() - LOGGED_DIAGNOSTICS_MAX;
        tracing::warn!(more, "more policy warnings, run `tidegate check` to see all");
    }
}
