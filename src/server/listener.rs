//! Listens, hands sockets to the cores, and leaves in order when it is told to.
//!
//! Not here: what happens on a connection (`connection`), which signals mean leaving (`app`).

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

use super::connection::{Host, Phase, Socket};
use super::connection_stats::ConnectionStats;
use super::rls_service::Decide;
use super::router::Router;
use super::server_limits::ServerLimits;
use super::tls::Tls;
use super::workers::{Idle, Workers};
use crate::wire::WireError;

/// Out of file descriptors, accepting again at once would spin: it waits this long, doubling up
/// to the maximum while it lasts.
const ACCEPT_PAUSE_MIN: Duration = Duration::from_millis(10);
const ACCEPT_PAUSE_MAX: Duration = Duration::from_secs(1);

/// Connections that the system keeps until they are accepted. After a restart every worker of
/// every Envoy comes back at once, and one that does not fit tries again a second later.
const BACKLOG: i32 = 4_096;

/// How long cut-off threads may take to end before they are left behind.
const STOP_WAIT_MAX: Duration = Duration::from_secs(1);

/// Where to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A TCP address; port 0 takes any that is free.
    Tcp(SocketAddr),
    /// A Unix socket; a file that a former process left there is replaced.
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

/// How to serve.
#[derive(Clone, Debug)]
pub struct ListenSettings {
    /// Where; at least one.
    pub addresses: Vec<Address>,
    /// How many single-threaded runtimes.
    pub threads: NonZeroUsize,
    /// What callers are granted.
    pub limits: ServerLimits,
    /// TLS on the TCP addresses; `None`: plaintext.
    pub tls: Option<Tls>,
}

/// How the server left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drained {
    /// Connections that were cut off at the hard limit.
    pub cut_off: usize,
}

/// Addresses that are bound and not served yet.
#[derive(Debug)]
pub struct Listener {
    settings: ListenSettings,
    bound: Vec<Bound>,
    cores: Idle,
    traffic: Arc<ConnectionStats>,
}

#[derive(Debug)]
enum Bound {
    Tcp(net::TcpListener),
    Unix(unix::net::UnixListener, PathBuf),
}

impl Listener {
    /// Binds every address, and starts the threads that will serve them.
    ///
    /// # Errors
    ///
    /// [`WireError::Bind`] for the first one that is taken or does not exist here;
    /// [`WireError::Thread`] if the system grants no thread.
    pub fn bind(settings: ListenSettings) -> Result<Self, WireError> {
        let bound = settings.addresses.iter().map(|address| {
            bind(address).map_err(|source| WireError::Bind { address: address.to_string(), source })
        });
        let bound = bound.collect::<Result<_, _>>()?;
        let cores = Idle::start(settings.threads)?;
        Ok(Listener { settings, bound, cores, traffic: Arc::default() })
    }

    /// The single-threaded runtimes that will serve, one per core: what a call waits for is best
    /// done by a task on the same one, because then nobody has to wake another thread. They end
    /// with the last connection.
    pub fn cores(&self) -> Vec<Handle> {
        self.cores.handles()
    }

    /// The addresses as they were bound: port 0 has become a number.
    pub fn addresses(&self) -> Vec<Address> {
        let address = |bound: &Bound| match bound {
            Bound::Tcp(listener) => listener.local_addr().ok().map(Address::Tcp),
            Bound::Unix(_, path) => Some(Address::Unix(path.clone())),
        };
        self.bound.iter().filter_map(address).collect()
    }

    /// What is counted here.
    pub fn traffic(&self) -> Arc<ConnectionStats> {
        Arc::clone(&self.traffic)
    }

