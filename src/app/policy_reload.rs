//! Watches the policy files and activates a changed policy. If the new policy has errors, the last
//! valid policy stays active.
//!
//! The watcher polls, because polling detects swapped ConfigMap links, replaced files and unmounted
//! directories on every file system. Kernel events miss some of these.

use std::sync::Arc;
use std::time::Duration;

use super::exit_codes::Failure;
use super::load_policy::{LoadedPolicy, PolicyLoader};
use super::policy_file_tracker::{PolicyFileTracker, UNSETTLED_POLLS};
use super::policy_files::{Fingerprint, escape_path};
use super::watcher_thread::WatcherSignals;
use crate::clock::Clock;
use crate::domain::RuleId;
use crate::policy::{Diagnostic, Policy};
use crate::telemetry::{RuleName, Telemetry};

/// Maximum number of diagnostics logged per load. One more line reports how many were omitted. A
/// single mistake can cause a thousand diagnostics, which would bury all other log lines.
const LOGGED_DIAGNOSTICS_MAX: usize = 20;

/// Interval between polls while a reload that a signal has requested waits for files to be complete,
/// 100 ms, or `--policy-poll` if that is shorter. A file that is being written changes more often.
const REQUESTED_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Reloader that polls the policy files and compiles them when they change.
pub(super) struct PolicyReloader {
    loader: PolicyLoader,
    telemetry: Arc<Telemetry>,
    poll_interval: Duration,
    files: PolicyFileTracker,
    /// Fingerprint of the files that were compiled last, even if they were invalid.
    last_read: Fingerprint,
    /// Fingerprint of the files of the active policy.
    active: Fingerprint,
    /// Id of the next policy's first rule.
    next_rule: RuleId,
    /// Whether a signal has requested a reload that has not ended yet.
    is_requested: bool,
    /// Whether reading the files has failed and has not succeeded since. Used to log a failure that
    /// lasts for several polls only once.
    is_unreadable: bool,
}

impl PolicyReloader {
    /// Creates a reloader whose active policy is `loaded`.
    pub(super) fn new(
        loader: PolicyLoader,
        loaded: &LoadedPolicy,
        files: PolicyFileTracker,
        telemetry: Arc<Telemetry>,
        poll_interval: Duration,
    ) -> Self {
        PolicyReloader {
            next_rule: first_rule_after(&loaded.policy, RuleId(0)),
            last_read: loaded.fingerprint,
            active: loaded.fingerprint,
            files,
            is_requested: false,
            is_unreadable: false,
            loader,
            telemetry,
            poll_interval,
        }
    }

    /// Polls until `signals` request a stop, and calls `replace` with each new policy. Runs on its
    /// own thread, because reading a large policy must not delay decisions or probes.
    pub(super) fn run(mut self, signals: &WatcherSignals, replace: impl Fn(Arc<Policy>)) {
        while !signals.is_stopped() {
            // Three polls of changing files take less than three intervals, so that with the default
            // of 1 s a change takes effect within 3 s even if other files keep changing.
            let pause = match self.files.has_incomplete_files() {
                true if self.is_requested => self.poll_interval.min(REQUESTED_POLL_INTERVAL),
                true => self.poll_interval * 3 / 4,
                false => self.poll_interval,
            };
            signals.park(pause);
            self.poll(signals.take_reload(), &replace);
        }
    }

    /// Reads the files that have changed, or every file if `all` is true, and compiles the policy
    /// if the contents have changed.
    fn poll(&mut self, all: bool, replace: &dyn Fn(Arc<Policy>)) {
        self.is_requested |= all;
        let (loader, next_rule, last_read) = (&self.loader, self.next_rule, self.last_read);
        let polled = self.files.poll(&loader.files, all, |files| {
            let fingerprint = Fingerprint::from_sources(files);
            let is_changed = fingerprint != last_read;
            (fingerprint, is_changed.then(|| loader.compile(files, next_rule)))
        });
        for file in self.files.newly_unsettled_files() {
            let (file, polls) = (escape_path(file), UNSETTLED_POLLS);
            let advice = "write a new file and rename it: half of a policy may be in force";
            tracing::warn!(file, polls, advice, "a policy file changes at every poll");
        }
        let (fingerprint, compiled) = match polled {
            Ok(Some(polled)) => polled,
            Ok(None) => return,
            Err(error) => return self.report_unreadable(&error.into()),
        };
        let was_requested = std::mem::take(&mut self.is_requested);
        self.is_unreadable = false;
        let Some(compiled) = compiled else {
            if was_requested {
                tracing::info!(%fingerprint, "policy files read again, nothing has changed");
            }
            // If the files were unreadable for a while, the metrics still show a failed reload.
            if self.active == fingerprint {
                self.telemetry.record_policy_unchanged();
            }
            return;
        };
        self.last_read = fingerprint;
        match compiled {
            Ok(loaded) => replace(self.accept(loaded)),
            Err(failure) => self.report_failure(&failure),
        }
    }

