//! Mutex that a panic does not close.
//!
//! Not here: what needs one (each module says so).

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Mutex that stays usable after a thread has panicked while holding it: a panic ends one call, not
/// those after it. What it protects is consistent after every statement.
#[derive(Debug, Default)]
pub struct Lock<T>(Mutex<T>);

impl<T> Lock<T> {
    /// Creates an unlocked mutex.
    pub const fn new(value: T) -> Self {
        Lock(Mutex::new(value))
    }

    /// Waits for the mutex, and locks it until the guard is dropped.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the protected value.
    pub fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}
