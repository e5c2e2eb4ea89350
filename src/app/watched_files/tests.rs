//! Tests of the watched files: which polls read which files.

use std::fs;

use super::*;
use crate::settings::{Settings, Sources};

fn policy_files(directory: &Path) -> PolicyFiles {
    let sources = Sources::from_flags(&[("policy", &directory.display().to_string())]);
    PolicyFiles::new(&Settings::read(&sources).unwrap().0).unwrap()
}

fn texts(files: &WatchedFiles) -> Vec<&str> {
    let sources = files.sources().into_iter();
    sources.map(|source| str::from_utf8(&source.text).unwrap()).collect()
}

/// Returns a directory with two policy files, its configuration, and their state after a poll
/// that has found both files complete.
fn two_watched_files() -> (tempfile::TempDir, PolicyFiles, WatchedFiles) {
    let directory = tempfile::tempdir().unwrap();
    for name in ["a", "b"] {
        fs::write(directory.path().join(name).with_extension("yaml"), name).unwrap();
    }
    let files = policy_files(directory.path());
    let mut watched = WatchedFiles::read_all(&files).unwrap();
    assert!(!watched.poll(&files).unwrap(), "nothing has changed");
    (directory, files, watched)
}

#[test]
fn a_file_that_changes_while_it_is_read_keeps_its_last_complete_contents() {
    let (directory, files, mut watched) = two_watched_files();
    let path = directory.path().join("a.yaml");
    fs::write(&path, "new").unwrap();
    watched.update(files.list().unwrap());
    watched.update(files.list().unwrap());
    // The listing says that the file is complete, but it is written once more before it is
    // read.
    fs::write(&path, "newer").unwrap();
    watched.read(&files).unwrap();
    assert!(!watched.has_changed);
    assert_eq!(texts(&watched), ["a", "b"]);
    for _ in 0..2 {
        watched.poll(&files).unwrap();
    }
    assert_eq!(texts(&watched), ["newer", "b"]);
}

#[test]
fn a_removed_file_counts_as_removed_at_the_second_poll() {
    let (directory, files, mut watched) = two_watched_files();
    fs::remove_file(directory.path().join("a.yaml")).unwrap();
    assert!(!watched.poll(&files).unwrap(), "it may be being replaced");
    assert!(watched.poll(&files).unwrap());
    assert_eq!(texts(&watched), ["b"]);
}

#[test]
fn a_change_takes_effect_at_the_third_poll_while_other_files_keep_changing() {
    let (directory, files, mut watched) = two_watched_files();
    fs::write(directory.path().join("a.yaml"), "a2").unwrap();
    let polls = [1, 2, 3].map(|poll| {
        let file = |name: String| directory.path().join(name);
        fs::write(file(format!("c{poll}.yaml")), "half").unwrap();
        let has_changed = watched.poll(&files).unwrap();
        fs::remove_file(file(format!("c{poll}.yaml"))).unwrap();
        has_changed
    });
    assert_eq!(polls, [false, false, true], "c may become complete");
    assert_eq!(texts(&watched), ["a2", "b"], "no c was there for three polls");
}

#[test]
fn a_file_that_changes_at_every_poll_is_read_from_the_third_on() {
    let (directory, files, mut watched) = two_watched_files();
    for poll in 1..=14 {
        let written = "b".repeat(poll + 1);
        fs::write(directory.path().join("b.yaml"), &written).unwrap();
        assert_eq!(watched.poll(&files).unwrap(), poll >= 3, "b may become complete");
        assert_eq!(watched.newly_unsettled().count(), usize::from(poll == 10));
        if poll >= 3 {
            assert_eq!(texts(&watched), ["a", &written]);
        }
    }
}

/// Replaces a file by renaming a complete one.
fn replace(directory: &Path, name: &str, text: &str) {
    fs::write(directory.join(".new"), text).unwrap();
    fs::rename(directory.join(".new"), directory.join(name)).unwrap();
}

#[test]
fn a_file_that_was_replaced_by_renaming_is_read_at_the_next_poll() {
    let (directory, files, mut watched) = two_watched_files();
    for round in 0..20 {
        let text = format!("a{round}");
        replace(directory.path(), "a.yaml", &text);
        assert!(watched.poll(&files).unwrap());
        assert_eq!(texts(&watched), [&text, "b"]);
    }
    // Several files in one poll, and one that is not complete.
    replace(directory.path(), "a.yaml", "new a");
    replace(directory.path(), "b.yaml", "new b");
    assert!(watched.poll(&files).unwrap());
    assert_eq!(texts(&watched), ["new a", "new b"]);
    replace(directory.path(), "a.yaml", "newer a");
    fs::write(directory.path().join("b.yaml"), "half of b").unwrap();
    assert!(!watched.poll(&files).unwrap(), "they take effect together");
    assert!(watched.poll(&files).unwrap());
    assert_eq!(texts(&watched), ["newer a", "half of b"]);
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
    let mut watched = WatchedFiles::read_all(&files).unwrap();
    for round in 1..20 {
        swap(round);
        assert!(watched.poll(&files).unwrap());
        assert_eq!(texts(&watched), [format!("a.yaml {round}"), format!("b.yaml {round}")]);
    }
}

#[test]
fn a_requested_reload_waits_for_a_file_that_is_being_written() {
    let (directory, files, mut watched) = two_watched_files();
    watched.reread();
    assert!(watched.poll(&files).unwrap(), "every file is read");
    assert_eq!(texts(&watched), ["a", "b"]);
    fs::write(directory.path().join("a.yaml"), "half").unwrap();
    watched.reread();
    assert!(!watched.poll(&files).unwrap());
    fs::write(directory.path().join("a.yaml"), "half and half").unwrap();
    watched.reread();
    assert!(!watched.poll(&files).unwrap());
    assert!(watched.incomplete_polls > 0, "the next poll comes soon");
    assert!(watched.poll(&files).unwrap());
    assert_eq!(texts(&watched), ["half and half", "b"]);
}

#[test]
fn files_changed_one_after_the_other_take_effect_together() {
    let (directory, files, mut watched) = two_watched_files();
    fs::write(directory.path().join("a.yaml"), "a2").unwrap();
    assert!(!watched.poll(&files).unwrap());
    fs::write(directory.path().join("b.yaml"), "b2").unwrap();
    assert!(!watched.poll(&files).unwrap(), "the second file is not complete");
    assert!(watched.poll(&files).unwrap());
    assert_eq!(texts(&watched), ["a2", "b2"]);
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
    let mut watched = WatchedFiles::read_all(&files).unwrap();
    assert!(!watched.poll(&files).unwrap());
    write("b.yaml", 1_025);
    watched.reread();
    assert!(!watched.poll(&files).unwrap());
    let error = watched.poll(&files).unwrap_err().to_string();
    assert!(error.ends_with("b.yaml: more than 2048 bytes (--policy-size)"), "{error}");
}
