//! Watches the policy files and activates a changed policy. If the new policy has errors, the last
//! valid policy stays active.
//!
//! The watcher polls, because polling detects swapped ConfigMap links, replaced files and unmounted
//! directories on every file system. Kernel events miss some of these.
//!
//! Not here: which files are complete and have changed (`watched_files`).

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use super::active_policy::{ActivePolicy, LOGGED_DIAGNOSTICS_MAX, log_warnings};
use super::load_policy::{Fingerprint, LoadedPolicy, PolicyLoader};
use super::process::exit_codes::Failure;
use super::process::files_and_env::escape_path;
use super::process::watcher_thread::{POLL_INTERVAL, Poll};
use super::watched_files::{UNSETTLED_POLLS, WatchedFiles};
use crate::policy::Policy;

#[cfg(test)]
mod tests;

/// Interval between polls while files are incomplete, 750 ms. Three such polls take less than 3 s,
/// so a change takes effect within 3 s even if other files keep changing.
const INCOMPLETE_POLL_INTERVAL: Duration = Duration::from_millis(750);

/// Interval between polls while a reload that a signal has requested waits for files to be complete,
/// 100 ms. A file that is being written changes more often.
const REQUESTED_POLL_INTERVAL: Duration = Duration::from_millis(100);

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
    pub(super) fn new(loader: PolicyLoader, active: ActivePolicy, files: WatchedFiles) -> Self {
        PolicyReloader {
            loader,
            files,
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
