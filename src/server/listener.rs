//! Listener: binds the addresses, accepts sockets, dispatches them to the workers, and drains on
//! shutdown.
//!
//! Not here: serving a connection (`connection`), the signals that start a shutdown (`app`).

use std::future::Future;
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::os::unix;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future;
use tokio::net::{TcpListener, TcpSocket, UnixListener};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{self, Instant};

use super::connection::{Phase, Socket, Worker};
use super::connection_registry::ConnectionRegistry;
use super::connection_stats::ConnectionStats;
use super::overload::Overload;
use super::rls_service::Decide;
use super::router::Router;
use super::server_bounds::ServerLimits;
use super::tls::Tls;
use super::workers::{IdleWorkers, Workers};
use crate::clock::Clock;
use crate::domain::{CallerMemory, HeldMemory, LogLimiter, UnreadableCallers};
use crate::wire::WireError;

/// Pause after a first failed accept. The pause doubles with each consecutive failure, up to
/// [`ACCEPT_BACKOFF_MAX`]. Without a pause, a process that has no free file descriptors would retry
/// in a busy loop.
const ACCEPT_BACKOFF_MIN: Duration = Duration::from_millis(10);
/// Maximum pause after consecutive failed accepts.
const ACCEPT_BACKOFF_MAX: Duration = Duration::from_secs(1);

/// Listen backlog of the TCP sockets, in connections. After a restart, every worker thread of every
/// Envoy reconnects immediately. If the backlog is full, the client's kernel retries after a second.
const LISTEN_BACKLOG: u32 = 4_096;

/// Interval at which connections with blocked answers are closed. An answer is blocked after 5 to 6
/// of them.
const BLOCKED_TICK: Duration = Duration::from_secs(1);

/// Maximum time to wait for the worker threads to exit.
const STOP_WAIT_MAX: Duration = Duration::from_secs(1);

/// Address on which the gRPC port listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// TCP address. Port 0 binds any free port.
    Tcp(SocketAddr),
    /// Path of a Unix socket. A stale socket file left behind by an earlier process is replaced.
    Unix(PathBuf),
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Address::Tcp(address) => address.fmt(f),
            Address::Unix(path) => path.display().fmt(f),
        }
    }
}

/// Settings of the gRPC listener: addresses, threads, limits, and TLS.
#[derive(Clone, Debug)]
pub struct ListenSettings {
    /// Address to listen on.
    pub address: Address,
    /// Number of worker threads, each with its own single-threaded runtime.
    pub threads: NonZeroUsize,
    /// Limits and timeouts for connections and calls.
    pub limits: ServerLimits,
    /// TLS configuration for the TCP addresses; `None` means plaintext. Unix sockets never use
    /// TLS.
    pub tls: Option<Tls>,
}

/// Time at which a shutdown starts to drain connections: after the drain delay, or immediately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drain {
    /// Starts to drain after the drain delay. Until then, the server accepts connections and serves
    /// calls, so that load balancers notice the failing health check.
    AfterDelay,
    /// Starts to drain immediately: sends GOAWAY on every connection without the drain delay.
    AtOnce,
}

/// gRPC listener with bound sockets and idle worker threads, before it starts to serve.
#[derive(Debug)]
pub struct Listener {
    settings: ListenSettings,
    socket: ListeningSocket,
    workers: IdleWorkers,
    stats: Arc<ConnectionStats>,
    unreadable: Arc<UnreadableCallers>,
    held_memory: Arc<HeldMemory>,
}

impl Listener {
    /// Binds the address and starts the worker threads. Must be called within the tokio runtime that
    /// is to accept the connections.
    ///
    /// # Errors
    ///
    /// Returns [`WireError::Bind`] if the address cannot be bound, and
    /// [`WireError::Thread`] if a thread cannot be started.
    pub fn bind(settings: ListenSettings) -> Result<Self, WireError> {
        let address = &settings.address;
        let failed = |source| WireError::Bind { address: address.to_string(), source };
        let socket = ListeningSocket::bind(address).map_err(failed)?;
        let workers = IdleWorkers::start(settings.threads)?;
        let limits = &settings.limits;
        let held_memory =
            HeldMemory::new(limits.held_bytes_max, limits.held_bytes_per_connection_max);
        let log = LogLimiter::new(1, || Clock::System.monotonic_now());
        let (stats, unreadable) = (Arc::default(), Arc::new(UnreadableCallers::new(log)));
        Ok(Listener { settings, socket, workers, stats, unreadable, held_memory })
    }

