//! Listener: binds the addresses, accepts sockets, hands them to the workers, and drains on shutdown.
//!
//! Not here: what happens on a connection (`connection`), which signals shut down (`app`).

use std::future::Future;
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::net::{self, SocketAddr};
use std::num::NonZeroUsize;
use std::os::unix;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future;
use tokio::net::{TcpListener, UnixListener};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time;

use super::connection::{Phase, Socket, Worker};
use super::connection_stats::ConnectionStats;
use super::rls_service::Decide;
use super::router::Router;
use super::server_limits::ServerLimits;
use super::tls::Tls;
use super::workers::{IdleWorkers, Workers};
use crate::wire::WireError;

/// Pause after a failed accept. Out of file descriptors, an immediate retry would spin; the pause
/// doubles up to the maximum.
const ACCEPT_PAUSE_MIN: Duration = Duration::from_millis(10);
const ACCEPT_PAUSE_MAX: Duration = Duration::from_secs(1);

/// Listen backlog of the socket. After a restart every worker of every Envoy reconnects at once; a
/// connection that does not fit is retried by its client a second later.
const BACKLOG: i32 = 4_096;

/// How long worker threads may take to end after the hard limit.
const STOP_WAIT_MAX: Duration = Duration::from_secs(1);

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A TCP address; port 0 takes any free port.
    Tcp(SocketAddr),
    /// A Unix socket; a socket file left by an earlier process is replaced.
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

/// Settings of the gRPC port.
#[derive(Clone, Debug)]
pub struct ListenSettings {
    /// Addresses to listen on; at least one.
    pub addresses: Vec<Address>,
    /// Number of worker threads.
    pub threads: NonZeroUsize,
    /// Limits of connections and calls.
    pub limits: ServerLimits,
    /// TLS on the TCP addresses; `None`: plaintext.
    pub tls: Option<Tls>,
}

/// How the drain ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrainReport {
    /// Connections that were closed at the hard limit with calls under way.
    pub cut_off: usize,
}

/// Bound addresses with their worker threads, before serving starts.
#[derive(Debug)]
pub struct Listener {
    settings: ListenSettings,
    bound: Vec<Bound>,
    workers: IdleWorkers,
    stats: Arc<ConnectionStats>,
}

#[derive(Debug)]
enum Bound {
    Tcp(net::TcpListener),
    Unix(unix::net::UnixListener, PathBuf),
}

impl Listener {
    /// Binds every address and starts the worker threads.
    ///
    /// # Errors
    ///
    /// [`WireError::Bind`] for the first address that is in use or not local; [`WireError::Thread`]
    /// if a thread cannot be started.
    pub fn bind(settings: ListenSettings) -> Result<Self, WireError> {
        let bound = settings.addresses.iter().map(|address| {
            bind(address).map_err(|source| WireError::Bind { address: address.to_string(), source })
        });
        let bound = bound.collect::<Result<_, _>>()?;
        let workers = IdleWorkers::start(settings.threads)?;
        Ok(Listener { settings, bound, workers, stats: Arc::default() })
    }

    /// Returns the runtimes of the worker threads. A task that calls wait for, such as a Redis
    /// connection, should run on the worker of its calls: then no reply has to wake another thread.
    /// The runtimes end with the last connection.
    pub fn worker_handles(&self) -> Vec<Handle> {
        self.workers.handles()
    }

    /// Returns the bound addresses, with the port that replaced port 0.
    pub fn addresses(&self) -> Vec<Address> {
        let address = |bound: &Bound| match bound {
            Bound::Tcp(listener) => listener.local_addr().ok().map(Address::Tcp),
            Bound::Unix(_, path) => Some(Address::Unix(path.clone())),
        };
        self.bound.iter().filter_map(address).collect()
    }

    /// Returns the counters of this listener's connections.
    pub fn connection_stats(&self) -> Arc<ConnectionStats> {
        Arc::clone(&self.stats)
    }

    /// Serves until `shutdown` resolves, then drains: health reports NOT_SERVING; calls are answered
    /// as before for the drain delay; accepting stops and every connection gets a GOAWAY; calls under
    /// way finish; at the hard limit, counted from `shutdown`, the remaining connections are closed.
    ///
    /// # Errors
    ///
    /// [`WireError::Bind`] if a bound socket cannot be registered with the runtime.
    pub async fn serve<D: Decide>(
        self,
        router: Router<D>,
        shutdown: impl Future<Output = ()>,
    ) -> Result<DrainReport, WireError> {
        let Listener { settings, bound, workers, stats } = self;
        let (phase, of_workers) = watch::channel(Phase::Serving);
        let mut workers = workers.serve(|| Worker {
            router: Arc::new(router.clone()),
            limits: settings.limits.clone(),
            tls: settings.tls.clone(),
            stats: Arc::clone(&stats),
            phase: of_workers.clone(),
        });
        let limits = &settings.limits;
        let acceptor = Acceptor { workers: &workers, limits, stats: &stats, ages: Ages::default() };
        let bound =
            bound.into_iter().map(AsyncListener::from_bound).collect::<Result<Vec<_>, _>>()?;
        let mut hard_limit = {
            let accepting = future::join_all(bound.iter().map(|bound| acceptor.run(bound)));
            tokio::pin!(accepting);
            tokio::select! {
                _ = &mut accepting => {}
                () = shutdown => {}
            }
            router.health().shut_down();
            let hard_limit = Box::pin(time::sleep(limits.hard_limit));
            let _ = time::timeout(limits.drain_delay, accepting).await;
            hard_limit
        };
        drop(bound);
        phase.send_replace(Phase::Draining);
        tokio::select! {
            () = workers.finish() => return Ok(DrainReport { cut_off: 0 }),
            () = &mut hard_limit => {}
        }
        let cut_off = stats.open.load(Ordering::Relaxed);
        phase.send_replace(Phase::Stopped);
        let _ = time::timeout(STOP_WAIT_MAX, workers.finish()).await;
        Ok(DrainReport { cut_off })
    }
}

