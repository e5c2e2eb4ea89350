//! Worker threads, each with its own single-threaded runtime. A connection and its calls stay on
//! one thread.
//!
//! On the few busy connections that Envoy opens, this design takes 40% less CPU per call than one
//! work-stealing runtime, because h2 has one lock per connection. Each new socket goes to the
//! worker with the fewest connections; with SO_REUSEPORT, the kernel would ignore the number of
//! connections. The threads start when the addresses are bound, so that Redis connections can run
//! on the threads of the calls that use them.
//!
//! Not here: accepting sockets (`listener`), serving connections (`connection`).

use std::num::NonZeroUsize;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use tokio::runtime::{self, Handle};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;

use super::connection::{AcceptedSocket, Phase, Socket, Worker};
use super::connection_registry::ConnectionRegistry;
use super::rls_service::Decide;
use crate::wire::WireError;

/// Maximum number of accepted sockets that wait for one worker. Further sockets are closed,
/// because a worker with a longer backlog would not catch up.
const ACCEPT_BACKLOG_MAX: usize = 1_024;

/// Future that serves the connections of a worker thread, until the last of them has closed.
type WorkerTask = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Worker threads that have started but are not serving connections yet. Dropping this value makes
/// the threads exit.
pub(crate) struct IdleWorkers {
    threads: Vec<(Handle, oneshot::Sender<WorkerTask>)>,
    lifetime: ThreadLifetime,
}

/// The two ends of the worker threads' work. The calls of one thread may use Redis connections that
/// run on another, so no runtime shuts down before every thread has served its last call.
#[derive(Debug)]
struct ThreadLifetime {
    /// Channel that closes when no thread serves connections any more.
    served: mpsc::Receiver<()>,
    /// Keeps the runtimes running until it is dropped.
    keep_running: watch::Sender<()>,
    /// Channel that closes when all threads have exited.
    exited: mpsc::Receiver<()>,
}

impl std::fmt::Debug for IdleWorkers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IdleWorkers").field("threads", &self.threads.len()).finish_non_exhaustive()
    }
}

impl IdleWorkers {
    /// Starts the worker threads, each with its own single-threaded runtime. Returns
    /// [`WireError::Thread`] if a thread or its runtime cannot be started.
    pub(crate) fn start(threads: NonZeroUsize) -> Result<Self, WireError> {
        let (serving, served) = mpsc::channel(1);
        let (alive, exited) = mpsc::channel(1);
        let (keep_running, running) = watch::channel(());
        let start = |index| start_thread(index, serving.clone(), running.clone(), alive.clone());
        let threads = (0..threads.get()).map(start).collect::<Result<_, _>>()?;
        let lifetime = ThreadLifetime { served, keep_running, exited };
        Ok(IdleWorkers { threads, lifetime })
    }

    /// Returns the handles of the workers' runtimes, one per thread.
    pub(crate) fn handles(&self) -> Vec<Handle> {
        self.threads.iter().map(|(handle, _)| handle.clone()).collect()
    }

    /// Starts serving connections on the threads. Calls `worker` once per thread to create the
    /// thread's state.
    pub(crate) fn serve<D: Decide>(self, worker: impl Fn() -> Worker<D>) -> Workers {
        let handles = self.threads.into_iter().map(|(_, task)| {
            let (sockets, incoming) = mpsc::channel(ACCEPT_BACKLOG_MAX);
            // Sending fails if the thread has died; `dispatch` then finds its channel closed.
            let _ = task.send(Box::pin(serve_sockets(Arc::new(worker()), incoming)));
            WorkerHandle { sockets, connection_count: Arc::default() }
        });
        Workers { handles: handles.collect(), lifetime: self.lifetime }
    }
}

/// Handle through which the acceptor dispatches sockets to the worker threads.
#[derive(Debug)]
pub(crate) struct Workers {
    handles: Vec<WorkerHandle>,
    lifetime: ThreadLifetime,
}

