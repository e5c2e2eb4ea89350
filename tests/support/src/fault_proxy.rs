//! TCP proxy that does to a connection what networks do: delay, lose, cut, reset, swallow, drip,
//! throttle, corrupt, lie, and forget one end.
//!
//! Each direction has its own fault, which takes effect on the next bytes.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::{Duration, Instant};

use socket2::SockRef;

/// What is read at once: more than a whole pipeline of a connection, so that a rewrite sees it whole.
const CHUNK: usize = 64 * 1024;

/// What is passed on in place of what came.
pub type Rewrite = Arc<dyn Fn(&[u8]) -> Vec<u8> + Send + Sync>;

/// What a direction does to the bytes that it carries.
#[derive(Clone, Default)]
pub enum Fault {
    /// Nothing.
    #[default]
    None,
    /// They arrive later, by up to `jitter` more.
    Delay { by: Duration, jitter: Duration },
    /// A black hole: they vanish. A connection that lost bytes never carries again.
    Swallow,
    /// The first of every so many bytes vanishes, and the rest goes on: the stream has holes.
    DropOneIn(u64),
    /// After so many bytes both ends are closed.
    CutAfter(u64),
    /// After so many bytes both ends are reset.
    ResetAfter(u64),
    /// A few bytes at a time.
    Drip { bytes: usize, every: Duration },
    /// So many bytes a second.
    Bandwidth(u64),
    /// One byte of each chunk has a bit turned over.
    Corrupt,
    /// Something else is passed on.
    Rewrite(Rewrite),
}

/// A direction's fault; its number grows with each change, so that counts begin anew.
#[derive(Default)]
struct Direction(Mutex<(u64, Fault)>);

struct Conn {
    ends: [Arc<TcpStream>; 2],
    holed: AtomicBool,
}

#[derive(Default)]
struct Shared {
    ways: [Direction; 2],
    conns: Mutex<Vec<Weak<Conn>>>,
    accepted: AtomicU64,
    random: AtomicU64,
}

/// A running proxy. Its threads end with their connections, the last one with the process.
pub struct Proxy {
    pub port: u16,
    shared: Arc<Shared>,
}

impl Proxy {
    /// In front of a port on this machine.
    pub fn start(target: u16) -> Proxy {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared: Arc<Shared> = Arc::default();
        let held = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                held.accepted.fetch_add(1, Ordering::SeqCst);
                if let Ok(server) = TcpStream::connect(("127.0.0.1", target)) {
                    connect(client, server, &held);
                }
            }
        });
        Proxy { port, shared }
    }

    pub fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    /// What happens to requests from now on.
    pub fn requests(&self, fault: Fault) {
        self.shared.ways[0].set(fault);
    }

    /// What happens to replies from now on.
    pub fn replies(&self, fault: Fault) {
        self.shared.ways[1].set(fault);
    }

    /// Both directions.
    pub fn both(&self, fault: Fault) {
        self.requests(fault.clone());
        self.replies(fault);
    }

    /// All is well again; connections that lost bytes stay silent.
    pub fn heal(&self) {
        self.both(Fault::None);
    }

    /// The server forgets its connections and the client is not told: half-open ones. New ones work.
    pub fn strand(&self) {
        for conn in self.conns() {
            conn.holed.store(true, Ordering::SeqCst);
            let _ = conn.ends[1].shutdown(Shutdown::Both);
        }
    }

    /// Connections that have lost bytes.
    pub fn holed(&self) -> usize {
        self.conns().iter().filter(|conn| conn.holed.load(Ordering::SeqCst)).count()
    }

    /// Connections that came so far.
    pub fn accepted(&self) -> u64 {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    fn conns(&self) -> Vec<Arc<Conn>> {
        self.shared.conns.lock().unwrap().iter().filter_map(Weak::upgrade).collect()
    }
}

impl Direction {
    fn set(&self, fault: Fault) {
        let mut held = self.0.lock().unwrap();
        *held = (held.0 + 1, fault);
    }

