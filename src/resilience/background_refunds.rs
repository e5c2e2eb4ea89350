//! Runs refunds in background tasks, so that no caller waits for a refund.

use crate::store::owned_tasks::OwnedTasks;

/// Maximum number of concurrent refunds; further refunds are dropped. A refund is one pipelined
/// write, so this many are in progress only if the store is unavailable. If a refund is dropped,
/// its hits stay charged until their window ends or their bucket refills.
const REFUNDS_MAX: usize = 1_024;

/// Spawner of background tasks for refunds, with a bound on the refunds in progress.
#[derive(Clone, Debug, Default)]
pub(super) struct BackgroundRefunds {
    tasks: OwnedTasks,
}

impl BackgroundRefunds {
    /// Runs a refund in a background task. Returns false if the refund is dropped, because
    /// [`REFUNDS_MAX`] are in progress or there is no tokio runtime.
    pub(super) fn start(&self, refund: impl Future<Output = ()> + Send + 'static) -> bool {
        self.tasks.running() < REFUNDS_MAX && self.tasks.spawn(refund)
    }

    /// Waits until no refund is in progress.
    pub(super) async fn wait_until_done(&self) {
        self.tasks.wait_until_done().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn refunds_beyond_the_bound_are_dropped_until_one_ends() {
        let refunds = BackgroundRefunds::default();
        let (end, ended) = tokio::sync::oneshot::channel::<()>();
        assert!(refunds.start(async move { drop(ended.await) }));
        for _ in 1..REFUNDS_MAX {
            assert!(refunds.start(std::future::pending()));
        }
        assert!(!refunds.start(async {}));
        end.send(()).unwrap();
        tokio::task::yield_now().await;
        assert!(refunds.start(async {}));
    }

    #[test]
    fn refunds_of_a_runtime_that_has_ended_make_room_for_others() {
        let refunds = BackgroundRefunds::default();
        let runtime = || tokio::runtime::Builder::new_current_thread().build().unwrap();
        for _ in 0..2 {
            // Dropped at the end of the statement, with all of its tasks.
            runtime().block_on(async {
                for _ in 0..REFUNDS_MAX {
                    assert!(refunds.start(std::future::pending()));
                }
            });
        }
    }

    #[test]
    fn without_a_runtime_a_refund_is_dropped() {
        assert!(!BackgroundRefunds::default().start(async {}));
    }
}
