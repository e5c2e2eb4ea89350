//! Registry of open connections. When a new connection would exceed the maximum number, the
//! registry evicts the connection that has been idle longest, so that a client with many
//! connections cannot lock out others.
//!
//! Not here: accepting connections (`listener`), closing a connection (`connection`).

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time;

use super::connection_stats::ConnectionStats;
use crate::domain::Lock;

/// Resolution of the recorded time of the last call on a connection. A call copies the current tick
/// from a shared counter, because reading the clock would slow down every call.
const TICK: Duration = Duration::from_millis(100);

/// Divisor of the number of open connections. The quotient is the number of connections that one
/// scan selects to close next. Because one scan selects 1/64 of the connections, a flood of new
/// connections does not cause a scan for each new connection.
const SCAN_DIVISOR: usize = 64;

/// Time of the last activity on a connection: of its last call, or of its accept if there was no
/// call. Counted in half ticks since startup. The value is even for an accept and odd for a call.
#[derive(Debug)]
pub(crate) struct Activity {
    last_half_tick: AtomicU64,
    half_ticks: Arc<AtomicU64>,
}

impl Activity {
    /// Records the current tick as the time of the last call. Called when a request has been
    /// received completely.
    pub(crate) fn record_call(&self) {
        // Odd: later than a connection that was accepted in this tick and has not sent a call.
        self.last_half_tick.store(self.half_ticks.load(Ordering::Relaxed) | 1, Ordering::Relaxed);
    }

    fn last_activity(&self) -> u64 {
        self.last_half_tick.load(Ordering::Relaxed)
    }
}

/// Registry of the open connections of all workers.
#[derive(Debug)]
pub(crate) struct ConnectionRegistry {
    stats: Arc<ConnectionStats>,
    /// Number of ticks since startup, shifted left by one bit. In a connection's time of last
    /// activity, the free bit is 1 for a call and 0 for an accept, so that a call counts as later
    /// than an accept in the same tick.
    half_ticks: Arc<AtomicU64>,
    connections: Lock<Connections>,
}

#[derive(Debug, Default)]
struct Connections {
    open: HashMap<u64, OpenConnection>,
    next_id: u64,
    /// Connections to close next. Each pair is the id of a connection and the time of its last
    /// activity as of the scan.
    eviction_candidates: VecDeque<(u64, u64)>,
}

#[derive(Debug)]
struct OpenConnection {
    activity: Arc<Activity>,
    evict: oneshot::Sender<()>,
}

/// Registration of one connection, which counts as open until this is dropped.
#[derive(Debug)]
pub(crate) struct Registration {
    registry: Arc<ConnectionRegistry>,
    /// Number of open connections of the connection's worker.
    open_of_worker: Arc<AtomicUsize>,
    id: u64,
    pub(crate) activity: Arc<Activity>,
    /// Resolves when the connection must close to make room for a new one.
    pub(crate) evicted: oneshot::Receiver<()>,
}

impl ConnectionRegistry {
    /// Creates an empty registry, which counts the open connections in `stats`.
    pub(crate) fn new(stats: Arc<ConnectionStats>) -> Arc<Self> {
        let (half_ticks, connections) = (Arc::default(), Lock::default());
        Arc::new(ConnectionRegistry { stats, half_ticks, connections })
    }

    /// Adds a connection, which is removed when the returned registration is dropped. Until then, it
    /// also counts in `open_of_worker`, the number of open connections of its worker.
    pub(crate) fn register(self: &Arc<Self>, open_of_worker: &Arc<AtomicUsize>) -> Registration {
        open_of_worker.fetch_add(1, Ordering::Relaxed);
        self.stats.open.fetch_add(1, Ordering::Relaxed);
        let now = self.half_ticks.load(Ordering::Relaxed);
        let activity = Arc::new(Activity {
            last_half_tick: AtomicU64::new(now),
            half_ticks: Arc::clone(&self.half_ticks),
        });
        let (evict, evicted) = oneshot::channel();
        let mut connections = self.connections.lock();
        let id = connections.next_id;
        connections.next_id += 1;
        connections.open.insert(id, OpenConnection { activity: Arc::clone(&activity), evict });
        drop(connections);
        let open_of_worker = Arc::clone(open_of_worker);
        Registration { registry: Arc::clone(self), open_of_worker, id, activity, evicted }
    }

