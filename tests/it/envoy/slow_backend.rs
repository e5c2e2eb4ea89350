//! A service behind Envoy that holds each response until the test ends it, and records how many
//! were open at once. Other paths get an immediate response.
//!
//! The service may learn late that Envoy gave up a request, so each count checks the connections
//! first. Envoy closes the connection before it reports the end of the request, so a request whose
//! slot may already have a new holder is never counted.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

use super::http_client::{SocketState, peek};

/// How an export ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// With an answer of this status.
    Answer(u16),
    /// Without one: the connection is closed.
    Closed,
}

/// Path and connection of each open request.
#[derive(Default)]
struct OpenRequests {
    each: Vec<(String, TcpStream)>,
    most: usize,
}

impl OpenRequests {
    fn forget_the_gone(&mut self) {
        self.each.retain(|(_, stream)| peek(stream) != SocketState::Closed);
    }
}

/// The service. Its threads end with the test process.
pub struct SlowBackend {
    pub address: SocketAddr,
    under_way: Arc<Mutex<OpenRequests>>,
}

impl SlowBackend {
    /// A service for which requests of paths that begin like this are exports.
    pub fn start(prefix: &'static str) -> SlowBackend {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("the bound address");
        let under_way = Arc::<Mutex<OpenRequests>>::default();
        let shared = Arc::clone(&under_way);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&shared);
                thread::spawn(move || serve(&stream, prefix, &shared));
            }
        });
        SlowBackend { address, under_way }
    }

    /// How many are under way.
    pub fn now(&self) -> usize {
        let mut under_way = self.lock();
        under_way.forget_the_gone();
        under_way.each.len()
    }

    /// The most that ever were.
    pub fn most(&self) -> usize {
        self.lock().most
    }

    /// Whether the export with this path is under way.
    pub fn has(&self, path: &str) -> bool {
        self.lock().each.iter().any(|(held, _)| held == path)
    }

    /// Ends the export that began first, if there is one; its path.
    pub fn end_first(&self, end: End) -> Option<String> {
        let mut under_way = self.lock();
        under_way.forget_the_gone();
        if under_way.each.is_empty() {
            return None;
        }
        // Out of the list before Envoy hears of it: from then on its slot may be somebody else's.
        let (path, mut stream) = under_way.each.remove(0);
        drop(under_way);
        // Either fails only where Envoy gave the request up in this moment.
        let _ = match end {
            End::Answer(status) => answer(&mut stream, status),
            End::Closed => stream.shutdown(Shutdown::Both),
        };
        Some(path)
    }

    fn lock(&self) -> MutexGuard<'_, OpenRequests> {
        self.under_way.lock().expect("nobody panics while holding it")
    }
}

/// Requests have no body, so a request ends where its head does.
fn serve(stream: &TcpStream, prefix: &str, under_way: &Mutex<OpenRequests>) {
    let Ok(reading) = stream.try_clone() else { return };
    let mut path = None;
    for line in BufReader::new(reading).lines() {
        let Ok(line) = line else { return };
        if path.is_none() {
            path = line.split(' ').nth(1).map(str::to_owned);
        }
        if !line.is_empty() {
            continue;
        }
        let Ok(mut response_config) = stream.try_clone() else { return };
        match path.take() {
            Some(path) if path.starts_with(prefix) => {
                let mut under_way = under_way.lock().expect("nobody panics while holding it");
                under_way.forget_the_gone();
                under_way.each.push((path, response_config));
                under_way.most = under_way.most.max(under_way.each.len());
            }
            _ => {
                if answer(&mut response_config, 200).is_err() {
                    return;
                }
            }
        }
    }
}

fn answer(stream: &mut TcpStream, status: u16) -> std::io::Result<()> {
    write!(stream, "HTTP/1.1 {status} As Asked\r\ncontent-length: 2\r\n\r\nok")
}