    /// Serves until `shutdown` resolves. Then, in this order: health says NOT_SERVING; for the
    /// drain delay everything else goes on as before; no connection is accepted any more and those
    /// there are get a GOAWAY; their calls finish; at the hard limit, counted from `shutdown`,
    /// what is left is cut off.
    ///
    /// # Errors
    ///
    /// [`WireError::Bind`] if it cannot start.
    pub async fn serve<J: Decide>(
        self,
        front: Router<J>,
        shutdown: impl Future<Output = ()>,
    ) -> Result<Drained, WireError> {
        let Listener { settings, bound, cores, traffic } = self;
        let (phase, of_cores) = watch::channel(Phase::Serving);
        let mut cores = cores.serve(|| Host {
            front: Arc::new(front.clone()),
            limits: settings.limits.clone(),
            tls: settings.tls.clone(),
            traffic: Arc::clone(&traffic),
            phase: of_cores.clone(),
        });
        let limits = &settings.limits;
        let acceptor = Acceptor { cores: &cores, limits, traffic: &traffic, ages: Ages::default() };
        let bound = bound.into_iter().map(Accepting::from_bound).collect::<Result<Vec<_>, _>>()?;
        let mut hard_limit = {
            let accepting = future::join_all(bound.iter().map(|bound| acceptor.run(bound)));
            tokio::pin!(accepting);
            tokio::select! {
                _ = &mut accepting => {}
                () = shutdown => {}
            }
            front.health().leave();
            let hard_limit = Box::pin(time::sleep(limits.hard_limit));
            let _ = time::timeout(limits.drain_delay, accepting).await;
            hard_limit
        };
        drop(bound);
        phase.send_replace(Phase::Draining);
        tokio::select! {
            () = cores.finish() => return Ok(Drained { cut_off: 0 }),
            () = &mut hard_limit => {}
        }
        let cut_off = traffic.open.load(Ordering::Relaxed);
        phase.send_replace(Phase::Stopped);
        let _ = time::timeout(STOP_WAIT_MAX, cores.finish()).await;
        Ok(Drained { cut_off })
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
            // A restart need not wait for the old connections' last minute; a second server on
            // the same port is still refused.
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

/// Removes a socket file that nobody listens on any more. A file that is no socket stays, and
/// binding fails.
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

/// A listener of this runtime.
enum Accepting {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

impl Accepting {
    fn from_bound(bound: Bound) -> Result<Self, WireError> {
        let failed = |address: String| move |source| WireError::Bind { address, source };
        match bound {
            Bound::Tcp(listener) => {
                let address = listener.local_addr().map(|a| a.to_string()).unwrap_or_default();
                TcpListener::from_std(listener).map(Accepting::Tcp).map_err(failed(address))
            }
            Bound::Unix(listener, path) => {
                let address = path.display().to_string();
                UnixListener::from_std(listener)
                    .map(|listener| Accepting::Unix(listener, path))
                    .map_err(failed(address))
            }
        }
    }

    async fn accept(&self) -> io::Result<Socket> {
        match self {
            Accepting::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // An answer is one small segment: it must not wait for an acknowledgement.
                stream.set_nodelay(true)?;
                stream.into_std().map(Socket::Tcp)
            }
            Accepting::Unix(listener, _) => {
                let (stream, _) = listener.accept().await?;
                stream.into_std().map(Socket::Unix)
            }
        }
    }
}

impl Drop for Accepting {
    fn drop(&mut self) {
        if let Accepting::Unix(_, path) = self {
            // Left behind it would do no harm: the next process replaces it.
            let _ = std::fs::remove_file(path);
        }
    }
}

struct Acceptor<'a> {
    cores: &'a Workers,
    limits: &'a ServerLimits,
    traffic: &'a Arc<ConnectionStats>,
    ages: Ages,
}

impl Acceptor<'_> {
    async fn run(&self, from: &Accepting) {
        let mut pause = ACCEPT_PAUSE_MIN;
        loop {
            match from.accept().await {
                Ok(socket) => {
                    pause = ACCEPT_PAUSE_MIN;
                    self.admit(socket);
                }
                Err(error) if concerns_one_caller(&error) => {}
                Err(_) => {
                    self.traffic.accepts_failed.fetch_add(1, Ordering::Relaxed);
                    time::sleep(pause).await;
                    pause = (pause * 2).min(ACCEPT_PAUSE_MAX);
                }
            }
        }
    }

    fn admit(&self, socket: Socket) {
        let free = self.traffic.open.load(Ordering::Relaxed) < self.limits.connections_max;
        let age_max = self.limits.connection_age_max.map(|age| self.ages.vary(age));
        let outcome = if free && self.cores.hand(socket, age_max, self.traffic) {
            &self.traffic.accepted
        } else {
            &self.traffic.refused
        };
        outcome.fetch_add(1, Ordering::Relaxed);
    }
}

/// The caller went away while it was being accepted.
fn concerns_one_caller(error: &io::Error) -> bool {
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

/// Ages of connections, each a little different.
#[derive(Default)]
struct Ages {
    random: RandomState,
    given: AtomicU64,
}

impl Ages {
    /// `age`, lengthened or shortened by up to 10 %.
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
    fn connections_that_came_together_leave_within_a_tenth_of_their_age() {
        let ages = Ages::default();
        let hour = Duration::from_secs(3_600);
        let varied: Vec<_> = (0..1_000).map(|_| ages.vary(hour)).collect();
        assert!(varied.iter().all(|age| (3_240..=3_960).contains(&age.as_secs())));
        assert!(varied.iter().any(|age| age.as_secs() < 3_400));
        assert!(varied.iter().any(|age| age.as_secs() > 3_800));
    }
}
