//! Waiting for a condition, with a deadline.

use std::thread::sleep;
use std::time::{Duration, Instant};

/// Long enough for a machine that compiles beside the tests; only a broken test ever waits for it.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Between two looks: short against what is waited for, long against what a look costs.
const PAUSE: Duration = Duration::from_millis(5);

/// The first thing that `look` finds.
///
/// # Panics
///
/// If it finds nothing within [`PATIENCE`]: says what was waited for.
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "still waiting for {what} after {PATIENCE:?}");
        sleep(PAUSE);
    }
}
