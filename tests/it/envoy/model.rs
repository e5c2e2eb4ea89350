//! A language model behind Envoy: each request waits until the test answers it.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::support::wait;

/// Requests that nobody has answered: body and connection.
type Waiting = Arc<Mutex<Vec<(String, TcpStream)>>>;

/// The model. Its threads end with the test process.
pub struct Model {
    pub address: SocketAddr,
    waiting: Waiting,
}

impl Model {
    pub fn start() -> Model {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("the bound address");
        let waiting = Waiting::default();
        let shared = Arc::clone(&waiting);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&shared);
                thread::spawn(move || receive(stream, &shared));
            }
        });
        Model { address, waiting }
    }

    /// Waits for the request with this body, and takes it.
    pub fn asked(&self, body: &str) -> Asked {
        wait::until(&format!("{body} at the model"), || {
            let mut waiting = self.waiting.lock().expect("nobody panics while holding it");
            let at = waiting.iter().position(|(held, _)| held == body)?;
            Some(Asked(waiting.remove(at).1))
        })
    }

    /// How many requests wait that nobody took.
    pub fn waiting(&self) -> usize {
        self.waiting.lock().expect("nobody panics while holding it").len()
    }
}

/// A request that waits for its response. The connection closes if it gets none.
pub struct Asked(TcpStream);

impl Asked {
    /// A response of JSON, which used so many tokens.
    pub fn answer(mut self, used: u64) {
        let body = usage(used);
        let head = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: application/json";
        write!(self.0, "{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
            .expect("Envoy reads");
    }

    /// Begins a stream of events.
    pub fn begin_stream(&mut self) {
        let head = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: text/event-stream";
        write!(self.0, "{head}\r\n\r\ndata: {{\"choices\": []}}\n\n").expect("Envoy reads");
    }

    /// Ends the stream, which used so many tokens.
    pub fn end_stream(mut self, used: u64) {
        write!(self.0, "data: {}\n\ndata: [DONE]\n\n", usage(used)).expect("Envoy reads");
    }
}

fn usage(used: u64) -> String {
    format!("{{\"usage\": {{\"total_tokens\": {used}}}}}")
}

/// Reads one request, whose body has a length.
fn receive(mut stream: TcpStream, waiting: &Waiting) {
    let mut bytes = Vec::new();
    loop {
        let mut next = [0; 4_096];
        match stream.read(&mut next) {
            Ok(0) | Err(_) => return,
            Ok(read) => bytes.extend_from_slice(&next[..read]),
        }
        let text = String::from_utf8_lossy(&bytes);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        if length.map_or(Ok(0), str::parse) == Ok(body.len()) {
            let body = body.to_owned();
            waiting.lock().expect("nobody panics while holding it").push((body, stream));
            return;
        }
    }
}
