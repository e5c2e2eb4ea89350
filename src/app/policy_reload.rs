//! Looks at the policy's files and puts a changed policy in force; the last good one stays where
//! the new one has faults.
//!
//! It polls: a poll sees what a ConfigMap's swapped links do, a file replaced by another, a
//! directory that is unmounted, alike on every file system; watching the kernel's events misses
//! some of those. Not here: what a policy means.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use super::exit_codes::Failure;
use super::load_policy::{Loaded, Loader};
use super::policy_files::{Fingerprint, Stamp};
use crate::clock::Clock;
use crate::domain::RuleId;
use crate::policy::{Diagnostic, Policy};
use crate::telemetry::{RuleName, Telemetry};

/// Polls that read the files' content after the file system said that something changed: a file
/// that is written twice within the grain of its time stamp looks the same after the second time.
const READS_AFTER_CHANGE: u32 = 3;

/// Diagnostics and warnings of one load that are logged; the rest is a number. A thousand lines of one
/// mistake would push everything else out of sight.
const LOGGED_MAX: usize = 20;

/// The watch over a policy's files.
pub(super) struct Reload {
    loader: Loader,
    telemetry: Arc<Telemetry>,
    every: Duration,
    stamp: Option<Stamp>,
    /// The content that was looked at last, good or not.
    seen: Fingerprint,
    /// The content that is in force.
    in_force: Fingerprint,
    reads_left: u32,
    /// The number of the next policy's first rule.
    next: RuleId,
    /// The last poll could not read the files, and that was logged.
    unreadable: bool,
}

impl Reload {
    /// A watch that begins with `loaded` in force.
    pub(super) fn new(
        loader: Loader,
        loaded: &Loaded,
        telemetry: Arc<Telemetry>,
        every: Duration,
    ) -> Self {
        Reload {
            next: next_number(&loaded.policy, RuleId(0)),
            seen: loaded.fingerprint,
            in_force: loaded.fingerprint,
            stamp: None,
            reads_left: READS_AFTER_CHANGE,
            unreadable: false,
            loader,
            telemetry,
            every,
        }
    }

    /// Polls until `stop`; `replace` puts a policy in force. Runs on a thread of its own: reading a
    /// large policy must hold up neither a decision nor a probe.
    pub(super) fn run(mut self, stop: &AtomicBool, replace: impl Fn(Arc<Policy>)) {
        while !stop.load(Ordering::Relaxed) {
            thread::park_timeout(self.every);
            self.poll(&replace);
        }
    }

    fn poll(&mut self, replace: &dyn Fn(Arc<Policy>)) {
        let stamp = match self.loader.places.stamp() {
            Ok(stamp) => stamp,
            Err(fault) => return self.cannot_read(&fault.into()),
        };
        if self.stamp != Some(stamp) {
            // Whoever changes files may not be done: half of a policy is often a valid one, with
            // fewer limits. They are read once a poll has found nothing new.
            self.stamp = Some(stamp);
            self.reads_left = READS_AFTER_CHANGE;
            return;
        }
        if self.reads_left == 0 {
            return;
        }
        self.reads_left -= 1;
        let files = match self.loader.places.read() {
            Ok(files) => files,
            Err(fault) => return self.cannot_read(&fault.into()),
        };
        self.unreadable = false;
        // Changed while they were read: some may be of before and some of after.
        if !self.loader.places.stamp().is_ok_and(|after| after == stamp) {
            self.stamp = None;
            return;
        }
        let fingerprint = Fingerprint::of(&files);
        if self.seen == fingerprint {
            // They could not be read for a while, and that was told as a refusal.
            if self.in_force == fingerprint {
                self.telemetry.still_loaded();
            }
            return;
        }
        self.seen = fingerprint;
        match self.loader.compile(&files, self.next) {
            Ok(loaded) => replace(self.take(loaded)),
            Err(failure) => self.refuse(&failure),
        }
    }

    fn take(&mut self, loaded: Loaded) -> Arc<Policy> {
        log_warnings(&loaded.warnings);
        tracing::info!(
            files = loaded.files,
            rules = loaded.policy.rules().len(),
            fingerprint = %loaded.fingerprint,
            "policy reloaded"
        );
        let names = rule_names(&loaded.policy);
        self.telemetry.loaded(self.next, names, loaded.fingerprint, Clock::System.now());
        self.in_force = loaded.fingerprint;
        self.next = next_number(&loaded.policy, self.next);
        Arc::new(loaded.policy)
    }

    /// Once, until the files can be read again; then they are looked at as if they were new.
    fn cannot_read(&mut self, failure: &Failure) {
        self.stamp = None;
        if !self.unreadable {
            self.unreadable = true;
            self.refuse(failure);
        }
    }

    fn refuse(&self, failure: &Failure) {
        self.telemetry.not_loaded();
        let text = failure.to_string();
        let faults = text.lines().count();
        for fault in text.lines().take(LOGGED_MAX) {
            tracing::error!(fault, "policy not reloaded: a fault");
        }
        tracing::error!(faults, "policy not reloaded: the last good one stays in force");
    }
}

fn next_number(policy: &Policy, first: RuleId) -> RuleId {
    // A policy of 64 MiB has fewer rules than a u32 counts; wrapping keeps neighbours apart.
    RuleId(first.0.wrapping_add(u32::try_from(policy.rules().len()).unwrap_or(u32::MAX)))
}

