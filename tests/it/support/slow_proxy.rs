//! TCP proxy that makes a server slow: replies arrive later, however many are under way.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::channel;
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

/// Starts a proxy in front of a port on this machine, which delays each reply. Returns its port. Its
/// threads end with the test's process.
pub fn start(target: u16, delay: Duration) -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    spawn(move || {
        for client in listener.incoming().flatten() {
            let Ok(server) = TcpStream::connect(("127.0.0.1", target)) else { continue };
            let (Ok(client2), Ok(server2)) = (client.try_clone(), server.try_clone()) else {
                continue;
            };
            spawn(move || carry(client, server, Duration::ZERO));
            spawn(move || carry(server2, client2, delay));
        }
    });
    port
}

fn carry(mut from: TcpStream, mut to: TcpStream, delay: Duration) {
    let (arrived, due) = channel::<(Instant, Vec<u8>)>();
    let sender = spawn(move || {
        for (arrived, bytes) in due {
            sleep((arrived + delay).saturating_duration_since(Instant::now()));
            if to.write_all(&bytes).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
    let mut buffer = [0; 16 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if arrived.send((Instant::now(), buffer[..count].to_vec())).is_err() {
            break;
        }
    }
    drop(arrived);
    let _ = sender.join();
}