    /// Returns the number of open connections, not counting evicted ones.
    pub(crate) fn len(&self) -> usize {
        self.connections.lock().open.len()
    }

    /// Evicts the connection that has been idle longest, so that it closes. Returns `false` if no
    /// connection is open.
    pub(crate) fn evict_longest_idle(&self) -> bool {
        let mut connections = self.connections.lock();
        while let Some((id, last)) = connections.eviction_candidates.pop_front() {
            // One that has had a call since the scan is not idle any more.
            if connections.open.get(&id).is_some_and(|open| open.activity.last_activity() == last) {
                return connections.evict(id);
            }
        }
        connections.find_eviction_candidates();
        let first = connections.eviction_candidates.pop_front();
        first.is_some_and(|(id, _)| connections.evict(id))
    }

    /// Advances the tick counter every [`TICK`] for as long as the future is polled.
    pub(crate) async fn run_clock(&self) {
        let mut ticks = time::interval(TICK);
        loop {
            ticks.tick().await;
            self.advance_tick();
        }
    }

    fn advance_tick(&self) {
        self.half_ticks.fetch_add(2, Ordering::Relaxed);
    }
}

impl Connections {
    fn evict(&mut self, id: u64) -> bool {
        // Sending fails if the connection is closing already, which makes room as well.
        self.open.remove(&id).map(|open| open.evict.send(())).is_some()
    }

    /// Fills `eviction_candidates` with the connections that have been idle longest, in the order
    /// in which to close them.
    fn find_eviction_candidates(&mut self) {
        let last = |(id, open): (&u64, &OpenConnection)| (open.activity.last_activity(), *id);
        let mut all: Vec<_> = self.open.iter().map(last).collect();
        let count = (all.len() / SCAN_DIVISOR).max(1);
        if count < all.len() {
            all.select_nth_unstable(count);
            all.truncate(count);
        }
        all.sort_unstable();
        self.eviction_candidates = all.into_iter().map(|(last, id)| (id, last)).collect();
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.registry.connections.lock().open.remove(&self.id);
        self.registry.stats.open.fetch_sub(1, Ordering::Relaxed);
        self.open_of_worker.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_evicted(registration: &mut Registration) -> bool {
        registration.evicted.try_recv().is_ok()
    }

    #[test]
    fn the_longest_idle_connection_is_evicted_first() {
        let registry = ConnectionRegistry::new(Arc::default());
        let mut open: Vec<_> = (0..4).map(|_| registry.register(&Arc::default())).collect();
        registry.advance_tick();
        open[0].activity.record_call();
        registry.advance_tick();
        open[2].activity.record_call();
        // In the same tick as the last call, but without a call of its own.
        let newcomer = registry.register(&Arc::default());
        open.push(newcomer);
        let mut order = Vec::new();
        while registry.evict_longest_idle() {
            order.extend((0..5).filter(|at| is_evicted(&mut open[*at])));
        }
        assert_eq!(order, [1, 3, 0, 4, 2]);
        assert_eq!(registry.len(), 0);
    }

    #[test]
    fn a_call_after_the_scan_prevents_eviction() {
        let registry = ConnectionRegistry::new(Arc::default());
        let mut open: Vec<_> = (0..1_000).map(|_| registry.register(&Arc::default())).collect();
        assert!(registry.evict_longest_idle());
        assert!(is_evicted(&mut open[0]));
        registry.advance_tick();
        open[1].activity.record_call();
        assert!(registry.evict_longest_idle());
        assert!(!is_evicted(&mut open[1]) && is_evicted(&mut open[2]));
    }

    #[test]
    fn a_closed_connection_is_no_longer_registered() {
        let registry = ConnectionRegistry::new(Arc::default());
        let first = registry.register(&Arc::default());
        let mut second = registry.register(&Arc::default());
        drop(first);
        assert_eq!((registry.len(), registry.stats.open.load(Ordering::Relaxed)), (1, 1));
        assert!(registry.evict_longest_idle());
        assert!(is_evicted(&mut second));
        assert!(!registry.evict_longest_idle());
    }
}
