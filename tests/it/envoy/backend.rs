//! The service behind Envoy: answers 200, or the status in `x-backend-status`, counts requests, and
//! remembers the headers of the last one.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

/// A backend on a port of its own. Its threads end with the test process.
pub struct Backend {
    pub address: SocketAddr,
    served: Arc<AtomicU64>,
    last: Arc<Mutex<Vec<String>>>,
}

impl Backend {
    pub fn start() -> Backend {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("the bound address");
        let (served, last) = (Arc::new(AtomicU64::new(0)), Arc::<Mutex<Vec<String>>>::default());
        let (counted, heads) = (Arc::clone(&served), Arc::clone(&last));
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (counted, heads) = (Arc::clone(&counted), Arc::clone(&heads));
                thread::spawn(move || serve(stream, &counted, &heads));
            }
        });
        Backend { address, served, last }
    }

    /// How many requests got through.
    pub fn served(&self) -> u64 {
        self.served.load(Ordering::SeqCst)
    }

    /// The values of a header in the last request that got through.
    pub fn last_values(&self, name: &str) -> Vec<String> {
        let last = self.last.lock().expect("not poisoned");
        let lines = last.iter().filter_map(|line| line.split_once(": "));
        lines.filter(|(key, _)| *key == name).map(|(_, value)| value.to_owned()).collect()
    }
}

/// Requests have no body, so a request ends where its head does.
fn serve(mut stream: TcpStream, served: &AtomicU64, last: &Mutex<Vec<String>>) {
    let Ok(reading) = stream.try_clone() else { return };
    let (mut status, mut head) = (200_u16, Vec::new());
    for line in BufReader::new(reading).split(b'\n') {
        let Ok(line) = line else { return };
        let line = String::from_utf8_lossy(&line);
        let line = line.trim_end();
        if let Some(asked) = line.strip_prefix("x-backend-status: ") {
            status = asked.parse().unwrap_or(500);
        }
        if !line.is_empty() {
            head.push(line.to_owned());
        } else {
            *last.lock().expect("not poisoned") = std::mem::take(&mut head);
            served.fetch_add(1, Ordering::SeqCst);
            let answer = format!("HTTP/1.1 {status} As Asked\r\ncontent-length: 2\r\n\r\nok");
            if stream.write_all(answer.as_bytes()).is_err() {
                return;
            }
            status = 200;
        }
    }
}
