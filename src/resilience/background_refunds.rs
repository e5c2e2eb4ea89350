//! Runs refunds in background tasks, so that no caller waits for a refund.

use crate::store::owned_tasks::OwnedTasks;

/// Maximum number of concurrent refunds; further refunds are dropped. A refund is one pipelined
/// write, so this many are in progress only if the store is unavailable. If a refund is dropped,
/// its hits stay charged until their window ends or their bucket refills.
const REFUNDS_MAX: usize = 1_024;

/// Runs a refund in a background task, one of `tasks`, which are refunds only. Returns false if the
/// refund is dropped, because [`REFUNDS_MAX`] are in progress or there is no tokio runtime.
pub(crate) fn start_refund(
    tasks: &OwnedTasks,
    refund: impl Future<Output = ()> + Send + 'static,
) -> bool {
    tasks.running() < REFUNDS_MAX && tasks.spawn(refund)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn refunds_beyond_the_bound_are_dropped_until_one_ends() {
        let refunds = OwnedTasks::default();
        let (end, ended) = tokio::sync::oneshot::channel::<()>();
        assert!(start_refund(&refunds, async move { drop(ended.await) }));
        for _ in 1..REFUNDS_MAX {
            assert!(start_refund(&refunds, std::future::pending()));
        }
        assert!(!start_refund(&refunds, async {}));
        end.send(()).unwrap();
        tokio::task::yield_now().await;
        assert!(start_refund(&refunds, async {}));
    }

    #[test]
    fn refunds_of_a_runtime_that_has_ended_make_room_for_others() {
        let refunds = OwnedTasks::default();
        let runtime = || tokio::runtime::Builder::new_current_thread().build().unwrap();
        for _ in 0..2 {
            // Dropped at the end of the statement, with all of its tasks.
            runtime().block_on(async {
                for _ in 0..REFUNDS_MAX {
                    assert!(start_refund(&refunds, std::future::pending()));
                }
            });
        }
    }

    #[test]
    fn without_a_runtime_a_refund_is_dropped() {
        assert!(!start_refund(&OwnedTasks::default(), async {}));
    }
}
