//! A profile of where this process spends its CPU, in the format of pprof.
//!
//! A timer interrupts whatever runs, and the stack is followed by its frame pointers: that takes no
//! lock, allocates nothing and reads no memory without having tried it. The other ways of the
//! crate may end the process: unwinding by tables inside a signal handler, and reading those tables
//! there at the first sample. The price: frame pointers are needed (the container's build has them;
//! else `RUSTFLAGS="-C force-frame-pointers=yes"`), and a sample begins with the caller of the
//! function that was interrupted.
//!
//! Not here: who may ask (`admin`).

use std::env;
use std::path::Path;
use std::time::Duration;

use pprof::ProfilerGuardBuilder;
use pprof::protos::Message as _;

/// Samples for each second of CPU time: not a divisor of what programs do in round intervals.
const FREQUENCY: i32 = 99;

/// Where samples go that do not fit into memory, if there is no directory for temporary files: an
/// empty container has none, but it has this.
const SHARED_MEMORY: &str = "/dev/shm";

/// Profiles the process for so long. One at a time.
///
/// # Errors
///
/// Why it cannot be done, in words.
pub(super) async fn profile(lasts: Duration) -> Result<Vec<u8>, String> {
    if !env::temp_dir().is_dir() && Path::new(SHARED_MEMORY).is_dir() {
        // It fails where it was done before: then it is as it should be.
        let _ = tempfile::env::override_temp_dir(Path::new(SHARED_MEMORY));
    }
    let guard = ProfilerGuardBuilder::default().frequency(FREQUENCY).build();
    let guard = guard.map_err(|error| format!("no profile: {error}"))?;
    tracing::info!(seconds = lasts.as_secs(), "profiling");
    tokio::time::sleep(lasts).await;
    // Finding the functions' names takes a while.
    let encoded = tokio::task::spawn_blocking(move || {
        let profile = guard.report().build().and_then(|report| report.pprof());
        let profile = profile.map_err(|error| format!("no profile: {error}"))?;
        profile.write_to_bytes().map_err(|error| format!("no profile: {error}"))
    });
    encoded.await.map_err(|error| format!("no profile: {error}"))?
}
