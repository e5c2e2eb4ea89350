//! Overrides of the file `--overrides`, read again whenever it has changed.
//!
//! Not here: parsing YAML (`files_and_env`), an override as JSON (`policy`).

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::OperatorOverrides;
use crate::app::process::exit_codes::Failure;
use crate::app::process::files_and_env::{FileError, FileStamp, malformed, read_json_list};
use crate::app::process::watcher_thread::{POLL_INTERVAL, WatcherThread};
use crate::domain::{OVERRIDES_MAX, RECORDS_BYTES_MAX};
use crate::policy::OverrideEntry;

/// Reads the file, and starts a thread that reads it again within a second of each change. If its content
/// becomes invalid, the last valid one stays in force.
///
/// # Errors
///
/// Returns an error if the file cannot be read, or the thread cannot be started.
pub(crate) fn watch(
    path: PathBuf,
    overrides: Arc<OperatorOverrides>,
) -> Result<WatcherThread, Failure> {
    let stamp_of = |path: &Path| Some(FileStamp::from_metadata(&fs::metadata(path).ok()?));
    let mut stamp = stamp_of(&path);
    overrides.replace_base(Some(read(&path)?));
    let poll = move |_| {
        let latest = stamp_of(&path);
        if latest != stamp {
            stamp = latest;
            let read = read(&path);
            match &read {
                Ok(entries) => tracing::info!(overrides = entries.len(), "overrides file reloaded"),
                Err(error) => {
                    let advice = "its former overrides stay in force";
                    tracing::error!(%error, advice, "cannot read the overrides file");
                }
            }
            overrides.replace_base(read.ok());
        }
        POLL_INTERVAL
    };
    WatcherThread::start("overrides", poll)
}

fn read(path: &Path) -> Result<Vec<OverrideEntry>, FileError> {
    let items = read_json_list(path, RECORDS_BYTES_MAX as u64)?;
    if items.len() > OVERRIDES_MAX {
        return Err(malformed(path, format!("more than {OVERRIDES_MAX} overrides")));
    }
    let mut positions = HashMap::new();
    let parse = |(at, item): (usize, String)| {
        let entry = OverrideEntry::from_json(&item)
            .map_err(|error| malformed(path, format!("override {}: {error}", at + 1)))?;
        match positions.insert(entry.id(), at + 1) {
            None => Ok(entry),
            Some(former) => {
                let reason = "have the same target and kind; remove one";
                Err(malformed(path, format!("overrides {former} and {} {reason}", at + 1)))
            }
        }
    };
    items.into_iter().enumerate().map(parse).collect()
}
