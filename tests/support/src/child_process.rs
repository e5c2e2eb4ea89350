//! Programs that tests start: where they are, and whether they run.

use std::path::{Path, PathBuf};
use std::process::Child;
use std::{env, fs};

use crate::wait::until;

/// Where a program is looked for besides PATH, which names some of these for root only.
const MORE: [&str; 3] = ["/usr/sbin", "/usr/local/sbin", "/opt/homebrew/bin"];

/// The path of a program that `.ci/tools` installs.
pub fn find_program(name: &str) -> PathBuf {
    let path = env::var_os("PATH").unwrap_or_default();
    let mut directories = env::split_paths(&path).chain(MORE.map(PathBuf::from));
    let found = directories.find(|directory| directory.join(name).is_file());
    let directory = found.unwrap_or_else(|| panic!("{name} is missing: run `.ci/tools {name}`"));
    directory.join(name)
}

/// Polls `look` until it returns a value. Panics with the log if the process ends first.
pub fn until_running<T>(
    child: &mut Child,
    name: &str,
    log: &Path,
    mut look: impl FnMut() -> Option<T>,
) -> T {
    until(&format!("{name} to run"), || {
        if let Some(status) = child.try_wait().expect("a child") {
            panic!("{name} ended with {status}: {}", fs::read_to_string(log).unwrap_or_default());
        }
        look()
    })
}
