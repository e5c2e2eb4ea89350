//! HTTP/1.1 client that sends one request per connection.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

pub(crate) fn get(address: SocketAddr, path: &str) -> Reply {
    send(address, &format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"))
}

pub(crate) fn post(address: SocketAddr, path: &str, body: &str) -> Reply {
    let length = body.len();
    send(
        address,
        &format!(
            "POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        ),
    )
}

pub(crate) fn send(address: SocketAddr, request: &str) -> Reply {
    let mut stream = TcpStream::connect(address).expect("it listens");
    // A server that has answered already may have closed its side.
    let _ = stream.write_all(request.as_bytes());
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    let text = String::from_utf8(bytes).expect("UTF-8");
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    Reply {
        status: status.unwrap_or_else(|| panic!("no HTTP answer: {text:?}")),
        head: head.to_ascii_lowercase(),
        body: body.to_owned(),
    }
}
