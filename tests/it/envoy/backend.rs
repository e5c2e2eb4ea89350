//! The service behind Envoy: answers 200, or the status in `x-backend-status`, and counts requests.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

/// A backend on a port of its own. Its threads end with the test process.
pub struct Backend {
    pub address: SocketAddr,
    served: Arc<AtomicU64>,
}

impl Backend {
    pub fn start() -> Backend {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("the bound address");
        let served = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&served);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let counted = Arc::clone(&counted);
                thread::spawn(move || serve(stream, &counted));
            }
        });
        Backend { address, served }
    }

    /// How many requests got through.
    pub fn served(&self) -> u64 {
        self.served.load(Ordering::SeqCst)
    }
}

/// Requests have no body, so a request ends where its head does.
fn serve(mut stream: TcpStream, served: &AtomicU64) {
    let Ok(reading) = stream.try_clone() else { return };
    let mut status = 200_u16;
    for line in BufReader::new(reading).split(b'\n') {
        let Ok(line) = line else { return };
        let line = String::from_utf8_lossy(&line);
        let line = line.trim_end();
        if let Some(asked) = line.strip_prefix("x-backend-status: ") {
            status = asked.parse().unwrap_or(500);
        }
        if line.is_empty() {
            served.fetch_add(1, Ordering::SeqCst);
            let answer = format!("HTTP/1.1 {status} As Asked\r\ncontent-length: 2\r\n\r\nok");
            if stream.write_all(answer.as_bytes()).is_err() {
                return;
            }
            status = 200;
        }
    }
}
