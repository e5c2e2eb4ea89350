//! Tasks of the calls on a connection. A call that has to make room for others ends, which resets
//! its stream: hyper does not poll the body of an answer that the client does not read, so only the
//! task can be ended.
//!
//! Not here: which call has to make room (`domain::held_memory`).

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use hyper::rt::Executor;
use pin_project_lite::pin_project;

use super::connection_stats::ConnectionStats;
use crate::domain::{CallPlace, CallerMemory};

/// Executor that spawns the calls of one connection on the connection's thread.
#[derive(Clone, Debug)]
pub(crate) struct CallTasks {
    pub(crate) memory: Arc<CallerMemory>,
    pub(crate) stats: Arc<ConnectionStats>,
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for CallTasks {
    fn execute(&self, call: F) {
        let place = CallPlace::new(&self.memory);
        let stats = Arc::clone(&self.stats);
        tokio::spawn(CallTask { call, place, stats });
    }
}

pin_project! {
    // The call is dropped first: what it holds is free when its place is.
    struct CallTask<F> {
        #[pin]
        call: F,
        place: CallPlace,
        stats: Arc<ConnectionStats>,
    }
}

impl<F: Future<Output = ()>> Future for CallTask<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        let call = this.call;
        this.place.poll(cx, |cx| call.poll(cx)).map(|ended| {
            if ended.is_none() {
                this.stats.calls_over_budget.fetch_add(1, Ordering::Relaxed);
            }
        })
    }
}
