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
        // Boxed, because tokio copies a task when it starts and, three times, when it ends. That
        // took more instructions than the allocation.
        tokio::spawn(CallTask { call: Box::pin(call), place, stats });
    }
}

/// Task of one call. The call is dropped first: what it holds is free when its place is.
struct CallTask<F> {
    call: Pin<Box<F>>,
    place: CallPlace,
    stats: Arc<ConnectionStats>,
}

impl<F: Future<Output = ()>> Future for CallTask<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let CallTask { call, place, stats } = &mut *self;
        place.poll(cx, |cx| call.as_mut().poll(cx)).map(|ended| {
            if ended.is_none() {
                stats.calls_over_budget.fetch_add(1, Ordering::Relaxed);
            }
        })
    }
}