    fn accept(&mut self, loaded: LoadedPolicy) -> Arc<Policy> {
        log_warnings(&loaded.warnings);
        tracing::info!(
            files = loaded.files,
            rules = loaded.policy.rules().len(),
            fingerprint = %loaded.fingerprint,
            "policy reloaded"
        );
        let names = rule_names(&loaded.policy);
        self.telemetry.record_policy_load(
            self.next_rule,
            names,
            loaded.fingerprint,
            Clock::System.now(),
        );
        self.active = loaded.fingerprint;
        self.next_rule = first_rule_after(&loaded.policy, self.next_rule);
        Arc::new(loaded.policy)
    }

    /// Logs a failure to read the files. Further failures are not logged until a poll succeeds.
    /// Until then, every poll rereads all files, even those that have not changed.
    fn report_unreadable(&mut self, failure: &Failure) {
        self.is_requested = false;
        self.files.discard_stamps();
        if !self.is_unreadable {
            self.is_unreadable = true;
            self.report_failure(failure);
        }
    }

    fn report_failure(&self, failure: &Failure) {
        self.telemetry.record_policy_load_failure();
        let text = failure.to_string();
        for error in text.lines().take(LOGGED_DIAGNOSTICS_MAX) {
            tracing::error!(error, "policy error");
        }
        let errors = text.lines().count();
        tracing::error!(errors, "policy not reloaded, the last good one stays in force");
    }
}

/// Returns the id that follows the last rule of a policy whose first rule has the id `first`.
pub(super) fn first_rule_after(policy: &Policy, first: RuleId) -> RuleId {
    // A policy of 64 MiB has far fewer than u32::MAX rules, so even after wrapping, the numbers of
    // two consecutive policies never overlap.
    RuleId(first.0.wrapping_add(u32::try_from(policy.rules().len()).unwrap_or(u32::MAX)))
}

