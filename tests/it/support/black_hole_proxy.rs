//! TCP proxy that can turn into a black hole: it accepts and reads, and nothing ever comes back.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub struct Proxy {
    pub port: u16,
    swallows: Arc<AtomicBool>,
    holes: Arc<AtomicU64>,
}

impl Proxy {
    /// A proxy in front of a port on this machine. Its threads end with the test's process.
    pub fn start(target: u16) -> Proxy {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let swallows = Arc::new(AtomicBool::new(false));
        let holes = Arc::new(AtomicU64::new(0));
        let (flag, counter) = (Arc::clone(&swallows), Arc::clone(&holes));
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(("127.0.0.1", target)) else { continue };
                let (Ok(client2), Ok(server2)) = (client.try_clone(), server.try_clone()) else {
                    continue;
                };
                for (from, to) in [(client, server), (server2, client2)] {
                    let (flag, counter) = (Arc::clone(&flag), Arc::clone(&counter));
                    std::thread::spawn(move || carry(from, to, &flag, &counter));
                }
            }
        });
        Proxy { port, swallows, holes }
    }

    /// Directions of connections that have lost bytes.
    pub fn holes(&self) -> u64 {
        self.holes.load(Ordering::SeqCst)
    }

    /// From now on bytes vanish, in both directions (or, with `false`, no longer; what vanished is
    /// gone, so that connections of that time are broken and stay silent).
    pub fn swallow(&self, swallows: bool) {
        self.swallows.store(swallows, Ordering::SeqCst);
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream, swallows: &AtomicBool, holes: &AtomicU64) {
    let mut buffer = [0; 16 * 1024];
    // A connection that lost bytes never carries again: its stream has a hole.
    let mut holed = false;
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if !holed && swallows.load(Ordering::SeqCst) {
            holed = true;
            holes.fetch_add(1, Ordering::SeqCst);
        }
        if !holed && to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    if !holed {
        let _ = to.shutdown(Shutdown::Both);
    }
}
