//! Threads that watch files, one for each group of files. If a file system hangs, only the threads
//! that read from it block. Decisions, probes and reads from other file systems are not delayed.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use super::exit_codes::Failure;
use crate::domain::Lock;

/// Interval between polls of policy files, certificates, and secrets, 1 s. A rollout takes longer:
/// the kubelet updates the files of a ConfigMap about once a minute. Listing 10,000 files, the
/// maximum, takes a few percent of a core at this interval.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Thread that polls files for changes until this value is dropped.
#[derive(Debug)]
pub(crate) struct WatcherThread(SyncSender<()>);

/// Reason for a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Poll {
    /// The interval has passed.
    Scheduled,
    /// A signal has requested a reload of all files.
    Requested,
}

impl WatcherThread {
    /// Starts a thread that calls `poll` after [`POLL_INTERVAL`], after each pause that `poll`
    /// returns, and at each requested reload. Dropping the `WatcherThread` does not wait for the
    /// thread to end, because a file system may hang.
    ///
    /// # Errors
    ///
    /// Returns [`Failure::Unavailable`] if the thread cannot be started.
    pub(crate) fn start(
        name: &str,
        mut poll: impl FnMut(Poll) -> Duration + Send + 'static,
    ) -> Result<WatcherThread, Failure> {
        let (requests, requested) = sync_channel(1);
        let run = move || {
            let mut pause = POLL_INTERVAL;
            loop {
                pause = match requested.recv_timeout(pause) {
                    Ok(()) => poll(Poll::Requested),
                    Err(RecvTimeoutError::Timeout) => poll(Poll::Scheduled),
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            }
        };
        thread::Builder::new().name(name.to_owned()).spawn(run).map_err(Failure::runtime)?;
        Ok(WatcherThread(requests))
    }

    /// Makes the thread read all files immediately.
    pub(crate) fn reload(&self) {
        // If the channel is full, a reload is due anyway.
        let _ = self.0.try_send(());
    }
}

/// Value, such as a password, that a background thread rereads from its file every second. Getting
/// the value never blocks: while the file system hangs, the last value remains available.
#[derive(Debug)]
pub(crate) struct WatchedValue<T> {
    value: Arc<Lock<Option<T>>>,
    /// Ends the thread when it is dropped.
    _thread: WatcherThread,
}

impl<T: Clone + Send + 'static> WatchedValue<T> {
    /// Starts a thread that calls `read` once a second until this `WatchedValue` is dropped. When
    /// `read` starts to fail, calls `on_failure`. The value is then unavailable until `read`
    /// succeeds again.
    ///
    /// # Errors
    ///
    /// Returns an error if the first `read` fails or the thread cannot be started.
    pub(crate) fn start(
        name: &str,
        read: impl Fn() -> Result<T, Failure> + Send + 'static,
        on_failure: fn(&Failure),
    ) -> Result<WatchedValue<T>, Failure> {
        let value = Arc::new(Lock::new(Some(read()?)));
        let latest = Arc::clone(&value);
        let poll = move |_| {
            let read = read();
            if let Err(error) = &read
                && latest.lock().is_some()
            {
                on_failure(error);
            }
            *latest.lock() = read.ok();
            POLL_INTERVAL
        };
        Ok(WatchedValue { value, _thread: WatcherThread::start(name, poll)? })
    }

    /// Returns the value from the last read, or `None` if the last read failed.
    pub(crate) fn get(&self) -> Option<T> {
        self.value.lock().clone()
    }
}