    fn get(&self) -> (u64, Fault) {
        self.0.lock().unwrap().clone()
    }
}

impl Shared {
    /// A number below `bound`, the same ones in every run.
    fn random(&self, bound: u64) -> u64 {
        let step = self.random.fetch_add(1, Ordering::Relaxed);
        let mixed = (step + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (mixed ^ (mixed >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9) % bound.max(1)
    }
}

impl Conn {
    /// The last handle that goes sends the reset; the reading halves let go of theirs at once.
    fn reset(&self) {
        // No ordinary end may go before it.
        self.holed.store(true, Ordering::SeqCst);
        for end in &self.ends {
            let _ = SockRef::from(&**end).set_linger(Some(Duration::ZERO));
            let _ = end.shutdown(Shutdown::Read);
        }
    }

    fn close(&self) {
        for end in &self.ends {
            let _ = end.shutdown(Shutdown::Both);
        }
    }
}

/// Bytes on their way, and when they may arrive; an empty vector is the end.
type DelayedBytes = (Instant, Vec<u8>);

fn connect(client: TcpStream, server: TcpStream, shared: &Arc<Shared>) {
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let ends = [Arc::new(client), Arc::new(server)];
    let conn = Arc::new(Conn { ends, holed: AtomicBool::new(false) });
    let mut conns = shared.conns.lock().unwrap();
    conns.retain(|conn| conn.strong_count() > 0);
    conns.push(Arc::downgrade(&conn));
    drop(conns);
    for way in [0, 1] {
        let (send, receive) = channel();
        let (reader, writer) = (Arc::clone(&conn), Arc::clone(&conn));
        let (read, written) = (Arc::clone(shared), Arc::clone(shared));
        thread::spawn(move || take_in(&reader, way, &read, &send));
        thread::spawn(move || pass_on(&writer, way, &written, &receive));
    }
}

/// Reads one direction and decides what becomes of each chunk.
fn take_in(conn: &Conn, way: usize, shared: &Shared, on: &Sender<DelayedBytes>) {
    let mut buffer = vec![0; CHUNK];
    let (mut counted_for, mut carried) = (0, 0_u64);
    while let Ok(count @ 1..) = (&*conn.ends[way]).read(&mut buffer) {
        let (number, fault) = shared.ways[way].get();
        if number != counted_for {
            (counted_for, carried) = (number, 0);
        }
        let mut bytes = buffer[..count].to_vec();
        let mut due = Instant::now();
        let before = carried;
        carried += count as u64;
        match fault {
            Fault::None | Fault::Drip { .. } | Fault::Bandwidth(_) => {}
            Fault::Delay { by, jitter } => {
                let more = shared.random(jitter.as_micros() as u64 + 1);
                due += by + Duration::from_micros(more);
            }
            Fault::Swallow => conn.holed.store(true, Ordering::SeqCst),
            Fault::DropOneIn(every) => {
                let mut at = before;
                bytes.retain(|_| {
                    at += 1;
                    at % every != 0
                });
            }
            Fault::CutAfter(most) | Fault::ResetAfter(most) if carried > most => {
                bytes.truncate(most.saturating_sub(before) as usize);
                let _ = (&*conn.ends[1 - way]).write_all(&bytes);
                if matches!(fault, Fault::CutAfter(_)) {
                    conn.close()
                } else {
                    conn.reset()
                }
                break;
            }
            Fault::CutAfter(_) | Fault::ResetAfter(_) => {}
            Fault::Corrupt => {
                let at = shared.random(count as u64) as usize;
                bytes[at] ^= 1 << shared.random(7);
            }
            Fault::Rewrite(rewrite) => bytes = rewrite(&bytes),
        }
        if !conn.holed.load(Ordering::SeqCst) && !bytes.is_empty() && on.send((due, bytes)).is_err()
        {
            break;
        }
    }
    let _ = on.send((Instant::now(), Vec::new()));
}

/// Writes one direction, each chunk when it is due and as fast as it may.
fn pass_on(conn: &Conn, way: usize, shared: &Shared, from: &Receiver<DelayedBytes>) {
    let mut to = &*conn.ends[1 - way];
    for (due, bytes) in from {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        if bytes.is_empty() {
            break;
        }
        let (piece, pause) = match shared.ways[way].get().1 {
            Fault::Drip { bytes, every } => (bytes, every),
            Fault::Bandwidth(rate) => {
                let took = Duration::from_secs_f64(bytes.len() as f64 / rate as f64);
                (bytes.len(), took)
            }
            _ => (bytes.len(), Duration::ZERO),
        };
        for piece in bytes.chunks(piece.max(1)) {
            thread::sleep(pause);
            if to.write_all(piece).is_err() {
                break;
            }
        }
    }
    // Whoever sits behind a hole is not told that the other end has gone.
    if !conn.holed.load(Ordering::SeqCst) {
        let _ = to.shutdown(Shutdown::Write);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that sends back what it gets, and a client behind a proxy.
    fn echo() -> (Proxy, TcpStream) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                thread::spawn(move || {
                    let mut copy = stream.try_clone().unwrap();
                    std::io::copy(&mut stream, &mut copy)
                });
            }
        });
        let proxy = Proxy::start(port);
        let client = TcpStream::connect(proxy.address()).unwrap();
        client.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        (proxy, client)
    }

    fn back(mut client: &TcpStream, sent: &[u8]) -> std::io::Result<Vec<u8>> {
        client.write_all(sent)?;
        let mut bytes = Vec::new();
        let mut buffer = [0; 64];
        while bytes.len() < sent.len() {
            match client.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => bytes.extend(&buffer[..count]),
                Err(error) if bytes.is_empty() => return Err(error),
                Err(_) => break,
            }
        }
        Ok(bytes)
    }

    #[test]
    fn what_is_not_disturbed_arrives() {
        let (proxy, client) = echo();
        for fault in [
            Fault::None,
            Fault::Delay { by: Duration::from_millis(5), jitter: Duration::from_millis(5) },
            Fault::Drip { bytes: 1, every: Duration::from_millis(1) },
            Fault::Bandwidth(1_000),
        ] {
            proxy.both(fault);
            assert_eq!(back(&client, b"hello").unwrap(), b"hello");
        }
        assert_eq!(proxy.accepted(), 1);
    }

    #[test]
    fn a_hole_stays_a_hole_and_new_connections_work() {
        let (proxy, client) = echo();
        proxy.replies(Fault::Swallow);
        assert!(back(&client, b"hello").is_err());
        proxy.heal();
        assert!(back(&client, b"hello").is_err());
        let again = TcpStream::connect(proxy.address()).unwrap();
        assert_eq!(back(&again, b"hello").unwrap(), b"hello");
        proxy.strand();
        again.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        assert!(back(&again, b"hello").is_err(), "half open");
    }

    #[test]
    fn a_cut_ends_a_reply_in_its_middle_and_a_reset_is_one() {
        let (proxy, client) = echo();
        proxy.replies(Fault::CutAfter(3));
        assert_eq!(back(&client, b"hello").unwrap(), b"hel");
        proxy.replies(Fault::ResetAfter(0));
        let again = TcpStream::connect(proxy.address()).unwrap();
        let reset = back(&again, b"hello").unwrap_err();
        assert_eq!(reset.kind(), std::io::ErrorKind::ConnectionReset);
    }

    #[test]
    fn bytes_are_lost_turned_over_and_replaced() {
        let (proxy, client) = echo();
        proxy.replies(Fault::DropOneIn(5));
        assert_eq!(back(&client, b"hello").unwrap(), b"hell");
        proxy.replies(Fault::Corrupt);
        let wrong = back(&client, b"hello").unwrap();
        assert!(wrong.len() == 5 && wrong != b"hello");
        proxy.replies(Fault::Rewrite(Arc::new(|_| b"other".to_vec())));
        assert_eq!(back(&client, b"hello").unwrap(), b"other");
    }
}
