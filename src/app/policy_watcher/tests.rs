//! Tests of the watcher: what a reload reports.

use std::fs;
use std::path::Path;

use super::*;
use crate::policy::Secret;
use crate::settings::{Settings, Sources};
use crate::telemetry::{MetricsPage, Telemetry};

const ONE: &str = "domain: edge\ndescriptors:\n  - key: a\n    rate_limit: {unit: second}\n";
const ANOTHER: &str = "  - key: b\n    rate_limit: {unit: second}\n";

const THIRD: &str = "  - key: c\n    rate_limit: {unit: second}\n";

fn reloader(path: &Path) -> PolicyReloader {
    let sources = Sources::from_flags(&[("policy", &path.display().to_string())]);
    let settings = Settings::read(&sources).unwrap().0;
    let loader = PolicyLoader::new(&settings, Secret::default()).unwrap();
    let (loaded, files) = loader.load().unwrap();
    let mut active = ActivePolicy::new(Arc::new(Telemetry::new(0.8)));
    active.replace(&Arc::new(loaded.policy), loaded.fingerprint);
    PolicyReloader::new(loader, active, files)
}

#[test]
fn a_file_that_is_still_being_written_is_not_loaded() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("policy.yaml");
    fs::write(&path, [ONE, ANOTHER].concat()).unwrap();
    let mut reload = reloader(&path);
    assert!(reload.poll(Poll::Scheduled).is_none());
    for text in [ONE.to_owned(), [ONE, ANOTHER, THIRD].concat()] {
        fs::write(&path, text).unwrap();
        assert!(reload.poll(Poll::Scheduled).is_none(), "half of it was a valid policy");
    }
    let policy = reload.poll(Poll::Scheduled).expect("a new policy");
    assert_eq!(policy.rules().len(), 3);
}

const INVALID: &str = "domain: edge\ndescriptors:\n  - key: a\n    rate_limit: {unit: second";

/// Polls until a change is compiled. Returns three metrics: whether the last reload succeeded,
/// successful loads, failed loads.
fn poll_until_read(reload: &mut PolicyReloader) -> [u64; 3] {
    (0..=4).for_each(|_| drop(reload.poll(Poll::Scheduled)));
    let telemetry = Arc::clone(&reload.active.telemetry);
    let text = MetricsPage::new(Arc::new(move |sink| telemetry.emit(sink))).text().unwrap();
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
    let mut policies = Vec::new();
    for text in [[ONE, ANOTHER].concat(), ONE.to_owned(), [ONE, THIRD].concat()] {
        fs::write(&path, text).unwrap();
        policies.extend((0..3).filter_map(|_| reload.poll(Poll::Scheduled)));
    }
    let numbers: Vec<u32> =
        policies.iter().flat_map(|policy| policy.rules().iter().map(|rule| rule.id.0)).collect();
    assert_eq!(numbers, [1, 2, 3, 4, 5]);
}

#[test]
fn an_unreadable_file_that_returns_unchanged_counts_as_loaded() {
    let (_directory, path, mut reload) = reloader_of_one();
    fs::remove_file(&path).unwrap();
    assert_eq!(poll_until_read(&mut reload), [0, 1, 1]);
    fs::write(&path, ONE).unwrap();
    assert_eq!(poll_until_read(&mut reload), [1, 1, 1], "in force all the time: nothing to load");
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
    assert_eq!(poll_until_read(&mut reload), [1, 1, 0]);
    // The files keep their stamps, unlike a file that is written again.
    fs::rename(&mounted, &unmounted).unwrap();
    assert_eq!(poll_until_read(&mut reload), [0, 1, 1]);
    fs::rename(&unmounted, &mounted).unwrap();
    assert_eq!(poll_until_read(&mut reload), [1, 1, 1]);
}
