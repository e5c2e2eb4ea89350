//! Background tasks that a store owns, such as refunds, so that a shutdown can wait for them.
//!
//! Not here: what the tasks do (`resilience`, `redis`).

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::runtime::Handle;
use tokio::sync::Notify;

/// Spawner and count of background tasks. A clone counts the same tasks.
#[derive(Clone, Debug, Default)]
pub(crate) struct OwnedTasks(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    running: AtomicUsize,
    all_ended: Notify,
}

/// Guard that counts one task until it is dropped: when the task ends, panics, or is dropped
/// because its runtime shuts down.
#[derive(Debug)]
struct TaskGuard(Arc<Shared>);

impl Drop for TaskGuard {
    fn drop(&mut self) {
        if self.0.running.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.all_ended.notify_waiters();
        }
    }
}

impl OwnedTasks {
    /// Runs a task on the current tokio runtime. Returns false and drops the task if there is none.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> bool {
        let Ok(runtime) = Handle::try_current() else { return false };
        self.0.running.fetch_add(1, Ordering::AcqRel);
        let guard = TaskGuard(Arc::clone(&self.0));
        runtime.spawn(async move {
            task.await;
            drop(guard);
        });
        true
    }

    /// Returns the number of tasks that have not ended.
    pub(crate) fn running(&self) -> usize {
        self.0.running.load(Ordering::Acquire)
    }

    pub(crate) async fn wait_until_done(&self) {
        loop {
            // Created before the count is read, so that it cannot miss the end of the last task.
            let all_ended = self.0.all_ended.notified();
            if self.running() == 0 {
                return;
            }
            all_ended.await;
        }
    }
}

/// Boxes the future that `make` returns, which is constructed in the box. `Box::pin` would copy it.
pub(crate) fn box_in_place<F>(make: impl FnOnce() -> F) -> Pin<Box<F>> {
    Box::into_pin(Box::write(Box::new_uninit(), make()))
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn the_wait_ends_with_the_last_task() {
        let tasks = OwnedTasks::default();
        tasks.wait_until_done().await;
        let (end, ended) = oneshot::channel::<()>();
        assert!(tasks.spawn(async move { drop(ended.await) }));
        assert!(tasks.spawn(async { panic!("a task that fails") }));
        let mut wait = Box::pin(tasks.wait_until_done());
        assert!(futures_util::poll!(&mut wait).is_pending());
        end.send(()).unwrap();
        wait.await;
        assert_eq!(tasks.running(), 0);
    }

    #[test]
    fn tasks_of_a_runtime_that_shuts_down_are_not_counted() {
        let tasks = OwnedTasks::default();
        assert!(!tasks.spawn(async {}), "there is no runtime");
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let spawned = tasks.clone();
        runtime.block_on(async move { assert!(spawned.spawn(std::future::pending())) });
        assert_eq!(tasks.running(), 1);
        let handle = runtime.handle().clone();
        drop(runtime);
        assert_eq!(tasks.running(), 0);
        let _late = handle.enter();
        tasks.spawn(std::future::pending());
        assert_eq!(tasks.running(), 0);
    }
}