#[derive(Debug)]
struct WorkerHandle {
    sockets: mpsc::Sender<AcceptedSocket>,
    /// Number of the worker's open connections, including those in its backlog.
    connection_count: Arc<AtomicUsize>,
}

impl Workers {
    /// Sends a socket to the worker with the fewest connections. Returns `false` and closes the
    /// socket if the worker's backlog is full.
    pub(crate) fn dispatch(
        &self,
        socket: Socket,
        age_max: Option<Duration>,
        registry: &Arc<ConnectionRegistry>,
    ) -> bool {
        let worker = self
            .handles
            .iter()
            .min_by_key(|worker| worker.connection_count.load(Ordering::Relaxed));
        worker.is_some_and(|worker| {
            let registration = registry.register(&worker.connection_count);
            worker.sockets.try_send(AcceptedSocket { socket, registration, age_max }).is_ok()
        })
    }

    /// Stops dispatching sockets, and waits until every connection has closed. The runtimes keep
    /// running.
    pub(crate) async fn wait_until_served(&mut self) {
        self.handles.clear();
        while self.lifetime.served.recv().await.is_some() {}
    }

    /// Shuts the runtimes down, with everything that runs on them, and waits until every thread has
    /// exited. Waits for connections that are still open.
    pub(crate) async fn stop(self) {
        let ThreadLifetime { keep_running, mut exited, .. } = self.lifetime;
        drop((self.handles, keep_running));
        while exited.recv().await.is_some() {}
    }
}

/// Starts one worker thread, which drops `serving` after its last connection and `alive` when it
/// exits. It exits once `running` has closed. Returns its runtime handle and the channel through
/// which the thread receives its task, or [`WireError::Thread`] if the thread or its runtime cannot
/// be started.
fn start_thread(
    index: usize,
    serving: mpsc::Sender<()>,
    mut running: watch::Receiver<()>,
    alive: mpsc::Sender<()>,
) -> Result<(Handle, oneshot::Sender<WorkerTask>), WireError> {
    let failed = |source| WireError::Thread { source };
    let (task_sender, task) = oneshot::channel::<WorkerTask>();
    let (startup_sender, startup) = std::sync::mpsc::sync_channel(1);
    thread::Builder::new()
        .name(format!("tidegate-core-{index}"))
        .spawn(move || {
            // Built on its own thread, because the caller runs in async code, where dropping a
            // runtime panics.
            let runtime = runtime::Builder::new_current_thread().enable_all().build();
            match runtime {
                Ok(runtime) => {
                    let _ = startup_sender.send(Ok(runtime.handle().clone()));
                    runtime.block_on(async {
                        if let Ok(task) = task.await {
                            task.await;
                        }
                        drop(serving);
                        // Nothing is ever sent: this waits until the sender is dropped.
                        let _ = running.changed().await;
                    });
                    // Drops all remaining tasks before `alive` signals the end of the thread.
                    drop(runtime);
                }
                Err(error) => drop(startup_sender.send(Err(error))),
            }
            drop(alive);
        })
        .map_err(failed)?;
    // If the thread dies before it sends a result, `recv` fails.
    let outcome = startup.recv().unwrap_or_else(|_| Err(std::io::ErrorKind::Other.into()));
    Ok((outcome.map_err(failed)?, task_sender))
}

/// Serves the sockets of one worker. Returns when the channel for new sockets has closed and all
/// connections of the worker have ended, or when the server is stopped.
async fn serve_sockets<D: Decide>(
    worker: Arc<Worker<D>>,
    mut incoming: mpsc::Receiver<AcceptedSocket>,
) {
    let mut connections = JoinSet::new();
    let serve = async {
        loop {
            tokio::select! {
                accepted = incoming.recv() => match accepted {
                    Some(accepted) => drop(connections.spawn(Arc::clone(&worker).serve(accepted))),
                    None => break,
                },
                Some(_) = connections.join_next() => {}
            }
        }
        while connections.join_next().await.is_some() {}
    };
    tokio::select! {
        () = serve => {}
        () = worker.wait_for_phase(Phase::Stopped) => {}
    }
}