/// The policy's rules as metrics name them, in the order of their numbers.
pub(super) fn rule_names(policy: &Policy) -> impl Iterator<Item = RuleName> {
    policy
        .rules()
        .iter()
        .map(|rule| RuleName { domain: policy.domain_name(rule).into(), path: rule.path.clone() })
}

pub(super) fn log_warnings(warnings: &[Diagnostic]) {
    for warning in warnings.iter().take(LOGGED_MAX) {
        tracing::warn!(warning = %warning, "policy: a warning");
    }
    if warnings.len() > LOGGED_MAX {
        let more = warnings.len() - LOGGED_MAX;
        tracing::warn!(more, "policy: more warnings; `tidegate check` shows them all");
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::sync::Mutex;

    use super::*;
    use crate::app::settings::{Settings, Sources};
    use crate::telemetry::{Scrape, Shown};

    const ONE: &str = "domain: edge\ndescriptors:\n  - key: a\n    rate_limit: {unit: second}\n";
    const ANOTHER: &str = "  - key: b\n    rate_limit: {unit: second}\n";

    const THIRD: &str = "  - key: c\n    rate_limit: {unit: second}\n";

    fn watch(path: &Path) -> Reload {
        let flags = [("policy".to_owned(), path.display().to_string())];
        let sources = Sources { flags: flags.into(), ..Sources::default() };
        let loader = Loader::of(&Settings::read(&sources).unwrap().0).unwrap();
        let loaded = loader.load(RuleId(0)).unwrap();
        Reload::new(loader, &loaded, Arc::new(Telemetry::new(0.8)), Duration::from_secs(1))
    }

    #[test]
    fn a_file_that_is_still_being_written_is_not_put_in_force() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("policy.yaml");
        fs::write(&path, [ONE, ANOTHER].concat()).unwrap();
        let mut reload = watch(&path);
        let rules = Mutex::new(Vec::new());
        let replace = |policy: Arc<Policy>| rules.lock().unwrap().push(policy.rules().len());
        reload.poll(&replace);
        fs::write(&path, ONE).unwrap();
        reload.poll(&replace);
        fs::write(&path, [ONE, ANOTHER, THIRD].concat()).unwrap();
        reload.poll(&replace);
        assert!(rules.lock().unwrap().is_empty(), "half of it was a valid policy");
        reload.poll(&replace);
        assert_eq!(*rules.lock().unwrap(), [3]);
    }

    const FAULTY: &str = "domain: edge\ndescriptors:\n  - key: a\n    rate_limit: {unit: second";

    /// Polls until a change is read and its content looked at; whether the last reload is shown as
    /// good, and how many loads and refusals are.
    fn settled(reload: &mut Reload) -> [u64; 3] {
        (0..=READS_AFTER_CHANGE + 1).for_each(|_| reload.poll(&|_| {}));
        let shown = Shown::new(Arc::clone(&reload.telemetry), Vec::new());
        let text = Scrape::new(Arc::new(shown)).text().unwrap();
        ["last_reload_successful", "load_success_total", "load_error_total"].map(|name| {
            let begin = format!("tidegate_config_{name} ");
            text.lines().find_map(|line| line.strip_prefix(&begin)).unwrap().parse().unwrap()
        })
    }

    /// A watch over `ONE`; its directory, which goes with the first value, and the file.
    fn watch_one() -> (tempfile::TempDir, std::path::PathBuf, Reload) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("policy.yaml");
        fs::write(&path, ONE).unwrap();
        let mut reload = watch(&path);
        reload.telemetry.loaded(RuleId(0), [], "", crate::domain::Micros(1));
        assert_eq!(settled(&mut reload), [1, 1, 0], "the start was good");
        (directory, path, reload)
    }

    #[test]
    fn a_refused_policy_is_shown_until_the_file_is_mended_or_rolled_back() {
        let (_directory, path, mut reload) = watch_one();
        fs::write(&path, FAULTY).unwrap();
        assert_eq!(settled(&mut reload), [0, 1, 1]);
        assert_eq!(settled(&mut reload), [0, 1, 1], "it stays, and is counted once");
        fs::write(&path, [ONE, ANOTHER].concat()).unwrap();
        assert_eq!(settled(&mut reload), [1, 2, 1]);
        fs::write(&path, FAULTY).unwrap();
        assert_eq!(settled(&mut reload), [0, 2, 2]);
        fs::write(&path, [ONE, ANOTHER].concat()).unwrap();
        assert_eq!(settled(&mut reload)[0], 1, "back to what is in force");
    }

    #[test]
    fn a_file_that_comes_back_is_as_good_as_it_was() {
        let (_directory, path, mut reload) = watch_one();
        fs::remove_file(&path).unwrap();
        assert_eq!(settled(&mut reload), [0, 1, 1]);
        fs::write(&path, ONE).unwrap();
        assert_eq!(settled(&mut reload), [1, 1, 1], "in force all the time: nothing to load");
        fs::write(&path, FAULTY).unwrap();
        assert_eq!(settled(&mut reload), [0, 1, 2]);
        fs::remove_file(&path).unwrap();
        assert_eq!(settled(&mut reload), [0, 1, 3]);
        fs::write(&path, FAULTY).unwrap();
        assert_eq!(settled(&mut reload), [0, 1, 3], "readable, and still refused");
        fs::write(&path, ONE).unwrap();
        assert_eq!(settled(&mut reload)[0], 1);
    }
}
