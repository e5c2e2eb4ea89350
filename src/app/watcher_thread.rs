//! Threads that watch files, one for each group of files. If a file system hangs, only the threads
//! that read from it block. Decisions, probes and reads from other file systems are not delayed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use super::exit_codes::Failure;
use crate::clock::Clock;

/// Thread that polls files for changes until it is stopped.
pub(super) struct WatcherThread {
    signals: Arc<WatcherSignals>,
    thread: thread::JoinHandle<()>,
}

/// Flags that make a [`WatcherThread`] stop or read all files again.
#[derive(Debug, Default)]
pub(super) struct WatcherSignals {
    stop: AtomicBool,
    reload: AtomicBool,
}

impl WatcherSignals {
    pub(super) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Parks the thread until `pause` has passed, or a stop or a reload is requested. A park can end
    /// for another reason: the end of a scoped thread unparks the thread that has started it.
    pub(super) fn park(&self, pause: Duration) {
        let end = Clock::System.monotonic_now() + pause;
        while !self.is_stopped() && !self.reload.load(Ordering::Relaxed) {
            let left = end.saturating_duration_since(Clock::System.monotonic_now());
            if left.is_zero() {
                return;
            }
            thread::park_timeout(left);
        }
    }

    /// Returns whether a reload of all files was requested, and clears the request.
    pub(super) fn take_reload(&self) -> bool {
        self.reload.swap(false, Ordering::Relaxed)
    }
}

impl WatcherThread {
    /// Starts a thread that calls `run`. `run` must park the thread between polls, and return once
    /// its signals request a stop.
    ///
    /// # Errors
    ///
    /// Returns [`Failure::Runtime`] if the thread cannot be started.
    pub(super) fn start(
        name: &str,
        run: impl FnOnce(&WatcherSignals) + Send + 'static,
    ) -> Result<WatcherThread, Failure> {
        let signals = Arc::new(WatcherSignals::default());
        let of_thread = Arc::clone(&signals);
        let thread = thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || run(&of_thread))
            .map_err(Failure::Runtime)?;
        Ok(WatcherThread { signals, thread })
    }

    /// Makes the thread read all files immediately.
    pub(super) fn reload(&self) {
        self.signals.reload.store(true, Ordering::Relaxed);
        self.thread.thread().unpark();
    }

    /// Makes the thread end after its current poll. Does not wait for the thread to end, because a
    /// file system may hang.
    pub(super) fn stop(&self) {
        self.signals.stop.store(true, Ordering::Relaxed);
        self.thread.thread().unpark();
    }
}

/// Interval at which small files, such as password files, are reread, 1 s.
const READ_INTERVAL: Duration = Duration::from_secs(1);

/// Value, such as a password, that a background thread rereads from its file every second. Getting
/// the value never blocks: while the file system hangs, the last value remains available.
#[derive(Debug)]
pub(super) struct WatchedValue<T>(Arc<Mutex<Option<T>>>);

impl<T: Clone + Send + 'static> WatchedValue<T> {
    /// Starts a thread that calls `read` once a second until this `WatchedValue` is dropped. When
    /// `read` starts to fail, calls `on_failure`. The value is then unavailable until `read`
    /// succeeds again.
    ///
    /// # Errors
    ///
    /// Returns an error if the first `read` fails or the thread cannot be started.
    pub(super) fn start(
        name: &str,
        read: impl Fn() -> Result<T, Failure> + Send + 'static,
        on_failure: fn(&Failure),
    ) -> Result<WatchedValue<T>, Failure> {
        let value = Arc::new(Mutex::new(Some(read()?)));
        let of_thread = Arc::downgrade(&value);
        thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || watch(&of_thread, read, on_failure))
            .map_err(Failure::Runtime)?;
        Ok(WatchedValue(value))
    }

    /// Returns the value from the last read, or `None` if the last read failed.
    pub(super) fn get(&self) -> Option<T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn watch<T>(
    value: &Weak<Mutex<Option<T>>>,
    read: impl Fn() -> Result<T, Failure>,
    on_failure: fn(&Failure),
) {
    let mut has_failed = false;
    loop {
        thread::sleep(READ_INTERVAL);
        let read = read();
        let Some(value) = value.upgrade() else { return };
        if let Err(error) = &read
            && !has_failed
        {
            on_failure(error);
        }
        has_failed = read.is_err();
        *value.lock().unwrap_or_else(PoisonError::into_inner) = read.ok();
    }
}
