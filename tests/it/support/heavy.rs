//! Turns for tests that load the whole machine.

use tokio::sync::{Semaphore, SemaphorePermit};

/// Two at a time: most of a heavy test is waiting. More would starve each other on a small machine, and
/// their calls would miss deadlines that no test is about.
static TURNS: Semaphore = Semaphore::const_new(2);

/// Waits until fewer than two other heavy tests run. The turn ends when the permit is dropped.
///
/// A test is heavy if it starts half a dozen processes or keeps every core busy.
pub async fn turn() -> SemaphorePermit<'static> {
    TURNS.acquire().await.expect("it is never closed")
}

/// The same for a test without a runtime.
pub fn blocking_turn() -> SemaphorePermit<'static> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(turn())
}