    /// Returns the runtimes of the worker threads. A task that calls depend on, such as a Redis
    /// connection, should run on one of them, so that its replies wake no other thread. The
    /// runtimes run until [`DrainingListener::stop`].
    pub fn worker_handles(&self) -> Vec<Handle> {
        self.workers.handles()
    }

    /// Returns the bound address. If port 0 was requested, it contains the port that
    /// the operating system chose.
    pub fn address(&self) -> Option<Address> {
        match &self.socket {
            ListeningSocket::Tcp(listener) => listener.local_addr().ok().map(Address::Tcp),
            ListeningSocket::Unix(_, path) => Some(Address::Unix(path.clone())),
        }
    }

    /// Returns the connection metrics of this listener.
    pub fn connection_stats(&self) -> Arc<ConnectionStats> {
        Arc::clone(&self.stats)
    }

    /// Returns the counts of callers that cannot be understood, for all ports.
    pub fn unreadable_callers(&self) -> Arc<UnreadableCallers> {
        Arc::clone(&self.unreadable)
    }

    /// Returns the memory held for the callers of the HTTP port, which count as one caller.
    pub fn http_memory(&self) -> Arc<CallerMemory> {
        self.held_memory.add_caller()
    }

    /// Serves until `shutdown` resolves, and then for the drain delay, during which the health check
    /// reports NOT_SERVING; [`Drain::AtOnce`] skips this delay. Then the listener stops accepting
    /// and sends GOAWAY on every connection. Returns the listener while its calls in flight finish.
    pub async fn serve<D: Decide>(
        self,
        router: Router<D>,
        shutdown: impl Future<Output = Drain>,
    ) -> DrainingListener {
        let Listener { settings, socket, workers, stats, unreadable, held_memory } = self;
        let (phase, of_workers) = watch::channel(Phase::Serving);
        let router = Arc::new(router);
        let workers = workers.serve(|| Worker {
            router: Arc::clone(&router),
            limits: settings.limits.clone(),
            tls: settings.tls.clone(),
            stats: Arc::clone(&stats),
            held_memory: Arc::clone(&held_memory),
            unreadable: Arc::clone(&unreadable),
            overload: Arc::new(Overload::new(Clock::System.monotonic_now())),
            phase: of_workers.clone(),
        });
        let limits = &settings.limits;
        let registry = ConnectionRegistry::new(Arc::clone(&stats));
        let acceptor = Acceptor { workers: &workers, limits, stats: &stats, registry: &registry };
        let deadline = {
            let clocks = future::join(registry.run_clock(), run_clock(&held_memory));
            let accepting = future::join(acceptor.run(&socket), clocks);
            tokio::pin!(accepting);
            let drain = tokio::select! {
                _ = &mut accepting => Drain::AfterDelay,
                drain = shutdown => drain,
            };
            let delay = match drain {
                Drain::AfterDelay => limits.drain_delay,
                Drain::AtOnce => Duration::ZERO,
            };
            router.health().shut_down();
            let deadline = time::sleep(limits.hard_limit).deadline();
            let _ = time::timeout(delay, accepting).await;
            deadline
        };
        drop(socket);
        phase.send_replace(Phase::Draining);
        DrainingListener { workers, phase, stats, held_memory, deadline }
    }
}

/// Listener that accepts nothing any more and finishes its calls in flight. The worker runtimes run
/// until [`stop`](Self::stop), because calls on other ports and tasks of the store may need them.
#[derive(Debug)]
pub struct DrainingListener {
    workers: Workers,
    phase: watch::Sender<Phase>,
    stats: Arc<ConnectionStats>,
    held_memory: Arc<HeldMemory>,
    deadline: Instant,
}

impl DrainingListener {
    /// Returns the time at which the shutdown must be complete: [`ServerLimits::hard_limit`] after
    /// it began.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Waits until the calls in flight have finished and every connection has closed. At the
    /// [`deadline`](Self::deadline), closes all remaining connections, and returns their number.
    pub async fn finish_calls(&mut self) -> usize {
        let served = async {
            tokio::select! {
                () = self.workers.wait_until_served() => {}
                // Never ends: a client that does not read its answers delays the shutdown only
                // until its connection is closed.
                () = run_clock(&self.held_memory) => {}
            }
        };
        if time::timeout_at(self.deadline, served).await.is_ok() {
            return 0;
        }
        let cut_off = self.stats.open.load(Ordering::Relaxed);
        self.phase.send_replace(Phase::Stopped);
        cut_off
    }

    /// Shuts down the runtimes of the worker threads. Waits for the threads for at most
    /// [`STOP_WAIT_MAX`].
    pub async fn stop(self) {
        let _ = time::timeout(STOP_WAIT_MAX, self.workers.stop()).await;
    }
}

