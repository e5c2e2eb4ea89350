//! Turns for tests that load the whole machine.
//!
//! A test is heavy if it starts half a dozen processes or keeps every core busy. Many at once starve each
//! other on a small machine, and their calls miss deadlines that no test is about.

use tokio::sync::{Semaphore, SemaphorePermit};

/// Heavy tests at a time: most of a test with half a dozen processes is waiting.
const AT_A_TIME: u32 = 2;

static TURNS: Semaphore = Semaphore::const_new(AT_A_TIME as usize);

/// Waits until at most one other heavy test runs. The turn ends when the permit is dropped.
pub async fn turn() -> SemaphorePermit<'static> {
    TURNS.acquire().await.expect("it is never closed")
}

/// Waits until no other heavy test runs: for a test that needs most of the processor.
pub async fn alone() -> SemaphorePermit<'static> {
    TURNS.acquire_many(AT_A_TIME).await.expect("it is never closed")
}

/// [`turn`] for a test without a runtime.
pub fn blocking_turn() -> SemaphorePermit<'static> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(turn())
}