/// Returns the names of the rules as shown in metrics, in rule-id order.
pub(super) fn rule_names(policy: &Policy) -> impl Iterator<Item = RuleName> {
    policy.rules().iter().map(|rule| RuleName {
        domain: policy.domain_name(rule).into(),
        path: Arc::clone(&rule.path),
    })
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::sync::Mutex;

    use super::*;
    use crate::settings::{Settings, Sources};
    use crate::telemetry::{AllMetrics, MetricsPage};

    const ONE: &str = "domain: edge\ndescriptors:\n  - key: a\n    rate_limit: {unit: second}\n";
    const ANOTHER: &str = "  - key: b\n    rate_limit: {unit: second}\n";

    const THIRD: &str = "  - key: c\n    rate_limit: {unit: second}\n";

    fn reloader(path: &Path) -> PolicyReloader {
        let sources = Sources::from_flags(&[("policy", &path.display().to_string())]);
        let loader = PolicyLoader::new(&Settings::read(&sources).unwrap().0).unwrap();
        let (loaded, files) = loader.load(RuleId(0)).unwrap();
        let telemetry = Arc::new(Telemetry::new(0.8));
        PolicyReloader::new(loader, &loaded, files, telemetry, Duration::from_secs(1))
    }

    #[test]
    fn a_file_that_is_still_being_written_is_not_loaded() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("policy.yaml");
        fs::write(&path, [ONE, ANOTHER].concat()).unwrap();
        let mut reload = reloader(&path);
        let rules = Mutex::new(Vec::new());
        let replace = |policy: Arc<Policy>| rules.lock().unwrap().push(policy.rules().len());
        reload.poll(false, &replace);
        fs::write(&path, ONE).unwrap();
        reload.poll(false, &replace);
        fs::write(&path, [ONE, ANOTHER, THIRD].concat()).unwrap();
        reload.poll(false, &replace);
        assert!(rules.lock().unwrap().is_empty(), "half of it was a valid policy");
        reload.poll(false, &replace);
        assert_eq!(*rules.lock().unwrap(), [3]);
    }

    const INVALID: &str = "domain: edge\ndescriptors:\n  - key: a\n    rate_limit: {unit: second";

    /// Polls until a change is compiled. Returns three metrics: whether the last reload succeeded,
    /// successful loads, failed loads.
    fn poll_until_read(reload: &mut PolicyReloader) -> [u64; 3] {
        (0..=4).for_each(|_| reload.poll(false, &|_| {}));
        let metrics = AllMetrics::new(Arc::clone(&reload.telemetry), Vec::new());
        let text = MetricsPage::new(Arc::new(metrics)).text().unwrap();
        ["last_reload_successful", "load_success_total", "load_error_total"].map(|name| {
            let begin = format!("tidegate_config_{name} ");
            text.lines().find_map(|line| line.strip_prefix(&begin)).unwrap().parse().unwrap()
        })
    }

    /// Returns a temporary directory, the path of a policy file in it that contains `ONE`, and a
    /// reloader for that file. Dropping the first value deletes the directory.
    fn reloader_of_one() -> (tempfile::TempDir, std::path::PathBuf, PolicyReloader) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("policy.yaml");
        fs::write(&path, ONE).unwrap();
        let mut reload = reloader(&path);
        reload.telemetry.record_policy_load(RuleId(0), [], "", crate::domain::Micros(1));
        assert_eq!(poll_until_read(&mut reload), [1, 1, 0], "the start was good");
        (directory, path, reload)
    }

    #[test]
    fn an_invalid_policy_shows_in_metrics_until_it_is_fixed_or_rolled_back() {
        let (_directory, path, mut reload) = reloader_of_one();
        fs::write(&path, INVALID).unwrap();
        assert_eq!(poll_until_read(&mut reload), [0, 1, 1]);
        assert_eq!(poll_until_read(&mut reload), [0, 1, 1], "it stays, and is counted once");
        fs::write(&path, [ONE, ANOTHER].concat()).unwrap();
        assert_eq!(poll_until_read(&mut reload), [1, 2, 1]);
        fs::write(&path, INVALID).unwrap();
        assert_eq!(poll_until_read(&mut reload), [0, 2, 2]);
        fs::write(&path, [ONE, ANOTHER].concat()).unwrap();
        assert_eq!(poll_until_read(&mut reload)[0], 1, "back to what is in force");
    }

    #[test]
    fn every_policy_gets_new_rule_ids() {
        // A call in flight counts on the rules of its own policy.
        let (_directory, path, mut reload) = reloader_of_one();
        let policies = Mutex::new(Vec::new());
        for text in [[ONE, ANOTHER].concat(), ONE.to_owned(), [ONE, THIRD].concat()] {
            fs::write(&path, text).unwrap();
            for _ in 0..3 {
                reload.poll(false, &|policy| policies.lock().unwrap().push(policy));
            }
        }
        let policies = policies.into_inner().unwrap();
        let numbers: Vec<u32> = policies
            .iter()
            .flat_map(|policy| policy.rules().iter().map(|rule| rule.id.0))
            .collect();
        assert_eq!(numbers, [1, 2, 3, 4, 5]);
    }

    #[test]
    fn an_unreadable_file_that_returns_unchanged_counts_as_loaded() {
        let (_directory, path, mut reload) = reloader_of_one();
        fs::remove_file(&path).unwrap();
        assert_eq!(poll_until_read(&mut reload), [0, 1, 1]);
        fs::write(&path, ONE).unwrap();
        assert_eq!(
            poll_until_read(&mut reload),
            [1, 1, 1],
            "in force all the time: nothing to load"
        );
        fs::write(&path, INVALID).unwrap();
        assert_eq!(poll_until_read(&mut reload), [0, 1, 2]);
        fs::remove_file(&path).unwrap();
        assert_eq!(poll_until_read(&mut reload), [0, 1, 3]);
        fs::write(&path, INVALID).unwrap();
        assert_eq!(poll_until_read(&mut reload), [0, 1, 3], "readable, and still refused");
        fs::write(&path, ONE).unwrap();
        assert_eq!(poll_until_read(&mut reload)[0], 1);
        fs::write(&path, [ONE, ANOTHER].concat()).unwrap();
        let [_, loads, failures] = poll_until_read(&mut reload);
        fs::remove_file(&path).unwrap();
        assert_eq!(poll_until_read(&mut reload), [0, loads, failures + 1]);
        fs::write(&path, [ONE, ANOTHER].concat()).unwrap();
        assert_eq!(poll_until_read(&mut reload), [1, loads, failures + 1], "a reloaded policy too");
    }

    #[test]
    fn a_directory_that_returns_unchanged_counts_as_loaded() {
        let parent = tempfile::tempdir().unwrap();
        let [mounted, unmounted] = ["mounted", "unmounted"].map(|name| parent.path().join(name));
        fs::create_dir(&mounted).unwrap();
        fs::write(mounted.join("policy.yaml"), ONE).unwrap();
        let mut reload = reloader(&mounted);
        reload.telemetry.record_policy_load(RuleId(0), [], "", crate::domain::Micros(1));
        assert_eq!(poll_until_read(&mut reload), [1, 1, 0]);
        // The files keep their stamps, unlike a file that is written again.
        fs::rename(&mounted, &unmounted).unwrap();
        assert_eq!(poll_until_read(&mut reload), [0, 1, 1]);
        fs::rename(&unmounted, &mounted).unwrap();
        assert_eq!(poll_until_read(&mut reload), [1, 1, 1]);
    }
}