fn bind(address: &Address) -> io::Result<Bound> {
    match address {
        Address::Tcp(address) => {
            let socket = socket2::Socket::new(
                socket2::Domain::for_address(*address),
                socket2::Type::STREAM,
                None,
            )?;
            // A restart need not wait for old connections in TIME_WAIT. A second server on the same
            // port still fails.
            socket.set_reuse_address(true)?;
            socket.bind(&(*address).into())?;
            socket.listen(BACKLOG)?;
            socket.set_nonblocking(true)?;
            Ok(Bound::Tcp(socket.into()))
        }
        Address::Unix(path) => {
            remove_abandoned(path)?;
            let listener = unix::net::UnixListener::bind(path)?;
            listener.set_nonblocking(true)?;
            Ok(Bound::Unix(listener, path.clone()))
        }
    }
}

/// Removes a socket file that no process listens on. Any other file stays, and binding fails.
fn remove_abandoned(path: &Path) -> io::Result<()> {
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

/// A bound socket registered with this runtime.
enum AsyncListener {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

impl AsyncListener {
    fn from_bound(bound: Bound) -> Result<Self, WireError> {
        let failed = |address: String| move |source| WireError::Bind { address, source };
        match bound {
            Bound::Tcp(listener) => {
                let address = listener.local_addr().map(|a| a.to_string()).unwrap_or_default();
                TcpListener::from_std(listener).map(AsyncListener::Tcp).map_err(failed(address))
            }
            Bound::Unix(listener, path) => {
                let address = path.display().to_string();
                UnixListener::from_std(listener)
                    .map(|listener| AsyncListener::Unix(listener, path))
                    .map_err(failed(address))
            }
        }
    }

    async fn accept(&self) -> io::Result<Socket> {
        match self {
            AsyncListener::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // TCP_NODELAY: a response is one small segment and must not wait for an ACK.
                stream.set_nodelay(true)?;
                stream.into_std().map(Socket::Tcp)
            }
            AsyncListener::Unix(listener, _) => {
                let (stream, _) = listener.accept().await?;
                stream.into_std().map(Socket::Unix)
            }
        }
    }
}

impl Drop for AsyncListener {
    fn drop(&mut self) {
        if let AsyncListener::Unix(_, path) = self {
            // On failure the file stays behind; the next process replaces it.
            let _ = std::fs::remove_file(path);
        }
    }
}

struct Acceptor<'a> {
    workers: &'a Workers,
    limits: &'a ServerLimits,
    stats: &'a Arc<ConnectionStats>,
    ages: Ages,
}

impl Acceptor<'_> {
    async fn run(&self, from: &AsyncListener) {
        let mut pause = ACCEPT_PAUSE_MIN;
        loop {
            match from.accept().await {
                Ok(socket) => {
                    pause = ACCEPT_PAUSE_MIN;
                    self.admit(socket);
                }
                Err(error) if is_per_connection(&error) => {}
                Err(_) => {
                    self.stats.accepts_failed.fetch_add(1, Ordering::Relaxed);
                    time::sleep(pause).await;
                    pause = (pause * 2).min(ACCEPT_PAUSE_MAX);
                }
            }
        }
    }

    fn admit(&self, socket: Socket) {
        let free = self.stats.open.load(Ordering::Relaxed) < self.limits.connections_max;
        let age_max = self.limits.connection_age_max.map(|age| self.ages.vary(age));
        let outcome = if free && self.workers.dispatch(socket, age_max, self.stats) {
            &self.stats.accepted
        } else {
            &self.stats.refused
        };
        outcome.fetch_add(1, Ordering::Relaxed);
    }
}

/// Returns whether an accept error concerns only the connection being accepted, not the listener.
fn is_per_connection(error: &io::Error) -> bool {
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

/// Spreads the maximum age of connections, so that those opened together do not close together.
#[derive(Default)]
struct Ages {
    random: RandomState,
    given: AtomicU64,
}

impl Ages {
    /// Returns `age` changed by a pseudo-random -10 % to +10 %.
    fn vary(&self, age: Duration) -> Duration {
        let number = self.random.hash_one(self.given.fetch_add(1, Ordering::Relaxed));
        let thousandths = u32::try_from(900 + number % 201).unwrap_or(1_000);
        age.saturating_mul(thousandths) / 1_000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_spread_by_up_to_ten_percent() {
        let ages = Ages::default();
        let hour = Duration::from_secs(3_600);
        let varied: Vec<_> = (0..1_000).map(|_| ages.vary(hour)).collect();
        assert!(varied.iter().all(|age| (3_240..=3_960).contains(&age.as_secs())));
        assert!(varied.iter().any(|age| age.as_secs() < 3_400));
        assert!(varied.iter().any(|age| age.as_secs() > 3_800));
    }
}
