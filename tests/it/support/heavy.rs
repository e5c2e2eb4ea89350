//! Turns for tests that load the whole machine.

use tokio::sync::{Mutex, MutexGuard};

static TURN: Mutex<()> = Mutex::const_new(());

/// Waits until no other heavy test runs; the next one waits until the guard is dropped.
///
/// A test is heavy if it starts half a dozen processes or keeps every core busy. Two at once starve
/// each other on a small machine, and their calls miss deadlines that no test is about.
pub async fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().await
}

/// The same for a test without a runtime.
pub fn blocking_turn() -> MutexGuard<'static, ()> {
    TURN.blocking_lock()
}