/// Removes a socket file on which no process listens. Leaves any other file in place, so that
/// binding fails.
fn remove_stale_socket(path: &Path) -> io::Result<()> {
    match unix::net::UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            use std::os::unix::fs::FileTypeExt as _;
            if std::fs::symlink_metadata(path)?.file_type().is_socket() {
                std::fs::remove_file(path)?;
            }
            Ok(())
        }
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Bound socket that is registered with the tokio runtime of the acceptor.
#[derive(Debug)]
enum ListeningSocket {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

impl ListeningSocket {
    fn bind(address: &Address) -> io::Result<Self> {
        match address {
            Address::Tcp(address) => {
                let socket = match address {
                    SocketAddr::V4(_) => TcpSocket::new_v4()?,
                    SocketAddr::V6(_) => TcpSocket::new_v6()?,
                };
                // SO_REUSEADDR lets a restarted server bind while old connections are in TIME_WAIT.
                // A second server on the same port still fails.
                socket.set_reuseaddr(true)?;
                socket.bind(*address)?;
                socket.listen(LISTEN_BACKLOG).map(ListeningSocket::Tcp)
            }
            Address::Unix(path) => {
                remove_stale_socket(path)?;
                Ok(ListeningSocket::Unix(UnixListener::bind(path)?, path.clone()))
            }
        }
    }

    async fn accept(&self) -> io::Result<Socket> {
        match self {
            ListeningSocket::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // TCP_NODELAY, because a response is one small segment and must not wait for an
                // ACK.
                stream.set_nodelay(true)?;
                stream.into_std().map(Socket::Tcp)
            }
            ListeningSocket::Unix(listener, _) => {
                let (stream, _) = listener.accept().await?;
                stream.into_std().map(Socket::Unix)
            }
        }
    }
}

impl Drop for ListeningSocket {
    fn drop(&mut self) {
        if let ListeningSocket::Unix(_, path) = self {
            // If this fails, the next process replaces the file.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Acceptor of new connections. Dispatches each connection to a worker thread.
struct Acceptor<'a> {
    workers: &'a Workers,
    limits: &'a ServerLimits,
    stats: &'a Arc<ConnectionStats>,
    registry: &'a Arc<ConnectionRegistry>,
}

impl Acceptor<'_> {
    async fn run(&self, from: &ListeningSocket) {
        let mut pause = ACCEPT_BACKOFF_MIN;
        loop {
            match from.accept().await {
                Ok(socket) => {
                    pause = ACCEPT_BACKOFF_MIN;
                    self.admit_connection(socket);
                }
                Err(error) if affects_one_connection(&error) => {}
                Err(_) => {
                    self.stats.accepts_failed.fetch_add(1, Ordering::Relaxed);
                    time::sleep(pause).await;
                    pause = (pause * 2).min(ACCEPT_BACKOFF_MAX);
                }
            }
        }
    }

    fn admit_connection(&self, socket: Socket) {
        if self.registry.len() >= self.limits.connections_max && self.registry.evict_longest_idle()
        {
            self.stats.evicted.fetch_add(1, Ordering::Relaxed);
        }
        let age_max = self.limits.connection_age_max.map(add_jitter);
        let dispatched = self.workers.dispatch(socket, age_max, self.registry);
        let outcome = if dispatched { &self.stats.accepted } else { &self.stats.refused };
        outcome.fetch_add(1, Ordering::Relaxed);
    }
}

/// Closes connections with blocked answers, for as long as the future is polled.
async fn run_clock(held_memory: &HeldMemory) {
    let mut ticks = time::interval(BLOCKED_TICK);
    loop {
        ticks.tick().await;
        held_memory.advance_tick();
    }
}

/// Returns whether an accept error affects only the new connection and not the listener.
fn affects_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::NotConnected
            | io::ErrorKind::InvalidInput
            | io::ErrorKind::Interrupted
    )
}

/// Returns `age` with a random jitter of -10% to +10%, so that connections opened together do not close
/// together.
fn add_jitter(age: Duration) -> Duration {
    let thousandths = 900 + RandomState::new().hash_one(()) % 201;
    age.saturating_mul(u32::try_from(thousandths).unwrap_or(1_000)) / 1_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_spread_by_up_to_ten_percent() {
        let hour = Duration::from_secs(3_600);
        let varied: Vec<_> = (0..1_000).map(|_| add_jitter(hour)).collect();
        assert!(varied.iter().all(|age| (3_240..=3_960).contains(&age.as_secs())));
        assert!(varied.iter().any(|age| age.as_secs() < 3_400));
        assert!(varied.iter().any(|age| age.as_secs() > 3_800));
    }
}
