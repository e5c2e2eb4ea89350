//! Waits for a condition or a future, with a deadline.

use std::future::Future;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Long enough for a machine that compiles beside the tests; only a failing test waits this long.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Time between two polls: short beside what is waited for, long beside the cost of a poll.
const PAUSE: Duration = Duration::from_millis(5);

/// Polls `look` until it returns a value; panics after [`PATIENCE`] and names what it waited for.
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

/// Waits until something is so.
pub fn until_so(what: &str, mut is_so: impl FnMut() -> bool) {
    until(what, || is_so().then_some(()));
}

/// Awaits a future; panics after `patience` and names what it waited for.
pub async fn within<T>(patience: Duration, what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(patience, future).await.unwrap_or_else(|_| panic!("{what}: not in time"))
}
